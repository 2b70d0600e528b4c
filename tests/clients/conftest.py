"""One house for all that are asked in this process: what a test does to it, it undoes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.house import House


@pytest.fixture(scope="session")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with House(tmp_path_factory.mktemp("clients")) as built:
        yield built
