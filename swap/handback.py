"""`--and-back`: a trial that hands the card back once it has proven itself.

The way back is an order of its own, to the pair that served before; the machine knows nothing of it. It is given in
the very moment in which the trial has ended, so that no other order comes between. From then on it is an order like any
other: it drains, it can be given up, and where it fails the pair that was tried is put back and serves on. A daemon
that dies between the two leaves the tried pair, verified, on the card: it is adopted, and nobody hands it back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from swap.moves import Code, Order, Ordered, Unit


@dataclass
class HandBack:
    """The ways back that are under way, and what their answers say of the trial."""

    _tried: dict[int, str] = field(default_factory=dict)  # by the order that goes back: what came of the trial
    _unproven: set[int] = field(default_factory=set)  # trials that left no evidence
    _due: Ordered | None = None

    def begin(self, trial: Order, before: Unit, *, id: int, unwritten: str, note: str) -> Order:
        """The order that goes back to `before`. `unwritten`: why the trial left no evidence; empty: it did.

        `note`: what else is to be said of the trial.
        """
        back = Order(id, before.engine, before.pair, cut=trial.cut)
        label = f"{trial.engine}:{trial.pair}"
        tried = f"{label} served, but {unwritten}" if unwritten else f"{label} is verified"
        self._tried[id] = f"{tried}; {note}" if note else tried
        if unwritten:
            self._unproven.add(id)
        self._due = Ordered(back)
        return back

    def due(self) -> Ordered | None:
        """What is to be ordered before anything else happens, once."""
        due, self._due = self._due, None
        return due

    def news(self, back: Order) -> str:
        return f"{self._tried[back.id]}; the card goes back to {back.engine}:{back.pair}"

    def goes(self, order: Order | None) -> bool:
        """Is this order a way back?"""
        return order is not None and order.id in self._tried

    def ended(self, back: Order, code: Code, serving: str | None, why: str) -> tuple[Code, str]:
        """What is true of trial and way back together. A refusal of the way back is no "nothing was changed"."""
        tried, unproven = self._tried.pop(back.id), back.id in self._unproven
        self._unproven.discard(back.id)
        if serving is None:
            return Code.DARK, f"dark, nothing serves: {why}; {tried}"
        if code is Code.SERVES:
            return Code.RESTORED if unproven else Code.SERVES, f"{tried}; {serving} serves again"
        return Code.RESTORED, f"{tried}; {back.engine}:{back.pair} doesn't serve again, {serving} does: {why}"
