"""Everything at once, at random: whatever befalls it, orders end, one engine has the card, and there is a way back.

`CHAOS=500 pytest tests/swap/test_chaos.py` looks longer.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from engines.spec import GiB
from swap.moves import Code
from swap.ports import CannotStage, CannotStart, CardUnknown, Fault, Unreachable
from swap.tickets import Ticket
from swap.watch import LOOK_EVERY
from swap.wish import Wish
from tests.simulated_time import in_simulated_time
from tests.swap.fakes import FakeRuntime
from tests.swap.world import World, end_of, now, until

SEEDS = range(int(os.environ.get("CHAOS", "6")))
EVENTS = 40
FAULTS: tuple[tuple[str, Fault], ...] = (
    ("look", Unreachable("Docker doesn't answer", passing=True)),
    ("start", Unreachable("Docker doesn't answer", passing=True)),
    ("stop", Unreachable("Docker doesn't answer", passing=True)),
    ("start", CannotStart("no driver")),
    ("stage", CannotStage("no space left")),
    ("declared", CannotStage("compose is broken")),
    ("log_tail", Unreachable("Docker doesn't answer", passing=True)),
)


class Chaos:
    """What may befall a world, drawn by one seed. By hand an engine comes up only where nothing of ours is about to."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.draw = world, random.Random(seed)
        self.tickets: list[Ticket] = []
        self.hanging: list[tuple[FakeRuntime, str]] = []
        self.by_hand = dict.fromkeys(world.runtimes, -1e9)  # when each was started by hand
        self.broken: list[str] = []
        self.lost = False  # the next change is carried out, and its answer lost
        for runtime in world.runtimes.values():
            runtime.start = self.checked(runtime, runtime.start, self.before_start)  # type: ignore[method-assign, assignment]
            runtime.stop = self.checked(runtime, runtime.stop, self.before_stop)  # type: ignore[method-assign, assignment]

    def checked(
        self, runtime: FakeRuntime, call: Callable[..., Awaitable[Any]], check: Callable[[str], None]
    ) -> Callable[..., Awaitable[Any]]:
        async def wrapped(*arguments: Any) -> Any:
            check(runtime.engine)
            answer = await call(*arguments)
            if self.lost:
                self.lost = False
                raise Unreachable("the answer was lost", passing=True)
            return answer

        return wrapped

    def before_start(self, engine: str) -> None:
        """What somebody has just started by hand can't be known yet."""
        known = {one for one in self.world.up - {engine} if now() - self.by_hand[one] > LOOK_EVERY + 5}
        if known:
            self.broken.append(f"started {engine} while {known} is up")
        if self.world.gate.state.startswith("open"):
            self.broken.append(f"started {engine} with the gate open")

    def before_stop(self, engine: str) -> None:
        if self.world.gate.state == f"open {engine}":
            self.broken.append(f"stopped {engine} with the gate open to it")

    def happen(self) -> None:
        what: list[Callable[[], object]] = [
            self.order,
            self.order,
            self.order,
            self.world.controller.abort,
            self.die,
            self.stop_by_hand,
            self.start_by_hand,
            self.fail,
            self.fail,
            self.lose,
            self.replace,
            self.hang,
            self.let_go,
            self.unfinish,
            self.finish,
            self.card,
            self.foreign,
            self.readiness,
            self.events,
            self.requests,
            self.exits,
        ]
        self.draw.choice(what)()

    @property
    def runtime(self) -> FakeRuntime:
        return self.draw.choice([self.world.strata, self.world.ninfer])

    def order(self) -> None:
        label = self.draw.choice(["strata:current", "ninfer:v2", "ninfer:v3"])
        trial, cut = self.draw.random() < 0.5, self.draw.random() < 0.3
        wish = Wish(drain=self.draw.choice([1.0, None]), and_back=trial and self.draw.random() < 0.5)
        self.tickets.append(self.world.order(label, trial=trial, cut=cut, wish=wish))

    def die(self) -> None:
        self.runtime.exit(self.draw.choice([0, 1, 137]), "error: it broke\n")

    def stop_by_hand(self) -> None:
        runtime = self.runtime
        if runtime.sight.running:
            runtime.stop_by_hand()

    def start_by_hand(self) -> None:
        runtime = self.runtime
        self.by_hand[runtime.engine] = now()
        runtime.start_by_hand()

    def fail(self) -> None:
        self.runtime.fail(*self.draw.choice(FAULTS), times=self.draw.choice([1, 1, 5]))

    def lose(self) -> None:
        self.lost = True

    def replace(self) -> None:
        runtime = self.runtime
        if not runtime.sight.running:
            runtime.create(self.draw.choice([*runtime.recipes.values()]))

    def hang(self) -> None:
        runtime, call = self.runtime, self.draw.choice(["look", "start", "stop", "stage"])
        if (runtime, call) not in self.hanging:
            self.hanging.append((runtime, call))
            runtime.hang(call)

    def let_go(self) -> None:
        while self.hanging:
            runtime, call = self.hanging.pop()
            runtime.let_go(call)

    def unfinish(self) -> None:
        self.runtime.unfinish(self.draw.choice(["start", "stop"]))

    def finish(self) -> None:
        self.runtime.finish(lost=self.draw.random() < 0.3)

    def card(self) -> None:
        broken = CardUnknown("the driver hasn't answered", passing=True)
        self.world.card.unknown = None if self.world.card.unknown else broken

    def foreign(self) -> None:
        if self.world.card.foreign:
            self.world.card.foreign.clear()
        elif self.world.card.free > 5 * GiB:
            self.world.card.foreign["game"] = 5 * GiB

    def readiness(self) -> None:
        self.world.readiness.never ^= {self.draw.choice(["strata:1", "ninfer:local", "ninfer:v3"])}

    def events(self) -> None:
        self.runtime.break_events(self.draw.choice([None, Unreachable("the stream broke", passing=True)]))

    def requests(self) -> None:
        self.world.gate.in_flight = self.draw.choice([0, 0, 2])

    def exits(self) -> None:
        self.runtime.exits_on_start = self.draw.choice([1, None])

    def heal(self) -> None:
        self.let_go()
        self.lost = False
        self.world.card.unknown = None
        self.world.card.foreign.clear()
        self.world.readiness.never.clear()
        self.world.gate.in_flight = 0
        for runtime in (self.world.strata, self.world.ninfer):
            runtime.exits_on_start = None
            runtime.finish()
            runtime._orders.fail.clear()
            runtime._orders.unfinish.clear()


@pytest.mark.parametrize("seed", SEEDS)
@in_simulated_time
async def test_whatever_happens_orders_end_and_there_is_a_way_back(world: World, seed: int) -> None:
    chaos = Chaos(world, seed)
    async with world.serving(verified=("strata:current", "ninfer:v2")):
        for _ in range(EVENTS):
            chaos.happen()
            await asyncio.sleep(chaos.draw.choice([0, 0, 0.3, 2, 30]))
        chaos.heal()
        for ticket in chaos.tickets:
            await end_of(ticket)
        for label in ("ninfer", "strata"):
            await until(lambda: world.controller.state.order is None)
            assert (await world.swap(label)).code in (Code.SERVES, Code.RESTORED, Code.DARK)
        await asyncio.sleep(400)
        ended = await world.swap("ninfer")
        assert (ended.code, ended.serving) == (Code.SERVES, "ninfer:v2"), ended
        assert (world.up, world.ninfer.sight.recipe) == ({"ninfer"}, world.ninfer.recipes["v2"])
        assert world.gate.state == "open ninfer"
        assert chaos.broken == []
