"""The world in memory, new for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.swap.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    with capture_logs() as world.logs:  # printing them takes longer than all the rest
        yield world
    world.close()
