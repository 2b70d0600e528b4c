"""Bugs of ours and disks that fail cost a step, evidence, or the swap; never the daemon nor an engine."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from engines.ninfer.sample import write_artifact
from swap import recorder
from swap.controller import OWED_EVERY
from swap.moves import Code
from swap.ports import Fault, Mount, Outcome
from tests.simulated_time import in_simulated_time
from tests.swap.world import FILES, World, until


def spoil_journal(world: World) -> Path:
    """Its next draft can't be written."""
    draft = world.folder / "state" / "journal.json.new"
    draft.mkdir()
    return draft


# ------------------------------------------------------------------------------------------------- bugs


@in_simulated_time
@pytest.mark.parametrize(
    ("engine", "call", "says"),
    [("ninfer", "stage", "stage broke"), ("strata", "stop", "not be stopped"), ("ninfer", "start", "did not start")],
)
async def test_a_bug_in_a_hand_fails_that_step_and_not_the_daemon(
    world: World, monkeypatch: pytest.MonkeyPatch, engine: str, call: str, says: str
) -> None:
    async def bug(*_: object) -> None:
        raise KeyError("a bug")

    async with world.serving():
        with monkeypatch.context() as patch:
            patch.setattr(world.runtimes[engine], call, bug)
            ended = await world.swap("ninfer:v3", trial=True)
        assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
        assert says in ended.text
        assert (await world.swap("ninfer")).code == Code.SERVES


@in_simulated_time
@pytest.mark.parametrize("step", ["checking", "draining", "freeing", "warming"])
async def test_a_bug_in_a_wait_fails_that_step_and_not_the_daemon(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async def bug(*_: object, **__: object) -> None:
        raise KeyError("a bug")

    async with world.serving():
        owner, name = {
            "checking": (world.checker, "judge"),
            "draining": (world.gate, "drained"),
            "freeing": (world.card, "memory"),
            "warming": (world.readiness, "completes"),
        }[step]
        with monkeypatch.context() as patch:
            if step == "freeing":
                world.when("strata stop [stop]", lambda: patch.setattr(owner, name, bug))
            else:
                patch.setattr(owner, name, bug)
            ended = await world.swap("ninfer")
        assert "KeyError('a bug')" in ended.text
        await until(lambda: world.gate.state == "open strata")
        assert (await world.swap("ninfer")).code == Code.SERVES


# ------------------------------------------------------------------------------------------------- disks


@in_simulated_time
async def test_a_full_disk_under_the_ledger_costs_the_evidence_and_says_so(world: World) -> None:
    async with world.serving():
        world.ledger.full = Fault("the ledger can't be written: no space left", "make room")
        ended = await world.swap("ninfer:v3", trial=True)
        assert (ended.code, ended.serving) == (Code.SERVES, "ninfer:v3")
        why = "the ledger can't be written: no space left; make room"
        assert ended.text == f"ninfer:v3 serves; no evidence was written: {why}"
        assert world.gate.state == "open ninfer"
        assert world.evidence_of("ninfer:v3") == []


async def test_a_disk_that_hangs_under_the_ledger_holds_up_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In real time: a simulated clock stands still while a thread works."""
    hangs = threading.Event()
    monkeypatch.setattr(recorder, "WRITE_LIMIT", 0.2)
    monkeypatch.setattr(world.ledger, "record", lambda evidence: hangs.wait(60) or None)
    async with world.running(verified=()):
        ended = await world.swap("strata", trial=True)
        assert ended.code == Code.SERVES
        assert "no evidence was written: the ledger's disk hasn't answered in 0.2 s" in ended.text
        hangs.set()


@in_simulated_time
async def test_files_that_were_replaced_while_it_started_are_no_evidence(world: World) -> None:
    path = world.folder / "models" / FILES["v3"]
    async with world.serving():
        world.when("ninfer start [start]", lambda: write_artifact(path, 3, payload=b"other"))
        ended = await world.swap("ninfer:v3", trial=True)
        assert ended.code == Code.SERVES
        assert f"no evidence was written: {path} changed since it was checked" in ended.text
        assert world.evidence_of("ninfer:v3") == []


@in_simulated_time
async def test_a_configuration_that_it_wrote_while_it_started_is_no_part_of_the_evidence_and_is_named(
    world: World,
) -> None:
    baked = world.folder / "config" / "strata-strata.json"
    recipe = world.strata.recipes["current"]
    mounts = (*recipe.mounts, Mount(str(baked.parent), "/data/config", read_only=False))
    world.strata.recipes["current"] = replace(recipe, mounts=mounts)
    world.when("strata start [start]", lambda: write_baked(baked))
    async with world.running(verified=()):
        ended = await world.swap("strata", trial=True)
        assert ended.code == Code.SERVES
        assert f"no evidence was written: strata wrote {baked} while it started; swap away" in ended.text
        assert world.evidence_of("strata:current") == []


def write_baked(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"model": "/models/strata.gguf"}')


@in_simulated_time
@pytest.mark.parametrize("label", ["ninfer:v2", "ninfer:v3"])
async def test_without_a_journal_nothing_is_changed(world: World, label: str) -> None:
    async with world.serving():
        before = world.strata.sight, world.ninfer.sight
        draft = spoil_journal(world)
        ended = await world.swap(label, trial=True)
        assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
        assert "the journal can't be written" in ended.text
        assert "make room" in ended.text
        assert (world.strata.sight, world.ninfer.sight) == before
        assert world.gate.state == "open strata"
        draft.rmdir()
        assert (await world.swap("ninfer")).code == Code.SERVES


@in_simulated_time
async def test_a_start_that_the_journal_forbids_is_no_failure_of_the_pair(world: World) -> None:
    async with world.serving():
        world.when("strata stop [stop]", lambda: spoil_journal(world))
        ended = await world.swap("ninfer:v3", trial=True)
        assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
        assert "ninfer start" not in " ".join(world.story)
        assert not [one for one in world.ledger.evidence() if one.outcome is Outcome.FAILED]


@in_simulated_time
async def test_what_served_comes_back_without_a_journal(world: World) -> None:
    async with world.serving():
        world.ninfer.exits_on_start = 1
        world.when("ninfer start [start]", lambda: spoil_journal(world))
        ended = await world.swap("ninfer")
        assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
        world.strata.exit(1)
        await until(lambda: world.gate.story.count("open strata") == 3)


@in_simulated_time
async def test_who_serves_is_written_down_as_soon_as_the_disk_takes_it(world: World) -> None:
    async with world.serving():
        drafts: list[Path] = []
        world.when("ninfer start [start]", lambda: drafts.append(spoil_journal(world)))
        assert (await world.swap("ninfer")).code == Code.SERVES
        entry = world.journal.read()
        assert entry is not None
        assert entry.serving == "strata:current"
        drafts[0].rmdir()
        await asyncio.sleep(OWED_EVERY + 1)
        entry = world.journal.read()
        assert entry is not None
        assert (entry.step, entry.serving) == ("serving", "ninfer:v2")
