"""What a Docker daemon that is restarted, or killed, does to what runs and to who listens. It is a private one."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from tempfile import mkdtemp

import pytest

from swap.container import DockerContainer
from swap.dockerd import Docker
from swap.ports import Change, RuntimeEvent, Status, Unreachable
from tests.system.bed import DockerBed
from tests.system.private import PrivateDocker, lacking
from tests.system.workshop import Workshop

pytestmark = pytest.mark.docker

PATIENCE = 60.0


@pytest.fixture(scope="module")
def private() -> Iterator[PrivateDocker]:
    if why := lacking():
        pytest.skip(why)
    with PrivateDocker(Path(mkdtemp(prefix="spp-")) / "docker") as private:
        yield private
    private.folder.parent.rmdir()


@pytest.fixture(scope="module")
def bed(private: PrivateDocker, compose_binary: Path) -> Iterator[DockerBed]:
    bed = DockerBed(private.address)
    yield bed
    bed.client.close()


@pytest.fixture
async def engine(bed: DockerBed, tmp_path: Path) -> AsyncIterator[tuple[DockerContainer, str]]:
    """An engine, and its container's id."""
    docker, name = Docker(bed.address), bed.name("engine")
    shop = Workshop(bed, tmp_path, docker, name, bed.images.python, bed.name("project"))
    shop.write()
    runtime = shop.open()
    made = await runtime.stage(shop.pair())
    yield runtime, made.id
    await docker.close()


async def test_a_docker_that_goes_down_tells_a_stop_as_by_hand_and_then_its_events_end(
    private: PrivateDocker, engine: tuple[DockerContainer, str]
) -> None:
    """Case 40: which is why a stop that isn't ours is only one by hand where Docker goes on after it."""
    runtime, container = engine
    seen: list[RuntimeEvent] = []
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_until_they_end(runtime, seen))
        await runtime.start(container)
        async with asyncio.timeout(PATIENCE):
            while not seen or "serving" not in await runtime.log_tail(container):  # noqa: ASYNC110  # nothing tells
                await asyncio.sleep(0.05)
        await asyncio.to_thread(private.end)
    assert seen[:2] == [RuntimeEvent(Change.STARTED, container), RuntimeEvent(Change.STOPPED, container)]
    with pytest.raises(Unreachable, match="there is no such socket") as told:
        await runtime.look()
    assert told.value.passing
    await asyncio.to_thread(private.start)
    assert (await runtime.look()).status is Status.EXITED


async def _until_they_end(runtime: DockerContainer, seen: list[RuntimeEvent]) -> None:
    try:
        async with aclosing(runtime.events()) as events, asyncio.timeout(PATIENCE):
            async for event in events:
                seen.append(event)  # noqa: PERF401  # what came before they end is what is asked for
    except Unreachable as end:
        assert "ended" in str(end)  # noqa: PT017  # by then all has been seen


async def test_what_runs_when_docker_is_killed_is_ended_by_the_docker_that_comes_next(
    private: PrivateDocker, engine: tuple[DockerContainer, str]
) -> None:
    runtime, container = engine
    await runtime.start(container)
    await asyncio.to_thread(private.restart, signal.SIGKILL)
    sight = await runtime.look()
    assert (sight.id, sight.status) == (container, Status.EXITED)
    await runtime.start(container)
    assert (await runtime.look()).running
