"""Calls off the event loop: what hangs at one thing keeps nobody from another."""

from __future__ import annotations

import ast
import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from swap.threads import Hangs, Lane, NoThread, daemon_thread

ROOT = Path(__file__).parents[2]
LIMIT = 30.0  # seconds; nothing here takes so long unless it is broken


@pytest.fixture
def hangs() -> Iterator[threading.Event]:
    """Set at the end of the test, so that no thread outlives it."""
    event = threading.Event()
    yield event
    event.set()


async def test_a_call_returns_what_it_returns_and_raises_what_it_raises() -> None:
    lane = Lane("look after it", most=4)
    assert await lane.run(lambda: 3, "a", LIMIT) == 3
    with pytest.raises(TimeoutError, match="the file server"):  # an OSError of its own, and not our bound
        await lane.run(lambda: _raise(TimeoutError("the file server")), "a", LIMIT)


async def test_a_call_that_hangs_is_a_passing_fault_and_the_next_about_the_same_doesn_t_wait(
    hangs: threading.Event,
) -> None:
    lane, asked = Lane("look after it", most=4), []
    with pytest.raises(Hangs, match=r"the disk hasn't answered in 0\.05 s; look after it") as fault:
        await lane.run(lambda: hangs.wait(LIMIT), "the disk", 0.05)
    assert fault.value.passing
    with pytest.raises(Hangs, match="the disk was asked 0 s ago and still hasn't answered"):
        await lane.run(lambda: asked.append(1), "the disk", LIMIT)
    assert asked == []
    assert await lane.run(lambda: "well", "another disk", LIMIT) == "well"


async def test_once_the_call_that_hung_has_ended_the_next_is_made_again(hangs: threading.Event) -> None:
    lane = Lane("look after it", most=4)
    with pytest.raises(Hangs):
        await lane.run(lambda: hangs.wait(LIMIT), "the disk", 0.05)
    hangs.set()
    async with asyncio.timeout(LIMIT):
        while True:
            try:
                assert await lane.run(lambda: "back", "the disk", LIMIT) == "back"
                break
            except Hangs:
                await asyncio.sleep(0.01)


async def test_a_lane_has_a_most_and_says_what_it_waits_for(hangs: threading.Event) -> None:
    lane, other = Lane("look after it", most=2), Lane("look after it", most=2)
    calls = [lane.begin(lambda: hangs.wait(LIMIT), about) for about in ("one", "two")]
    with pytest.raises(Hangs, match=r"2 calls haven't been answered \(one, two\); look after it"):
        await lane.run(lambda: 1, "three", LIMIT)
    assert await other.run(lambda: 1, "three", LIMIT) == 1
    hangs.set()
    assert [await call.answer for call in calls] == [True, True]


async def test_however_many_calls_hang_at_one_thing_another_lane_is_asked_all_the_same(hangs: threading.Event) -> None:
    """More than asyncio's own pool has threads, on whatever machine."""
    models, state = Lane("look after it", most=100), Lane("look after it", most=4)
    for n in range(64):
        models.begin(lambda: hangs.wait(LIMIT), f"{n}")
    assert await state.run(lambda: "written", "the journal", LIMIT) == "written"


async def test_who_stops_waiting_leaves_the_call_to_end_by_itself(hangs: threading.Event) -> None:
    lane = Lane("look after it", most=1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await lane.run(lambda: hangs.wait(LIMIT), "the disk", LIMIT)
    with pytest.raises(Hangs, match="1 calls"):  # it is under way, so it counts
        await lane.run(lambda: 1, "other", LIMIT)


async def test_where_no_thread_can_be_had_it_is_said_and_nothing_is_counted_as_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lane, asked = Lane("look after it", most=1), []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda _: _raise(RuntimeError("can't start new thread")))
        with pytest.raises(NoThread, match=r"no more threads \(can't start new thread\); raise the limit") as fault:
            await lane.run(lambda: asked.append(1), "the disk", LIMIT)
        with pytest.raises(NoThread):
            daemon_thread(lambda: asked.append(1), "x")
    assert fault.value.passing
    assert await lane.run(lambda: 1, "the disk", LIMIT) == 1
    assert asked == []


def test_a_call_that_hangs_doesn_t_keep_the_process_from_ending() -> None:
    program = """
import asyncio, threading
from swap.threads import Hangs, Lane

async def main():
    try:
        await Lane("look after it", most=1).run(threading.Event().wait, "the disk", 0.05)
    except Hangs as fault:
        print(fault)

asyncio.run(main())
"""
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, cwd=ROOT, timeout=60, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "the disk hasn't answered in 0.05 s; look after it\n"), ended.stderr


def test_nobody_uses_the_pool_that_all_share() -> None:
    """One thing that hangs would fill it."""
    for file in [file for package in ("swap", "slotproxy", "engines") for file in (ROOT / package).rglob("*.py")]:
        text = file.read_text()
        for node in ast.walk(ast.parse(text)) if "to_thread" in text or "run_in_executor" in text else ():
            used = node.attr if isinstance(node, ast.Attribute) else ""
            allowed = file == ROOT / "swap" / "threads.py"
            assert used not in ("to_thread", "run_in_executor") or allowed, f"{file}: {used}, see swap.threads"


def _raise(error: Exception) -> None:
    raise error
