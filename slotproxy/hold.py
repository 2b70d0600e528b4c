"""The operator's hold: a latch that nothing else touches, and that can expire by itself."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class Hold:
    """Set or not. `ended` is called when a hold ends, by hand or by expiry; times in seconds on the clock `now`.

    The timer is the one truth about expiry: a clock that is compared beside it could be a hair behind, and whoever
    the timer woke would then go back to sleep for ever.
    """

    def __init__(self, now: Callable[[], float], ended: Callable[[], None]) -> None:
        self._now = now
        self._ended = ended
        self._until: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._expired: Callable[[], object] = lambda: None

    def set(self, seconds: float | None, expired: Callable[[], object] = lambda: None) -> None:
        """Hold for so many seconds, or (None) until `release()`; replaces the hold before.

        `expired` is called if it ends by itself.
        """
        self._clear()
        self._expired = expired
        self._until = math.inf if seconds is None else self._now() + seconds
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)

    def release(self) -> bool:
        """End it. False: none was set."""
        if self._until is None:
            return False
        self._clear()
        self._ended()
        return True

    def _expire(self) -> None:
        self.release()
        self._expired()

    def left(self) -> float | None:
        """Seconds until it expires: inf if it doesn't, None if none is set."""
        return None if self._until is None else max(0.0, self._until - self._now())

    def _clear(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._until = self._timer = None
