"""Whether a run had ended before a request was sent to it: proven, or not."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from swap import ends
from swap.ends import Moment, Tried, ended_before
from swap.ports import Status
from tests.simulated_time import in_simulated_time
from tests.swap.world import GONE, World

DIED = 1_000.25  # Unix time
STARTED = "1970-01-01T00:10:00.000000001Z"
RUN = f"key ninfer-id {STARTED}"


@pytest.fixture
def dead(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """NInfer's container, which died at DIED; it is a second later now."""
    finished = "1970-01-01T00:16:40.25Z"
    world.ninfer.sight = replace(
        world.ninfer.sight, status=Status.EXITED, id="ninfer-id", started_at=STARTED, finished_at=finished
    )
    monkeypatch.setattr(ends, "Moment", lambda: Moment(DIED + 1, 51.0))
    return world


def sent(after: float, clock_set: float = 0.0) -> Moment:
    """So many seconds after the death; `clock_set`: by so much, since."""
    return Moment(DIED + after - clock_set, 50.0 + after)


async def unseen(world: World, sent: Moment, run: str = RUN, *, started: float = 0.0) -> bool:
    """Closed a tenth of a second after it was sent. `started`: when we last asked for a start (the death was at 50)."""
    tried = Tried(run, sent, Moment(sent.wall + 0.1, sent.steady + 0.1))
    return await ended_before(world.ninfer, tried, lambda: started)


@in_simulated_time
async def test_sent_after_the_death_it_cannot_have_been_seen_and_before_it_may_have(dead: World) -> None:
    assert await unseen(dead, sent(0.001))
    assert not await unseen(dead, sent(-0.001))
    assert not await unseen(dead, sent(0))


@in_simulated_time
async def test_a_clock_that_was_set_meanwhile_proves_nothing(dead: World) -> None:
    assert not await unseen(dead, sent(0.5, clock_set=-5))
    assert not await unseen(dead, sent(0.5, clock_set=0.2))


@in_simulated_time
@pytest.mark.parametrize("run", ["key other-id " + STARTED, "key ninfer-id 1970-01-01T00:09:00Z", ""])
async def test_the_death_of_another_run_proves_nothing(dead: World, run: str) -> None:
    assert not await unseen(dead, sent(0.5), run)


@in_simulated_time
@pytest.mark.parametrize("status", [Status.RUNNING, Status.EXITED])
@pytest.mark.parametrize(("started", "proven"), [(50.61, True), (50.59, False), (0.0, False)])
async def test_what_was_started_since_was_no_run_to_see_it_if_we_asked_for_it_after_the_close(
    dead: World, status: Status, started: float, proven: bool
) -> None:
    """Whoever else starts it may have done so before the connection was closed."""
    dead.ninfer.sight = replace(dead.ninfer.sight, status=status, started_at="1970-01-01T00:16:40.9Z")
    assert await unseen(dead, sent(0.5), started=started) is proven
    dead.ninfer.sight = replace(dead.ninfer.sight, id="another-id")
    assert not await unseen(dead, sent(0.5), started=started)


@in_simulated_time
async def test_where_nobody_knows_when_it_ended_nothing_is_proven(dead: World) -> None:
    dead.ninfer.sight = replace(dead.ninfer.sight, finished_at="")
    assert not await unseen(dead, sent(0.5))


@in_simulated_time
async def test_a_docker_that_cannot_be_asked_or_hangs_proves_nothing(dead: World) -> None:
    dead.ninfer.fail("look", GONE)
    assert not await unseen(dead, sent(0.5))
    dead.ninfer.hang("look")
    assert not await unseen(dead, sent(0.5))


@in_simulated_time
async def test_a_death_that_docker_has_not_heard_of_yet_is_waited_for_but_not_for_long(dead: World) -> None:
    ended = dead.ninfer.sight
    dead.ninfer.sight = replace(ended, status=Status.RUNNING, finished_at="")
    assert not await unseen(dead, sent(0.5))
    asyncio.get_running_loop().call_later(1.0, lambda: setattr(dead.ninfer, "sight", ended))
    assert await unseen(dead, sent(0.5))


def test_the_moment_of_now_is_by_both_clocks() -> None:
    before = Moment(time.time(), time.monotonic())
    now = Moment()
    assert before.wall <= now.wall
    assert before.steady <= now.steady
    assert before.is_reliable(now)
