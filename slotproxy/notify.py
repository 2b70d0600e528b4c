"""`notify:`: who isn't looking hears of it, by a command or a webhook.

It needs no disk, no Docker and no card: it is for when those are broken. A command's whole process group is killed at
its limit; a webhook is tried a few times. Neither is given a secret, nor shown where it may hold one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import httpx
import structlog

from slotproxy.config_notify import NotifySettings
from slotproxy.forward import engine_client
from slotproxy.notices import Channel, Notice, NotTold, Quiet
from swap.decisions import Decision, Decisions
from swap.ports import Fault
from swap.threads import HOST

AGAIN = (2.0, 10.0, 60.0)  # seconds before each further try of a webhook
DISK = 5.0  # seconds that the disk of a command may take
LONGEST = 4000  # characters of one text that a command is given: an environment has a limit
SHOWN = 200  # characters of what a command says of its failure
KEPT = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ")  # of our own environment; the rest may hold secrets


class Notifier:
    """Hears every decision, and tells those that `settings` (as they are now) name."""

    def __init__(self, settings: Callable[[], NotifySettings], decisions: Decisions) -> None:
        self._settings, self._decisions = settings, decisions

    @contextlib.asynccontextmanager
    async def telling(self, last_words: float) -> AsyncIterator[None]:
        """Until the block ends, and `last_words` seconds more for what waits."""
        async with engine_client() as client, asyncio.TaskGroup() as tasks:
            command = Channel("command", self._command, self._decisions)
            webhook = Channel("webhook", lambda notice: self._webhook(client, notice), self._decisions, AGAIN)
            working = [tasks.create_task(channel.run(), name="notify") for channel in (command, webhook)]
            quiet = Quiet(lambda notice: self._to(command, webhook, notice))
            leave = self._decisions.hear(lambda decision: self._hear(quiet, decision))
            try:
                yield
            finally:
                leave()
                quiet.end()
                await self._finish((command, webhook), last_words)
                for task in working:
                    task.cancel()

    def _hear(self, quiet: Quiet, decision: Decision) -> None:
        settings = self._settings()
        if decision.kind in settings.on and (settings.command or settings.webhook):
            quiet.hear(decision)

    def _to(self, command: Channel, webhook: Channel, notice: Notice) -> None:
        settings = self._settings()
        if settings.command:
            command.add(notice)
        if settings.webhook:
            webhook.add(notice)

    async def _finish(self, channels: Sequence[Channel], seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                for channel in channels:
                    await channel.told()
        except TimeoutError:
            waiting = sum(channel.waiting for channel in channels)
            structlog.get_logger("slotproxy.notify").warning("ended before everybody was told", waiting=waiting)

    async def _command(self, notice: Notice) -> None:
        if command := self._settings().command:
            await run(command, notice)

    async def _webhook(self, client: httpx.AsyncClient, notice: Notice) -> None:
        if url := self._settings().webhook:
            await post(client, url, notice)


# ------------------------------------------------------------------------------------------------- a webhook


async def post(client: httpx.AsyncClient, url: str, notice: Notice) -> None:
    """Raises NotTold, which names the host alone: the rest of a webhook's URL is often its key."""
    host = httpx.URL(url).host
    try:
        async with client.stream("POST", url, json=notice.plain()) as answer:
            code = answer.status_code
    except httpx.HTTPError as error:
        raise NotTold(f"{host}: {str(error) or type(error).__name__}", again=True) from error
    if not 200 <= code < 300:
        raise NotTold(f"{host} answered {code}", again=code >= 500 or code in (408, 429))


# ------------------------------------------------------------------------------------------------- a command


async def run(command: Sequence[str], notice: Notice) -> None:
    """Raises NotTold. Cancelled, it leaves nobody of its process group behind."""
    try:
        await HOST.run(partial(_touch, command[0]), f"the disk of {command[0]}", DISK)
    except Fault as fault:
        raise NotTold(fault.what) from fault
    with _last_words() as (end, said), _event(notice) as event:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=event,
                stdout=end,
                stderr=end,
                env=_environment(notice),
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise NotTold(f"{command[0]} can't be run: {error.strerror}") from error
        try:
            code = await process.wait()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
    if code:
        raise NotTold(f"it exited with code {code}: {said.decode(errors='replace').strip()}".removesuffix(": "))


def _touch(program: str) -> None:
    """Whoever starts a program waits for its disk, and that would be the event loop."""
    with contextlib.suppress(OSError), Path(program).open("rb") as file:
        file.read(1)


@contextlib.contextmanager
def _event(notice: Notice) -> Iterator[int]:
    """The event as a file in memory: whoever doesn't read it breaks no pipe."""
    event = os.memfd_create("event")
    try:
        os.pwrite(event, json.dumps(notice.plain(), default=str).encode() + b"\n", 0)
        yield event
    finally:
        os.close(event)


@contextlib.contextmanager
def _last_words() -> Iterator[tuple[int, bytearray]]:
    """Where a command may write, however much, and the end of what it has written.

    A pipe of our own: whatever the command leaves running may hold it open for as long as it likes.
    """
    loop, said = asyncio.get_running_loop(), bytearray()
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)

    def hear() -> None:
        with contextlib.suppress(BlockingIOError):
            said.extend(os.read(ours, 65536))
            del said[:-SHOWN]

    loop.add_reader(ours, hear)
    try:
        yield theirs, said
        hear()
    finally:
        loop.remove_reader(ours)
        os.close(ours)
        os.close(theirs)


def _environment(notice: Notice) -> dict[str, str]:
    said = notice.plain()
    told = {
        "SLOTPROXY_EVENT_WHEN": said["when"],
        "SLOTPROXY_EVENT_KIND": said["kind"],
        "SLOTPROXY_EVENT_TEXT": said["text"],
        "SLOTPROXY_EVENT_WHY": said["why"],
        "SLOTPROXY_EVENT_REPEATED": str(said["repeated"]),
        "SLOTPROXY_EVENT_HOST": said["host"],
    }
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    return kept | {name: _short(text) for name, text in told.items()}


def _short(text: str) -> str:
    """What an environment can hold."""
    return text.encode(errors="replace").decode().replace("\0", " ")[:LONGEST]
