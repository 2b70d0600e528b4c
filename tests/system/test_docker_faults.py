"""The Docker runtime when the way to the daemon hangs, breaks, or leads nowhere. The daemon behind it is real."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path

import pytest

from engines.spec import ComposeService
from swap import dockerd
from swap.container import DockerContainer
from swap.dockerd import Docker
from swap.ports import CannotStart, Change, Exit, RuntimeEvent, Sight, Status, Unfinished, Unreachable
from tests.system.flaky_docker import FlakyWay
from tests.system.workshop import Workshop

pytestmark = pytest.mark.docker

PATIENCE = 60.0
NOBODY = 65534


@pytest.fixture
async def way(docker_address: str, tmp_path: Path) -> AsyncIterator[FlakyWay]:
    if not docker_address.startswith("unix://"):
        pytest.skip("the flaky way leads to a unix socket")
    way = FlakyWay(Path(docker_address.removeprefix("unix://")), tmp_path / "flaky.sock")
    async with way.serve():
        yield way


@pytest.fixture
async def docker(way: FlakyWay) -> AsyncIterator[Docker]:
    docker = Docker(way.address, changing=1.0)
    yield docker
    await docker.close()


@pytest.fixture
async def staged(workshop: Workshop) -> Sight:
    return await workshop.open().stage(workshop.pair())


@pytest.fixture
async def runtime(staged: Sight, workshop: Workshop, docker: Docker) -> DockerContainer:
    """Over the flaky way, with the container there and every connection tried once."""
    compose = ComposeService(workshop.file, "engine")
    runtime = DockerContainer(workshop.engine(compose), docker, workshop.folder / "state")
    assert await runtime.look() == staged
    return runtime


async def test_a_question_is_asked_again_once(runtime: DockerContainer, staged: Sight, way: FlakyWay) -> None:
    """Case 40: a broken connection on a read."""
    way.reset(f"/{runtime.name}/json")
    assert await runtime.look() == staged
    way.reset(f"/{runtime.name}/json", times=2)
    with pytest.raises(Unreachable, match="broke the connection") as told:
        await runtime.look()
    assert told.value.passing
    assert await runtime.look() == staged


async def test_a_start_whose_answer_was_lost_is_not_asked_again(
    runtime: DockerContainer, staged: Sight, way: FlakyWay
) -> None:
    """Case 40: a broken connection on a change: we look first."""
    way.lose("/start")
    await runtime.start(staged.id)
    assert way.count("/start") == 1
    assert (await runtime.look()).running


async def test_a_start_that_docker_never_saw_is_asked_again(
    runtime: DockerContainer, staged: Sight, way: FlakyWay
) -> None:
    way.reset("/start")
    await runtime.start(staged.id)
    assert way.count("/start") == 1
    assert (await runtime.look()).running


async def test_a_stop_whose_answer_was_lost_is_not_asked_again(
    runtime: DockerContainer, staged: Sight, way: FlakyWay, workshop: Workshop
) -> None:
    await runtime.start(staged.id)
    await _serving(runtime, staged.id)
    way.lose("/stop")
    assert await runtime.stop(staged.id, PATIENCE) == Exit(0, forced=False)
    assert way.count("/stop") == 1


async def test_a_start_that_passes_its_bound_is_unfinished_until_the_call_has_ended(
    runtime: DockerContainer, staged: Sight, way: FlakyWay
) -> None:
    """Case 35: its twin, the start."""
    way.hang("/start")
    with pytest.raises(Unfinished, match="didn't end within 1 s") as told:
        await runtime.start(staged.id)
    assert (await runtime.look()).status is Status.CREATED  # looking goes on meanwhile
    with pytest.raises(CannotStart, match="busy"):
        await runtime.start(staged.id)
    way.let_go()
    async with asyncio.timeout(PATIENCE):
        await told.value.ended
    assert (await runtime.look()).running
    await runtime.start(staged.id)


async def test_a_start_that_docker_answers_and_loses_is_not_taken_for_one(
    runtime: DockerContainer, staged: Sight, docker: Docker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 35: as Docker answers a start while a stop is pending."""

    async def lost(id: str) -> None:
        """What `start` does while somebody else's stop is pending (measured): success, and nothing happens."""

    monkeypatch.setattr(docker, "start", lost)
    with pytest.raises(CannotStart, match="it didn't") as told:
        await runtime.start(staged.id)
    assert told.value.passing


async def test_case_40_each_way_of_not_being_served_by_docker_has_its_line(
    docker_address: str, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = Docker(docker_address)
    assert await docker.image(workshop.image) is not None
    with (
        another_user(),
        pytest.raises(Unreachable, match=r"no permission to use Docker at .*; run as root, or") as told,
    ):
        await docker.image(workshop.image)
    assert not told.value.passing
    assert await docker.image(workshop.image) is not None
    await docker.close()

    monkeypatch.setattr(dockerd, "OLDEST_API", (1, 999))
    with pytest.raises(Unreachable, match=r"is too old: it speaks API 1\.\d+; upgrade Docker Engine to") as told:
        await docker.image(workshop.image)
    assert not told.value.passing

    with pytest.raises(Unreachable, match="there is no such socket; start it") as told:
        await Docker("unix:///nowhere.sock").image(workshop.image)
    assert told.value.passing


@contextmanager
def another_user() -> Iterator[None]:
    """This process, all its threads, as a user who may not use Docker (root alone can become one)."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


async def test_a_docker_that_doesnt_answer_stops_no_other_question(
    runtime: DockerContainer, staged: Sight, way: FlakyWay, workshop: Workshop
) -> None:
    impatient = Docker(way.address, reading=0.5)
    await impatient.image(workshop.image)
    way.hang("/images/")
    with pytest.raises(Unreachable, match="doesn't answer") as told:
        await impatient.image(workshop.image)
    assert told.value.passing
    assert await impatient.image(workshop.image) is not None
    way.let_go()
    await impatient.close()


async def test_a_slow_stop_outlasts_the_sdks_own_time_out(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 35: the time-out says nothing; a look shows that it was stopped, and had to be killed."""
    monkeypatch.setattr(dockerd, "GIVING_UP", 1.0)
    workshop.edit("polite", "deaf")
    runtime = workshop.open()
    staged = await runtime.stage(workshop.pair())
    await runtime.start(staged.id)
    await _serving(runtime, staged.id)
    assert await runtime.stop(staged.id, 2.5) == Exit(137, forced=True)


async def test_events_that_break_are_told_and_can_be_asked_for_anew(
    runtime: DockerContainer, staged: Sight, way: FlakyWay
) -> None:
    async with aclosing(runtime.events()) as events, asyncio.timeout(PATIENCE):
        await runtime.start(staged.id)
        assert await anext(events) == RuntimeEvent(Change.STARTED, staged.id)
        way.cut()
        with pytest.raises(Unreachable, match="event stream"):
            await anext(events)
    async with aclosing(runtime.events()) as events, asyncio.timeout(PATIENCE):
        await runtime.stop(staged.id, PATIENCE)
        assert (await anext(events)).change in (Change.STOPPED, Change.DIED)


async def test_listening_can_be_ended_while_docker_doesnt_answer(runtime: DockerContainer, way: FlakyWay) -> None:
    way.hang("/events")
    events = runtime.events()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(events), 0.5)
    await events.aclose()
    way.let_go()


async def test_a_stop_by_hand_is_told_before_the_death(
    runtime: DockerContainer, staged: Sight, workshop: Workshop
) -> None:
    await runtime.start(staged.id)
    await _serving(runtime, staged.id)
    async with aclosing(runtime.events()) as events, asyncio.timeout(PATIENCE):
        await workshop.client("stop", staged.id)
        assert await anext(events) == RuntimeEvent(Change.STOPPED, staged.id)
        assert await anext(events) == RuntimeEvent(Change.DIED, staged.id, 0)


async def test_no_docker_is_one_clear_line_and_ends_when_docker_is_there(
    workshop: Workshop, tmp_path: Path, docker_address: str
) -> None:
    """Case 40: gone, as an address that leads nowhere and as one where nobody listens."""
    own = tmp_path / "later.sock"
    docker = Docker(f"unix://{own}")
    with pytest.raises(Unreachable, match=r"later\.sock can't be reached: there is no such socket; start it") as told:
        await docker.image(workshop.image)
    assert told.value.passing
    async with FlakyWay(Path(docker_address.removeprefix("unix://")), own).serve():
        assert await docker.image(workshop.image) is not None
    with pytest.raises(Unreachable, match="nothing listens there"):
        await docker.image(workshop.image)
    await docker.close()


async def _serving(runtime: DockerContainer, id: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            if "serving" in await runtime.log_tail(id):
                return
            await asyncio.sleep(0.05)
