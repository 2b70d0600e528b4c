"""Are two engines there at once? Looked at from outside, all the time: processes or containers, and the card's locks.

A look takes its time, and an engine may end and another begin within it. So two count only if both are seen again, the
very same, by the look after it: then both were there at once, whatever happened in between.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

from engines import simvram
from tests.soak.ground import ENGINES, Ground
from tests.soak.story import Story

EVERY = 0.05  # seconds

There = dict[str, frozenset[str]]


class Eyes:
    """A thread that looks as long as the block runs. `double`: what it has seen that must never be."""

    def __init__(self, ground: Ground, story: Story) -> None:
        self.double: list[str] = []
        self.looks = 0
        self.broken = ""
        self._ground, self._story = ground, story
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="eyes")

    def _run(self) -> None:
        last: There = {}
        try:
            while not self._end.is_set():
                began = time.monotonic()
                now = self._look()
                both = {name: now[name] & last[name] for name in now.keys() & last.keys()}
                self._note({name: runs for name, runs in both.items() if runs})
                last = now
                pause = 0.0 if len(now) > 1 else EVERY - (time.monotonic() - began)
                self._end.wait(max(0.0, pause))
        except Exception as error:
            self.broken = repr(error)

    def _look(self) -> There:
        """Who is up, and who has memory of the card; a lingering allocation belongs to its engine still."""
        self.looks += 1
        found = dict(self._ground.up())
        for use in simvram.uses(self._ground.card):
            name = next((name for name in ENGINES if use.name.startswith(name)), None)
            if name is not None:
                found[name] = found.get(name, frozenset()) | {f"memory {use.name}"}
        return found

    def _note(self, both: There) -> None:
        if len(both) > 1 and len(self.double) < 10:
            text = "; ".join(f"{name}: {', '.join(sorted(runs))}" for name, runs in sorted(both.items()))
            self.double.append(text)
            self._story.tell(f"TWO ENGINES: {text}")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
