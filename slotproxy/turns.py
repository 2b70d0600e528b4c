"""Who waits, and whose turn is next. Pure: no clock, no event loop, nobody is woken here.

    1. The slot of higher priority goes first. But each turn that goes past a lower slot that waits is counted, and
       after PATIENCE of them in a row comes a fair turn, in which priorities don't count.
    2. Among slots of the same priority, and among all in a fair turn: the slot whose last turn is longest ago. A slot
       that was away has saved up one turn by it, not many.
    3. Within a slot: first come, first served.
    4. Who goes on with a conversation that the engine still has in its cache goes before those that rules 2 and 3 would
       choose, but never before a higher slot, not in a fair turn, and `warm` times in a row at most.

So none starves: the head of a slot's line is served within (PATIENCE + 1) x (warm + 1) x (number of slots) turns,
whatever the others do. For of PATIENCE + 1 turns in a row one at least goes by rule 2 or 4 among slots that include
the given one, of `warm` + 1 of these one at least by rule 2, and by rule 2 no other slot gets a second turn before the
given one has had its first. (Not counted: what a slot waits at its own `max_in_flight`.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from slotproxy.config import SlotSettings

PATIENCE = 4
_AHEAD = 16  # of a line, so many are asked whether the engine has them in its cache


@dataclass(eq=False, slots=True)
class Waiter:
    """A request that waits: `size` of its body in bytes, `since` on the gate's clock."""

    slot: SlotSettings
    size: int
    since: float


W = TypeVar("W", bound=Waiter)


@dataclass(frozen=True, slots=True)
class Turn(Generic[W]):
    """Whose turn it is. `passes`: it goes past a slot of lower priority that waits. `warm`: it goes before others,
    for the engine has it in its cache.
    """

    waiter: W
    passes: bool
    warm: bool = False


class Turns(Generic[W]):
    """Everyone who waits, in one line for each slot. All of one slot's settings come from the head of its line.

    `warm`: how many turns in a row may go by rule 4.
    """

    def __init__(self, warm: int = 0) -> None:
        self.warm = warm
        self._warm = 0  # turns in a row that went by rule 4
        self._lines: dict[str, dict[W, None]] = {}  # in the order of arrival; a dict for its quick removal
        self._last: dict[str, int] = {}  # slot → the number of its last turn
        self._turn = 0
        self._passes = 0  # turns in a row that went past a lower slot
        self.bytes = 0

    def __len__(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def __iter__(self) -> Iterator[W]:
        for line in self._lines.values():
            yield from line

    def of(self, slot: str) -> int:
        """How many of that slot wait."""
        return len(self._lines.get(slot, ()))

    def add(self, waiter: W, *, first: bool = False) -> None:
        """`first`: before all others of its slot, as it has had a turn already, and could do nothing with it."""
        line = self._lines.setdefault(waiter.slot.name, {})
        if first:
            self._lines[waiter.slot.name] = {waiter: None, **line}
        else:
            line[waiter] = None
        self.bytes += waiter.size

    def remove(self, waiter: W) -> None:
        """Forget one who waits; nothing happens if it doesn't."""
        line = self._lines.get(waiter.slot.name, {})
        if waiter not in line:
            return
        del line[waiter]
        self.bytes -= waiter.size
        if not line:
            del self._lines[waiter.slot.name]

    @property
    def may_be_warm(self) -> bool:
        """Whether the next turn may go by rule 4."""
        return self._warm < self.warm and self._passes < PATIENCE

    def next(self, in_flight: Mapping[str, int], shares: Callable[[W], int] = lambda _: 0) -> Turn[W] | None:
        """Whose turn it is, given how many of each slot are in flight; changes nothing. None: nobody may go.

        `shares`: how much of a waiter's conversation the engine still has, in bytes.
        """
        heads = [head for head in map(_head, self._lines.values()) if _may_go(head.slot, in_flight)]
        if not heads:
            return None
        top = max(head.slot.priority for head in heads)
        fair = self._passes >= PATIENCE
        able = heads if fair else [head for head in heads if head.slot.priority == top]
        usual = min(able, key=self._last_turn)
        chosen = self._warmest(usual, able, shares) if self.may_be_warm else usual
        return Turn(chosen, passes=len(able) < len(heads), warm=chosen is not usual)

    def _warmest(self, usual: W, able: Iterable[W], shares: Callable[[W], int]) -> W:
        """Of equals the usual one, then who came first."""
        near = (waiter for head in able for waiter in islice(self._lines[head.slot.name], _AHEAD))
        return max((usual, *near), key=shares)

    def take(self, turn: Turn[W]) -> W:
        """Use the turn up: its waiter waits no longer."""
        self.remove(turn.waiter)
        self._turn += 1
        self._last[turn.waiter.slot.name] = self._turn
        self._passes = self._passes + 1 if turn.passes else 0
        self._warm = self._warm + 1 if turn.warm else 0
        return turn.waiter

    def _last_turn(self, waiter: W) -> int:
        return self._last.get(waiter.slot.name, 0)


def _head(line: dict[W, None]) -> W:
    return next(iter(line))


def _may_go(slot: SlotSettings, in_flight: Mapping[str, int]) -> bool:
    return slot.max_in_flight is None or in_flight.get(slot.name, 0) < slot.max_in_flight
