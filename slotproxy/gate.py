"""The gate: where requests wait for their turn, or for the card, and where the controller holds them back.

Requests go through ⇔ the gate is open, no hold is set, and the engine has a free place. Three parts:

- `SlotGate._admit_next` decides, synchronously, and everything that may have made room calls it: a place was left,
  the gate opened, a hold ended, somebody came. Whose turn it is, `slotproxy.turns` says.
- `enter()` is the only place where requests wait. One future answers each of them, once: with a `Place`, `Expired` or
  `Refused`. If the client leaves in the very moment in which it got a place, that place goes to the next.
- Who holds a `Place` tells how it ends: `settle()` (the client has left, the engine still works), `leave()` (free).

The gate belongs to one event loop and isn't thread-safe. It never polls: each wait has a timer of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from engines.spec import Engine
from slotproxy.config import Limits, SlotSettings
from slotproxy.conversation import Conversation
from slotproxy.hold import Hold
from slotproxy.places import (
    RETRY_BUSY,
    RETRY_ENDED,
    RETRY_REFUSED,
    Answer,
    Expired,
    GateView,
    Place,
    Refused,
    SlotView,
    State,
    no_slot,
)
from slotproxy.turns import Turn, Turns, Waiter
from slotproxy.warmth import Warmth


@dataclass(eq=False, slots=True)
class _Ticket(Waiter):
    """One waiting request and the future that answers it. Cancelled: its client left, and it hasn't noticed yet."""

    answer: asyncio.Future[Answer]
    id: str = ""
    conversation: Conversation | None = None


class SlotGate:
    """Implements `swap.ports.Gate` for the controller. Sizes in bytes, times in seconds.

    `max_waiting` and `max_waiting_bytes` limit all slots together. `warm_turns` and `warm_wait` are about the order
    that keeps an engine's cache warm, `prefixes` tells how many conversations each engine has in it.
    """

    def __init__(
        self,
        *,
        max_waiting: int,
        max_waiting_bytes: int,
        warm_turns: int = 0,
        warm_wait: float = 0.0,
        prefixes: Mapping[str, int] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_waiting = max_waiting
        self._max_waiting_bytes = max_waiting_bytes
        self._now = now
        self._turns: Turns[_Ticket] = Turns(warm_turns)
        self._warmth = Warmth(warm_wait)
        self._prefixes = prefixes or {}
        self._warm_until: asyncio.TimerHandle | None = None  # a place stays free that long for a conversation
        self._places: set[Place] = set()
        self._engine = ""  # the last one that the gate opened to
        self._run = ""  # and which run of it
        self._concurrency = 0
        self._opening = 0  # counts changes of engine: places of an earlier opening take no room
        self._open = False
        self._refusal: Refused | None = None
        self._ended = False
        self._hold = Hold(now, self._admit_next)
        self._idle = asyncio.Event()  # set ⇔ no client's request is in flight at this opening
        self._idle.set()

    # ---------------------------------------------------------------------------------------------- requests

    async def enter(
        self,
        slot: SlotSettings,
        *,
        size: int,
        within: float | None = None,
        again: Place | None = None,
        id: str = "",
        conversation: Conversation | None = None,
    ) -> Answer:
        """Wait for a turn, or for the card, at most `slot.max_hold` seconds and at most `within`.

        `size`: the bytes that are held meanwhile. `again`: a place that it had and couldn't use; that is left, and it
        comes before the others of its slot. `id`: what people know it by. Cancelled (the client left): its place in
        the line and its bytes are free at once, and a place that it had just got goes to the next. Run in a task of
        its own, the task's result must not be thrown away: a `Place` in it has to be left.
        """
        ticket = _Ticket(slot, size, self._now(), asyncio.get_running_loop().create_future(), id, conversation)
        self._arrive(ticket, again)
        patience = slot.max_hold if within is None else min(slot.max_hold, within)
        timer = asyncio.get_running_loop().call_later(patience, self._expire, ticket)
        try:
            return await ticket.answer
        except BaseException:
            self._withdraw(ticket)
            raise
        finally:
            timer.cancel()

    def _arrive(self, ticket: _Ticket, again: Place | None) -> None:
        """Afterwards it is answered already (let in, or refused), or waits in its slot's line."""
        if self._refusal is not None:
            ticket.answer.set_result(self._refusal)
            return
        self._warmth.came(ticket.conversation, ticket.since)
        self._turns.add(ticket, first=again is not None)
        if again is not None:
            again.leave()
        self._admit_next()
        if again is None and not ticket.answer.done() and (limit := self._limit_passed(ticket.slot)):
            self._turns.remove(ticket)
            ticket.answer.set_result(Refused(429, limit, self._retry_after()))

    def _admit_next(self) -> None:
        """Let in those whose turn it is, as long as there is room."""
        if self._warm_until is not None:
            self._warm_until.cancel()
            self._warm_until = None
        while self._room() and (turn := self._turns.next(self._in_flight(), self._shares)):
            if turn.waiter.answer.cancelled():
                self._turns.remove(turn.waiter)  # no turn is used up by one who has left
            elif self._waits_for_another(turn):
                return
            else:
                self._admit(self._turns.take(turn))

    def _shares(self, ticket: _Ticket) -> int:
        return self._warmth.shares(ticket.conversation)

    def _waits_for_another(self, turn: Turn[_Ticket]) -> bool:
        """Whether the place stays free for a moment: the engine's last conversation will go on soon, and go first."""
        if self._concurrency > 1 or not self._turns.may_be_warm:
            return False
        now = self._now()
        until = self._warmth.awaited(turn.waiter.slot.priority, now)
        if until is None:
            return False
        self._warm_until = asyncio.get_running_loop().call_later(until - now, self._admit_next)
        return True

    def _room(self) -> bool:
        return self._open and self._hold.left() is None and self._in_flight().total() < self._concurrency

    def _in_flight(self) -> Counter[str]:
        """Places taken at the engine, settling ones included, by slot."""
        return Counter(place._slot for place in self._places if place._opening == self._opening)

    def _admit(self, ticket: _Ticket) -> None:
        held = self._now() - ticket.since
        talk = self._warmth.begun(ticket.conversation, ticket.slot.priority)
        place = Place(self._engine, self._run, held, asyncio.Event(), ticket.slot.name, self._opening, self, talk)
        self._places.add(place)
        self.note_idle()
        ticket.answer.set_result(place)

    def _expire(self, ticket: _Ticket) -> None:
        if ticket.answer.done():
            return
        self._turns.remove(ticket)
        waited = self._now() - ticket.since
        ticket.answer.set_result(Expired(waited, f"waited {waited:.1f} s {self._waiting_for()}"))

    def _withdraw(self, ticket: _Ticket) -> None:
        """Its client left: undo what the ticket has, a turn in the line or a place that it got in this moment."""
        self._turns.remove(ticket)
        if (
            not ticket.answer.cancelled()
            and ticket.answer.done()
            and isinstance(place := ticket.answer.result(), Place)
        ):
            place.leave()

    def left(self, place: Place) -> None:
        if place in self._places:
            self._places.remove(place)
            if not place._settling:
                self._warmth.ended(place._talk, self._now())
            self._admit_next()
            self.note_idle()

    # ------------------------------------------------------------------------------------- the controller's side

    def open(self, engine: str, concurrency: int, run: str = "") -> None:
        """Release waiting requests to `engine`, never more than `concurrency` at once.

        Opened again to the same `run` of an engine, requests still in flight there keep their places; opened to
        another engine, or to the same one started anew, the places at the one before count no more.
        """
        if self._ended:
            return
        if (engine, run) != (self._engine, self._run):
            self._engine, self._run = engine, run
            self._opening += 1
            self._warmth.opened(self._prefixes.get(engine, 0))
        self._concurrency = concurrency
        self._open, self._refusal = True, None
        self._admit_next()
        self.note_idle()

    def close(self) -> None:
        """Everyone waits. Requests in flight go on."""
        if not self._ended:
            self._open, self._refusal = False, None

    def refuse(self, reason: str) -> None:
        """Everyone, also who waits, is answered 503 with `reason`, until `open()` or `close()`."""
        if not self._ended:
            self._refuse(Refused(503, reason, RETRY_REFUSED))

    def end(self, reason: str) -> int:
        """Shut down for good: who waits is answered 503 and nobody enters any more; returns how many waited.

        Requests in flight go on: `drained()` waits for them, `cut()` ends them.
        """
        self._ended = True
        return self._refuse(Refused(503, reason, RETRY_ENDED))

    def _refuse(self, refusal: Refused) -> int:
        self._open, self._refusal = False, refusal
        waiting = [ticket for ticket in self._turns if not ticket.answer.done()]
        for ticket in waiting:
            self._turns.remove(ticket)
            ticket.answer.set_result(refusal)
        return len(waiting)

    def configure(
        self, slots: Mapping[str, SlotSettings], gone: Collection[str], limits: Limits, engines: Mapping[str, Engine]
    ) -> None:
        """What is configured now. `gone`: slots that were removed.

        Who waits keeps its turn, and the longest wait that it was promised; the rest of what its slot says holds at
        once. Nobody is turned away because a limit is lower now, but of a slot that is gone nobody can wait.
        """
        self._max_waiting, self._max_waiting_bytes = limits.max_waiting, limits.max_waiting_bytes
        self._turns.warm, self._warmth.wait = limits.warm_turns, limits.warm_wait
        self._prefixes = {name: engine.prefixes for name, engine in engines.items()}
        if self._engine in engines:
            self._concurrency = engines[self._engine].concurrency
            self._warmth.keep(self._prefixes[self._engine])
        for ticket in tuple(self._turns):
            name = ticket.slot.name
            if name in gone and not ticket.answer.done():
                self._turns.remove(ticket)
                ticket.answer.set_result(no_slot(name))
            ticket.slot = slots.get(name, ticket.slot)
        self._admit_next()

    async def drained(self, timeout: float) -> bool:
        """True as soon as no client's request is in flight at the engine; False after `timeout` seconds.

        Settling places don't count, nor do requests still ending at an engine that the gate was open to before.
        With a hold or a closed gate it stays true; with an open one, the next request is already on its way.
        """
        try:
            async with asyncio.timeout(timeout):
                while not self._idle.is_set():
                    await self._idle.wait()
        except TimeoutError:
            return self._idle.is_set()
        return True

    def cut(self) -> int:
        """Ask every request in flight to end in-band now; returns how many were asked.

        Settling places are told, too (nobody needs to wait for them any longer), but not counted.
        """
        for place in self._places:
            place.cut.set()
        return sum(not place._settling for place in self._places)

    def note_idle(self) -> None:
        if any(place._opening == self._opening and not place._settling for place in self._places):
            self._idle.clear()
        else:
            self._idle.set()

    # -------------------------------------------------------------------------------------------- the operator's hold

    def hold(self, seconds: float | None, expired: Callable[[], object] = lambda: None) -> None:
        """Let nobody through until `release()`, or for so many seconds (`expired`); replaces a hold that is set."""
        self._hold.set(seconds, expired)

    def release(self) -> bool:
        """End the hold; who waited goes through as the engine takes them. False: none was set."""
        return self._hold.release()

    # ------------------------------------------------------------------------------------------------- what it says

    def view(self) -> GateView:
        """The gate now, for status, metrics and messages."""
        slots = self._slot_views()
        return GateView(
            state=self._state(),
            engine=self._engine if self._open else None,
            reason=self._refusal.reason if self._refusal else "",
            waiting=len(self._turns),
            waiting_bytes=self._turns.bytes,
            in_flight=sum(slot.in_flight for slot in slots.values()),
            settling=sum(slot.settling for slot in slots.values()),
            held_for=self._hold.left(),
            longest_wait=self._longest_wait(),
            slots=slots,
        )

    @property
    def waits_for_the_card(self) -> bool:
        """Somebody waits, and not only for a turn."""
        return self._state() == "closed" and len(self._turns) > 0

    def _slot_views(self) -> dict[str, SlotView]:
        waiting = Counter(ticket.slot.name for ticket in self._turns)
        in_flight = Counter(place._slot for place in self._places if not place._settling)
        settling = Counter(place._slot for place in self._places if place._settling)
        names = waiting | in_flight | settling
        return {name: SlotView(waiting[name], in_flight[name], settling[name]) for name in sorted(names)}

    def _state(self) -> State:
        if self._refusal is not None:
            return "refusing"
        if not self._open:
            return "closed"
        return "open" if self._hold.left() is None else "held"

    def _longest_wait(self) -> float:
        now = self._now()
        return max((now - ticket.since for ticket in self._turns), default=0.0)

    def lines(self) -> dict[str, list[str]]:
        """Who waits, by slot: their ids, in the order in which they would go if nobody had an advantage."""
        lines: dict[str, list[str]] = {}
        for ticket in self._turns:
            lines.setdefault(ticket.slot.name, []).append(ticket.id)
        return lines

    def waiting_for(self, slot: SlotSettings) -> str:
        """What a request of this slot waits for now, in words."""
        if self._state() == "open" and slot.max_in_flight is not None:
            taken = self._in_flight()[slot.name]
            if taken >= slot.max_in_flight:
                return f"for its slot's own turn: {taken} at {self._engine} is all that slot {slot.name} may have there"
        return self._waiting_for()

    def _waiting_for(self) -> str:
        match self._state():
            case "open":
                return f"for its turn at {self._engine}"
            case "held":
                return "while the operator holds requests"
            case _:
                return "for an engine to be ready"

    def _limit_passed(self, slot: SlotSettings) -> str | None:
        """Which limit the line passes, with the request that has just joined it."""
        if self._turns.of(slot.name) > slot.max_waiting:
            return f"slot {slot.name}: {slot.max_waiting} requests wait already"
        if len(self._turns) > self._max_waiting:
            return f"{self._max_waiting} requests wait already"
        if self._turns.bytes > self._max_waiting_bytes:
            return f"waiting requests would hold more than {self._max_waiting_bytes} bytes"
        return None

    def _retry_after(self) -> float:
        """A guess at when there may be room: when the hold expires, else after as long as the oldest has waited."""
        least, most = RETRY_BUSY
        return min(max(least, self._hold.left() or self._longest_wait()), most)
