"""The compose files that we ship, and NInfer's Dockerfile, on a real dockerd with the simulators as the engines.

Only what must be this session's own is laid over a file: names, the host's port, how often its healthcheck is run, and
as much pinned memory as this machine lets anyone have.
"""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engines.artifacts.sample_gguf import write_gguf
from engines.ninfer.sample import write_artifact
from engines.profiles import PROFILES
from engines.spec import ComposeService, Engine, GiB, Pair
from swap.container import DockerContainer
from swap.dockerd import Docker
from swap.drift import differences
from swap.ports import Exit, Status, artifact_paths
from swap.readiness import Readiness
from tests.system.bed import DockerBed, free_port

pytestmark = pytest.mark.docker

FOLDER = Path(__file__).parents[2] / "compose"
LIMIT = 60.0  # seconds for what takes one or two
OURS = """
name: {project}
services:
  {service}:
    container_name: {container}
    ports: !override ["127.0.0.1:{port}:8095"]
    healthcheck: {{interval: 1s}}
    ulimits: {{memlock: {memlock}}}
"""
# The simulators' image has Python only: stand-ins for what the images of the real engine have.
CURL = """
import sys, urllib.request
urllib.request.urlopen(sys.argv[-1], timeout=float(sys.argv[sys.argv.index('--max-time') + 1]))
"""
CMAKE = """
import pathlib, shutil, sys
if '--build' in sys.argv:
    assert sys.argv[-1] == 'ninfer-serve'
    pathlib.Path('/build/apps').mkdir(parents=True)
    shutil.copy('/src/engine', '/build/apps/ninfer-serve')
    pathlib.Path('/build/apps/ninfer-serve').chmod(0o755)
"""
CHMOD = "import pathlib, sys; pathlib.Path(sys.argv[2]).chmod(int(sys.argv[1], 8))"


@dataclass
class Shipped:
    """One of our files under names of this session's own."""

    runtime: DockerContainer
    engine: Engine

    @property
    def pair(self) -> Pair:
        return self.engine.deployed_pair


@pytest.fixture
async def docker(docker_bed: DockerBed) -> AsyncIterator[Docker]:
    docker = Docker(docker_bed.address)
    yield docker
    await docker.close()


@pytest.fixture
async def readiness() -> AsyncIterator[Readiness]:
    readiness = Readiness()
    yield readiness
    await readiness.close()


async def test_ninfers_file_makes_an_engine_that_becomes_ready_and_stops(
    docker_bed: DockerBed, docker: Docker, readiness: Readiness, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    await asyncio.to_thread(write_artifact, models / "qwen3_8_27b_nvfp4.ninfer", 2)
    image = await asyncio.to_thread(ninfer_image, docker_bed)
    env = {"NINFER_IMAGE": image, "NINFER_MODELS": str(models)}
    ninfer = shipped(docker_bed, docker, tmp_path, "ninfer-eval", env)
    await lives_and_stops(docker_bed, readiness, ninfer, models / "qwen3_8_27b_nvfp4.ninfer")


async def test_stratas_file_makes_an_engine_that_becomes_ready_and_stops(
    docker_bed: DockerBed, docker: Docker, readiness: Readiness, tmp_path: Path
) -> None:
    model = tmp_path / "data" / "packs" / "qwen3.8-flash-next.gguf"
    model.parent.mkdir(parents=True)
    await asyncio.to_thread(write_gguf, model)
    image = docker_bed.name("strata") + ":1"
    await asyncio.to_thread(docker_bed.images.strata, image)
    env = {"STRATA_IMAGE": image, "STRATA_DATA": str(tmp_path / "data")}
    strata = shipped(docker_bed, docker, tmp_path, "strata", env)
    await lives_and_stops(docker_bed, readiness, strata, model)
    assert (tmp_path / "data" / "config" / "strata-qwen3.8-flash-next.json").is_file()  # baked from the environment


async def lives_and_stops(bed: DockerBed, readiness: Readiness, shipped: Shipped, artifact: Path) -> None:
    """Staged without a difference, with the artifact seen through its mount; ready, healthy, and stopped in time."""
    runtime, engine = shipped.runtime, shipped.engine
    staged = await runtime.stage(shipped.pair)
    assert staged.recipe is not None
    assert differences(await runtime.declared(shipped.pair), staged.recipe) == ()
    inside = engine.profile.artifacts(staged.recipe.argv, dict(staged.recipe.env))
    assert list(artifact_paths(staged.recipe, inside).values()) == [artifact]
    await runtime.start(staged.id)
    async with asyncio.timeout(LIMIT):
        while not (await readiness.sign(engine) and await readiness.completes(engine)):
            assert (await runtime.look()).running, await runtime.log_tail(staged.id)
            await asyncio.sleep(0.2)
    await asyncio.to_thread(becomes_healthy, bed, staged.id)
    assert await runtime.stop(staged.id, LIMIT) == Exit(0, forced=False)
    assert (await runtime.look()).status is Status.EXITED


def becomes_healthy(bed: DockerBed, id: str) -> None:
    deadline = time.monotonic() + LIMIT
    while (health := bed.state(id)["Health"])["Status"] != "healthy":
        assert time.monotonic() < deadline, health
        time.sleep(0.2)


def shipped(bed: DockerBed, docker: Docker, folder: Path, service: str, env: dict[str, str]) -> Shipped:
    name = service.partition("-")[0]
    container, port, over = bed.name(name), free_port(), folder / "over.yml"
    memlock = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    names = {"project": bed.name("project"), "service": service, "container": container}
    over.write_text(OURS.format(**names, port=port, memlock=memlock))
    pair = Pair(engine=name, name="only", image=next(iter(env.values())), artifacts=(), env=env, files=(over,))
    engine = Engine(
        name=name,
        profile=PROFILES[name],
        url=f"http://127.0.0.1:{port}",
        vram=GiB,
        pairs={"only": pair},
        deployed="only",
        container=container,
        compose=ComposeService(FOLDER / f"{name}.yml", service),
    )
    (folder / "state").mkdir(exist_ok=True)
    return Shipped(DockerContainer(engine, docker, folder / "state"), engine)


def ninfer_image(bed: DockerBed) -> str:
    plain, image = bed.name("ninfer") + ":plain", bed.name("ninfer") + ":local"
    bed.images.ninfer(plain, reads=2)
    bed.images.variant(image, plain, more=[program("curl", CURL)])
    return image


def program(name: str, text: str) -> str:
    """A Dockerfile line that puts a program into an image which has nothing but Python to write it with."""
    file = f"#!/usr/local/bin/python3\n{text}"
    writes = f"import pathlib; p = pathlib.Path('/usr/local/bin/{name}'); p.write_text({file!r}); p.chmod(0o755)"
    return f"RUN {json.dumps(['python3', '-c', writes])}"


# ------------------------------------------------------------------------------------------- ninfer.Dockerfile


def test_ninfers_image_says_what_it_was_built_from_and_takes_the_artifact_both_ways(
    docker_bed: DockerBed, tmp_path: Path
) -> None:
    image = docker_bed.name("built") + ":1"
    said = build(docker_bed, tmp_path, image, COMMIT="1f2e3d4", READS="2")
    assert docker_bed.client.images(name=image), said
    labels = docker_bed.client.inspect_image(image)["Config"]["Labels"]
    assert labels["org.opencontainers.image.revision"] == "1f2e3d4"
    assert labels["slotproxy.ninfer.reads"] == "2"
    assert run(docker_bed, image, "ninfer-serve", "--model", "a.ninfer", "--port", "1") == "got a.ninfer --port 1\n"
    assert run(docker_bed, image, "ninfer-serve", "a.ninfer", "--port", "1") == "got a.ninfer --port 1\n"


def test_without_a_commit_ninfers_image_is_not_built_and_one_is_told_what_to_add(
    docker_bed: DockerBed, tmp_path: Path
) -> None:
    image = docker_bed.name("built") + ":1"
    said = build(docker_bed, tmp_path, image, READS="2")
    assert not docker_bed.client.images(name=image)
    assert "COMMIT is missing: add --build-arg COMMIT=" in said


def build(bed: DockerBed, tree: Path, image: str, **arguments: str) -> str:
    """Build from a source tree whose build is simulated; what Docker said."""
    base = bed.name("toolchain") + ":1"
    tools = {"apt-get": "", "rm": "", "cmake": CMAKE, "chmod": CHMOD}
    bed.images.variant(base, bed.images.python, more=[program(name, text) for name, text in tools.items()])
    (tree / "engine").write_text('#!/bin/sh\necho got "$@"\n')
    lines = bed.client.build(
        path=str(tree),
        dockerfile=str(FOLDER / "ninfer.Dockerfile"),
        buildargs={"BUILD_IMAGE": base, "RUN_IMAGE": base, **arguments},
        tag=image,
        forcerm=True,
        decode=True,
    )
    return "".join(line.get("stream") or line.get("error") or "" for line in lines)


def run(bed: DockerBed, image: str, *command: str) -> str:
    container = bed.client.create_container(image, command=list(command), name=bed.name("run"))["Id"]
    bed.client.start(container)
    assert bed.client.wait(container, timeout=LIMIT)["StatusCode"] == 0
    return bytes(bed.client.logs(container)).decode()
