"""The watches of all engines: one begins with its engine, and ends when that isn't configured any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from swap.hands import Hands
from swap.moves import Event
from swap.ports import Ledger
from swap.state import State
from swap.watch import Watch


@dataclass
class Watches:
    """`state` is the machine's now, `tell` gives it an event."""

    hands: Hands
    ledger: Ledger
    state: Callable[[], State]
    tell: Callable[[Event], None]
    _tasks: asyncio.TaskGroup | None = None  # None: not begun yet
    _running: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    def begin(self, tasks: asyncio.TaskGroup, names: Iterable[str]) -> None:
        """They live in `tasks`."""
        self._tasks = tasks
        self.add(names)

    def add(self, names: Iterable[str]) -> None:
        """Watch these, too. Before the beginning there is nothing to do: all that is configured is watched then."""
        if self._tasks is None:
            return
        for name in names:
            watch = Watch(name, self.hands, self.ledger, self.state, self.tell)
            self._running[name] = self._tasks.create_task(watch.run(), name=f"watch {name}")

    def end(self, names: Iterable[str]) -> None:
        """Nothing is told of these any more."""
        for name in names:
            if (watching := self._running.pop(name, None)) is not None:
                watching.cancel()
