"""What the next daemon makes of what the one before was doing when it was killed."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from swap.boot import ARRIVE
from swap.controller import OWED_EVERY
from swap.moves import Code
from swap.ports import JournalEntry
from tests.simulated_time import in_simulated_time
from tests.swap.world import GONE, World, until


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@in_simulated_time
async def test_a_stop_that_the_killed_daemon_had_asked_for_is_finished_and_undone(world: World) -> None:
    sight = world.strata.run(world.strata.recipes["current"])
    world.strata.told = sight.id
    world.journal.write(
        JournalEntry("stop", serving="strata:current", unit="strata:current", unit_id=sight.id, when=now())
    )
    async with world.running():
        assert world.gate.state == "open strata"
        assert world.strata.sight.started_at != sight.started_at
    calls = [call.split()[0] for call in world.strata.calls if call.split()[0] in ("stop", "start")]
    assert calls == ["stop", "start"]


@in_simulated_time
async def test_a_stop_that_never_reached_the_engine_leaves_it_untouched(world: World) -> None:
    sight = world.strata.run(world.strata.recipes["current"])
    world.journal.write(
        JournalEntry("stop", serving="strata:current", unit="strata:current", unit_id=sight.id, when=now())
    )
    async with world.running():
        assert world.gate.state == "open strata"
        assert world.strata.sight == sight


@in_simulated_time
async def test_a_start_that_was_on_its_way_is_waited_for_and_no_second_engine_started(world: World) -> None:
    world.journal.write(JournalEntry("start", serving="strata:current", unit="ninfer:v2", when=now()))
    asyncio.get_running_loop().call_later(ARRIVE / 2, world.ninfer.start_by_hand)
    async with world.running():
        assert world.gate.state == "open ninfer"
    assert not any("strata start" in line for line in world.story)


@in_simulated_time
async def test_of_two_that_run_the_very_container_that_served_is_kept(world: World) -> None:
    world.card.total *= 2
    served = world.ninfer.run(world.ninfer.recipes["v2"])
    world.strata.run(world.strata.recipes["current"])
    world.journal.write(JournalEntry("serving", serving="ninfer:v2", serving_id=served.id))
    async with world.running():
        assert world.gate.state == "open ninfer"
        assert world.up == {"ninfer"}
        assert world.ninfer.sight == served


@in_simulated_time
@pytest.mark.parametrize("way", ["a trial", "adopt"])
async def test_what_was_refused_stays_refused_until_a_trial_or_adopt(world: World, way: str) -> None:
    async with world.serving():
        world.strata.stop_by_hand()
        await until(lambda: world.gate.state.startswith("refusing"))
        world.ninfer.run(world.ninfer.recipes["v3"])
        await until(lambda: "isn't verified" in world.gate.state)
        await asyncio.sleep(1)
    world.rebuild()
    async with world.running(verified=()) as controller:
        assert "was refused before slotproxy was started again" in world.gate.state
        (unit,) = controller.state.up
        if way == "a trial":
            assert (await world.swap("ninfer:v3", trial=True)).code == Code.SERVES
        else:
            controller.proven(unit)
        await until(lambda: world.gate.state == "open ninfer")
    world.rebuild()
    async with world.running(verified=()):
        assert world.gate.state == "open ninfer"


@in_simulated_time
async def test_what_was_refused_stays_refused_though_the_journal_took_it_late(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.serving():
        world.strata.stop_by_hand()
        await until(lambda: world.gate.state.startswith("refusing"))
        with monkeypatch.context() as full:
            full.setattr(world.journal, "write", lambda _: (_ for _ in ()).throw(GONE))
            world.ninfer.run(world.ninfer.recipes["v3"])
            await until(lambda: "isn't verified" in world.gate.state)
            await asyncio.sleep(1)
        await asyncio.sleep(OWED_EVERY + 1)
    world.rebuild()
    async with world.running(verified=()):
        assert "was refused before slotproxy was started again" in world.gate.state
