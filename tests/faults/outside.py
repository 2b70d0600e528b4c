"""Docker and the engines as a swap meets them: their work takes time, and goes on whoever hangs up.

`TimedRuntime` is the fake runtime in simulated time. Docker carries a change out though the daemon that asked for it
dies, and shows a container that it is starting only when that is done; compose outlives the daemon as well. What a
*trick* does befalls the next call of that name, once. `Eyes` see each moment from outside, and remember what must never
be.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from engines.spec import GiB, Pair
from swap.ports import (
    CannotStage,
    CannotStart,
    Change,
    Exit,
    Fault,
    Recipe,
    RuntimeEvent,
    Sight,
    Status,
    Unfinished,
    Unreachable,
)
from tests.swap.fakes import FakeCard, FakeRuntime
from tests.swap.world import GONE

ASKING, CHANGING = 0.02, 1.0  # seconds that a question takes, and a change
LOADING = 0.6  # seconds from an engine's start until it answers
BOUND = 10.0  # seconds after which our side waits no longer
NEED = 30 * GiB + GiB // 4  # what an engine needs with headroom

doing: ContextVar[str] = ContextVar("doing", default="")  # the step that a task of the daemon carries out
dead: ContextVar[Callable[[], bool]] = ContextVar("dead", default=lambda: False)  # is the daemon that asks dead?


def expect_alive() -> None:
    """What is cancelled to stand for a killed process does nothing more."""
    if dead.get()():
        raise asyncio.CancelledError


@dataclass(frozen=True)
class Trick:
    """What a call does in place of its work. `late`: seconds after our side stopped waiting; None: never.

    `fault`: it is raised. Else the call passes its bound, or with `lies` is answered with success and does nothing.
    """

    fault: Fault | None = None
    lies: bool = False
    late: float | None = None


@dataclass
class Eyes:
    """They look at runtimes and card, never at the daemon.

    `gate` tells the engine that the gate is open to, `busy` whether a client is being answered by this one.
    """

    card: FakeCard
    gate: Callable[[], str | None] = lambda: None
    busy: Callable[[str], bool] = lambda _: False
    runtimes: list[TimedRuntime] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    calls: dict[str, set[str]] = field(default_factory=dict)  # by step: what it asks of a runtime

    def hear(self, call: str) -> None:
        self.calls.setdefault(doing.get(), set()).add(call)

    def look(self) -> None:
        up = sorted(runtime.engine for runtime in self.runtimes if runtime.sight.running)
        if len(up) > 1:
            self.see(f"two engines up: {', '.join(up)}")
        if len(self.card.allocations) > 1:
            self.see(f"two engines on the card: {', '.join(sorted(self.card.allocations))}")

    def before_start(self, runtime: TimedRuntime) -> None:
        if runtime.sight.running:
            return
        if others := [one.engine for one in self.runtimes if one is not runtime and one.sight.running]:
            self.see(f"{runtime.engine} is started while {', '.join(others)} is up")
        if self.gate() is not None:
            self.see(f"{runtime.engine} is started with the gate open")
        if self.card.free < NEED:
            self.see(f"{runtime.engine} is started while its memory isn't free")

    def before_stop(self, runtime: TimedRuntime) -> None:
        if runtime.sight.running and self.gate() == runtime.engine:
            self.see(f"{runtime.engine} is stopped with the gate open to it")
        if runtime.sight.running and self.busy(runtime.engine):
            self.see(f"{runtime.engine} is stopped while it answers a client")

    def see(self, what: str) -> None:
        if what not in self.broken:
            self.broken.append(what)


class Docker:
    """What the runtimes share: whether it answers, and what it is carrying out. `tasks` outlive any daemon."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self.gone = False
        self.back_at = 0.0  # when it came back last, by the loop's clock
        self.full = False  # the state folder, where staging keeps what it replaces
        self.well = asyncio.Event()  # nothing hangs any more
        self._works: set[asyncio.Task[None]] = set()
        self._answers: set[asyncio.Future[Any]] = set()
        self.runtimes: list[TimedRuntime] = []

    def expect(self) -> None:
        if self.gone:
            raise GONE

    async def answer(self, work: Callable[[asyncio.Future[Any]], Awaitable[None]]) -> Any:
        """What the work answers; it goes on when nobody waits for that any more."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers.add(answer)
        task = self._tasks.create_task(self._carry(work, answer))
        self._works.add(task)
        task.add_done_callback(self._works.discard)
        try:
            return await answer
        finally:
            self._answers.discard(answer)

    async def _carry(self, work: Callable[[asyncio.Future[Any]], Awaitable[None]], answer: asyncio.Future[Any]) -> None:
        try:
            await work(answer)
        except Fault as fault:
            if not answer.done():
                answer.set_exception(fault)

    def go_away(self, *, calls_too: bool, engines_too: bool) -> None:
        """Who waits for an answer gets none. `calls_too`: what was under way isn't carried out."""
        self.gone = True
        for work in tuple(self._works) if calls_too else ():
            work.cancel()
        for answer in self._answers:
            if not answer.done():
                answer.set_exception(GONE)
        for runtime in self.runtimes:
            runtime.break_events(GONE)
            if engines_too:
                runtime.exit(0)

    def come_back(self) -> None:
        self.gone, self.back_at = False, _now() if self.gone else self.back_at

    def mend(self) -> None:
        """Calls that hang end, without having done anything."""
        self.come_back()
        self.well.set()


@dataclass(frozen=True)
class _Asked:
    """A change that Docker was asked for: what it does, and where the answer goes."""

    call: str
    carry: Callable[[], Awaitable[object]]
    answer: asyncio.Future[Any]


class TimedRuntime(FakeRuntime):
    """`mids`: what is done once in the middle of the next call of that name. `ready_in`: seconds to load."""

    def __init__(self, engine: str, card: FakeCard, recipes: dict[str, Recipe], docker: Docker, eyes: Eyes) -> None:
        super().__init__(engine, card, recipes)
        self.docker, self.eyes = docker, eyes
        self.tricks: dict[str, Trick] = {}
        self.mids: dict[str, Callable[[], object]] = {}
        self.loading = LOADING  # seconds from its start until it answers
        self.began = self.died = 0.0  # by the loop's clock
        self._starting, self._changing = asyncio.Lock(), asyncio.Lock()
        self._stopping = 0  # calls under way
        self._under_way: tuple[Recipe | None, str] | None = None  # what there must be if staging is cut off
        docker.runtimes.append(self)
        eyes.runtimes.append(self)

    # ------------------------------------------------------------------------------------------ questions

    async def look(self) -> Sight:
        """Docker shows a container that it is starting only when that is done."""
        try:
            async with asyncio.timeout(BOUND), self._starting:
                pass
        except TimeoutError:
            raise _silent() from None
        trick = await self._ask("look")
        sight = await super().look()
        return _wrong(sight) if trick is not None and trick.lies else sight

    async def declared(self, pair: Pair) -> Recipe:
        trick = await self._ask("declared")
        if trick is not None and trick.lies:
            pair = replace(pair, name=next((name for name in self.recipes if name != pair.name), pair.name))
        return await super().declared(pair)

    async def has_image(self, image_id: str) -> bool:
        await self._ask("has_image")
        return await super().has_image(image_id)

    async def ending(self, id: str, since: float) -> bool:
        await self._ask("ending")
        return self.sight.running and self.sight.id == id and self._stopping > 0

    async def log_tail(self, id: str) -> str:
        await self._ask("log_tail")
        return await super().log_tail(id)

    def events(self) -> AsyncGenerator[RuntimeEvent, None]:
        return self._no_events() if self.docker.gone else super().events()

    async def _no_events(self) -> AsyncGenerator[RuntimeEvent, None]:
        raise GONE
        yield

    async def _ask(self, call: str) -> Trick | None:
        expect_alive()
        self.eyes.hear(call)
        self.docker.expect()
        await asyncio.sleep(ASKING / 2)
        self._middle(call)
        await asyncio.sleep(ASKING / 2)
        self.docker.expect()
        trick = self.tricks.pop(call, None)
        if trick is None or trick.lies:
            return trick
        if trick.fault is not None:
            raise trick.fault
        await asyncio.sleep(BOUND)
        raise _silent()

    # ------------------------------------------------------------------------------------------ changes

    async def start(self, id: str) -> None:
        self.eyes.before_start(self)
        await self._change("start", lambda: super(TimedRuntime, self).start(id), None, self._starting)

    async def stop(self, id: str, grace: float) -> Exit:
        self.eyes.before_stop(self)
        ended = await self._change("stop", lambda: self._stop(id, grace), Exit(0, forced=False), asyncio.Lock())
        assert isinstance(ended, Exit)
        return ended

    async def _stop(self, id: str, grace: float) -> Exit:
        """Docker tells that somebody has stopped it, whoever that was."""
        if self.sight.running:
            self._tell(RuntimeEvent(Change.STOPPED, id))
        return await super().stop(id, grace)

    async def stage(self, pair: Pair) -> Sight:
        """Compose does it, and outlives us; whoever finds what it did without us makes the old one again."""
        with self._staging(self.sight.recipe, changes=self.sight.recipe != self.recipes.get(pair.name)):
            try:
                made = await self._change("stage", lambda: super(TimedRuntime, self).stage(pair), self._pretended(pair))
            except Unfinished as fault:
                raise CannotStage(fault.what, passing=True) from fault
        assert isinstance(made, Sight)
        return made

    async def put_back(self, recipe: Recipe) -> Sight:
        """We do it ourselves, step by step: cut off, it is finished at the next start."""
        with self._staging(recipe, changes=self.sight.recipe != recipe, instead_of=self.sight.id):
            made = await self._change("put_back", lambda: self._put_back(recipe), replace(self.sight, recipe=recipe))
        assert isinstance(made, Sight)
        return made

    async def _put_back(self, recipe: Recipe) -> Sight:
        return self.sight if dead.get()() else await super().put_back(recipe)

    @contextlib.contextmanager
    def _staging(self, wanted: Recipe | None, *, changes: bool, instead_of: str = "") -> Iterator[None]:
        """What there must be if it is cut off is on disk first, and stays there only if we die."""
        expect_alive()
        if self.docker.full and changes:
            raise CannotStage("what is replaced can't be kept: no space left on device", "make room", passing=True)
        self._under_way = wanted, instead_of
        try:
            yield
        finally:
            if not dead.get()():
                self._under_way = None

    async def recover(self) -> str:
        """Once no compose is at work any more."""
        expect_alive()
        async with self._changing:
            await self._ask("recover")
        wanted, instead_of = self._under_way or (None, "")
        self._under_way = None
        stays = self.sight.running or (self.sight.status is Status.EXITED and self.sight.id != instead_of)
        if wanted is None or self.sight.recipe == wanted or stays:
            return ""
        self._replaced, _ = self.sight.recipe, self.create(wanted)
        return f"{self.engine} was made again as it was before an interrupted staging"

    async def _change(
        self, call: str, carry: Callable[[], Awaitable[object]], lie: object, lock: asyncio.Lock | None = None
    ) -> Any:
        expect_alive()
        self.eyes.hear(call)
        self.docker.expect()
        trick, lock = self.tricks.pop(call, None), lock or self._changing

        async def work(answer: asyncio.Future[Any]) -> None:
            self._stopping += call == "stop"
            try:
                if trick is not None and trick.fault is None and not trick.lies:
                    await self._passes_its_bound(_Asked(call, carry, answer), trick.late, lock)
                else:
                    await self._in_time(_Asked(call, carry, answer), trick, lie, lock)
            finally:
                self._stopping -= call == "stop"

        return await self.docker.answer(work)

    async def _in_time(self, asked: _Asked, trick: Trick | None, lie: object, lock: asyncio.Lock) -> None:
        async with lock:
            await asyncio.sleep(CHANGING / 2)
            self._middle(asked.call)
            await asyncio.sleep(CHANGING / 2)
            if trick is not None and trick.fault is not None:
                raise trick.fault
            result = lie if trick is not None else await asked.carry()
        if not asked.answer.done():
            asked.answer.set_result(result)

    async def _passes_its_bound(self, asked: _Asked, late: float | None, lock: asyncio.Lock) -> None:
        ended = asyncio.get_running_loop().create_future()
        async with lock if late is not None else contextlib.nullcontext():
            self._middle(asked.call)
            await asyncio.sleep(BOUND)
            if not asked.answer.done():
                what = f"{asked.call} of {self.engine} didn't end within {BOUND:g} s"
                asked.answer.set_exception(Unfinished(what, "see Docker's log", ended=ended))
            if late is None:
                await self.docker.well.wait()
            else:
                await asyncio.sleep(late)
                await asked.carry()
        ended.set_result(None)

    # ------------------------------------------------------------------------------------------ how it behaves

    def _middle(self, call: str) -> None:
        if do := self.mids.pop(call, None):
            do()

    def _pretended(self, pair: Pair) -> Sight:
        return replace(self.sight, recipe=self.recipes[pair.name])

    def _expect(self, id: str) -> None:
        if (
            self._stopping and self.sight.running
        ):  # measured: it is answered with success, and lost; our runtime finds that out
            raise CannotStart(f"Docker says that it started {self.engine}, and it didn't", passing=True)
        super()._expect(id)

    @property
    def ready(self) -> bool:
        return self.sight.running and _now() - self.began >= self.loading

    def _begin(self) -> None:
        if not self.sight.running:
            self.began = _now()
        super()._begin()
        self.eyes.look()

    def _end(self, code: int) -> None:
        if self.sight.running:
            self.died, self.loading = _now(), LOADING
        super()._end(code)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _silent() -> Unreachable:
    return Unreachable(f"Docker doesn't answer ({BOUND:g} s)", "see `docker info`", passing=True)


def _wrong(sight: Sight) -> Sight:
    """What runs is said to have ended, what doesn't run to run."""
    if sight.running:
        return replace(sight, status=Status.EXITED, exit_code=0, pid=None)
    return replace(sight, status=Status.RUNNING, started_at="2026-01-02T03:04:05.000000006Z", pid=1)
