"""The event log on disk: `events.jsonl` in the state folder, a decision a line; when it is full, `events.jsonl.1`.

A thread of its own writes it. A disk that is full, read-only or hangs keeps nobody waiting: memory goes on, and how
many events are missing is said once the disk takes some again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from engines.spec import MiB
from slotproxy.events_desk import plain, read
from swap.decisions import KEPT, Decision, Decisions, Kind
from swap.durable import Guard, anywhere
from swap.threads import NoThread, daemon_thread

MOST = 4 * MiB  # bytes of one file; there are two
BEHIND = 1000  # events that the disk may be behind; what comes then is left out
KILLED = "the slotproxy before this one ended without a word"


class EventFile:
    """What earlier daemons have written is remembered at the start, and what this one decides is written."""

    def __init__(self, path: Path, decisions: Decisions, guard: Guard = anywhere) -> None:
        self._path, self._decisions, self._guard = path, decisions, guard
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._full = False  # the queue
        self._left_out = 0  # there was no room in the queue; counted by the event loop
        self._failed = 0  # the disk took them not; counted by the thread, as is what was told of both
        self._told = 0
        self._broken = False

    @contextlib.asynccontextmanager
    async def kept(self, last_words: float) -> AsyncIterator[None]:
        """Written until the block ends, and for at most `last_words` seconds more."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        try:
            daemon_thread(partial(self._work, loop, ended), "event log")
        except NoThread as fault:
            self._in_memory_alone(str(fault))
            ended.set()
        for decision in self._decisions.last():
            self._hear(decision)
        leave = self._decisions.hear(self._hear)
        try:
            yield
        finally:
            leave()
            self._lines.put(None)
            with contextlib.suppress(TimeoutError):  # its disk hangs, and memory ends with us
                async with asyncio.timeout(last_words):
                    await ended.wait()

    def _hear(self, decision: Decision) -> None:
        if self._lines.qsize() < BEHIND:
            self._full = False
            self._lines.put(json.dumps(plain(decision), default=str).encode() + b"\n")
            return
        self._left_out += 1
        if not self._full:
            self._full = True
            # Later: the others shall hear of this decision first.
            asyncio.get_running_loop().call_soon(self._in_memory_alone, "its disk doesn't answer")

    def _remember(self, before: Sequence[Decision]) -> None:
        self._decisions.remember(before)
        own = (one.kind for one in reversed(before) if one.kind in (Kind.STARTED, Kind.ENDED) and one.text != KILLED)
        if next(own, None) is Kind.STARTED:
            why = "it was killed, its machine went down, or its disk took nothing any more"
            self._decisions.add(Kind.ENDED, KILLED, why=why)

    def _in_memory_alone(self, why: str) -> None:
        self._decisions.add(Kind.DISK, "new events are in memory alone", why=f"{self._path}: {why}")

    # ------------------------------------------------------------------------------------------ in the thread

    def _work(self, loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
        try:
            _call(loop, partial(self._remember, earlier(self._path)))
        except OSError as error:
            why = f"{self._path}: {error.strerror}"
            _call(loop, partial(self._decisions.add, Kind.DISK, "earlier events can't be read", why=why))
        while (line := self._lines.get()) is not None:
            self._write(line, loop)
        _call(loop, ended.set)

    def _write(self, line: bytes, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._guard()
            append(self._path, line, MOST)
        except OSError as error:
            self._failed += 1
            if not self._broken:
                self._broken = True
                _call(loop, partial(self._in_memory_alone, str(error.strerror)))
            return
        self._broken = False
        missing = self._failed + self._left_out - self._told
        if missing and self._lines.empty():
            self._told += missing
            text = f"events are written to disk again; {missing} are missing there"
            _call(loop, partial(self._decisions.add, Kind.DISK, text, missing=missing))


def _call(loop: asyncio.AbstractEventLoop, what: Callable[[], object]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile, and nobody would hear of it
        loop.call_soon_threadsafe(what)


# ------------------------------------------------------------------------------------------------- files


def append(path: Path, line: bytes, most: int) -> None:
    """Write the line durably. What was cut off before it, by a crash or a full disk, stays a line of its own.

    Raises OSError.
    """
    if _size(path) + len(line) > most:
        with contextlib.suppress(FileNotFoundError):
            path.replace(_older(path))
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "r+b", buffering=0) as file:
        size = os.fstat(fd).st_size
        whole = size == 0 or os.pread(fd, 1, size - 1) == b"\n"
        rest = line if whole else b"\n" + line
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(fd)


def earlier(path: Path, count: int = KEPT) -> list[Decision]:
    """The newest that both files hold, oldest first; lines that aren't whole are passed over. Raises OSError."""
    newest: deque[Decision] = deque(maxlen=count)
    for file in (_older(path), path):
        for line in _lines(file):
            with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
                newest.append(read(json.loads(line)))
    return list(newest)


def _lines(path: Path) -> Iterator[bytes]:
    """Only of the end of a file that somebody has made larger than we do."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, _size(path) - 2 * MOST))
            yield from file.read(2 * MOST).split(b"\n")
    except FileNotFoundError:
        return


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _older(path: Path) -> Path:
    return path.with_name(path.name + ".1")
