"""Swaps as the controller drives them: there and back, trials, and who else asks meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from engines.spec import GiB
from swap.journal import FileJournal
from swap.moves import Code, Rest
from swap.ports import Fault, JournalEntry, Outcome, Status
from swap.tickets import Progress
from swap.wish import Wish
from tests.simulated_time import in_simulated_time
from tests.swap.fakes import Behaviour
from tests.swap.world import World, end_of, until

# ------------------------------------------------------------------------------------------------- there and back


async def test_a_swap_there_and_back_blocks_nobody_and_never_has_two_up(world: World) -> None:
    """In real time, so that a blocking call is seen."""
    async with world.serving("strata:current"):
        there = await world.swap("ninfer")
        assert (there.code, there.text, there.serving) == (Code.SERVES, "ninfer:v2 serves", "ninfer:v2")
        assert world.up == {"ninfer"}
        back = await world.swap("strata")
        assert (back.code, back.text, back.serving) == (Code.SERVES, "strata:current serves", "strata:current")
        assert world.up == {"strata"}
    assert world.card.peak == 30 * GiB
    assert world.happened == [
        "gate closed",
        "strata stop [stop]",
        "ninfer start [start]",
        "gate open ninfer",
        "gate closed",
        "ninfer stop [stop]",
        "strata start [start]",
        "gate open strata",
    ]


@in_simulated_time
async def test_the_journal_on_disk_says_what_is_about_to_be_done_when_it_is_done(world: World) -> None:
    path = world.folder / "state" / "journal.json"
    entries: list[JournalEntry | None] = []
    async with world.serving("strata:current"):
        for line in ("ninfer stage [stage]", "strata stop [stop]", "ninfer start [start]"):
            world.when(line, lambda: entries.append(FileJournal(path).read()))
        await world.swap("ninfer:v3", trial=True)
        entries.append(FileJournal(path).read())
    told = [(one.step, one.serving, one.goal, one.order, one.trial) for one in entries if one]
    assert told == [
        ("stage", "strata:current", None, "ninfer:v3", True),
        ("stop", "strata:current", "ninfer:v3", "ninfer:v3", True),
        ("start", "strata:current", "ninfer:v3", "ninfer:v3", True),
        ("serving", "ninfer:v3", None, None, False),
    ]


@in_simulated_time
async def test_memory_is_found_free_twice_and_the_container_looked_at_before_the_start(world: World) -> None:
    async with world.serving():
        await world.swap("ninfer")
    stop, start = world.story.index("strata stop [stop]"), world.story.index("ninfer start [start]")
    between = [line for line in world.story[stop + 1 : start] if not line.startswith("strata")]
    assert between == ["card memory", "card memory", "ninfer look"]


@in_simulated_time
async def test_memory_that_comes_back_late_is_waited_for(world: World) -> None:
    async with world.serving():
        world.card.late = 20
        assert (await world.swap("ninfer")).code == Code.SERVES
    assert world.story.count("card memory") > 20


@in_simulated_time
async def test_requests_in_flight_end_before_the_old_engine_is_stopped(world: World) -> None:
    async with world.serving():
        world.gate.in_flight = 2
        ticket = world.order("ninfer")
        await asyncio.sleep(30)
        assert world.happened == ["gate closed"]
        world.gate.in_flight = 0
        assert (await end_of(ticket)).code == Code.SERVES
    assert world.happened[:2] == ["gate closed", "strata stop [stop]"]


@in_simulated_time
async def test_who_follows_a_swap_sees_each_phase_as_it_passes(world: World) -> None:
    progress: list[Progress] = []
    async with world.serving():
        world.gate.in_flight = 1
        ticket = world.order("ninfer")
        world.when("strata stop [stop]", lambda: world.card.foreign.update(desktop=3 * GiB))
        world.when("ninfer start [start]", lambda: None)
        asyncio.get_running_loop().call_later(10, setattr, world.gate, "in_flight", 0)
        asyncio.get_running_loop().call_later(20, world.card.foreign.clear)
        await end_of(ticket, progress)
    assert list(dict.fromkeys(item.phase for item in progress)) == [
        "checking",
        "staging",
        "draining",
        "stopping",
        "freeing",
        "starting",
        "warming",
    ]
    told = {item.phase: item.text for item in progress if item.text}
    assert told["draining"] == "1 request in flight"
    assert "desktop" in told["freeing"]


@in_simulated_time
async def test_the_pair_that_serves_already_is_left_alone(world: World) -> None:
    async with world.serving():
        assert (await world.swap("strata")).code == Code.SERVES
    assert world.happened == []


@in_simulated_time
async def test_what_never_ran_is_refused_and_nothing_is_changed(world: World) -> None:
    async with world.serving():
        before = world.strata.sight, world.ninfer.sight
        ended = await world.swap("ninfer:v3")
        assert ended.code == Code.REFUSED
        assert ended.text.startswith("refused, nothing was changed: ninfer:v3 never ran on this card")
        assert "--trial" in ended.text
        assert (world.strata.sight, world.ninfer.sight) == before
    assert world.happened == []


# ------------------------------------------------------------------------------------------------- staging


@in_simulated_time
async def test_a_container_that_isnt_as_declared_is_recreated_while_the_old_engine_serves(world: World) -> None:
    async with world.serving():
        declared = replace(world.ninfer.recipes["v2"], healthcheck="CMD curl")
        world.ninfer.recipes["v2"] = declared
        assert (await world.swap("ninfer")).code == Code.SERVES
        assert world.ninfer.sight.recipe == declared
    assert world.happened[:3] == ["ninfer stage [stage]", "gate closed", "strata stop [stop]"]


@in_simulated_time
async def test_without_staging_a_container_that_isnt_as_declared_is_refused(world: World) -> None:
    async with world.serving():
        world.ninfer.recipes["v2"] = replace(world.ninfer.recipes["v2"], healthcheck="CMD curl")
        ended = await world.swap("ninfer", wish=Wish(stage=False))
        assert ended.code == Code.REFUSED
        assert "isn't what ninfer:v2 declares: healthcheck" in ended.text
    assert world.happened == []


@in_simulated_time
async def test_the_holders_own_container_is_recreated_only_when_it_has_stopped(world: World) -> None:
    async with world.serving("ninfer:v2", verified=("ninfer:v2", "ninfer:v3")):
        assert (await world.swap("ninfer:v3")).code == Code.SERVES
        assert world.ninfer.sight.recipe == world.ninfer.recipes["v3"]
    assert world.happened == [
        "gate closed",
        "ninfer stop [stop]",
        "ninfer stage [stage]",
        "ninfer start [start]",
        "gate open ninfer",
    ]


@in_simulated_time
async def test_a_stopped_engine_can_be_staged_by_hand(world: World) -> None:
    v3 = world.engines["ninfer"].pairs["v3"]
    async with world.serving() as controller:
        sight = await controller.stage("ninfer", v3)
        assert (sight.status, sight.recipe) == (Status.CREATED, world.ninfer.recipes["v3"])
        with pytest.raises(Fault, match="strata is running"):
            await controller.stage("strata", world.engines["strata"].deployed_pair)
        world.gate.in_flight = 1
        ticket = world.order("ninfer")
        await until(lambda: world.gate.state == "closed")
        with pytest.raises(Fault, match="a swap to ninfer is under way"):
            await controller.stage("ninfer", v3)
        world.gate.in_flight = 0
        assert (await end_of(ticket)).code == Code.SERVES  # and it was recreated as v2
        assert world.ninfer.sight.recipe == world.ninfer.recipes["v2"]


@in_simulated_time
async def test_what_is_about_to_be_started_again_cant_be_staged_by_hand_and_another_can_at_once(world: World) -> None:
    async with world.serving(verified=("strata:current",)) as controller:
        world.strata.behaviours["strata:1"] = Behaviour(exits=1)
        world.strata.exit(1)
        await until(lambda: controller.state.doing == Rest(controller.state.number, 5))
        with pytest.raises(Fault, match="strata:current is being started"):
            await controller.stage("strata", world.engines["strata"].deployed_pair)
        async with asyncio.timeout(1):  # not after the back-off
            await controller.stage("ninfer", world.engines["ninfer"].pairs["v3"])


# ------------------------------------------------------------------------------------------------- evidence


@in_simulated_time
async def test_a_trial_that_serves_is_evidence_and_needs_none_the_next_time(world: World) -> None:
    async with world.serving():
        assert (await world.swap("ninfer:v3", trial=True)).code == Code.SERVES
        (evidence,) = [one for one in world.ledger.evidence() if one.pair == "ninfer:v3"]
        assert (evidence.outcome, evidence.how, evidence.card) == (Outcome.SERVED, "trial", await world.card.identity())
        assert evidence.tokens == world.engines["ninfer"].trial_tokens
        assert evidence.extra["artifact_version"] == 3
        assert evidence.vram_peak == 30 * GiB
        assert (await world.swap("strata")).code == Code.SERVES
        assert (await world.swap("ninfer:v3")).code == Code.SERVES
        assert world.ledger.evidence()[-1].how == "swap"


@in_simulated_time
async def test_how_long_it_took_from_start_to_ready_is_in_the_evidence(world: World) -> None:
    async with world.serving():
        world.readiness.never.add("ninfer:local")
        world.when(
            "ninfer start [start]", lambda: asyncio.get_running_loop().call_later(8, world.readiness.never.clear)
        )
        await world.swap("ninfer")
        ready_in = world.ledger.evidence()[-1].ready_in
        assert ready_in is not None
        assert 8 <= ready_in < 9


@in_simulated_time
async def test_a_trial_that_fails_is_recorded_and_takes_nothing_from_what_was_verified(world: World) -> None:
    async with world.serving() as controller:
        world.ninfer.behaviours["ninfer:v3"] = Behaviour(exits=1, log="error: no such object\n")
        ended = await world.swap("ninfer:v3", trial=True)
        assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
        assert world.evidence_of("ninfer:v3") == [Outcome.FAILED]
        assert "error: no such object" in world.ledger.evidence()[-1].reason
        assert (await world.swap("ninfer:v3")).code == Code.REFUSED
        assert (await world.swap("ninfer:v2")).code == Code.SERVES
        serving = controller.state.serving
        assert serving is not None
        assert controller.hands.known[serving].verified is not None


@in_simulated_time
async def test_a_verified_pair_that_fails_once_stays_verified(world: World) -> None:
    async with world.serving() as controller:
        world.ninfer.exits_on_start = 134
        assert (await world.swap("ninfer")).code == Code.RESTORED
        assert world.evidence_of("ninfer:v2") == [Outcome.SERVED, Outcome.FAILED]
        (known,) = [known for unit, known in controller.hands.known.items() if unit.label == "ninfer:v2"]
        assert known.verified is not None
        assert (await world.swap("ninfer")).code == Code.SERVES


@in_simulated_time
async def test_what_comes_back_by_itself_or_by_a_restore_makes_no_evidence(world: World) -> None:
    async with world.serving():
        world.ninfer.exits_on_start = 1
        await world.swap("ninfer")
        world.strata.exit(1)
        await until(lambda: world.gate.story.count("open strata") == 3)
        assert world.evidence_of("strata:current") == [Outcome.SERVED]


# ------------------------------------------------------------------------------------------------- several orders


@in_simulated_time
async def test_an_order_of_the_same_pair_joins_and_ends_as_the_first_does(world: World) -> None:
    async with world.serving():
        world.gate.in_flight = 1
        first = world.order("ninfer")
        await until(lambda: world.gate.state == "closed")
        second = world.order("ninfer")
        world.gate.in_flight = 0
        progress: list[Progress] = []
        ends = [await end_of(first), await end_of(second, progress)]
        assert [end.code for end in ends] == [Code.SERVES, Code.SERVES]
        assert progress[0].text == "joined the swap to ninfer:v2"
    assert world.happened.count("ninfer start [start]") == 1


@in_simulated_time
async def test_an_order_of_another_pair_or_a_trial_is_refused_while_one_is_under_way(world: World) -> None:
    async with world.serving():
        world.gate.in_flight = 1
        first = world.order("ninfer")
        await until(lambda: world.gate.state == "closed")
        for other in (world.order("strata"), world.order("ninfer:v3", trial=True), world.order("ninfer", trial=True)):
            ended = await end_of(other)
            assert ended.code == Code.REFUSED
            assert "a swap to ninfer:v2 is under way" in ended.text
        world.gate.in_flight = 0
        assert (await end_of(first)).code == Code.SERVES


@in_simulated_time
async def test_an_order_goes_on_when_nobody_follows_it_any_more(world: World) -> None:
    async with world.serving():
        world.order("ninfer")
        await until(lambda: world.gate.state == "open ninfer")


# ------------------------------------------------------------------------------------------------- orders in the dark


@in_simulated_time
async def test_on_the_first_day_nothing_is_verified_and_a_trial_needs_nothing_to_fall_back_on(world: World) -> None:
    async with world.running(verified=()):
        assert world.gate.state.startswith("refusing: nothing runs; strata:current can't be started")
        assert (await world.swap("strata")).code == Code.REFUSED
        assert world.gate.state.startswith("refusing: nothing runs")
        assert (await world.swap("strata", trial=True)).code == Code.SERVES
        assert world.gate.state == "open strata"


@in_simulated_time
async def test_a_failed_trial_with_nothing_to_fall_back_on_ends_dark(world: World) -> None:
    async with world.running(verified=()):
        world.strata.exits_on_start = 1
        ended = await world.swap("strata", trial=True)
        assert (ended.code, ended.serving) == (Code.DARK, None)
        assert ended.text == "dark, nothing serves: strata:current exited with code 1"
        assert world.gate.state == "refusing: strata:current exited with code 1"
        assert (await world.swap("strata", trial=True)).code == Code.SERVES


@in_simulated_time
async def test_an_order_in_the_dark_doesnt_wait_for_the_back_off(world: World) -> None:
    async with world.serving(verified=("strata:current",)) as controller:
        world.strata.behaviours["strata:1"] = Behaviour(exits=1)
        world.strata.exit(1)
        await until(lambda: controller.state.attempt == 6)
        async with asyncio.timeout(10):
            assert (await world.swap("ninfer", trial=True)).code == Code.SERVES


@in_simulated_time
async def test_an_order_cuts_short_a_wait_on_the_way_to_something_else(world: World) -> None:
    async with world.serving():
        world.readiness.never.add("strata:1")
        world.strata.exit(1)
        await until(lambda: world.up == {"strata"})
        async with asyncio.timeout(10):  # not the start deadline
            assert (await world.swap("ninfer")).code == Code.SERVES
        assert world.up == {"ninfer"}
