"""The event log: what was decided, and why, in the words that `slotctl events` shows.

Whoever decides something adds it here; nobody decides anything by reading it. The last ones are kept in memory, each
is a line of the log, and listeners (the file, the notices, who follows) hear each as it is added.
"""

from __future__ import annotations

import enum
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import structlog

KEPT = 1000  # decisions in memory; the file holds more
LONGEST = 2000  # characters of a text or a reason: others' words may be of any length


class Kind(enum.StrEnum):
    """What sort of decision: few, so that people can choose by it."""

    STARTED = "started"  # the daemon
    ENDED = "ended"  # the daemon
    RELOADED = "reloaded"  # the configuration; or why not
    ORDERED = "ordered"  # a swap was asked for, or joined, or given up
    ANSWERED = "answered"  # a swap has ended
    REFUSED = "refused"  # nothing was changed
    ADOPTED = "adopted"  # what runs serves, untouched
    SERVING = "serving"  # who serves now
    RESTORED = "restored"  # what was serving serves again, after a failed swap
    RECOVERED = "recovered"  # something serves again, after an end that nobody ordered
    FAILED = "failed"  # an engine, or a swap
    DARK = "dark"  # nothing serves
    STARTING = "starting"  # an engine, because nothing runs
    RESTARTING = "restarting"  # the same engine is started again
    RETRYING = "retrying"  # after a back-off
    USELESS = "useless"  # it runs, and serves nobody
    FALLBACK = "fallback"  # another verified engine gets the card
    STOPPED = "stopped"  # an engine, with the daemon, as configured
    STOPPED_BY_HAND = "stopped-by-hand"
    SECOND_ENGINE = "second-engine"  # one came up beside the one that serves
    MENDED = "mended"  # what an interruption had left
    CORRECTED = "corrected"  # something of an engine's own that must not be so, such as its restart policy
    UNSEEN = "unseen"  # an engine can't be looked at, or can again
    PERSON = "person"  # what no rule covers, and a person must decide
    HOLD = "hold"
    RELEASED = "released"  # a hold, or it expired
    DISK = "disk"  # the state folder can't be written, or can again
    NOTICE = "notice"  # what `notify:` could not be told

    @property
    def bad(self) -> bool:
        """Is it logged as a warning?"""
        return self in _BAD


_BAD = {Kind.FAILED, Kind.DARK, Kind.RESTORED, Kind.USELESS, Kind.FALLBACK, Kind.RESTARTING, Kind.STOPPED_BY_HAND}
_BAD |= {Kind.SECOND_ENGINE, Kind.MENDED, Kind.UNSEEN, Kind.PERSON, Kind.DISK, Kind.NOTICE}


@dataclass(frozen=True, slots=True)
class Decision:
    """`facts` are plain data: text, numbers, flags, and lists of them. Never a secret."""

    when: datetime  # UTC
    kind: Kind
    text: str
    why: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)


Listener = Callable[[Decision], None]


class Decisions:
    """The log of one daemon. Its methods are called on the event loop, and return at once."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept: deque[Decision] = deque(maxlen=kept)
        self._listeners: list[Listener] = []

    def add(self, kind: Kind, text: str, *, why: str = "", **facts: object) -> Decision:
        """Something was decided. A listener that breaks costs nobody else anything."""
        text, why = text[:LONGEST], why[:LONGEST]
        decision = Decision(datetime.now(UTC), kind, text, why, facts)
        self._kept.append(decision)
        log = structlog.get_logger("slotproxy.decisions")
        log.log(logging.WARNING if kind.bad else logging.INFO, text, kind=str(kind), why=why, facts=dict(facts))
        for listener in tuple(self._listeners):
            try:
                listener(decision)
            except Exception:
                log.exception("a listener of the event log broke")
        return decision

    def remember(self, earlier: Iterable[Decision]) -> None:
        """What an earlier daemon decided, oldest first: nobody hears of it again."""
        since = list(self._kept)
        self._kept.clear()
        self._kept.extend([*earlier, *since])

    def last(self, count: int = KEPT) -> list[Decision]:
        """The newest that are kept, oldest first."""
        return list(self._kept)[-count:] if count > 0 else []

    def hear(self, listener: Listener) -> Callable[[], None]:
        """Each decision from now on; call what is returned to hear no more."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)
