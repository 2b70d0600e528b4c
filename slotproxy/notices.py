"""What `notify:` says, and when: one thing at a time, at most so many that wait, and no flood where something flaps.

Nothing here waits for anybody but whom it tells. What can't be told becomes an event itself, of a kind that nobody is
told of.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from slotproxy.events_desk import plain
from swap.decisions import Decision, Decisions, Kind

LIMIT = 10.0  # seconds that a command, or one try of a webhook, may take
WAITING = 100  # notices that may wait for their turn; then the oldest are dropped
QUIET = 60.0  # seconds in which the same is told once

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Notice:
    """`repeated`: how often the same was decided, with this, since it was told last; 0 where it wasn't."""

    decision: Decision
    repeated: int = 0

    def plain(self) -> Json:
        return {**plain(self.decision), "repeated": self.repeated, "host": socket.gethostname()}


class NotTold(Exception):
    """Why, in words that hold no secret. `again`: another try may do it."""

    def __init__(self, why: str, *, again: bool = False) -> None:
        super().__init__(why)
        self.why, self.again = why, again


class Channel:
    """One way to tell people. `pauses`: seconds before each further try."""

    def __init__(
        self, name: str, send: Callable[[Notice], Awaitable[None]], decisions: Decisions, pauses: Sequence[float] = ()
    ) -> None:
        self._name, self._send, self._decisions, self._pauses = name, send, decisions, pauses
        self._queue: asyncio.Queue[Notice] = asyncio.Queue()
        self._dropped = 0

    def add(self, notice: Notice) -> None:
        if self._queue.qsize() >= WAITING:
            self._queue.get_nowait()
            self._queue.task_done()
            self._dropped += 1
        self._queue.put_nowait(notice)

    async def run(self) -> None:
        """Until cancelled. A bug of ours costs one notice."""
        while True:
            notice = await self._queue.get()
            try:
                await self._tell(notice)
            except Exception:
                structlog.get_logger("slotproxy.notify").exception("telling broke", by=self._name)
            finally:
                self._queue.task_done()
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                why = f"more happened than the {self._name} could be told of"
                self._decisions.add(Kind.NOTICE, f"{dropped} notices were dropped", why=why)

    async def told(self) -> None:
        """Returns when nothing waits any more."""
        await self._queue.join()

    @property
    def waiting(self) -> int:
        """How many nobody has begun to tell."""
        return self._queue.qsize()

    async def _tell(self, notice: Notice) -> None:
        for pause in (*self._pauses, None):
            try:
                async with asyncio.timeout(LIMIT):
                    await self._send(notice)
                return
            except NotTold as no:
                why, again = no.why, no.again
            except TimeoutError:
                why, again = f"it didn't end within {LIMIT:g} s", True
            if pause is None or not again:
                break
            await asyncio.sleep(pause)
        self._decisions.add(Kind.NOTICE, f"the {self._name} wasn't told: {notice.decision.text}", why=why)


@dataclass(slots=True)
class _Held:
    timer: asyncio.TimerHandle
    latest: Decision | None = None
    count: int = 0


@dataclass(slots=True)
class Quiet:
    """Tells each thing at once; what is the same within `QUIET` seconds then is told as one, with how often."""

    tell: Callable[[Notice], None]
    _held: dict[tuple[Kind, str], _Held] = field(default_factory=dict)

    def hear(self, decision: Decision) -> None:
        key = decision.kind, decision.text
        if (held := self._held.get(key)) is not None:
            held.latest, held.count = decision, held.count + 1
            return
        self._hold(key)
        self.tell(Notice(decision))

    def end(self) -> None:
        """What is held back is told now."""
        held, self._held = self._held, {}
        for one in held.values():
            one.timer.cancel()
            self._tell(one)

    def _hold(self, key: tuple[Kind, str]) -> None:
        self._held[key] = _Held(asyncio.get_running_loop().call_later(QUIET, self._over, key))

    def _over(self, key: tuple[Kind, str]) -> None:
        held = self._held.pop(key)
        if held.count:
            self._hold(key)
        self._tell(held)

    def _tell(self, held: _Held) -> None:
        if held.latest is not None:
            self.tell(Notice(held.latest, held.count))
