"""What the machine knows, and what follows from it for requests (`gate`) and for people (`phase`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from swap.moves import (
    Ascertain,
    Awaited,
    Check,
    Choose,
    Drain,
    Free,
    Glance,
    Inspect,
    Look,
    Order,
    PutBack,
    Rest,
    Stage,
    Start,
    Stop,
    Unit,
    Warm,
)


@dataclass(frozen=True, slots=True)
class State:
    """All facts. `up` and `unknown` say what is on the card as far as anyone has told us."""

    doing: Awaited | None = None
    number: int = 0
    looked: bool = False  # has anyone told us what is up?
    up: frozenset[Unit] = frozenset()
    starting: frozenset[Unit] = frozenset()  # an overdue start: may come up yet
    stopping: frozenset[Unit] = frozenset()  # an overdue stop: may go down yet
    serving: Unit | None = None  # ready; requests may go to it
    last: Unit | None = None  # what was serving before: what a restore puts back
    goal: Unit | None = None
    wanted: Unit | None = None  # what was being brought up, never having served, when something came between
    order: Order | None = None
    target: Unit | None = None  # the unit that the order means, once checked
    closed: bool = False  # the gate was closed to drain
    drained: bool = False  # just now, and nothing done since
    staged: Unit | None = None
    displaced: Unit | None = None  # the unit whose container staging has replaced
    freed: Unit | None = None  # whose need was found free just now, and nothing done since but inspecting
    own: Unit | None = None  # it died by itself and nothing came up since: its memory is free without asking
    inspected: Unit | None = None  # whose container was found good just now, and nothing done since
    spoiled: Unit | None = None  # it is up but never became ready: it is stopped before anything else is tried
    attempt: int = 0
    failures: int = 0  # in a row, of what had the card without an order; serving long enough ends the row
    spent: frozenset[Unit] = frozenset()  # these have failed in this row, and were given up for another
    later: frozenset[Unit] = frozenset()  # those of them whose failures time may mend
    doubted: Unit | None = None  # it served, and has failed more than once: it is asked whether it gets the card again
    given_up: bool = False
    failure: str = ""  # why the order failed, while the old engine is put back
    dark: str = ""  # why nothing serves

    @property
    def unknown(self) -> frozenset[Unit]:
        """Nobody can say whether these are up: a call on them is under way, or nobody has looked since."""
        return self.starting | self.stopping

    @property
    def person(self) -> bool:
        """Nothing serves, and neither time nor anything under way will mend it."""
        return self.looked and self.serving is None and self.doing is None

    @property
    def holder(self) -> Unit | None:
        """What is on the card, as far as we know (the one that serves, where more than one is)."""
        return self.serving or min(self.up, default=None)


@dataclass(frozen=True, slots=True)
class Open:
    unit: Unit


@dataclass(frozen=True, slots=True)
class Closed:
    why: str


@dataclass(frozen=True, slots=True)
class Refusing:
    why: str


def gate(state: State) -> Open | Closed | Refusing:
    """Where requests go in this state (a hold is the gate's own affair)."""
    if state.serving and not state.closed:
        return Open(state.serving)
    if state.person:
        return Refusing(state.dark)
    return Closed(state.dark)


def moving(state: State) -> bool:
    """The card is on its way to somebody, or that is being decided."""
    return state.doing is not None and not isinstance(state.doing, Rest)


def phase(state: State) -> str:
    """One word for people: what is being done."""
    match state.doing:
        case None:
            return "serving" if state.serving else "dark"
        case Rest():
            return "serving" if state.serving else "dark"
        case Look() | Glance() | Choose() | Ascertain():
            return "looking"
        case Warm() | Start() | Free() | Inspect() | Stage() | PutBack() | Drain() | Stop() | Check() as effect:
            return _PHASES[type(effect)]
        case _ as never:
            assert_never(never)


_PHASES: dict[type, str] = {
    Check: "checking",
    Stage: "staging",
    PutBack: "staging",
    Drain: "draining",
    Stop: "stopping",
    Free: "freeing",
    Inspect: "starting",
    Start: "starting",
    Warm: "warming",
}
