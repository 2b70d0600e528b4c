"""How each request ended: one line of log, and a count.

What a client sent, and what an engine said about it, never gets into either: no prompt, no key, no query, no answer.
"""

from __future__ import annotations

import enum
import time
from collections import Counter
from dataclasses import dataclass, field

import structlog


class Outcome(enum.Enum):
    """How a request ended.

    SERVED: whole, as the engine answered it, a client's own mistakes (4xx) included. FAILED: the engine answered with
    an error, by its status or in-band, or not at all. TRUNCATED: the answer began and never came to its end.
    CUT: the operator ended it: the card was needed for another engine, or the proxy stopped.
    CANCELLED: the client left. REFUSED: we didn't let it through. EXPIRED: it waited too long.
    """

    SERVED = "served"
    FAILED = "failed"
    TRUNCATED = "truncated"
    CUT = "cut"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class End:
    """`how`: which kind of that outcome, in a word (`in-band`, `stalled`, …). `reason`: in words of our own."""

    outcome: Outcome
    how: str = ""
    reason: str = ""


class Doing(enum.Enum):
    """Where a request is. SENDING: its body comes. WAITING: for a place. ANSWERING: it is at the engine.
    SETTLING: its client has gone, or has its answer, and its place at the engine isn't free yet.
    """

    SENDING = "sending"
    WAITING = "waiting"
    ANSWERING = "answering"
    SETTLING = "settling"


@dataclass(eq=False, slots=True)
class Record:
    """One request, as the log tells it. Times in seconds, sizes in bytes; `status` is 0 if nothing was answered.

    `doing`, since `changed`; `retried`: its engine couldn't be reached, and it waits to be sent again.
    """

    id: str
    path: str
    slot: str = ""
    model: str = ""
    engine: str = ""
    held: float = 0.0
    status: int = 0
    received: int = 0
    sent: int = 0
    started: float = field(default_factory=time.monotonic)
    doing: Doing = Doing.SENDING
    changed: float = field(default_factory=time.monotonic)
    retried: bool = False

    def now(self, doing: Doing) -> None:
        if doing is not self.doing:
            self.doing, self.changed = doing, time.monotonic()

    def held_ms(self) -> int:
        return round(self.held * 1000)


class Outcomes:
    """Counts requests by how they ended, and logs one line for each."""

    def __init__(self) -> None:
        self.counts: Counter[Outcome] = Counter()
        self.kinds: dict[Outcome, Counter[str]] = {outcome: Counter() for outcome in Outcome}
        self._log = structlog.get_logger("slotproxy.request")

    def plain(self) -> dict[str, dict[str, object]]:
        """How many ended so, and of which kinds, as plain data."""
        told = {outcome: {how: count for how, count in kinds.items() if how} for outcome, kinds in self.kinds.items()}
        return {outcome.value: {"count": self.counts[outcome], "how": how} for outcome, how in told.items()}

    def add(self, record: Record, end: End) -> None:
        self.counts[end.outcome] += 1
        self.kinds[end.outcome][end.how] += 1
        self._log.info(
            "request",
            id=record.id,
            path=record.path,
            slot=record.slot,
            model=record.model,
            engine=record.engine,
            status=record.status,
            outcome=end.outcome.value,
            held_ms=record.held_ms(),
            total_ms=round((time.monotonic() - record.started) * 1000),
            bytes_in=record.received,
            bytes_out=record.sent,
            **({"how": end.how} if end.how else {}),
            **({"reason": end.reason} if end.reason else {}),
        )
