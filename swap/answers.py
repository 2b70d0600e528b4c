"""What those who wait for orders are told: each phase as it passes, and how it ended.

`state` and `said` are the machine's, and the text of the current wait, as the controller has them now.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from swap.handback import HandBack
from swap.hands import Hands
from swap.moves import Code, Order, Ordered
from swap.state import State, phase
from swap.tickets import Ended, Progress, Ticket, truth
from swap.wish import Wish


@dataclass
class Answers:
    hands: Hands
    state: Callable[[], State]
    said: Callable[[], str]
    _tickets: list[Ticket] = field(default_factory=list)
    _ids: Callable[[], int] = field(default_factory=lambda: itertools.count(1).__next__)
    _notes: dict[int, str] = field(default_factory=dict)  # by order: what its answer adds
    _unwritten: dict[int, str] = field(default_factory=dict)  # by order: why it left no evidence
    _back: HandBack = field(default_factory=HandBack)

    def __post_init__(self) -> None:
        self._log = structlog.get_logger("slotproxy.swap")

    def begin(self, engine: str, pair: str, *, trial: bool, cut: bool, wish: Wish) -> Ticket:
        """A new order, and somebody who waits for it."""
        order = Order(self._ids(), engine, pair, trial, cut)
        self.hands.wishes[order.id] = wish
        ticket = Ticket(order)
        self._tickets.append(ticket)
        return ticket

    def due(self) -> Ordered | None:
        """The way back of a trial that has just ended: it is ordered before anything else happens."""
        return self._back.due()

    def goes_back(self, order: Order | None) -> bool:
        """Is this order the way back of a trial?"""
        return self._back.goes(order)

    def note(self, order: Order, note: str) -> None:
        """Its answer adds this."""
        self._notes[order.id] = note

    def unwritten(self, order: Order, why: str) -> None:
        """It left no evidence."""
        self._unwritten[order.id] = why

    def answer(self, order: Order, code: Code, why: str) -> None:
        wish, note = self.hands.wishes.pop(order.id, Wish()), self._notes.pop(order.id, "")
        unwritten = self._unwritten.pop(order.id, "")
        if code is Code.SERVES and wish.before is not None:
            back = self._back.begin(order, wish.before, id=self._ids(), unwritten=unwritten, note=note)
            self._hand_back(order, back, wish)
            return
        state = self.state()
        serving = state.serving.label if state.serving else None
        added = "; ".join(filter(None, (unwritten, note)))
        alone = code, truth(code, serving, why) + (f"; {added}" if added else self._beside(code, wish))
        both = self._back.ended(order, code, serving, why) if self._back.goes(order) else alone
        for ticket in [t for t in self._tickets if t.order.id == order.id]:
            truly, text = both if ticket.tried else alone  # who has joined the way back has tried nothing
            ticket.news.put_nowait(Ended(int(truly), text, serving, time.monotonic() - ticket.since))
            self._tickets.remove(ticket)
        self._log.info("order ended", target=f"{order.engine}:{order.pair}", code=int(both[0]), why=why)

    def _hand_back(self, trial: Order, back: Order, wish: Wish) -> None:
        """The trial has ended well: whoever waits for it waits for the way back, which is next."""
        self.hands.wishes[back.id] = Wish(stage=wish.stage, drain=wish.drain)
        for ticket in self._tickets:
            if ticket.order.id == trial.id:
                ticket.order, ticket.tried = back, True
                ticket.tell(Progress(phase(self.state()), self._back.news(back), time.monotonic() - ticket.since))
        self._log.info("trial ended", target=f"{trial.engine}:{trial.pair}", news=self._back.news(back))

    def _beside(self, code: Code, wish: Wish) -> str:
        """What the answer adds: by what it got the card, that it serves unproven, that nothing was handed back."""
        if code is not Code.SERVES:
            return ""
        if wish.leave:
            return f"; it got the card by policy: {wish.leave}"
        none = "; it served already, so nothing was tried and nothing is handed back" if wish.and_back else ""
        return none + self._unproven()

    def _unproven(self) -> str:
        """An order for what serves already changes nothing, so it makes no evidence either."""
        serving = self.state().serving
        known = self.hands.known.get(serving) if serving else None
        if serving is None or known is None or known.verified is not False:
            return ""
        return f"; it isn't verified: `slotctl pairs adopt {serving.engine}` makes evidence of it"

    def join(self, order: Order) -> None:
        """Whoever asked for it follows the order that is under way."""
        current = self.state().order
        assert current is not None
        if self.hands.wishes[order.id].and_back != self.hands.wishes[current.id].and_back:
            how = "without" if self.hands.wishes[order.id].and_back else "with"
            self.answer(order, Code.REFUSED, f"a swap to {current.engine}:{current.pair} {how} --and-back is under way")
            return
        for ticket in self._tickets:
            if ticket.order.id == order.id:
                ticket.order = current
                ticket.tell(self._progress(ticket, f"joined the swap to {current.engine}:{current.pair}"))
        self.hands.wishes.pop(order.id, None)

    def tell_progress(self) -> None:
        current = self.state().order
        for ticket in self._tickets:
            if current is not None and ticket.order.id == current.id:
                ticket.tell(self._progress(ticket, self.said()))

    def _progress(self, ticket: Ticket, text: str) -> Progress:
        word = phase(self.state())
        if self.state().failure:
            word, text = f"restoring: {word}", text or self.state().failure
        elif self._back.goes(self.state().order):
            word = f"back: {word}"
        return Progress(word, text, time.monotonic() - ticket.since)
