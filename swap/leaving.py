"""Leaving the card: an order that hasn't asked what serves to stop is given up, the rest is left to the journal."""

from __future__ import annotations

import asyncio

from swap.controller import Controller
from swap.moves import Check
from swap.state import State
from swap.warming import POLL

WHY = "slotproxy is stopping"


async def leave(controller: Controller) -> None:
    """Returns when the card is as it shall be left; then cancel the controller before it begins anything else.

    From *stopping* on that is at once: what is half done is on disk, and the next start finishes or undoes it.
    """
    told: int | None = None
    while (order := controller.under_way) is not None and (undoable(controller.state) or _decided(controller)):
        if controller.state.order is not None and told != order.id:
            told = order.id
            controller.abort(WHY)
        await asyncio.sleep(POLL)


def undoable(state: State) -> bool:
    """An order is under way, and nothing has been taken from anybody for it."""
    if state.order is None or state.failure:
        return False
    return state.serving is not None or isinstance(state.doing, Check)


def _decided(controller: Controller) -> bool:
    """It has ended, and its evidence is being written."""
    return controller.state.order is None
