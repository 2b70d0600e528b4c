"""A disk that hangs holds up only what is on it. In real time: a simulated clock stands still while a thread works."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from structlog.testing import capture_logs

from slotproxy import config, daemon
from slotproxy.claims import CannotServe, state_folder
from swap import controller as controller_module
from swap import hashing, statefolder, threads
from swap.durable import replace_file
from swap.moves import Code
from swap.threads import NoThread
from tests.slotproxy.office import Office
from tests.slotproxy.programs import quick_house
from tests.swap.box import FILES
from tests.swap.world import until

T = TypeVar("T")

LIMIT = 60.0  # seconds; nothing here takes so long unless it is broken


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    with capture_logs():
        office = Office(tmp_path)
        yield office
    office.close()


@pytest.fixture
def hangs() -> Iterator[threading.Event]:
    """Set in the end, so that no thread outlives the test."""
    event = threading.Event()
    yield event
    event.set()


def hanging(call: Callable[..., T], hangs: threading.Event, only: object = None) -> Callable[..., T]:
    """The same call, which hangs; with `only`, where that is its first argument."""

    def hung(first: object, *more: object) -> T:
        if only in (None, first):
            hangs.wait(LIMIT)
        return call(first, *more)

    return hung


async def test_a_model_disk_that_hangs_keeps_nobody_from_another_pair_its_journal_and_its_evidence(
    office: Office, hangs: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with office.serving():
        stuck = office.models / FILES["v3"]
        monkeypatch.setattr(hashing, "STALL_LIMIT", 0.3)
        monkeypatch.setattr(hashing, "_look_at", hanging(hashing._look_at, hangs, only=stuck))
        refused = await office.swapped("ninfer", "v3", trial=True)
        assert refused[-1]["code"] == Code.REFUSED
        assert f"the disk of {stuck} hasn't answered in 0.3 s (look after it)" in refused[-1]["text"]
        plans = await asyncio.gather(*(office.desk.plan("ninfer", "v3", trial=True) for _ in range(64)))
        assert not any(plan["allowed"] for plan in plans)
        await until(lambda: hung_calls() == 1)  # none hangs beside it
        ended = (await office.swapped("ninfer", "v2"))[-1]
        assert (ended["code"], ended["text"]) == (Code.SERVES, "ninfer:v2 serves")
        assert office.ledger.evidence()[-1].pair == "ninfer:v2"
        assert (await office.desk.status())["warnings"] == []


async def test_a_state_disk_that_hangs_refuses_swaps_and_is_waited_for_once(
    office: Office, hangs: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with office.serving():
        monkeypatch.setattr(statefolder, "LIMIT", 0.3)
        monkeypatch.setattr(statefolder, "replace_file", hanging(replace_file, hangs))
        said = f"the disk of the state folder {office.folder}/state "
        assert f"{said}hasn't answered in 0.3 s" in (await office.swapped("ninfer", "v2"))[-1]["text"]
        again = (await office.swapped("ninfer", "v2"))[-1]
        assert again["code"] == Code.REFUSED
        assert "still hasn't answered" in again["text"]
        assert (await office.desk.status())["warnings"][0].startswith(said)
        assert office.slots.view().engine == "strata"
        hangs.set()
        await until(lambda: not hung_calls())
        assert (await office.swapped("ninfer", "v2"))[-1]["code"] == Code.SERVES


async def test_what_died_is_started_again_while_the_journal_hangs_and_what_comes_late_is_written_over(
    office: Office, hangs: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_module, "WRITE_LIMIT", 0.3)
    journal = office.folder / "state" / "journal.json"
    async with office.serving() as controller:
        office.journal.write = hanging(office.journal.write, hangs)  # type: ignore[method-assign]
        run = office.strata.sight.started_at
        office.strata.exit(139)
        await until(lambda: office.strata.sight.started_at != run and controller.state.serving)
        hangs.set()
        await until(lambda: step_in(journal) == "start")  # it comes now, and isn't true any more
        controller.write_again()
        await until(lambda: step_in(journal) == "serving")


def step_in(journal: Path) -> str:
    return str(json.loads(journal.read_text())["step"])


def hung_calls() -> int:
    return len([thread for thread in threading.enumerate() if thread.name == "off-loop"])


async def test_a_daemon_whose_state_disk_hangs_at_start_says_so_and_ends(
    tmp_path: Path, hangs: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = await asyncio.to_thread(lambda: config.load(quick_house(tmp_path)))
    monkeypatch.setattr(daemon, "START_LIMIT", 0.3)
    monkeypatch.setattr(daemon, "state_folder", hanging(state_folder, hangs))
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the test's own stay
    with pytest.raises(CannotServe, match=r"the disk of the state folder .* hasn't answered in 0\.3 s; look after it"):
        await daemon.serve(settings)


async def test_a_daemon_that_gets_no_thread_at_start_says_so_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise NoThread("this machine gives slotproxy no more threads", "raise the limit", passing=True)

    settings = await asyncio.to_thread(lambda: config.load(quick_house(tmp_path)))
    monkeypatch.setattr(threads, "daemon_thread", none)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the test's own stay
    with pytest.raises(CannotServe, match="no more threads; raise the limit"):
        await daemon.serve(settings)
