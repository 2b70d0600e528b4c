"""How the daemon ends: what waits is told so, and nothing that hangs holds it up.

The first SIGTERM (or SIGINT) begins it, and from then on it takes `stop_limit` at most. The second one says that
somebody is in a hurry: nothing is waited for any more, and what is left are last words.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

LAST_WORDS = 2.0  # seconds, at most, for each thing that is done at the end: cut requests, close connections
SHARES = 8  # no last word takes more than this part of the whole


class Stopping(Exception):
    """The daemon ends: nothing is begun any more, and nothing waited for."""


async def stopped(stop: asyncio.Event) -> Exception:
    """An alarm for `presence.unless`."""
    await stop.wait()
    return Stopping()


class Ending:
    """What everybody needs to know of the end.

    `stop`: nothing new is begun. `hurry`: nothing is waited for. `card_left`: whoever holds the card keeps it, so no
    order gets an answer any more.
    """

    def __init__(self, stop: asyncio.Event | None = None) -> None:
        self.stop = stop or asyncio.Event()
        self.hurry, self.card_left = asyncio.Event(), asyncio.Event()
        self.last_words = LAST_WORDS
        self._deadline: float | None = None
        self._off_guard: Callable[[], object] = lambda: None

    def signalled(self) -> None:
        """What SIGTERM and SIGINT do."""
        (self.hurry if self.stop.is_set() else self.stop).set()

    def begin(self, limit: float) -> None:
        """From the first call on it takes `limit` seconds at most, even if the event loop hangs."""
        if self._deadline is not None:
            return
        self.stop.set()
        self.last_words = min(LAST_WORDS, limit / SHARES)
        self._deadline = time.monotonic() + limit
        self._off_guard = leave_after(limit, 1)

    def left(self, keep: float = 0.0) -> float:
        """Seconds that something may take now, when `keep` last words have to come after it."""
        assert self._deadline is not None, "it has not begun"
        return max(0.0, self._deadline - time.monotonic() - keep * self.last_words)

    async def wait(self, work: Coroutine[Any, Any, object], seconds: float) -> bool:
        """Whether it ends within that time. It is cancelled when it doesn't, or when somebody is in a hurry."""
        async with asyncio.TaskGroup() as tasks:
            working = tasks.create_task(work)
            hurry = tasks.create_task(self.hurry.wait())
            await asyncio.wait([working, hurry], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            ended = working.done()
            working.cancel()
            hurry.cancel()
        return ended

    def over(self) -> None:
        """All has ended in time."""
        self._off_guard()


def leave_after(seconds: float, code: int) -> Callable[[], object]:
    """End the process then, unless it has ended by itself, or what is returned is called.

    What is on disk is written so that we may go at any moment. Where the machine gives no thread the kernel's alarm
    ends us, without `code` and without a word.
    """
    timer = threading.Timer(seconds, _leave, [code])
    timer.daemon = True
    try:
        timer.start()
    except RuntimeError:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        return lambda: signal.setitimer(signal.ITIMER_REAL, 0)
    return timer.cancel


def _leave(code: int) -> None:
    try:
        structlog.get_logger("slotproxy").warning(
            "a call hangs (a disk, Docker, the driver); left without waiting for it"
        )
    finally:
        os._exit(code)
