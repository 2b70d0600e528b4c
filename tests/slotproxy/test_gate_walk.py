"""The gate under everything at once: random walks over what clients, controller and operator can do.

Each step happens at once, back to back with the next, so that a cancellation can meet a grant in the same moment; a
`rest` lets everybody run until they wait again, and then the rules must hold.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from slotproxy.config import SlotSettings
from slotproxy.gate import SlotGate
from slotproxy.places import Expired, Place, Refused
from tests.simulated_time import in_simulated_time
from tests.slotproxy.gate_clients import moment, new_gate

SLOTS = {
    slot.name: slot
    for slot in (
        SlotSettings("high", priority=2, max_waiting=4, max_hold=50),
        SlotSettings("narrow", priority=1, max_in_flight=1, max_hold=20),
        SlotSettings("low", max_hold=80),
        SlotSettings("peer", max_hold=100),
    )
}
MAX_WAITING, MAX_BYTES = 12, 60


@dataclass(eq=False)
class Client:
    number: int
    slot: str
    size: int
    task: asyncio.Task[None] | None = None
    place: Place | None = None
    answered: asyncio.Event = field(default_factory=asyncio.Event)  # the engine has finished its answer


class Walk:
    """A gate and the world around it, which keeps its own books."""

    def __init__(self, gate: SlotGate, tasks: asyncio.TaskGroup) -> None:
        self.gate, self.tasks = gate, tasks
        self.number = 0
        self.waiting: list[Client] = []
        self.at_engine: list[Client] = []
        self.settling: list[Client] = []
        self.served: dict[str, int] = {}  # slot → the number of its last client that got a place
        self.engine, self.concurrency = "", 0
        self.state = "closed"
        self.held_until = 0.0

    # -- clients

    async def live(self, client: Client) -> None:
        self.waiting.append(client)
        try:
            answer = await self.gate.enter(SLOTS[client.slot], size=client.size)
        finally:
            self.waiting.remove(client)
        match answer:
            case Place():
                await self.use(client, answer)
            case Expired(waited=waited):
                assert waited >= SLOTS[client.slot].max_hold - 0.001
            case Refused(status=status):
                assert status in (429, 503)

    async def use(self, client: Client, place: Place) -> None:
        assert self.served.get(client.slot, 0) < client.number, "somebody of its slot who came later went first"
        self.served[client.slot] = client.number
        client.place = place
        self.at_engine.append(client)
        try:
            await client.answered.wait()
        except asyncio.CancelledError:
            place.settle()
            self.settling.append(client)
            raise
        else:
            place.leave()
        finally:
            self.at_engine.remove(client)

    # -- steps

    async def enter(self, slot: str, size: int) -> None:
        self.number += 1
        client = Client(self.number, slot, size)
        client.task = self.tasks.create_task(self.live(client))
        await asyncio.sleep(0)  # it is at the gate now: clients come in the order of their numbers

    def give_up(self, which: int) -> None:
        if everyone := self.waiting + self.at_engine:
            task = everyone[which % len(everyone)].task
            assert task is not None
            task.cancel()

    def finish(self, which: int) -> None:
        if self.at_engine:
            self.at_engine[which % len(self.at_engine)].answered.set()

    def settled(self) -> None:
        for client in self.settling:
            assert client.place is not None
            client.place.leave()
        self.settling.clear()

    def open(self, another: bool) -> None:
        if another or not self.engine:
            self.engine += "x"
            self.concurrency = 1 + len(self.engine) % 3
        self.state = "open"
        self.gate.open(self.engine, self.concurrency)

    def close(self) -> None:
        self.state = "closed"
        self.gate.close()

    def refuse(self) -> None:
        self.state = "refusing"
        self.gate.refuse("dark")

    def hold(self, seconds: float | None) -> None:
        self.held_until = float("inf") if seconds is None else self.now() + seconds
        self.gate.hold(seconds)

    def release(self) -> None:
        self.held_until = 0.0
        self.gate.release()

    async def rest(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await moment()
        await self.check()

    # -- rules

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def check(self) -> None:
        view = self.gate.view()
        assert (view.waiting, view.waiting_bytes) == (len(self.waiting), sum(client.size for client in self.waiting))
        assert (view.in_flight, view.settling) == (len(self.at_engine), len(self.settling))
        here = Counter(client.slot for client in self.at_engine + self.settling if self.is_here(client))
        assert here.total() <= self.concurrency, "the engine was sent more than it takes"
        assert here["narrow"] <= 1, "a slot has more in flight than it may"
        assert view.waiting <= MAX_WAITING
        assert view.waiting_bytes <= MAX_BYTES
        assert await self.gate.drained(0) == (not any(map(self.is_here, self.at_engine)))
        if self.state == "refusing":
            assert not self.waiting
        if self.state == "open" and self.now() >= self.held_until and here.total() < self.concurrency:
            assert not [c for c in self.waiting if c.slot != "narrow" or not here["narrow"]], "room, and somebody waits"

    def is_here(self, client: Client) -> bool:
        assert client.place is not None
        return client.place.engine == self.engine

    async def go_home(self) -> None:
        """Everybody leaves; nothing may be left of them."""
        for client in self.waiting + self.at_engine:
            assert client.task is not None
            client.task.cancel()
        self.release()
        await self.rest(0)
        self.settled()
        await self.check()
        view = self.gate.view()
        assert (view.waiting, view.waiting_bytes, view.in_flight, view.settling, view.slots) == (0, 0, 0, 0, {})


WHICH = st.integers(0, 30)
ENTER = st.tuples(st.just("enter"), st.sampled_from(sorted(SLOTS)), st.integers(0, 12))
FINISH = st.tuples(st.just("finish"), WHICH)
GIVE_UP = st.tuples(st.just("give_up"), WHICH)
STEP = st.one_of(
    ENTER,
    ENTER,
    ENTER,
    FINISH,
    FINISH,
    GIVE_UP,
    GIVE_UP,
    st.tuples(st.just("settled")),
    st.tuples(st.just("open"), st.booleans()),
    st.tuples(st.just("open"), st.just(False)),
    st.sampled_from([("close",), ("refuse",), ("release",)]),
    st.tuples(st.just("hold"), st.sampled_from([None, 3.0, 15.0])),
    st.tuples(st.just("rest"), st.sampled_from([0.0, 0.0, 0.0, 2.0, 30.0])),
)


@settings(max_examples=400)
@given(steps=st.lists(STEP, max_size=80))
@in_simulated_time
async def test_the_gates_rules_hold_on_every_walk(steps: list[tuple[Any, ...]]) -> None:
    async with asyncio.TaskGroup() as tasks:
        walk = Walk(new_gate(max_waiting=MAX_WAITING, max_waiting_bytes=MAX_BYTES), tasks)
        for name, *args in steps:
            if (done := getattr(walk, name)(*args)) is not None:
                await done
        await walk.rest(0)
        await walk.go_home()
