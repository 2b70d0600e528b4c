"""Told to stop in the middle of a swap: before *stopping* it is undone, from there on left to the next daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from swap.leaving import leave
from swap.moves import Code
from swap.state import phase
from swap.tickets import Ended, Ticket
from swap.wish import Wish
from tests.simulated_time import in_simulated_time
from tests.swap.world import World, now, until

ALL = ("strata:current", "ninfer:v2", "ninfer:v3")
TAKEN_BACK = {
    "checking": lambda world: world.ninfer.hang("declared"),
    "draining": lambda world: setattr(world.gate, "in_flight", 1),
}
LEFT = {
    "stopping": lambda world: world.strata.hang("stop"),
    "freeing": lambda world: world.card.foreign.update(desktop=8 * 1024**3),
    "starting": lambda world: world.ninfer.hang("start"),
    "warming": lambda world: world.readiness.never.add("ninfer:v3"),
}


async def _to(world: World, where: str, hold: Callable[[World], object]) -> Ticket:
    """A swap to a pair that has to be staged first, held in that phase."""
    hold(world)
    ticket = world.order("ninfer:v3")
    await until(lambda: phase(world.controller.state) == where)
    return ticket


def told(ticket: Ticket) -> list[Ended]:
    return [item for item in _drained(ticket) if isinstance(item, Ended)]


def _drained(ticket: Ticket) -> list[object]:
    items: list[object] = []
    while not ticket.news.empty():
        items.append(ticket.news.get_nowait())
    return items


@pytest.mark.parametrize("where", TAKEN_BACK)
@in_simulated_time
async def test_before_anything_was_stopped_it_is_undone_and_who_waits_is_told(where: str, world: World) -> None:
    async with world.serving(verified=ALL) as controller:
        ticket = await _to(world, where, TAKEN_BACK[where])
        began = now()
        await leave(controller)
        assert now() - began < 1
        assert controller.state.serving is not None
        (ended,) = told(ticket)
    assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
    assert ended.text == "strata:current serves again: given up by the operator; slotproxy is stopping"
    assert [line for line in world.happened if "stop" in line or "start" in line] == []
    assert world.up == {"strata"}


@in_simulated_time
async def test_an_order_from_the_dark_that_is_being_checked_is_given_up_and_its_caller_told(world: World) -> None:
    """Nobody serves, and nothing was asked of anybody."""
    async with world.running(verified=()) as controller:
        await until(lambda: controller.state.person)
        world.ninfer.hang("declared")
        ticket = world.order("ninfer:v2", trial=True)
        await until(lambda: phase(controller.state) == "checking")
        await leave(controller)
        (ended,) = told(ticket)
    assert ended.code == Code.DARK
    assert "given up by the operator; slotproxy is stopping" in ended.text
    assert world.up == set()


@in_simulated_time
async def test_a_staging_under_way_is_waited_for_and_the_swap_given_up_then(world: World) -> None:
    async with world.serving(verified=ALL) as controller:
        ticket = await _to(world, "staging", lambda world: world.ninfer.hang("stage"))
        async with asyncio.TaskGroup() as tasks:
            leaving = tasks.create_task(leave(controller))
            await asyncio.sleep(5)
            assert not leaving.done()
            world.ninfer.let_go("stage")
        (ended,) = told(ticket)
    assert ended.code == Code.RESTORED
    assert world.up == {"strata"}


@in_simulated_time
async def test_a_trial_that_was_proven_is_answered_before_it_is_left(world: World) -> None:
    """Its way back isn't begun any more: what was tried serves on."""
    async with world.serving(verified=ALL[:2]) as controller:
        world.when("gate open ninfer", lambda: setattr(world.gate, "in_flight", 1))
        ticket = world.order("ninfer:v3", trial=True, wish=Wish(and_back=True))
        await until(lambda: "gate open ninfer" in world.story)
        await leave(controller)
        (ended,) = told(ticket)
    assert (ended.code, ended.serving) == (Code.RESTORED, "ninfer:v3")
    assert world.up == {"ninfer"}


@pytest.mark.parametrize("where", LEFT)
@in_simulated_time
async def test_from_stopping_on_it_is_left_to_the_next_daemon_which_ends_with_one_engine(
    where: str, world: World
) -> None:
    async with world.serving(verified=ALL) as controller:
        ticket = await _to(world, where, LEFT[where])
        began = now()
        await leave(controller)
        assert now() == began
        assert told(ticket) == []
    for runtime in world.runtimes.values():
        runtime._orders.hang.clear()
    world.card.foreign.clear()
    world.readiness.never.clear()
    world.rebuild()
    async with world.running(verified=()) as controller:
        await until(lambda: controller.state.serving)
        assert len(world.up) == 1
        assert world.gate.state == f"open {min(world.up)}"
