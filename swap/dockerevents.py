"""Docker's events in our order. Pure.

Docker tells a stop as `kill` (with the stop signal), `die`, `stop` (measured on 20.10: `stop` follows `die` by some
ten milliseconds). Whoever hears of the death has to know by then that somebody meant it, so a death that follows a
catchable signal waits a moment for its `stop`, and is told after it. `docker kill` sends no `stop`, and is not delayed.
"""

from __future__ import annotations

from swap.ports import Change, RuntimeEvent
from swap.recipes import Json

ACTIONS = ("start", "kill", "die", "stop")
MEANT = 2.0  # seconds that a death may wait for its `stop`
_KILL = "9"


class StopFirst:
    """Feed it each event; when `waiting`, flush it after at most MEANT seconds without one."""

    def __init__(self) -> None:
        self._signalled: set[str] = set()
        self._death: RuntimeEvent | None = None

    @property
    def waiting(self) -> bool:
        return self._death is not None

    def feed(self, event: Json) -> list[RuntimeEvent]:
        """What can be told now, in order."""
        action, who = event["Action"], event["Actor"]["ID"]
        attributes = event["Actor"].get("Attributes") or {}
        match action:
            case "kill":
                if attributes.get("signal") != _KILL:
                    self._signalled.add(who)
                return []
            case "die":
                return self._died(RuntimeEvent(Change.DIED, who, int(attributes.get("exitCode", -1))))
            case "stop":
                return [RuntimeEvent(Change.STOPPED, who), *self.flush()]
            case "start":
                self._signalled.discard(who)
                return [*self.flush(), RuntimeEvent(Change.STARTED, who)]
        return []

    def flush(self) -> list[RuntimeEvent]:
        """The death that waits, told as nobody's stop."""
        death, self._death = self._death, None
        return [] if death is None else [death]

    def _died(self, death: RuntimeEvent) -> list[RuntimeEvent]:
        earlier = self.flush()
        if death.id not in self._signalled:
            return [*earlier, death]
        self._signalled.discard(death.id)
        self._death = death
        return earlier
