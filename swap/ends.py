"""Had a run of an engine ended before a request was sent to it? Then the engine can't have seen the request.

Docker's own proxy accepts connections for a while after a container has died, and resets them. Docker writes when it
saw the container's first process dead, which is after all of its processes were: a request that was begun later than
that has been read by nobody, unless by the next run. So none may have been begun before the connection was closed: the
container is still down, or it was we who started it, after that. Docker's times are of this machine's clock; a clock
that was set in between proves nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from swap.ports import Fault, Runtime, Sight

SHOWS_WITHIN = 5.0  # seconds in which a death shows in a look
PAUSE = 0.1  # seconds between two looks
CLOCK_SET = 0.05  # seconds by which two clocks may differ over a request, before one of them has been set


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment by both clocks: of the day (Unix time), and the one that is never set."""

    wall: float = field(default_factory=time.time)
    steady: float = field(default_factory=time.monotonic)

    def is_reliable(self, now: Moment) -> bool:
        """Has the clock of the day not been set since?"""
        return abs((now.wall - self.wall) - (now.steady - self.steady)) < CLOCK_SET


@dataclass(frozen=True, slots=True)
class Tried:
    """A request to a run (`swap.known.run_of`): when it was begun, and when its connection was closed."""

    run: str
    sent: Moment
    closed: Moment


async def ended_before(runtime: Runtime, tried: Tried, started: Callable[[], float]) -> bool:
    """Whether it is proven that no engine has seen it. Bounded; never raises.

    `started`: when we last asked to start this engine, by the clock that is never set.
    """
    try:
        async with asyncio.timeout(SHOWS_WITHIN):
            while (sight := await runtime.look()).running and _is(sight, tried.run):  # noqa: ASYNC110  (no event)
                await asyncio.sleep(PAUSE)
    except (Fault, TimeoutError):
        return False
    same = _is(sight, tried.run) or (_same_container(sight, tried.run) and started() > tried.closed.steady)
    return same and _proven(sight, tried.sent, Moment())


def _same_container(sight: Sight, run: str) -> bool:
    return bool(sight.id) and f" {sight.id} " in run


def _is(sight: Sight, run: str) -> bool:
    return run.endswith(f" {sight.id} {sight.started_at}")


def _proven(sight: Sight, sent: Moment, now: Moment) -> bool:
    """To the microsecond: what Docker writes beyond that only makes it later."""
    if not sight.finished_at or not sent.is_reliable(now):
        return False
    whole, _, rest = sight.finished_at.rstrip("Z").partition(".")
    finished = datetime.fromisoformat(f"{whole}.{rest[:6]:0<6}+00:00").timestamp()
    return finished + 1e-6 <= sent.wall
