"""When a real container's run has ended, and what that proves of requests that were sent to it."""

from __future__ import annotations

import time

import pytest

from swap.container import DockerContainer
from swap.ends import Moment, Tried, ended_before
from swap.known import Known, run_of
from swap.moves import Unit
from tests.system.workshop import Workshop

pytestmark = pytest.mark.docker


async def started(workshop: Workshop, runtime: DockerContainer) -> str:
    """A run of it, as the gate names it."""
    await runtime.start((await runtime.look()).id)
    sight = await runtime.look()
    assert sight.recipe is not None
    known = Known(workshop.engine(None), None, sight.recipe)
    known.saw(sight)
    return run_of(Unit("engine", "plain", "key"), known)


async def test_a_run_that_was_killed_has_seen_what_was_sent_before_at_most(workshop: Workshop) -> None:
    runtime = workshop.open()
    staged = await runtime.stage(workshop.pair())
    assert staged.finished_at == ""
    run = await started(workshop, runtime)
    before = Tried(run, Moment(), Moment())
    await workshop.client("kill", staged.id)
    assert not await ended_before(runtime, before, lambda: 0.0)  # waits until the death shows
    after = Tried(run, Moment(), Moment())
    assert await ended_before(runtime, after, lambda: 0.0)

    asked = time.monotonic()
    following = await started(workshop, runtime)
    assert await ended_before(runtime, after, lambda: asked)
    assert not await ended_before(runtime, after, lambda: 0.0)  # somebody else started it, and may have done so before
    assert not await ended_before(runtime, before, lambda: asked)
    await workshop.client("kill", staged.id)
    assert not await ended_before(runtime, Tried(following, after.sent, after.closed), lambda: asked)
    assert not await ended_before(runtime, after, lambda: asked)  # only the last death is known
