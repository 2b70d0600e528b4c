"""What has happened, and whether that excuses how a request or an order ended."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

KEPT = 60  # lines that are shown when it fails


class Blow(Enum):
    """What we have done to the house that somebody may feel."""

    KILLED = "an engine was killed"
    USELESS = "an engine was left alive, and of no use"
    CUT = "requests were cut"
    DOWN = "the daemon was down"
    STOPPED = "the daemon was told to stop"
    DARK = "nothing served, and that was said"
    CARD = "the card could not be asked, or was held"
    ABORTED = "an order was given up"
    ORDERED = "another order was given"


@dataclass
class Span:
    """From when to when it lasted; `end` is infinite while it does."""

    begin: float
    end: float = math.inf


@dataclass
class Story:
    """Times are of time.monotonic()."""

    began: float = field(default_factory=time.monotonic)
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT))
    faults: int = 0
    _spans: dict[Blow, list[Span]] = field(default_factory=dict)

    def tell(self, text: str) -> None:
        self.lines.append(f"{time.monotonic() - self.began:8.2f} s  {text}")

    def now(self, blow: Blow) -> None:
        """It happens at this moment."""
        moment = time.monotonic()
        self._spans.setdefault(blow, []).append(Span(moment, moment))

    @contextmanager
    def during(self, blow: Blow) -> Iterator[None]:
        span = Span(time.monotonic())
        self._spans.setdefault(blow, []).append(span)
        try:
            yield
        finally:
            span.end = time.monotonic()

    def felt(self, begin: float, end: float, *blows: Blow, echo: float = 0.0) -> bool:
        """Was any of these between `begin` and `end`? `echo`: seconds for which it is felt after its own end."""
        spans = [span for blow in blows for span in self._spans.get(blow, ())]
        return any(span.begin <= end and span.end + echo >= begin for span in spans)

    def __str__(self) -> str:
        return "\n".join(self.lines)
