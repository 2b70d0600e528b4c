"""The machine's vocabulary: what it is told (events) and what it asks for (effects).

Every awaited effect has a number `n`; exactly one report with that number comes back, late or not.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Unit:
    """A pair on its engine. `key` tells apart what the same name has meant at different times (its subject)."""

    engine: str
    pair: str
    key: str = ""

    @property
    def label(self) -> str:
        return f"{self.engine}:{self.pair or '?'}"


@dataclass(frozen=True, slots=True)
class Order:
    """`slotctl swap to-ENGINE:PAIR`."""

    id: int
    engine: str
    pair: str
    trial: bool = False
    cut: bool = False


class Code(enum.IntEnum):
    """What is true when an order ends; also slotctl's exit code."""

    SERVES = 0
    REFUSED = 3
    RESTORED = 4
    DARK = 5


# ------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Ordered:
    order: Order


@dataclass(frozen=True, slots=True)
class Aborted:
    """The order is given up: by the operator, or as `why` says. The machine asks for no reason."""

    why: str = ""


@dataclass(frozen=True, slots=True)
class Up:
    """A unit is up: the report of a start (n > 0, however late), or seen without our doing (n = 0).

    `fit`: it may serve (verified, or what we were told to run); asked only of what came up without our doing.
    """

    n: int
    unit: Unit
    fit: bool = True


@dataclass(frozen=True, slots=True)
class Died:
    """A unit is down, without our doing. `by_hand`: somebody stopped it, it seems; nothing starts it again."""

    unit: Unit
    why: str
    by_hand: bool = False


@dataclass(frozen=True, slots=True)
class NotByHand:
    """What was told as a unit's stop by hand was Docker itself going down, with all that ran in it."""

    unit: Unit


@dataclass(frozen=True, slots=True)
class Useless:
    """The unit that serves is up, and answers nothing but errors any more."""

    unit: Unit
    why: str


@dataclass(frozen=True, slots=True)
class Steady:
    """The unit has served for so long that what failed before counts no more."""

    unit: Unit


@dataclass(frozen=True, slots=True)
class Overdue:
    """The start or stop with this number passed its bound; the call is still under way."""

    n: int


@dataclass(frozen=True, slots=True)
class Found:
    """Report of `Look`: what is up at start, which of it to keep, or what to start when nothing is."""

    n: int
    up: frozenset[Unit]
    keep: Unit | None
    start: Unit | None
    why: str = ""  # why nothing is to be kept or started
    ending: Unit | None = None  # it runs, and was told to stop before we came: it may be gone any moment


@dataclass(frozen=True, slots=True)
class Chosen:
    """Report of `Choose`: who gets the card next; None: nobody can without a person."""

    n: int
    unit: Unit | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Checked:
    """Report of `Check`: allowed, and which unit the order means."""

    n: int
    unit: Unit


@dataclass(frozen=True, slots=True)
class Seen:
    """Report of `Glance`: the call has ended, and a look answered."""

    n: int
    up: bool


@dataclass(frozen=True, slots=True)
class Done:
    n: int


@dataclass(frozen=True, slots=True)
class Failed:
    """`passing`: time may mend it. `gone`: the unit that was awaited isn't running any more.

    `interrupted`: it was ended by `Interrupt`, or never begun; it says nothing about the unit.
    """

    n: int
    why: str
    passing: bool = False
    gone: bool = False
    interrupted: bool = False


Report = Found | Checked | Chosen | Seen | Done | Failed
Event = Ordered | Aborted | Up | Died | NotByHand | Useless | Steady | Overdue | Report


# ------------------------------------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class Look:
    """Look at everything, once, at start → Found, Failed."""

    n: int


@dataclass(frozen=True, slots=True)
class Check:
    """Decide from what is declared and the ledger → Checked, Failed (refused)."""

    n: int
    order: Order


@dataclass(frozen=True, slots=True)
class Stage:
    """Make the unit's stopped container what its pair declares → Done, Failed."""

    n: int
    unit: Unit


@dataclass(frozen=True, slots=True)
class PutBack:
    """Make the container again that staging replaced → Done, Failed."""

    n: int
    unit: Unit


@dataclass(frozen=True, slots=True)
class Drain:
    """The gate is closed; wait for requests in flight, or end them with `cut` → Done, Failed."""

    n: int
    cut: bool


@dataclass(frozen=True, slots=True)
class Stop:
    """→ Done (it is gone), Failed (it is still up), Overdue and late one of the two."""

    n: int
    unit: Unit


@dataclass(frozen=True, slots=True)
class Free:
    """Wait until the unit's need is free on the card → Done, Failed (who holds it)."""

    n: int
    unit: Unit


@dataclass(frozen=True, slots=True)
class Inspect:
    """Is the container that would start the unit's, and is its address free? → Done, Failed."""

    n: int
    unit: Unit


@dataclass(frozen=True, slots=True)
class Start:
    """→ Up, Failed, Overdue and late one of the two."""

    n: int
    unit: Unit


@dataclass(frozen=True, slots=True)
class Warm:
    """Wait for the engine's sign and a completion → Done, Failed."""

    n: int
    unit: Unit


@dataclass(frozen=True, slots=True)
class Glance:
    """When the overdue call on this unit has ended, look at it → Seen, Failed (can't be asked)."""

    n: int
    unit: Unit


@dataclass(frozen=True, slots=True)
class Choose:
    """The goal has failed, so many times in a row: the same again, or another that is verified → Chosen, Failed.

    `spent` were given up for it before; `later`: those of them whose failures time may mend. `passing`: so it may this
    one's, and somebody always gets the card again.
    """

    n: int
    failed: Unit
    failures: int
    spent: frozenset[Unit]
    why: str
    passing: bool
    later: frozenset[Unit] = frozenset()


@dataclass(frozen=True, slots=True)
class Ascertain:
    """Leave time to find out whether the unit was stopped by hand: a Docker that goes down tells the same → Done."""

    n: int
    unit: Unit


@dataclass(frozen=True, slots=True)
class Rest:
    """Back off → Done."""

    n: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Interrupt:
    """End the wait with this number early; its report is still to come."""

    n: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The order has ended with this code."""

    order: Order
    code: Code
    why: str


@dataclass(frozen=True, slots=True)
class Join:
    """The order means the same as the one that is under way, and ends as that one does."""

    order: Order


@dataclass(frozen=True, slots=True)
class Record:
    """Evidence: the unit serves, or failed to."""

    unit: Unit
    served: bool
    order: Order | None
    why: str = ""


Awaited = (
    Look | Check | Stage | PutBack | Drain | Stop | Free | Inspect | Start | Warm | Glance | Choose | Ascertain | Rest
)
Effect = Awaited | Interrupt | Answer | Join | Record
