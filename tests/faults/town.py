"""The box, with a daemon that can be killed at any point and begun anew; everything outside it lives on.

The daemon's parts are the real ones, its gate too. One life of it is a task group that is cancelled: what stands for
SIGKILL is that nothing of it acts any more (`outside.dead`), all in memory is forgotten, and calls that Docker was
carrying out go on.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar, TypeVarTuple

from engines.spec import Engine
from slotproxy.gate import SlotGate
from swap.controller import Controller
from swap.hands import Times, Told
from swap.leaving import leave
from swap.moves import Awaited, Order
from swap.ports import CardUnknown, Evidence, Fault, JournalEntry, Memory, Outcome, Recipe
from swap.readiness import Answered
from swap.statefolder import StateFolder
from swap.tickets import Ended, Ticket
from tests.faults.clients import Clients, Daemon
from tests.faults.outside import ASKING, BOUND, Docker, Eyes, TimedRuntime, dead, doing, expect_alive
from tests.simulated_time import SimulatedTimeLoop
from tests.swap.fakes import FakeCard, FakeLedger
from tests.swap.world import FakeReadiness, ToldJournal, World, end_of

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

START_DEADLINE = 4.0
DRAIN, FREEING = 8.0, 4.0
NOTICED = 12.0  # seconds within which the gate must know that an engine has died, also where no event tells
STOPPING = 22.0  # seconds that the daemon's end may take, less its last words
SYSTEMD = 1.0  # seconds until a daemon that has ended is begun anew
FULL = Fault("no space left on device", "make room")
DRIVER = CardUnknown("NVML can't tell the card's memory: an unknown error (code 999)", "see dmesg", passing=True)


class Slow(Exception):
    """What is done in a thread takes so long, on a clock that would stand still for a real one."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class InOneThread(SimulatedTimeLoop):
    """What would be done in a thread is done at once, or as late as `Slow` says: no test has to wait for threads."""

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self.create_future()
        self._work(done, func, *args)
        return done

    def _work(self, done: asyncio.Future[T], func: Callable[[*Ts], T], *args: *Ts) -> None:
        try:
            result = func(*args)
        except Slow as slow:
            self.call_later(slow.seconds, self._work, done, func, *args)
        except asyncio.CancelledError:
            done.cancel()
        except Exception as error:
            if not done.done():
                done.set_exception(error)
        else:
            if not done.done():
                done.set_result(result)


class TimedCard(FakeCard):
    """`silent`: the driver doesn't answer. `lie`: once it says that all is free."""

    def __init__(self) -> None:
        super().__init__()
        self.silent = self.lies = False
        self.mid: Callable[[], object] | None = None

    async def memory(self) -> Memory:
        expect_alive()
        if doing.get().endswith("free") and self.mid is not None:
            do, self.mid = self.mid, None
            do()
            expect_alive()
        if self.silent:
            await asyncio.sleep(BOUND / 2)
            raise CardUnknown("the card's driver hasn't answered in 5 s", "see `nvidia-smi`", passing=True)
        if self.lies and self.free < self.total:
            self.lies = False
            return Memory(self.total, self.total, 0)
        return await super().memory()


class TimedReadiness(FakeReadiness):
    """An engine answers when it has loaded. `stale`: once another process answers in its place."""

    def __init__(self, runtimes: dict[str, TimedRuntime]) -> None:
        super().__init__(runtimes)  # type: ignore[arg-type]
        self._timed = runtimes
        self.hangs = self.stale = False
        self.mid: Callable[[], object] | None = None

    async def sign(self, engine: Engine) -> bool:
        expect_alive()
        await asyncio.sleep(ASKING)
        if doing.get().endswith("warm") and self.mid is not None:
            do, self.mid = self.mid, None
            do()
            expect_alive()
        if self.hangs:
            await asyncio.sleep(BOUND / 5)
            return False
        return self.stale or (self._timed[engine.name].ready and await super().sign(engine))

    async def completes(self, engine: Engine) -> Answered | None:
        answered = await super().completes(engine)
        if self.stale:
            self.stale = False
            return Answered(1, 0.1)
        return answered


class TimedLedger(FakeLedger):
    """`before` and `after`: what is done once around the next line. `slow`: seconds that the next one takes."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[], object] | None = None
        self.after: Callable[[], object] | None = None
        self.loses = False
        self.slow: float | None = None

    def record(self, evidence: Evidence) -> None:
        if do := self.before:
            self.before = None
            do()
        expect_alive()
        if self.slow is not None:
            seconds, self.slow = self.slow, None
            raise Slow(seconds)
        if self.loses:
            self.loses = False
            return
        super().record(evidence)
        if do := self.after:
            self.after = None
            do()


@dataclass
class Disk:
    """The state folder's. `full`: nothing can be written. `slow`: seconds that the next reading of the journal takes.

    `reads`: told of each reading, once.
    """

    folder: Path
    slow: float | None = None
    reads: Callable[[], object] | None = None
    full: ClassVar[set[Path]] = set()

    def fill(self) -> None:
        self.full.add(self.folder)

    def empty(self) -> None:
        self.full.discard(self.folder)

    @classmethod
    def expect_room(cls, folder: Path) -> None:
        if folder in cls.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class TimedJournal(ToldJournal):
    """The real one, on this disk."""

    def __init__(self, path: Path, disk: Disk) -> None:
        super().__init__(path)
        self._disk = disk

    def read(self) -> JournalEntry | None:
        if do := self._disk.reads:
            self._disk.reads = None
            do()
        if self._disk.slow is not None:
            seconds, self._disk.slow = self._disk.slow, None
            raise Slow(seconds)
        return super().read()

    def write(self, entry: JournalEntry) -> None:
        expect_alive()
        super().write(entry)


class TownGate(SlotGate):
    """The real one. `opened` is told the engine that it is opened to, `tell` what else becomes of it."""

    def __init__(self, opened: Callable[[str], None], tell: Callable[[str], None]) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(max_waiting=1000, max_waiting_bytes=10**9, now=loop.time)
        self._opened, self._tell = opened, tell

    def open(self, engine: str, concurrency: int, run: str = "") -> None:
        self._tell(f"gate open {engine}")
        self._opened(engine)
        super().open(engine, concurrency, run)

    def close(self) -> None:
        self._tell("gate closed")
        super().close()

    def refuse(self, reason: str) -> None:
        self._tell(f"gate refusing: {reason}")
        super().refuse(reason)


@dataclass(eq=False)
class Life(Daemon):
    """One life of the daemon."""

    controller: Controller = field(kw_only=True)
    folder: StateFolder = field(kw_only=True)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


Tap = Callable[[str, str], Awaitable[None]]


class Town(World):
    """`tap` is told each step as it begins and as it ends: `tap("back: start", "begins")`."""

    def __init__(self, folder: Path, models: Path, tasks: asyncio.TaskGroup) -> None:
        self.tasks = tasks
        self.docker = Docker(tasks)
        self.disk = Disk(folder / "state")
        self.disk.folder.mkdir()
        (self.disk.folder / "daemon.lock").touch()
        self.eyes = Eyes(FakeCard(), self._open_to)
        self.timed: dict[str, TimedRuntime] = {}
        self.life: Life | None = None
        self.lives = 0
        self.tap: Tap | None = None
        self.opened: set[str] = set()  # labels of all to which a gate was ever opened
        super().__init__(folder, models)
        self.ledger = self.book = TimedLedger()
        self.engines = {name: replace(one, start_deadline=START_DEADLINE) for name, one in self.engines.items()}
        self.readiness = self.answers = TimedReadiness(self.timed)
        self.times = Times(drain=DRAIN, freeing=FREEING)
        self.clients = Clients(tasks, self.timed, lambda: self.life, self._known_dead)
        self.eyes.busy = lambda engine: self.clients.answered_by[engine] > 0

    def make_card(self) -> TimedCard:
        self.nvml = self.eyes.card = TimedCard()
        return self.nvml

    def make_runtime(self, name: str, recipes: dict[str, Recipe]) -> TimedRuntime:
        self.timed[name] = TimedRuntime(name, self.card, recipes, self.docker, self.eyes)
        return self.timed[name]

    def make_journal(self) -> TimedJournal:
        return TimedJournal(self.disk.folder / "journal.json", self.disk)

    # ------------------------------------------------------------------------------------------ the daemon's life

    def boot(self) -> None:
        """A new daemon; the last one must have ended."""
        assert self.life is None
        self.lives += 1
        self.story.append("a daemon begins")
        gate = TownGate(self._note_opened, self.story.append)
        self.build(gate, lambda: gate.view().in_flight)
        self.hands.carry_out = self._tapped(self.hands.carry_out)  # type: ignore[method-assign]
        folder = StateFolder(self.disk.folder, self.hands.decisions, self.controller.write_again)
        self.checker.state = folder
        life = Life(gate, controller=self.controller, folder=folder)
        self.life = life
        life.task = self.tasks.create_task(self._live(life), name=f"daemon {self.lives}")

    async def _live(self, life: Life) -> None:
        dead.set(lambda: life.dead)
        doing.set("")
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(life.folder.watch())
                tasks.create_task(life.controller.run())
            self.eyes.see("the daemon ended by itself")
        except asyncio.CancelledError:
            if not life.dead:
                raise
        except BaseException as error:
            self.eyes.see(f"the daemon broke: {error!r}")
        finally:
            life.dead = True
            life.ended.set()

    def kill(self, *, again: float = SYSTEMD) -> None:
        """SIGKILL, at this very point, and a new daemon some seconds later."""
        life = self.life
        assert life is not None
        assert life.task is not None
        life.dead, self.life = True, None
        self.story.append("the daemon is killed")
        life.task.cancel()
        for request in tuple(life.requests):
            request.cancel()
        self.tasks.create_task(self._anew(life, again), name="systemd")

    def stop(self) -> None:
        """The story is over."""
        life, self.life = self.life, None
        if life is not None and life.task is not None:
            life.dead = True
            life.task.cancel()

    async def _anew(self, life: Life, seconds: float) -> None:
        await life.ended.wait()
        await asyncio.sleep(seconds)
        self.boot()

    def terminate(self) -> None:
        """SIGTERM, and a new daemon when it has ended."""
        assert self.life is not None
        self.tasks.create_task(self._terminated(self.life), name="SIGTERM")

    async def _terminated(self, life: Life) -> None:
        """What `slotproxy.daemon` does; no client comes in any more, those in flight end."""
        self.story.append("the daemon is told to end")
        life.gate.end("slotproxy is stopping; try again in a moment")
        self.life = None
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._leave_the_card(life))
            tasks.create_task(_end_requests(life.gate))
        await asyncio.sleep(0.1)  # for the answers to be sent
        life.dead = True
        for request in tuple(life.requests):
            self.eyes.see("a request was still there when the daemon had ended")
            request.cancel()
        await self._anew(life, SYSTEMD)

    async def _leave_the_card(self, life: Life) -> None:
        assert life.task is not None
        try:
            async with asyncio.timeout(STOPPING):
                await leave(life.controller)
        except TimeoutError:
            self.eyes.see("leaving the card took longer than a daemon's end may take")
        life.task.cancel()

    def _tapped(self, carry_out: Callable[[Awaited, Order | None], Awaitable[Told]]) -> Any:
        async def tapped(effect: Awaited, order: Order | None) -> Told:
            step = self._name(effect)
            doing.set(step)
            await self._tell(step, "begins")
            report = await carry_out(effect, order)
            await self._tell(step, "ends")
            return report

        return tapped

    async def _tell(self, step: str, moment: str) -> None:
        if self.tap is not None:
            await self.tap(step, moment)

    def _name(self, effect: Awaited) -> str:
        """As the table has it: on the way there plain, else `back:` or `boot:` before it."""
        name = {"PutBack": "put back"}.get(type(effect).__name__, type(effect).__name__.lower())
        if self.controller.state.failure:
            return f"back: {name}"
        return f"boot: {name}" if self.controller.state.order is None else name

    # ------------------------------------------------------------------------------------------ the operator

    async def end_of(self, ticket: Ticket) -> Ended | None:
        """What slotctl says at the end; None: the daemon is gone."""
        life = self.life
        assert life is not None
        async with asyncio.TaskGroup() as tasks:
            told = tasks.create_task(end_of(ticket))
            gone = tasks.create_task(life.ended.wait())
            await asyncio.wait([told, gone], return_when=asyncio.FIRST_COMPLETED)
            ended = told.result() if told.done() else None
            told.cancel()
            gone.cancel()
        return ended

    # ------------------------------------------------------------------------------------------ what can be seen

    def _known_dead(self, runtime: TimedRuntime) -> bool:
        """Has it been down for so long that the gate must know? While Docker is away nobody can tell."""
        return not self.docker.gone and _now() - max(runtime.died, self.docker.back_at) > NOTICED

    def _open_to(self) -> str | None:
        return self.life.gate.view().engine if self.life is not None else None

    def _note_opened(self, engine: str) -> None:
        self.opened.add(self.label_of(engine))
        if not self.timed[engine].sight.running and self.timed[engine].died < asyncio.get_running_loop().time() - 1:
            self.eyes.see(f"the gate was opened to {engine}, which isn't up")

    def label_of(self, engine: str) -> str:
        """What its container is, asked of nobody."""
        runtime = self.runtimes[engine]
        names = [name for name, recipe in runtime.recipes.items() if recipe == runtime.sight.recipe]
        return f"{engine}:{names[0] if names else '?'}"

    @property
    def up_label(self) -> str | None:
        up = [self.label_of(name) for name in sorted(self.up)]
        return up[0] if len(up) == 1 else None

    @property
    def proven(self) -> set[str]:
        """Of what the ledger says that it has served."""
        return {one.pair for one in self.ledger.evidence() if one.outcome is Outcome.SERVED}


async def _end_requests(gate: SlotGate) -> None:
    if not await gate.drained(STOPPING):
        gate.cut()
        await gate.drained(2.0)


def _now() -> float:
    return asyncio.get_running_loop().time()
