"""`notify:` for real: a command that runs, and a webhook on loopback."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from slotproxy import notices, notify
from slotproxy.config_notify import NotifySettings
from slotproxy.notify import Notifier
from swap.decisions import Decisions, Kind
from tests.swap.world import until

SOON = 20.0  # seconds that anything here may take on a busy machine
TELL = 'cat; env | grep -c s3cret; echo "$SLOTPROXY_EVENT_KIND|$SLOTPROXY_EVENT_TEXT|$SLOTPROXY_EVENT_WHY|$PWD"'


@pytest.fixture(autouse=True)
def logs() -> Iterator[None]:
    with capture_logs():
        yield


@asynccontextmanager
async def telling(settings: NotifySettings, last_words: float = SOON) -> AsyncIterator[Decisions]:
    decisions = Decisions()
    async with Notifier(lambda: settings, decisions).telling(last_words):
        yield decisions


def notes(decisions: Decisions) -> list[tuple[str, str]]:
    return [(one.text, one.why) for one in decisions.last() if one.kind is Kind.NOTICE]


def shell(script: str) -> NotifySettings:
    return NotifySettings(command=("/bin/sh", "-c", script))


# ------------------------------------------------------------------------------------------------- a command


async def test_a_command_is_given_the_event_and_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY_TOKEN", "s3cret")
    out = tmp_path / "out"
    async with telling(shell(f"({TELL}) > {out}")) as decisions:
        decisions.add(Kind.SERVING, "nobody hears of this")
        decisions.add(Kind.DARK, "nothing serves", why="it's\0full \ud800", passing=True)
    said, secrets, variables = (await asyncio.to_thread(out.read_text)).splitlines()
    event = json.loads(said)
    assert (event["kind"], event["text"], event["facts"], event["repeated"]) == (
        "dark",
        "nothing serves",
        {"passing": True},
        0,
    )
    assert secrets == "0"
    assert variables == "dark|nothing serves|it's full ?|/"
    assert notes(decisions) == []


async def test_a_command_that_fails_or_isnt_there_is_an_event_with_what_it_said() -> None:
    async with telling(shell("echo so it goes >&2; exit 3")) as decisions:
        decisions.add(Kind.DARK, "nothing serves")
    assert notes(decisions) == [("the command wasn't told: nothing serves", "it exited with code 3: so it goes")]
    async with telling(NotifySettings(command=("/nowhere/tell",))) as decisions:
        decisions.add(Kind.DARK, "nothing serves")
    assert [why for _, why in notes(decisions)] == ["/nowhere/tell can't be run: No such file or directory"]


async def test_a_command_whose_disk_hangs_hangs_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe that nobody writes to is such a disk."""
    program = tmp_path / "tell"
    os.mkfifo(program, 0o700)
    monkeypatch.setattr(notify, "DISK", 0.2)
    async with telling(NotifySettings(command=(str(program),))) as decisions:
        decisions.add(Kind.DARK, "nothing serves")
        decisions.add(Kind.FAILED, "strata:v1 failed")
    first, then = (why for _, why in notes(decisions))
    assert first == f"the disk of {program} hasn't answered in 0.2 s"
    assert "still hasn't answered" in then
    os.close(os.open(program, os.O_WRONLY))  # the reader may go on


async def test_a_command_is_killed_with_all_it_has_begun_when_its_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "LIMIT", 1.0)
    pids = tmp_path / "pids"
    script = f"sleep 600 & echo $! > {pids}; echo $$ >> {pids}; yes >&2"
    async with telling(shell(script)) as decisions:
        decisions.add(Kind.DARK, "nothing serves")
    assert [why for _, why in notes(decisions)] == ["it didn't end within 1 s"]
    children = list(map(int, (await asyncio.to_thread(pids.read_text)).split()))
    assert len(children) == 2
    await until(lambda: not any(map(runs, children)))


async def test_what_a_command_leaves_running_and_what_it_doesnt_read_hold_nothing_up(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"sleep 600 & echo $! > {pid}; head -c 1000000 /dev/zero >&2"  # and what it says is more than a pipe holds
    async with telling(shell(script)) as decisions:
        decisions.add(Kind.DARK, "nothing serves", facts="x" * 200_000)
    assert notes(decisions) == []
    left = int(await asyncio.to_thread(pid.read_text))
    assert runs(left), "it may want to go on"
    os.kill(left, 9)


async def test_the_end_waits_a_moment_for_what_is_being_told_and_no_longer(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    async with telling(shell(f"echo $$ > {pid}; exec sleep 600"), last_words=0.5) as decisions:
        decisions.add(Kind.DARK, "nothing serves")
        await until(pid.exists)
    assert not runs(int(await asyncio.to_thread(pid.read_text)))


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()


# ------------------------------------------------------------------------------------------------- a webhook


class Hook:
    """A server on loopback that answers each request with the next of `codes`, then with 204."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.heard: list[dict[str, Any]] = []
        self.url = ""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
        assert fields[b"content-type"] == b"application/json"
        self.heard.append(json.loads(await reader.readexactly(int(fields[b"content-length"]))))
        code = self.codes.pop(0) if self.codes else 204
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % code)
        await writer.drain()
        writer.close()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[NotifySettings]:
        server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            yield NotifySettings(webhook=f"http://127.0.0.1:{port}/s3cret")


async def test_a_webhook_is_posted_the_event_again_if_its_server_is_ill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "AGAIN", (0.01, 0.01))
    hook = Hook(503)
    async with hook.listening() as settings, telling(settings) as decisions:
        decisions.add(Kind.RESTORED, "strata:v1 serves again", why="the swap failed")
    assert [(one["kind"], one["text"], one["why"]) for one in hook.heard] == [
        ("restored", "strata:v1 serves again", "the swap failed")
    ] * 2
    assert notes(decisions) == []


async def test_a_webhook_that_refuses_isnt_asked_again_and_its_url_is_shown_to_nobody() -> None:
    hook = Hook(404)
    async with hook.listening() as settings, telling(settings) as decisions:
        decisions.add(Kind.FAILED, "strata:v1 failed")
    assert len(hook.heard) == 1
    assert notes(decisions) == [("the webhook wasn't told: strata:v1 failed", "127.0.0.1 answered 404")]


async def test_a_webhook_that_nobody_listens_at_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "AGAIN", (0.01,))
    async with Hook().listening() as settings:
        pass
    async with telling(settings) as decisions:
        decisions.add(Kind.FAILED, "strata:v1 failed")
    ((_, why),) = notes(decisions)
    assert why.startswith("127.0.0.1: ")
    assert "s3cret" not in why


async def test_who_is_told_may_change_while_the_daemon_runs() -> None:
    hook = Hook()
    async with hook.listening() as there:
        now = [NotifySettings()]
        decisions = Decisions()
        async with Notifier(lambda: now[0], decisions).telling(SOON):
            decisions.add(Kind.DARK, "told to nobody")
            now[0] = there
            decisions.add(Kind.DARK, "told")
    assert [one["text"] for one in hook.heard] == ["told"]
