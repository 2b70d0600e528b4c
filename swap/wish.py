"""What an order brings beside what the machine is told of it."""

from __future__ import annotations

from dataclasses import dataclass

from swap.moves import Unit


@dataclass(slots=True)
class Wish:
    """What an order brings beside the machine's `Order`. `stage`: may its container be recreated?"""

    stage: bool = True
    drain: float | None = None
    rehash: bool = False  # are its files read again, whatever is remembered?
    tokens: int | None = None  # of a trial's completion; None: as configured
    and_back: bool = False  # once the trial has proven itself, what served before gets the card again
    unit: Unit | None = None  # what it means, once checked
    before: Unit | None = None  # what is handed back to
    leave: str = ""  # what let it through in place of evidence
