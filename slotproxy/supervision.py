"""What requests tell of the engine that answered them, and the place that is kept while the engine is examined."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

from slotproxy.config import SlotSettings
from slotproxy.gate import SlotGate
from slotproxy.places import Place
from swap.controller import Controller
from swap.ends import Tried
from swap.health import Health

OURS = SlotSettings("(health)", priority=10**9)
"""The slot of our own questions: no configured name has parentheses, and nobody goes before it."""


class Supervision(Protocol):
    """`swap.health.Health`; a `run` is the one that a place was given for."""

    def answered(self, run: str) -> None: ...

    def error(self, run: str, why: str) -> bool: ...

    def unreached(self, run: str) -> None: ...

    async def ended_before(self, engine: str, tried: Tried) -> bool: ...

    async def examine(self, run: str) -> None: ...


class Unsupervised:
    """Nobody listens: for a client port without a controller."""

    def answered(self, run: str) -> None:
        pass

    def error(self, run: str, why: str) -> bool:  # noqa: ARG002  (a protocol's signature)
        return False

    def unreached(self, run: str) -> None:
        pass

    async def ended_before(self, engine: str, tried: Tried) -> bool:  # noqa: ARG002
        return False

    async def examine(self, run: str) -> None:
        pass


def supervise(controller: Controller, gate: SlotGate) -> Health:
    """Of whatever the controller has serving, by way of this gate."""
    return Health(
        controller.hands,
        lambda: controller.state,
        controller.useless,
        partial(taken, gate),
        partial(place_of_ours, gate),
    )


def taken(gate: SlotGate) -> int:
    """Places at the engine that are, those included whose clients have left."""
    view = gate.view()
    return view.in_flight + view.settling


@asynccontextmanager
async def place_of_ours(gate: SlotGate, within: float) -> AsyncIterator[bool]:
    """A place for a question of ours; False: there was none within so many seconds. No drain waits for it."""
    answer = await gate.enter(OURS, size=0, within=within)
    if not isinstance(answer, Place):
        yield False
        return
    answer.settle()
    try:
        yield True
    finally:
        answer.leave()
