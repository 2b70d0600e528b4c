"""How the daemon ends: what waits is told so, and nothing that hangs holds it up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator

import structlog


class Stopping(Exception):
    """The daemon ends: nothing is begun any more, and nothing waited for."""


async def stopped(stop: asyncio.Event) -> Exception:
    """An alarm for `presence.unless`."""
    await stop.wait()
    return Stopping()


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """A bound that holds even if the event loop hangs. What is on disk is written so that we may go at any moment."""
    timer = leave_after(seconds, 1)
    try:
        yield
    finally:
        timer.cancel()


def leave_after(seconds: float, code: int) -> threading.Timer:
    """End the process then, unless it has ended by itself or the timer is cancelled."""
    timer = threading.Timer(seconds, _leave, [code])
    timer.daemon = True
    timer.start()
    return timer


def _leave(code: int) -> None:
    try:
        structlog.get_logger("slotproxy").warning(
            "a call hangs (a disk, Docker, the driver); left without waiting for it"
        )
    finally:
        os._exit(code)
