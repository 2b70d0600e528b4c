"""The event log on disk: what outlives the daemon, and what a bad disk can't hurt."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from slotproxy import event_file
from slotproxy.config_notify import NotifySettings
from slotproxy.event_file import EventFile, append, earlier
from slotproxy.event_log import event_log
from slotproxy.events_desk import plain, read
from swap.decisions import Decision, Decisions, Kind
from swap.statefolder import StateFolder
from swap.threads import NoThread
from tests.slotproxy.test_changes import OLD as SETTINGS
from tests.swap.world import until

SOON = 20.0  # seconds that anything here may take on a busy machine


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


@pytest.fixture
def full(path: Path) -> Path:
    path.symlink_to("/dev/full")
    return path


class Hanging(threading.Event):
    """Once it is set the disk goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    hang = Hanging()

    def slow(path: Path, line: bytes, most: int) -> None:
        hang.begun.set()
        hang.wait(SOON)
        append(path, line, most)

    monkeypatch.setattr(event_file, "append", slow)
    yield hang
    hang.set()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def texts(decisions: Decisions) -> list[str]:
    return [one.text for one in decisions.last()]


def line(text: str) -> bytes:
    decided = Decisions().add(Kind.SERVING, text, why="because", unit="strata:current")
    return json.dumps(plain(decided)).encode() + b"\n"


async def one_life(path: Path, *news: str, last_words: float = SOON) -> Decisions:
    """A daemon that decides this and ends; what it has in memory then."""
    decisions = Decisions()
    async with EventFile(path, decisions).kept(last_words):
        for text in news:
            decisions.add(Kind.SERVING, text, why="because", unit="strata:current")
    return decisions


# ------------------------------------------------------------------------------------------------- what outlives us


async def test_what_was_decided_before_a_restart_is_there_after_it(path: Path) -> None:
    before = await one_life(path, "first", "second")
    after = Decisions()
    async with EventFile(path, after).kept(SOON):
        await until(lambda: len(after.last()) == 2)
        after.add(Kind.SERVING, "third")
    assert texts(after) == ["first", "second", "third"]
    assert [plain(one) for one in after.last()[:2]] == [plain(one) for one in before.last()]
    assert len((await asyncio.to_thread(path.read_bytes)).splitlines()) == 3


def test_the_file_is_the_owners_alone(path: Path) -> None:
    append(path, line("first"), event_file.MOST)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("end", "said"), [(True, 0), (False, 1)])
async def test_a_daemon_that_was_killed_is_told_by_the_next_one(path: Path, end: bool, said: int) -> None:
    decisions = Decisions()
    async with EventFile(path, decisions).kept(SOON):
        decisions.add(Kind.STARTED, "slotproxy is up")
        if end:
            decisions.add(Kind.ENDED, "slotproxy ends")
        decisions.add(Kind.NOTICE, "the webhook wasn't told")
    after = Decisions()
    async with EventFile(path, after).kept(SOON):
        await until(lambda: len(after.last()) == len(decisions.last()) + said)
    assert texts(after)[len(decisions.last()) :] == ["the slotproxy before this one ended without a word"] * said


async def test_each_daemon_that_was_killed_is_told_also_one_after_the_other(path: Path) -> None:
    for killed in range(3):
        decisions = Decisions()
        async with EventFile(path, decisions).kept(SOON):
            decisions.add(Kind.STARTED, "slotproxy is up")
            await until(lambda: texts(decisions).count(event_file.KILLED) == killed)  # noqa: B023


def test_a_torn_line_is_passed_over_and_the_next_one_is_whole(path: Path) -> None:
    append(path, line("first"), event_file.MOST)
    with path.open("ab") as file:
        file.write(line("torn")[:-20])
    append(path, line("next"), event_file.MOST)
    assert [one.text for one in earlier(path)] == ["first", "next"]


@pytest.mark.parametrize("odd", [b"[]", b"7", b'{"when": 1}', b"[" * 100_000, b"\xff\xfe", b'{"kind": "dark"}'])
def test_a_line_that_is_no_event_is_passed_over(path: Path, odd: bytes) -> None:
    path.write_bytes(odd + b"\n" + line("good"))
    assert [one.text for one in earlier(path)] == ["good"]


def test_two_files_hold_the_newest_events_and_no_more_than_they_may(path: Path) -> None:
    most = 10 * len(line("event 000"))
    for count in range(200):
        append(path, line(f"event {count:03}"), most)
    sizes = [file.stat().st_size for file in (path, path.with_name("events.jsonl.1"))]
    assert max(sizes) <= most
    newest = [one.text for one in earlier(path)]
    assert len(newest) > 10
    assert newest == [f"event {count:03}" for count in range(200 - len(newest), 200)]
    assert [one.text for one in earlier(path, 2)] == ["event 198", "event 199"]


# ------------------------------------------------------------------------------------------------- bad disks


async def test_a_full_disk_costs_what_it_didnt_take_and_says_how_much_once_it_can(full: Path) -> None:
    decisions = Decisions()
    async with EventFile(full, decisions).kept(SOON):
        decisions.add(Kind.SERVING, "lost 1")
        decisions.add(Kind.SERVING, "lost 2")
        await until(lambda: len(decisions.last()) == 3)
        await asyncio.to_thread(full.unlink)
        decisions.add(Kind.SERVING, "kept")
        await until(lambda: len(decisions.last()) == 5)
    assert texts(decisions) == [
        "lost 1",
        "lost 2",
        "new events are in memory alone",
        "kept",
        "events are written to disk again; 3 are missing there",
    ]
    assert decisions.last()[2].why == f"{full}: No space left on device"
    assert [one.text for one in await asyncio.to_thread(earlier, full)] == texts(decisions)[3:]


async def test_a_disk_that_hangs_keeps_nobody_waiting_and_nothing_grows(
    path: Path, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_file, "BEHIND", 5)
    decisions = Decisions()
    async with EventFile(path, decisions).kept(SOON):
        decisions.add(Kind.SERVING, "the one that hangs")
        await until(hanging.begun.is_set)
        for count in range(20):
            decisions.add(Kind.SERVING, f"news {count}")
        await until(lambda: len(decisions.last()) == 22)
        assert decisions.last()[-1].why == f"{path}: its disk doesn't answer"
        hanging.set()
        await until(lambda: texts(decisions)[-1] == "events are written to disk again; 16 are missing there")
    written = [one.text for one in await asyncio.to_thread(earlier, path)]
    assert written[:6] == ["the one that hangs", *(f"news {count}" for count in range(5))]


async def test_a_disk_that_hangs_to_the_end_holds_nothing_up(path: Path, hanging: Hanging) -> None:
    assert texts(await one_life(path, "news", last_words=0.05)) == ["news"]
    assert not hanging.is_set()


async def test_a_machine_that_gives_no_thread_costs_only_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> None:
        raise NoThread("no more threads", "raise the limit", passing=True)

    monkeypatch.setattr(event_file, "daemon_thread", none_left)
    decisions = await one_life(path, "news")
    assert texts(decisions) == ["new events are in memory alone", "news"]


async def test_nothing_is_written_to_a_folder_that_isnt_ours_any_more(path: Path) -> None:
    def not_ours() -> None:
        raise OSError(errno.ESTALE, "another folder is there")

    decisions = Decisions()
    async with EventFile(path, decisions, not_ours).kept(SOON):
        decisions.add(Kind.SERVING, "news")
        await until(lambda: len(decisions.last()) == 2)
    assert decisions.last()[-1].why == f"{path}: another folder is there"
    assert not await asyncio.to_thread(path.exists)


async def test_what_was_decided_before_the_file_was_opened_is_written_too(path: Path) -> None:
    decisions = Decisions()
    decisions.add(Kind.DISK, "early")
    async with EventFile(path, decisions).kept(SOON):
        pass
    assert [one.text for one in await asyncio.to_thread(earlier, path)] == ["early"]
    assert texts(decisions).count("early") == 1


async def test_a_state_folder_that_is_gone_is_said_once(path: Path) -> None:
    path = path.parent / "gone" / "events.jsonl"
    decisions = Decisions()
    async with EventFile(path, decisions).kept(SOON):
        for count in range(3):
            decisions.add(Kind.SERVING, f"news {count}")
        await until(lambda: len(decisions.last()) == 4)
    assert decisions.last()[-1].why == f"{path}: No such file or directory"


def test_a_decision_is_the_same_when_it_is_read_back() -> None:
    decided: Decision = Decisions().add(Kind.DARK, "nothing serves", why="the card is full", passing=True, pid=7)
    assert plain(read(plain(decided))) == plain(decided)


async def test_a_daemons_life_is_on_disk_and_told_from_its_first_event_to_its_last(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    command = ("/bin/sh", "-c", f'echo "$SLOTPROXY_EVENT_KIND" >> {heard}')
    notify = NotifySettings(command, on=frozenset({Kind.STARTED, Kind.ENDED, Kind.DARK}))
    decisions = Decisions()
    state = await asyncio.to_thread(lambda: StateFolder(tmp_path, decisions))
    settings = replace(SETTINGS, state=tmp_path, notify=notify)
    async with event_log(lambda: settings, state):
        decisions.add(Kind.DARK, "nothing serves")
    assert (await asyncio.to_thread(heard.read_text)).split() == ["started", "dark", "ended"]
    kept = await asyncio.to_thread(earlier, tmp_path / "events.jsonl")
    assert [one.kind for one in kept] == [Kind.STARTED, Kind.DARK, Kind.ENDED]
