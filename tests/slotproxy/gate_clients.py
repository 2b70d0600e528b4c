"""Clients and an engine around a gate, for tests in simulated time."""

from __future__ import annotations

import asyncio

from slotproxy.config import SlotSettings
from slotproxy.gate import SlotGate
from slotproxy.places import Answer, Place

SLOT = SlotSettings("coder", max_waiting=1000)
OTHER = SlotSettings("voice")


def new_gate(*, max_waiting: int = 1000, max_waiting_bytes: int = 1_000_000) -> SlotGate:
    clock = asyncio.get_running_loop().time
    return SlotGate(max_waiting=max_waiting, max_waiting_bytes=max_waiting_bytes, now=clock)


async def moment() -> None:
    """Until everybody waits again; costs a thousandth of a simulated second."""
    await asyncio.sleep(0.001)


async def entered(gate: SlotGate, slot: SlotSettings = SLOT) -> Place:
    place = await gate.enter(slot, size=1)
    assert isinstance(place, Place)
    return place


def got(task: asyncio.Task[Answer]) -> Answer:
    assert task.done(), "it still waits"
    return task.result()


class Engine:
    """Takes `concurrency` requests at once and breaks if it is sent more; remembers whom it served, in order."""

    def __init__(self, gate: SlotGate, concurrency: int) -> None:
        self.gate, self.concurrency = gate, concurrency
        self.busy = 0
        self.served: list[str] = []

    async def serve(self, name: str, slot: SlotSettings = SLOT, seconds: float = 1.0) -> None:
        place = await entered(self.gate, slot)
        try:
            self.busy += 1
            assert self.busy <= self.concurrency, "the engine was sent more than it takes"
            self.served.append(name)
            await asyncio.sleep(seconds)
        finally:
            self.busy -= 1
            place.leave()
