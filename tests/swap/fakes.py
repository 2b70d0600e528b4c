"""A small world in memory: one card whose memory is really taken by the engines that run on it.

`FakeRuntime` is one engine's container, `FakeCard` the card they share, `FakeLedger` evidence in memory, `FakeGate` the
controller's side of the gate. They behave: a started engine takes its VRAM, a stopped one gives it back (late, if told
so), one that finds too little free exits as a real one does. Each can be told to fail, hang or stay unfinished, once:

    runtime.fail("start", CannotStart("no driver"))     the next start raises it, nothing changes
    runtime.hang("look")                                the next look waits until runtime.let_go("look")
    runtime.unfinish("start")                           the next start raises Unfinished; runtime.finish() ends it
    runtime.exits_on_start = 1                          the next start succeeds, and the engine exits at once with 1

What an image always does is a `Behaviour`, in `runtime.behaviours` by the image's name.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from engines.spec import GiB, Pair
from swap.drift import differences, nearest
from swap.ledger import key
from swap.ports import (
    CannotStage,
    CannotStart,
    CardIdentity,
    CardProcess,
    CardUnknown,
    Change,
    Evidence,
    Exit,
    Fault,
    Memory,
    Mount,
    Recipe,
    RuntimeEvent,
    Sight,
    Status,
    Unfinished,
)

SIMULATED = CardIdentity(name="Simulated card", uuid="SIM-0", driver="0", simulated=True)
REAL = CardIdentity(name="NVIDIA GeForce RTX 5090", uuid="GPU-8f2c", driver="575.57", simulated=False)


class FakeCard:
    """One card. `allocations` (by engine) and `foreign` (by name) are what is in use now; `peak` the most ever.

    `unknown`: while set, memory and identity raise it. `late`: how many memory reads a released allocation stays.
    """

    def __init__(self, *, total: int = 32 * GiB, reserved: int = 0, identity: CardIdentity = REAL) -> None:
        self.total, self.reserved = total, reserved
        self.allocations: dict[str, int] = {}
        self.foreign: dict[str, int] = {}
        self.unknown: CardUnknown | None = None
        self.late = 0
        self.peak = 0
        self._lingering: list[tuple[int, int]] = []  # bytes, memory reads left
        self._identity = identity

    @property
    def free(self) -> int:
        lingering = sum(size for size, _ in self._lingering)
        return self.total - self.reserved - lingering - sum([*self.allocations.values(), *self.foreign.values()])

    def take(self, engine: str, size: int) -> bool:
        """False, and nothing taken, when the card hasn't `size` bytes free."""
        if size > self.free:
            return False
        self.allocations[engine] = size
        self.peak = max(self.peak, self.total - self.reserved - self.free)
        return True

    def release(self, engine: str) -> None:
        size = self.allocations.pop(engine, 0)
        if size and self.late:
            self._lingering.append((size, self.late))

    async def memory(self) -> Memory:
        if self.unknown is not None:
            raise self.unknown
        answer = Memory(self.total, self.free, self.total - self.reserved - self.free, self.reserved)
        self._lingering = [(size, left - 1) for size, left in self._lingering if left > 1]
        return answer

    async def processes(self) -> tuple[CardProcess, ...]:
        engines = [CardProcess(1000 + n, size, name) for n, (name, size) in enumerate(self.allocations.items())]
        return (*engines, *(CardProcess(2000 + n, size, name) for n, (name, size) in enumerate(self.foreign.items())))

    async def identity(self) -> CardIdentity:
        if self.unknown is not None:
            raise self.unknown
        return self._identity


@dataclass(frozen=True)
class Behaviour:
    """What an image does when started. `exits`: at once, with this code. `deaf`: to SIGTERM. `log`: its output."""

    exits: int | None = None
    deaf: bool = False
    log: str = ""


@dataclass
class _Orders:
    """What the next call of each name is told to do."""

    fail: dict[str, list[Fault]] = field(default_factory=dict)
    hang: dict[str, asyncio.Event] = field(default_factory=dict)
    unfinish: set[str] = field(default_factory=set)


class FakeRuntime:
    """One engine's container in memory; `recipes` (by pair name) is what its compose file would declare.

    Edit `recipes` to edit the file. `calls` lists what was asked, in order, reads included.
    """

    _serial = itertools.count(1)

    def __init__(self, engine: str, card: FakeCard, recipes: Mapping[str, Recipe], *, vram: int = 30 * GiB) -> None:
        self.engine, self.card, self.vram = engine, card, vram
        self.recipes = dict(recipes)
        self.sight = Sight(Status.ABSENT)
        self.logs: dict[str, str] = {}
        self.calls: list[str] = []
        self.kept: list[str] = []  # image ids
        self.gone: set[str] = set()  # image ids
        self.live: Recipe | None = None  # what really runs, where that isn't what was created
        self.told = ""  # the id of the run that was told to stop
        self.left_behind = ""  # by an interrupted staging: what recovery says that it did
        self.behaviours: dict[str, Behaviour] = {}
        self.exits_on_start: int | None = None
        self._replaced: Recipe | None = None
        self._orders = _Orders()
        self._late: list[tuple[asyncio.Future[None], Callable[[], None]]] = []
        self._listeners: list[asyncio.Queue[RuntimeEvent | Fault | None]] = []

    # ------------------------------------------------------------------------------------------ told by the test

    def create(self, recipe: Recipe) -> Sight:
        """A stopped container made by hand, before the test begins."""
        self.sight = Sight(Status.CREATED, id=self._new_id(), recipe=recipe, owner=f"compose/{self.engine}")
        return self.sight

    def run(self, recipe: Recipe) -> Sight:
        """A container that somebody made and started before the test begins."""
        self.create(recipe)
        self._begin()
        return self.sight

    def fail(self, call: str, fault: Fault, times: int = 1) -> None:
        self._orders.fail.setdefault(call, []).extend([fault] * times)

    def hang(self, call: str) -> None:
        self._orders.hang[call] = asyncio.Event()

    def let_go(self, call: str) -> None:
        self._orders.hang[call].set()

    def unfinish(self, call: str) -> None:
        """The next `start` or `stop` raises Unfinished; what it asked for happens at `finish()`."""
        self._orders.unfinish.add(call)

    def finish(self, *, lost: bool = False) -> None:
        """The calls still under way end: what they asked for happens, or with `lost` it doesn't."""
        for ended, effect in self._late:
            if not lost:
                effect()
            ended.set_result(None)
        self._late.clear()

    def exit(self, code: int, log: str = "") -> None:
        """The engine dies by itself."""
        self.logs[self.sight.id] = log or self.logs.get(self.sight.id, "")
        self._end(code)

    def stop_by_hand(self) -> None:
        """Somebody stops it: Docker tells `stop`, then `die`."""
        self._tell(RuntimeEvent(Change.STOPPED, self.sight.id))
        self._end(0)

    def start_by_hand(self) -> None:
        self._begin()

    def break_events(self, fault: Fault | None = None) -> None:
        """Everyone who listens is cut off: their iterators end, or raise `fault`."""
        for queue in self._listeners:
            queue.put_nowait(fault)

    # ------------------------------------------------------------------------------------------ the Runtime port

    async def look(self) -> Sight:
        await self._obey("look")
        return self.sight

    async def running(self) -> Recipe | None:
        await self._obey("running")
        return (self.live or self.sight.recipe) if self.sight.running else None

    async def has_image(self, image_id: str) -> bool:
        await self._obey("has_image")
        return image_id not in self.gone

    async def declared(self, pair: Pair) -> Recipe:
        await self._obey("declared")
        return self._declared(pair)

    async def stage(self, pair: Pair) -> Sight:
        await self._obey("stage")
        if self.sight.running:
            raise CannotStage(f"{self.engine} is running", "stop it first")
        recipe = self._declared(pair)
        if self.sight.recipe is not None and not differences(recipe, self.sight.recipe):
            return self.sight
        self._replaced = self.sight.recipe
        return self.create(recipe)

    async def put_back(self, recipe: Recipe) -> Sight:
        await self._obey("put_back")
        if self.sight.running:
            raise CannotStage(f"{self.engine} is running", "stop it first")
        found = nearest(recipe, (self.sight.recipe, self._replaced))
        if found is None:
            raise CannotStage(f"{self.engine}: neither there nor kept is what is wanted back", "stage it")
        return self.create(self._replaced) if found and self._replaced else self.sight

    async def recover(self) -> str:
        await self._obey("recover")
        done, self.left_behind = self.left_behind, ""
        return done

    async def correct_restart(self, id: str) -> None:
        await self._obey("correct_restart")
        if self.sight.id == id and self.sight.recipe is not None:
            self.sight = replace(self.sight, recipe=replace(self.sight.recipe, restart="no"))

    async def keep(self, image_id: str) -> None:
        await self._obey("keep")
        self.kept.append(image_id)

    async def start(self, id: str) -> None:
        await self._obey("start")
        self._expect(id)
        self._maybe_unfinished("start", self._begin)
        self._begin()

    async def stop(self, id: str, grace: float) -> Exit:
        await self._obey("stop")
        if id != self.sight.id or not self.sight.running:
            return Exit(self.sight.exit_code, forced=self.sight.exit_code == 137)
        code = 137 if self._behaviour().deaf else 0
        self.told = id
        await asyncio.sleep(grace if code else 0)
        self._maybe_unfinished("stop", lambda: self._end(code))
        self._end(code)
        return Exit(code, forced=code == 137)

    async def ending(self, id: str, since: float) -> bool:
        await self._obey("ending")
        return self.sight.running and self.told == self.sight.id == id

    async def log_tail(self, id: str) -> str:
        await self._obey("log_tail")
        return self.logs.get(id, "")

    def events(self) -> AsyncGenerator[RuntimeEvent, None]:
        queue: asyncio.Queue[RuntimeEvent | Fault | None] = asyncio.Queue()
        self._listeners.append(queue)
        return self._events(queue)

    # ------------------------------------------------------------------------------------------ how it behaves

    async def _events(self, queue: asyncio.Queue[RuntimeEvent | Fault | None]) -> AsyncGenerator[RuntimeEvent, None]:
        try:
            while (item := await queue.get()) is not None:
                if isinstance(item, Fault):
                    raise item
                yield item
        finally:
            self._listeners.remove(queue)

    async def _obey(self, call: str) -> None:
        self.calls.append(call)
        if call in self._orders.hang:
            await self._orders.hang[call].wait()
            self._orders.hang.pop(call, None)
        if self._orders.fail.get(call):
            raise self._orders.fail[call].pop(0)

    def _maybe_unfinished(self, call: str, effect: Callable[[], None]) -> None:
        if call not in self._orders.unfinish:
            return
        self._orders.unfinish.discard(call)
        ended = asyncio.get_running_loop().create_future()
        self._late.append((ended, effect))
        raise Unfinished(f"{call} of {self.engine} is still under way", "look again", ended=ended)

    def _declared(self, pair: Pair) -> Recipe:
        if pair.name not in self.recipes:
            raise CannotStage(f"the compose file can't be resolved for {pair.label}", "correct it")
        return self.recipes[pair.name]

    def _expect(self, id: str) -> None:
        if id != self.sight.id or self.sight.status is Status.ABSENT:
            raise CannotStart(f"no such container: {id}", f"slotctl stage {self.engine}")

    def _begin(self) -> None:
        """It runs, unless it finds too little memory or was told to exit. Running already: nothing happens."""
        if self.sight.running:
            return
        # As Docker writes it; the last digits keep two starts apart.
        started = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%f}{next(self._serial) % 1000:03d}Z"
        self.sight = replace(self.sight, status=Status.RUNNING, started_at=started, exit_code=None, pid=1)
        self.told = ""
        self._tell(RuntimeEvent(Change.STARTED, self.sight.id))
        self.logs[self.sight.id] = self._behaviour().log
        code, self.exits_on_start = self.exits_on_start, None
        if code is not None:
            self._end(code)
        elif (exits := self._behaviour().exits) is not None:
            self._end(exits)
        elif not self.card.take(self.engine, self.vram):
            self.logs[self.sight.id] = f"error: only {self.card.free} bytes are free before loading weights\n"
            self._end(1)

    def _end(self, code: int) -> None:
        if not self.sight.running:
            return
        self.card.release(self.engine)
        self.sight = replace(self.sight, status=Status.EXITED, exit_code=code, pid=None)
        self._tell(RuntimeEvent(Change.DIED, self.sight.id, code))

    def _behaviour(self) -> Behaviour:
        image = self.sight.recipe.image if self.sight.recipe is not None else ""
        return self.behaviours.get(image, Behaviour())

    def _tell(self, event: RuntimeEvent) -> None:
        for queue in self._listeners:
            queue.put_nowait(event)

    def _new_id(self) -> str:
        return f"{self.engine}-{next(self._serial):012x}"


class FakeLedger:
    """Evidence in memory, by the real key. `full`: while set, `record` raises it and keeps nothing."""

    def __init__(self, *evidence: Evidence) -> None:
        self.full: Fault | None = None
        self._evidence = [replace(one, key=key(one.subject)) for one in evidence]

    def evidence(self) -> tuple[Evidence, ...]:
        return tuple(self._evidence)

    def record(self, evidence: Evidence) -> None:
        if self.full is not None:
            raise self.full
        self._evidence.append(replace(evidence, key=key(evidence.subject)))


class FakeGate:
    """The controller's side of the gate. `in_flight` is set by the test; `story` tells what was asked, in order."""

    def __init__(self) -> None:
        self.state = "closed"
        self.story: list[str] = []
        self._in_flight = 0
        self._drained = asyncio.Event()
        self._drained.set()

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @in_flight.setter
    def in_flight(self, number: int) -> None:
        self._in_flight = number
        if number:
            self._drained.clear()
        else:
            self._drained.set()

    def open(self, engine: str, concurrency: int, run: str = "") -> None:
        self._become(f"open {engine}")

    def close(self) -> None:
        self._become("closed")

    def refuse(self, reason: str) -> None:
        self._become(f"refusing: {reason}")

    async def drained(self, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self._drained.wait()
        except TimeoutError:
            return False
        return True

    def cut(self) -> int:
        cut, self.in_flight = self.in_flight, 0
        self.story.append(f"cut {cut}")
        return cut

    def _become(self, state: str) -> None:
        self.state = state
        self.story.append(state)


def recipe_for(image: str, artifact: str, *, models: str = "/srv/models", flags: tuple[str, ...] = ()) -> Recipe:
    """A container's recipe as NInfer's compose file would give it: the image's id is its name, hashed by hand."""
    return Recipe(
        image=image,
        image_id="sha256:" + image.encode().hex().ljust(64, "0")[:64],
        entrypoint=("ninfer-serve",),
        command=("--model", f"/models/{artifact}", *flags),
        env=(("PATH", "/usr/bin"),),
        mounts=(Mount(models, "/models", read_only=True),),
    )
