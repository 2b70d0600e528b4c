"""The contract of every runtime, on containers that a real dockerd runs and a real compose v2 makes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engines.profiles import PROFILES
from engines.spec import ComposeService, Engine, GiB, Pair
from swap.container import DockerContainer
from swap.dockerd import Docker
from tests.swap.runtime_contract import ENGINE, RuntimeBed, RuntimeContract
from tests.system.bed import DockerBed

pytestmark = pytest.mark.docker

SERVICE = """
services:
  engine:
    image: ${IMAGE}
    container_name: %s
    command: [python3, /engine.py, "${MODE}"]
    environment: {GREETING: "${GREETING}"}
    volumes: ["%s:/engine.py:ro"]
    network_mode: none
"""


@pytest.fixture
async def docker(docker_bed: DockerBed) -> AsyncIterator[Docker]:
    docker = Docker(docker_bed.address)
    yield docker
    await docker.close()


class TestDockerContainer(RuntimeContract):
    @pytest.fixture
    def bed(self, docker_bed: DockerBed, docker: Docker, tmp_path: Path) -> RuntimeBed:
        name, image = docker_bed.name("engine"), docker_bed.images.python
        (tmp_path / "engine.py").write_text(ENGINE)
        file = docker_bed.compose(tmp_path, SERVICE % (name, tmp_path / "engine.py"))

        def pair(label: str, mode: str, greeting: str = "hello", image: str = image) -> Pair:
            env = {"IMAGE": image, "MODE": mode, "GREETING": greeting}
            return Pair(engine=name, name=label, image=image, artifacts=(), env=env)

        pairs = {
            "hello": pair("hello", "polite"),
            "changed": pair("changed", "polite", "changed"),
            "deaf": pair("deaf", "deaf"),
            "failing": pair("failing", "failing"),
            "missing": pair("missing", "polite", image=f"{docker_bed.prefix}-no-such-image:1"),
        }
        engine = Engine(
            name=name,
            profile=PROFILES["openai"],
            url="http://127.0.0.1:1",
            vram=GiB,
            pairs=pairs,
            deployed="hello",
            container=name,
            compose=ComposeService(file, "engine"),
        )

        async def kill(id: str) -> None:
            await asyncio.to_thread(docker_bed.client.kill, id)

        (tmp_path / "state").mkdir()
        return RuntimeBed(runtime=DockerContainer(engine, docker, tmp_path / "state"), kill=kill, **pairs)
