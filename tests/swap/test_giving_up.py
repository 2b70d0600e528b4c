"""Giving up: the operator gives an order up, or the daemon ends, at any step."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from engines.spec import GiB
from swap.moves import Awaited, Code, Order, Stage
from swap.tickets import Ended
from tests.simulated_time import in_simulated_time
from tests.swap.world import World, end_of, until

# ------------------------------------------------------------------------------------------------- giving up


async def _given_up(world: World, line: str, label: str = "ninfer") -> Ended:
    """How an order ends that is given up when the story comes to `line`."""
    ticket = world.order(label, trial=True)
    await until(lambda: line in world.story)
    assert world.controller.abort() is not None
    return await end_of(ticket)


@in_simulated_time
async def test_given_up_while_checking_or_staging_nothing_has_happened_to_the_old_engine(world: World) -> None:
    async with world.serving():
        for call, line in (("declared", "ninfer declared"), ("stage", "ninfer stage [stage]")):
            world.story.clear()
            world.ninfer.hang(call)
            asyncio.get_running_loop().call_later(5, world.ninfer.let_go, call)
            ended = await _given_up(world, line, "ninfer:v3")
            assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
            assert "given up by the operator" in ended.text
    assert world.happened == ["ninfer stage [stage]"]


@in_simulated_time
async def test_given_up_while_draining_the_old_engine_is_never_stopped(world: World) -> None:
    async with world.serving():
        world.gate.in_flight = 1
        began = asyncio.get_running_loop().time()
        ended = await _given_up(world, "gate closed")
        assert asyncio.get_running_loop().time() - began < 1  # at once
        assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
    assert world.happened == ["gate closed", "gate open strata"]


@in_simulated_time
@pytest.mark.parametrize("line", ["strata stop [stop]", "ninfer start [start]"])
async def test_given_up_once_the_old_engine_is_stopped_it_is_put_back(world: World, line: str) -> None:
    async with world.serving():
        runtime = world.runtimes[line.split(maxsplit=1)[0]]
        call = line.split()[1]
        runtime.hang(call)
        asyncio.get_running_loop().call_later(5, runtime.let_go, call)
        ended = await _given_up(world, line)
        assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
        assert world.up == {"strata"}
        assert world.gate.state == "open strata"


@in_simulated_time
async def test_given_up_while_memory_isnt_free_or_it_warms_the_wait_ends_at_once(world: World) -> None:
    world.engines["strata"] = replace(world.engines["strata"], vram=20 * GiB)
    world.strata.vram = 20 * GiB
    async with world.serving():
        began = asyncio.get_running_loop().time()
        world.when("strata stop [stop]", lambda: world.card.foreign.update(game=5 * GiB))
        assert (await _given_up(world, "strata stop [stop]")).code == Code.RESTORED
        world.card.foreign.clear()
        world.story.clear()
        world.readiness.never.add("ninfer:local")
        assert (await _given_up(world, "ninfer start [start]")).code == Code.RESTORED
        assert asyncio.get_running_loop().time() - began < 10
    assert world.happened[-3:] == ["ninfer stop [stop]", "strata start [start]", "gate open strata"]


@in_simulated_time
async def test_given_up_in_the_very_moment_that_a_wait_begins_it_ends_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.serving() as controller:
        carry_out = controller.hands.carry_out

        async def and_abort(effect: Awaited, order: Order | None) -> object:
            report = await carry_out(effect, order)
            if isinstance(effect, Stage):
                asyncio.get_running_loop().call_soon(controller.abort)
            return report

        monkeypatch.setattr(controller.hands, "carry_out", and_abort)
        world.gate.in_flight = 1
        async with asyncio.timeout(30):  # the drain's own deadline is later
            assert (await world.swap("ninfer")).code == Code.RESTORED
        assert world.gate.state == "open strata"


@in_simulated_time
async def test_a_restore_goes_on_when_the_order_is_given_up(world: World) -> None:
    async with world.serving() as controller:
        world.ninfer.exits_on_start = 1
        world.strata.hang("start")
        ticket = world.order("ninfer")
        await until(lambda: "strata start [start]" in world.story)
        controller.abort()
        world.strata.let_go("start")
        ended = await end_of(ticket)
        assert ended.code == Code.RESTORED
        assert "exited with code 1" in ended.text


@in_simulated_time
async def test_without_an_order_there_is_nothing_to_give_up(world: World) -> None:
    async with world.serving() as controller:
        assert controller.abort() is None


# ------------------------------------------------------------------------------------------------- the end


@in_simulated_time
@pytest.mark.parametrize(
    ("engine", "call"), [("ninfer", "declared"), ("strata", "stop"), ("ninfer", "start"), ("ninfer", "look")]
)
async def test_the_daemon_ends_at_any_step_and_touches_no_engine(world: World, engine: str, call: str) -> None:
    """And no task is left behind: simulated time sees to that."""
    async with world.serving():
        world.runtimes[engine].hang(call)
        world.order("ninfer")
        await until(lambda: any(line.startswith(f"{engine} {call}") for line in world.story))
        before = world.strata.sight, world.ninfer.sight, len(world.story)
    assert (world.strata.sight, world.ninfer.sight, len(world.story)) == before


@in_simulated_time
async def test_the_daemon_ends_while_a_call_is_overdue(world: World) -> None:
    async with world.serving() as controller:
        world.ninfer.unfinish("start")
        world.order("ninfer")
        await until(lambda: controller.state.unknown)
        await asyncio.sleep(40)
    world.ninfer.finish()
