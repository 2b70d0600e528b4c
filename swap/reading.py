"""How files are read for one question: what is told meanwhile, whether memory counts, and who goes first."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from engines.spec import GiB

FIRST = 1.0  # seconds that a reading takes before it is worth a word
EVERY = 2.0  # seconds between two words

Say = Callable[[str], None]


def nobody(_: str) -> None:
    pass


@dataclass(slots=True)
class Reading:
    """One question's. `say` hears how far it is, on the event loop.

    `anew`: every byte is read again, whatever is remembered. `aside`: it is nobody's way to the card, so it makes room
    while clients wait for one that is being moved. `alarms`: what was found that can't be, if all went well.
    """

    say: Say = nobody
    anew: bool = False
    aside: bool = False
    alarms: list[str] = field(default_factory=list)
    _next: float | None = None  # when there may be another word

    def progress(self, path: Path, done: int, size: int) -> None:
        """`done` of `size` bytes are read."""
        now = time.monotonic()
        if self._next is None:
            self._next = now + FIRST
        if now >= self._next:
            self._next = now + EVERY
            self.say(f"hashing {path}: {done / GiB:.1f} of {size / GiB:.1f} GiB")

    def waits(self) -> None:
        self.say("waiting: clients wait for the card")

    def alarm(self, what: str) -> None:
        self.alarms.append(what)
        self.say(what)
        structlog.get_logger("slotproxy.swap").error("files", alarm=what)
