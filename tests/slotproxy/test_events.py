"""`slotctl events` over a real control socket: what was decided, and what comes."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from slotproxy import events_desk, render
from slotproxy.cli_events import events
from slotproxy.control_client import Control, Lost
from swap.decisions import KEPT, Decisions, Kind
from tests.slotproxy.office import Office
from tests.slotproxy.test_control import served
from tests.swap.world import until

ADOPTED = "adopted          strata:current serves, adopted as it runs (it ran already)"


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    with capture_logs():
        office = Office(tmp_path)
        yield office
    office.close()


async def slotctl(office: Office, *, json: bool = False, follow: bool = False, last: int = 50) -> int:
    async with Control(office.desk.settings.control) as control:
        try:
            return await events(control, argparse.Namespace(json=json, follow=follow, last=last))
        except Lost as lost:
            return lost.code


@asynccontextmanager
async def following(office: Office) -> AsyncIterator[asyncio.Task[int]]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(slotctl(office, json=True, follow=True))
        yield task
        task.cancel()


async def test_events_show_when_what_and_why(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    async with served(office):
        assert await slotctl(office) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "adopted" in line]
    day, clock, rest = line.split(maxsplit=2)
    assert (len(day), clock[-1], rest) == (10, "Z", ADOPTED)


async def test_with_json_all_is_one_document_and_last_says_how_many(
    office: Office, capsys: pytest.CaptureFixture[str]
) -> None:
    async with served(office):
        for count in range(3):
            office.hands.decisions.add(Kind.DISK, f"news {count}", why="it is full", free=count)
        await slotctl(office, json=True, last=2)
    said = json.loads(capsys.readouterr().out)["events"]
    assert [(one["kind"], one["text"], one["why"], one["facts"]) for one in said] == [
        ("disk", "news 1", "it is full", {"free": 1}),
        ("disk", "news 2", "it is full", {"free": 2}),
    ]


async def test_follow_goes_on_with_what_comes_until_the_daemon_ends(
    office: Office, capsys: pytest.CaptureFixture[str]
) -> None:
    heard: list[dict[str, Any]] = []

    def listened() -> bool:
        heard.extend(json.loads(line) for line in capsys.readouterr().out.splitlines())
        return bool(heard)

    async with served(office) as (_, stop), following(office) as task:
        await until(listened)
        heard.clear()
        office.hands.decisions.add(Kind.HOLD, "requests are held")
        await until(listened)
        assert [one["kind"] for one in heard] == ["hold"]
        stop.set()
        assert await task == 6


def test_every_kind_fits_its_column() -> None:
    lines = [render.event({"when": "", "kind": kind.value, "text": "|"}) for kind in Kind]
    assert len({line.index("|") for line in lines}) == 1


async def test_who_stops_following_is_forgotten(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_desk, "TICK", 0.05)
    async with served(office):
        before = len(office.hands.decisions._listeners)
        async with following(office):
            await until(lambda: len(office.hands.decisions._listeners) == before + 1)
        await until(lambda: len(office.hands.decisions._listeners) == before)


async def test_who_follows_and_doesnt_read_costs_a_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_desk, "BEHIND", 3)
    decisions = Decisions()
    decisions.add(Kind.HOLD, "the first")
    following = events_desk.events(decisions, last=KEPT, follow=True)
    assert (await anext(following))["event"]["text"] == "the first"
    for count in range(10):
        decisions.add(Kind.HOLD, f"news {count}")
    assert [(await anext(following))["event"]["text"] for _ in range(3)] == ["news 7", "news 8", "news 9"]
    await following.aclose()
