"""What the gate answers and says: a place at the engine or why there is none, and how things stand."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from slotproxy.warmth import Talk

State: TypeAlias = Literal["open", "closed", "refusing", "held"]

RETRY_BUSY = (1.0, 60.0)  # bounds of Retry-After when a limit is reached, in seconds
RETRY_REFUSED = 30.0  # somebody has to do something first
RETRY_ENDED = 5.0  # about what a restart of the daemon takes


class _Gate(Protocol):
    def note_idle(self) -> None: ...

    def left(self, place: Place) -> None: ...


@dataclass(eq=False, slots=True)
class Place:
    """A place at the engine; exactly one `leave()` takes effect. Whoever gets one has to leave it.

    `held` is how long the request waited, in seconds. `cut` is set when the operator ends the requests in flight.
    `run`: of the engine, as `open()` was told.
    """

    engine: str
    run: str
    held: float
    cut: asyncio.Event
    _slot: str = field(repr=False)
    _opening: int = field(repr=False)
    _gate: _Gate = field(repr=False)
    _talk: Talk | None = field(default=None, repr=False)
    _settling: bool = field(default=False, repr=False)

    def settle(self) -> None:
        """The client has left, the engine still works: the place stays taken, but `drained()` doesn't wait for it."""
        self._settling = True
        self._gate.note_idle()

    def leave(self) -> None:
        """The engine is free for the next request."""
        self._gate.left(self)


@dataclass(frozen=True, slots=True)
class Expired:
    """It waited past its deadline, `waited` seconds, and never reached an engine: 503 with Retry-After."""

    waited: float
    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """429: over a limit, at once. 503: the gate refuses, with the operator's or the controller's reason."""

    status: int
    reason: str
    retry_after: float


Answer: TypeAlias = Place | Expired | Refused


def no_slot(name: str) -> Refused:
    """Its client may have another slot now, or none: it finds out when it asks again."""
    return Refused(503, f"slot {name} isn't configured any more", RETRY_BUSY[0])


@dataclass(frozen=True, slots=True)
class SlotView:
    """One slot's requests now."""

    waiting: int
    in_flight: int
    settling: int


@dataclass(frozen=True, slots=True)
class GateView:
    """The gate now. `held`: it is open but for the hold; `engine`: the one that it is open to (also when held).

    `in_flight` are clients' requests; `settling` places come on top. Both count every place that isn't left yet.
    `held_for`: seconds until the hold expires, inf when it doesn't, None when none is set.
    `longest_wait`: seconds, of those who wait now. `slots` names the slots with at least one request.
    """

    state: State
    engine: str | None
    reason: str
    waiting: int
    waiting_bytes: int
    in_flight: int
    settling: int
    held_for: float | None
    longest_wait: float
    slots: Mapping[str, SlotView]
