"""When the engine fails: the same again, with a growing back-off, and after some failures another verified one."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from swap.controller import STEADY
from swap.fallback import Fallback
from swap.moves import Choose, Code
from swap.ports import CannotStart, CardUnknown, Outcome
from tests.simulated_time import in_simulated_time
from tests.swap.fakes import Behaviour
from tests.swap.world import GONE, World, until


def starts(world: World) -> list[str]:
    return [line.split()[0] for line in world.happened if "start [" in line]


async def exits(world: World, engine: str) -> None:
    run = world.runtimes[engine].sight.started_at
    world.runtimes[engine].exit(134)
    await until(lambda: world.gate.state != f"open {engine}" or world.runtimes[engine].sight.started_at != run)


async def fails(world: World, times: int, engine: str = "strata") -> None:
    """It exits as often, each time once it serves."""
    for _ in range(times):
        await until(lambda: world.gate.state == f"open {engine}")
        await exits(world, engine)


@in_simulated_time
async def test_an_engine_that_fails_three_times_in_a_row_leaves_the_card_to_another_verified_one(world: World) -> None:
    async with world.serving() as controller:
        await fails(world, 3)
        await until(lambda: world.gate.state == "open ninfer")
        assert starts(world) == ["strata", "strata", "ninfer"]
        assert world.up == {"ninfer"}
        said = [one.why for one in controller.hands.decisions.last() if one.kind == "fallback"]
        assert said == [
            "strata:current has failed 3 times (strata:current exited with code 134), and ninfer:v2 is verified"
        ]


@in_simulated_time
async def test_failures_that_lie_far_apart_are_no_row(world: World) -> None:
    async with world.serving():
        for _ in range(3):
            await fails(world, 2)
            await until(lambda: world.gate.state == "open strata")
            await asyncio.sleep(STEADY + 1)
        assert set(starts(world)) == {"strata"}


@in_simulated_time
async def test_the_first_failure_is_mended_at_once_and_the_next_ones_after_a_while(world: World) -> None:
    async with world.serving():
        began = asyncio.get_running_loop().time()
        await fails(world, 1)
        await until(lambda: world.gate.state == "open strata")
        at_once = asyncio.get_running_loop().time() - began
        await fails(world, 1)
        await until(lambda: world.gate.state == "open strata")
        later = asyncio.get_running_loop().time() - began - at_once
        assert at_once < 5 <= later


@in_simulated_time
async def test_where_no_other_is_verified_the_same_is_tried_again_and_again_ever_more_slowly(world: World) -> None:
    async with world.serving(verified=("strata:current",)):
        world.strata.behaviours["strata:1"] = Behaviour(exits=1, log="error: CUDA error\n")
        world.strata.exit(1)
        await asyncio.sleep(1500)
        tries = len(starts(world))
        assert 6 <= tries <= 12
        assert "error: CUDA error" in world.controller.state.dark
        assert world.gate.state.startswith("closed")  # clients wait
        del world.strata.behaviours["strata:1"]
        await until(lambda: world.gate.state == "open strata")


@in_simulated_time
async def test_the_same_container_comes_back_without_journal_or_card(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.serving():
        monkeypatch.setattr(world.journal, "write", lambda _: (_ for _ in ()).throw(GONE))
        world.card.unknown = CardUnknown("the driver is gone", "reboot", passing=True)
        await fails(world, 2)
        await until(lambda: world.gate.state == "open strata")
        assert starts(world) == ["strata", "strata"]


@in_simulated_time
async def test_both_may_fail_and_the_first_gets_the_card_again(world: World) -> None:
    async with world.serving():
        world.strata.behaviours["strata:1"] = Behaviour(exits=1)
        world.ninfer.behaviours["ninfer:local"] = Behaviour(exits=1)
        world.strata.exit(1)
        await asyncio.sleep(400)
        assert set(starts(world)) == {"strata", "ninfer"}
        assert world.gate.state.startswith("closed")
        del world.strata.behaviours["strata:1"]
        await until(lambda: world.gate.state == "open strata")


@in_simulated_time
async def test_what_time_cant_mend_leaves_the_card_to_another_at_once(world: World) -> None:
    world.strata.fail("start", CannotStart("no such device", "install the toolkit"))
    async with world.running():
        assert world.gate.state == "open ninfer"


@in_simulated_time
async def test_who_was_given_up_for_what_time_may_mend_is_tried_again_where_the_other_cant_start(world: World) -> None:
    async with world.serving():
        world.strata.fail("start", CannotStart("no such device", "install the toolkit"), times=99)
        world.ninfer.behaviours["ninfer:local"] = Behaviour(exits=1)
        world.strata.exit(1)
        await asyncio.sleep(1500)
        assert world.gate.state.startswith("closed")  # clients wait
        assert len(starts(world)) < 30
        del world.ninfer.behaviours["ninfer:local"]
        await until(lambda: world.gate.state == "open ninfer")


@in_simulated_time
async def test_where_time_mends_neither_a_person_must(world: World) -> None:
    async with world.serving():
        for runtime in (world.strata, world.ninfer):
            runtime.fail("start", CannotStart("no such device", "install the toolkit"))
        world.strata.exit(1)
        await until(lambda: world.gate.state.startswith("refusing"))
        assert starts(world) == ["strata", "ninfer"]


@in_simulated_time
async def test_who_is_revoked_meanwhile_isnt_started_again(world: World) -> None:
    async with world.serving(verified=("strata:current",)):
        world.strata.behaviours["strata:1"] = Behaviour(exits=1)
        world.strata.exit(1)
        await asyncio.sleep(30)
        await world.record("strata:current", Outcome.REVOKED, reason="it answers nonsense")
        await until(lambda: world.gate.state.startswith("refusing"))
        assert "no other pair is verified" in world.gate.state


@in_simulated_time
@pytest.mark.parametrize("beside", ["strata:current", ""])
async def test_what_runs_unproven_and_dies_before_it_serves_isnt_started_by_us(world: World, beside: str) -> None:
    world.ninfer.run(world.ninfer.recipes["v3"])
    world.readiness.never.add("ninfer:v3")
    asyncio.get_running_loop().call_later(5.0, world.ninfer.exit, 1)
    async with world.running(verified=(beside,) if beside else ()):
        if beside:
            assert world.gate.state == "open strata"
        else:
            assert world.gate.state.startswith("refusing")
            assert "ninfer:v3 isn't verified, and is started by nobody but you" in world.gate.state
        await asyncio.sleep(60)
    assert "start" not in world.ninfer.calls


@in_simulated_time
async def test_pauses_grow_also_where_it_serves_for_a_moment_each_time(world: World) -> None:
    async with world.serving(verified=("strata:current",)):
        clock = asyncio.get_running_loop().time
        pauses: list[float] = []
        for _ in range(4):
            began = clock()
            await exits(world, "strata")
            await until(lambda: world.gate.state == "open strata")
            pauses.append(clock() - began)
        assert pauses == pytest.approx([0, 5, 10, 20], abs=2)


@in_simulated_time
async def test_only_a_run_that_itself_serves_long_enough_ends_the_row(world: World) -> None:
    async with world.serving(verified=("strata:current",)):
        await asyncio.sleep(STEADY * 0.7)
        await exits(world, "strata")
        await until(lambda: world.gate.state == "open strata")
        await asyncio.sleep(STEADY * 0.6)  # longer than the rest of what the first run would have needed
        began = asyncio.get_running_loop().time()
        await exits(world, "strata")
        await until(lambda: world.gate.state == "open strata")
        assert asyncio.get_running_loop().time() - began >= 5


@in_simulated_time
async def test_an_order_ends_a_choice_that_takes_long(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def reads_for_long(*_: object) -> None:
        await asyncio.sleep(600)

    async with world.serving() as controller:
        await exits(world, "strata")
        await until(lambda: world.gate.state == "open strata")
        monkeypatch.setattr(Fallback, "choose", reads_for_long)
        await exits(world, "strata")
        await until(lambda: isinstance(controller.state.doing, Choose))
        async with asyncio.timeout(60):
            assert (await world.swap("ninfer")).code == Code.SERVES


@in_simulated_time
async def test_an_order_in_the_dark_is_not_kept_waiting_by_a_choice(world: World) -> None:
    async with world.serving(verified=("strata:current", "ninfer:v2")):
        world.strata.behaviours["strata:1"] = Behaviour(exits=1)
        world.strata.exit(1)
        await asyncio.sleep(3)
        ended = await world.swap("ninfer")
        assert (ended.code, ended.serving) == (Code.SERVES, "ninfer:v2")


# ------------------------------------------------------------------------------------------------- useless


@in_simulated_time
async def test_a_useless_engine_is_stopped_and_started_anew_while_requests_wait(world: World) -> None:
    async with world.serving() as controller:
        run = world.strata.sight.started_at
        serving = controller.state.serving
        assert serving is not None
        controller.useless(serving, "3 times in a row: 503 unavailable")
        await until(lambda: world.gate.state.startswith("closed"))
        await until(lambda: world.gate.state == "open strata")
        assert world.strata.sight.started_at != run
        story = [line for line in world.happened if not line.startswith("card")]
        assert story[0].startswith("gate closed")
        assert [line for line in story if "[" in line] == ["strata stop [stop]", "strata start [start]"]


@in_simulated_time
async def test_an_engine_that_is_useless_again_and_again_leaves_the_card_to_another(world: World) -> None:
    async with world.serving() as controller:
        for _ in range(3):
            await until(lambda: world.gate.state == "open strata")
            serving = controller.state.serving
            assert serving is not None
            controller.useless(serving, "503")
            await until(lambda: world.gate.state != "open strata")
        await until(lambda: world.gate.state == "open ninfer")
        assert world.up == {"ninfer"}


@in_simulated_time
async def test_news_of_a_useless_engine_that_serves_no_more_changes_nothing(world: World) -> None:
    async with world.serving() as controller:
        serving = controller.state.serving
        assert serving is not None
        assert (await world.swap("ninfer")).code == Code.SERVES
        story = list(world.happened)
        controller.useless(serving, "503")
        await asyncio.sleep(1)
        assert world.happened == story
        assert replace(controller.state, number=0).serving is not None
