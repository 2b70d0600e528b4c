"""Engines that come and go while the daemon lives: the one is watched, the other isn't any more."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from swap.moves import Code
from swap.watch import LOOK_EVERY
from tests.simulated_time import in_simulated_time
from tests.swap.world import World, until


@in_simulated_time
async def test_an_engine_that_is_configured_no_more_is_watched_no_more(world: World) -> None:
    world.ninfer.vram = 0
    async with world.serving("strata:current") as controller:
        controller.watches.end(["ninfer"])
        await until(lambda: not world.ninfer._listeners)
        world.ninfer.start_by_hand()
        await asyncio.sleep(3 * LOOK_EVERY)
        assert {unit.engine for unit in controller.state.up} == {"strata"}
        assert world.up == {"strata", "ninfer"}


@in_simulated_time
async def test_an_engine_that_comes_later_is_watched_as_the_others(world: World) -> None:
    world.ninfer.vram = 0
    async with world.serving("strata:current") as controller:
        controller.watches.end(["ninfer"])
        await until(lambda: not world.ninfer._listeners)
        controller.watches.add(["ninfer"])
        await until(lambda: world.ninfer._listeners)
        world.ninfer.start_by_hand()
        await until(lambda: "ninfer stop [stop]" in world.story)
        assert world.up == {"strata"}


@in_simulated_time
async def test_what_was_met_before_is_brought_up_as_it_is_configured_at_the_swap(world: World) -> None:
    async with world.serving("ninfer:v2") as controller:
        assert (await world.swap("strata")).code == Code.SERVES
        world.engines["ninfer"] = replace(world.engines["ninfer"], stop_grace=7.0)
        assert (await world.swap("ninfer:v2")).code == Code.SERVES
        serving = controller.state.serving
        assert serving is not None
        assert controller.hands.known[serving].engine.stop_grace == 7.0
