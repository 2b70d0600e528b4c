"""Runtime on child processes: an engine given by `command:`, without a container.

It runs in a session of its own and outlives the daemon; the next daemon finds it by its record (`swap.record`) and the
marks in it (`swap.proc`). Its end is its leader's, as in a container: a leader that dies may leave others behind that
hold the card's memory (a killed Strata server does), so whoever looks and finds the leader dead ends them at once.
A member that moves to a session of its own is lost to us.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from engines.spec import Engine, Pair
from swap import proc
from swap.commands import as_started, declare, executable_of
from swap.drift import differences, otherwise
from swap.durable import Guard, anywhere
from swap.hashing import Hasher
from swap.launch import Launch
from swap.ports import (
    CannotStage,
    CannotStart,
    Exit,
    Fault,
    Recipe,
    RuntimeEvent,
    Sight,
    Status,
    Unfinished,
    Unreachable,
)
from swap.record import Record, Records, Run, changes
from swap.threads import STATE, Hangs

T = TypeVar("T")

TICK = 0.2  # seconds between two looks of `events()`
STOP_TICK = 0.05
READ_LIMIT = 10.0  # seconds for reading our own files and /proc
WRITE_LIMIT = 60.0  # seconds for staging and starting: durable writes, and the launcher's own limit
KILL_LIMIT = 10.0  # seconds that SIGKILL may take; a driver call that hangs can hold a process longer


class ChildProcess:
    """One engine's process group. `state`: the folder below which its records and its output are kept."""

    def __init__(self, engine: Engine, state: Path, guard: Guard = anywhere) -> None:
        self.engine = engine
        self._records = Records(state / "processes" / engine.name, guard)
        self._hasher = Hasher(self._records.folder / "hashes.json")
        self._lock = threading.Lock()  # held by whoever reads and writes the record, always off the event loop
        self._looked = False
        self._seen: Record | None = None  # the last look's, once there was one
        self._listeners: list[deque[RuntimeEvent]] = []

    # ------------------------------------------------------------------------------------------ the Runtime port

    async def look(self) -> Sight:
        return await self._sight(await self._read(self._observe))

    async def running(self) -> Recipe | None:
        return await self._read(self._running)

    async def has_image(self, image_id: str) -> bool:  # noqa: ARG002  (the port's)
        """An executable is a file of the operator's: nobody knows where else it may be."""
        return True

    async def declared(self, pair: Pair) -> Recipe:
        recipe = await self._read(partial(declare, self.engine, pair))
        try:
            digest = await self._hasher.digest(Path(recipe.image))
        except Fault as fault:
            raise CannotStage(f"{pair.label}: {fault.what}", fault.mend, passing=fault.passing) from fault
        return replace(recipe, image_id=f"sha256:{digest.sha256}", image_content=f"sha256:{digest.sha256}")

    async def stage(self, pair: Pair) -> Sight:
        recipe = await self.declared(pair)
        return await self._sight(await self._act("staging", partial(self._stage, recipe)))

    async def put_back(self, recipe: Recipe) -> Sight:
        return await self._sight(await self._act("putting back", partial(self._put_back, recipe)))

    async def recover(self) -> str:
        """Nothing is staged, so nothing is ever half staged."""
        return ""

    async def keep(self, image_id: str) -> None:
        """An executable is a file of the operator's; nobody prunes it."""

    async def correct_restart(self, id: str) -> None:
        """Nobody restarts a process but we."""

    async def start(self, id: str) -> None:
        record = await self._read(self._observe)
        if record is None or record.id != id:
            raise self._no_such(id)
        await self._expect_executable(record.recipe)
        await self._act("the start", partial(self._start, id))

    async def stop(self, id: str, grace: float) -> Exit:
        record = await self._read(self._observe)
        if record is None or record.id != id or record.run is None:
            return Exit(None, forced=False)
        await self._read(partial(self._note_told, record))
        forced = not await self._ended(record.run, signal.SIGTERM, grace)
        if forced and not await self._ended(record.run, signal.SIGKILL, KILL_LIMIT):
            what = f"{self.engine.name} is still there {KILL_LIMIT:g} s after SIGKILL"
            mend = "a hung driver can hold it; see the kernel's log (`dmesg`); only a reboot may help"
            raise Unfinished(what, mend, ended=_Ended(partial(self._until_gone, record.run)))
        record = await self._read(self._observe)
        code = record.exit_code if record is not None and record.id == id else None
        return Exit(code, forced)

    async def ending(self, id: str, since: float) -> bool:  # noqa: ARG002  (the port's)
        """The record knows, without a time: it is of one run."""
        record = await self._read(self._observe)
        return record is not None and record.id == id and record.running and record.told

    async def log_tail(self, id: str) -> str:
        return await self._read(partial(self._records.log_tail, id))

    def events(self) -> AsyncGenerator[RuntimeEvent, None]:
        listener: deque[RuntimeEvent] = deque()
        self._listeners.append(listener)
        return self._listen(listener)

    # ------------------------------------------------------------------------------------------ looking

    def _observe(self) -> Record | None:
        """The record, brought up to date with what lives."""
        with self._lock:
            return self._observe_locked()

    def _observe_locked(self) -> Record | None:
        record = self._records.current() or self._seen  # a folder that was moved away ends nobody
        if record is not None and record.run is not None and record.running:
            record = self._brought_up_to_date(record, record.run)
        self._tell(record)
        return record

    def _brought_up_to_date(self, record: Record, run: Run) -> Record:
        if proc.lives(run.leader):
            return record
        code = proc.reap(run.leader)
        if code is None:  # told before, or never: then it was another's child
            code = self._seen.exit_code if self._seen is not None and self._seen.run == run else record.exit_code
        left = proc.living(run.leader)
        with contextlib.suppress(Unreachable):  # another user's process: `start()` and `stage()` say so
            self._signal(left, signal.SIGKILL)
        now = replace(record, ended=True, exit_code=code, gone=not left)
        if now != record:
            self._keep(now)
        return now

    def _keep(self, record: Record) -> None:
        """Write down what was seen. A full disk must not blind us: it can be seen again, and is known till then."""
        with contextlib.suppress(OSError):
            self._records.write(record)

    def _note_told(self, record: Record) -> None:
        """Whoever comes after us must know that what runs may be gone any moment."""
        with self._lock:
            self._keep(replace(record, told=True))

    async def _sight(self, record: Record | None) -> Sight:
        if record is None:
            return Sight(Status.ABSENT)
        run = record.run
        running = Status.EXITED if record.ended else Status.RUNNING
        return Sight(
            status=Status.CREATED if run is None else running,
            id=record.id,
            started_at=run.started_at if run else "",
            exit_code=record.exit_code,
            pid=run.leader.pid if run and not record.ended else None,
            recipe=record.recipe,
            owner="slotproxy, by `command:`",
            tag_id=await self._digest_now(record.recipe.image),
        )

    def _running(self) -> Recipe | None:
        """In a thread: a process in a hung driver can keep /proc waiting."""
        record = self._observe()
        if record is None or record.run is None or record.ended:
            return None
        words = proc.command_line(record.run.leader)
        return replace(record.recipe, command=as_started(record.recipe.command, words))

    async def _digest_now(self, image: str) -> str:
        try:
            return f"sha256:{(await self._hasher.digest(Path(image))).sha256}"
        except Fault:
            return ""  # it isn't there any more; what runs, runs

    # ------------------------------------------------------------------------------------------ changes

    def _tell(self, now: Record | None) -> None:
        news = changes(self._seen, now) if self._looked else ()
        self._looked, self._seen = True, now
        for listener in tuple(self._listeners):
            listener.extend(news)

    async def _listen(self, listener: deque[RuntimeEvent]) -> AsyncGenerator[RuntimeEvent, None]:
        try:
            while True:
                await self._read(self._observe)
                while listener:
                    yield listener.popleft()
                await asyncio.sleep(TICK)
        finally:
            self._listeners.remove(listener)

    # ------------------------------------------------------------------------------------------ staging, in a thread

    def _stage(self, recipe: Recipe) -> Record:
        with self._lock:
            old = self._stopped()
            if old is not None and old.recipe == recipe:
                return old
            return self._replaced(old, Record(recipe))

    def _put_back(self, wanted: Recipe) -> Record:
        with self._lock:
            now = self._stopped()
            if now is not None and not differences(wanted, now.recipe):
                return now
            old = self._records.previous()
            if old is None or differences(wanted, old.recipe):
                there = otherwise(wanted, now.recipe if now else None)
                what = f"{self.engine.name} isn't the one that is wanted back: {there}; nor is what was replaced last"
                raise CannotStage(what, f"slotctl stage {self.engine.name}")
            return self._replaced(old, old)

    def _stopped(self) -> Record | None:
        record = self._observe_locked()
        if record is not None and record.run is not None and record.running:
            if not record.ended:
                raise CannotStage(f"{self.engine.name} is running", "stop it first, by a swap to another engine")
            self._end_survivors(record.run)  # before they are forgotten with their record
        return record

    def _replaced(self, old: Record | None, new: Record) -> Record:
        try:
            self._records.replace(old, new)
        except OSError as error:
            what = f"{self._records.folder} can't be written: {error.strerror}"
            raise CannotStage(what, "make room, or make it writable", passing=True) from error
        self._looked, self._seen = True, new
        return new

    # ------------------------------------------------------------------------------------------ starting

    async def _expect_executable(self, recipe: Recipe) -> None:
        """What runs must be what was staged: nobody keeps an old executable as Docker keeps an old image."""
        now = await self._digest_now(recipe.image)
        if now != recipe.image_id:
            what = f"{recipe.image} {'has changed since it was staged' if now else 'is not there any more'}"
            raise CannotStart(what, f"put the old one back, or slotctl stage {self.engine.name}")

    def _start(self, id: str) -> None:
        """In a thread."""
        with self._lock:
            record = self._observe_locked()
            if record is None or record.id != id:
                raise self._no_such(id)
            if record.running and not record.ended:
                return
            if record.run is not None:
                self._end_survivors(record.run)
            self._spawn(record)

    def _no_such(self, id: str) -> CannotStart:
        name = self.engine.name
        return CannotStart(f"nothing of {name} is staged as {id}", f"slotctl stage {name}")

    def _end_survivors(self, run: Run) -> None:
        for _ in range(round(KILL_LIMIT / STOP_TICK)):
            left = proc.living(run.leader)
            if not left:
                return
            self._signal(left, signal.SIGKILL)
            threading.Event().wait(STOP_TICK)
        pids = ", ".join(str(one.pid) for one in left)
        raise CannotStart(
            f"{self.engine.name}: its last run has left processes behind that won't die: {pids}",
            "see the kernel's log (`dmesg`)",
            passing=True,
        )

    def _spawn(self, record: Record) -> None:
        command, env = record.recipe.command, dict(record.recipe.env)
        try:
            launch = Launch(self._records.begin_log(record.id))
        except OSError as error:
            raise self._not_now("its log", error) from error
        try:
            run = Run(proc.mark(launch.pid), datetime.now(UTC).isoformat())
            started = Record(record.recipe, record.id, run)
            self._write_down(started)
            launch.go(executable_of(command, env), command, env)
        except (OSError, CannotStage, CannotStart) as error:
            launch.abandon()
            self._keep(record)
            raise error if isinstance(error, CannotStart) else self._cannot_start(command, error) from error
        self._tell(started)

    def _write_down(self, started: Record) -> None:
        try:
            self._records.write(started)
        except OSError as error:
            raise self._not_now("its record", error) from error

    def _not_now(self, which: str, error: OSError) -> CannotStart:
        """A disk that is full, say, or a machine that begins no process: it isn't the command's fault, and may pass."""
        name, folder, why = self.engine.name, self._records.folder, error.strerror or error
        what = f"{name} can't be started: {which} in {folder} can't be begun: {why}"
        return CannotStart(what, "make room or make it writable, and see the limits of this machine", passing=True)

    def _cannot_start(self, command: tuple[str, ...], error: Exception) -> CannotStart:
        return CannotStart(f"{self.engine.name} can't be started: {command[0]}: {error}", "correct its command")

    # ------------------------------------------------------------------------------------------ stopping

    async def _ended(self, run: Run, number: signal.Signals, limit: float) -> bool:
        """Signal everyone of the session, whoever joins later too; True when all have gone within `limit` seconds."""
        told: set[proc.Process] = set()
        deadline = asyncio.get_running_loop().time() + limit
        while not await self._read(partial(self._signalled, run, number, told)):
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(STOP_TICK)
        return True

    def _signalled(self, run: Run, number: signal.Signals, told: set[proc.Process]) -> bool:
        """In a thread: True when nobody is left."""
        with self._lock:
            record = self._observe_locked()
            if record is None or record.run != run or record.gone:
                return True
            left = [one for one in proc.living(run.leader) if one not in told]
            self._signal(left, number)
            told.update(left)
            return False

    def _signal(self, targets: list[proc.Process], number: signal.Signals) -> None:
        for target in targets:
            try:
                proc.send(target, number)
            except PermissionError as error:
                what = f"{self.engine.name}: process {target.pid} runs as another user and can't be stopped"
                raise Unreachable(what, "let its command stay with the daemon's user") from error

    async def _until_gone(self, run: Run) -> None:
        await self._ended(run, signal.SIGKILL, math.inf)

    # ------------------------------------------------------------------------------------------ threads with a bound

    async def _read(self, work: Callable[[], T]) -> T:
        """Run short work off the event loop. Raises Unreachable when it takes too long."""
        try:
            return await STATE.run(work, str(self._records.folder), READ_LIMIT)
        except Hangs as fault:
            raise Unreachable(fault.what, fault.mend, passing=True) from fault

    async def _act(self, what: str, work: Callable[[], T]) -> T:
        """Run work that changes something. Raises Unfinished when it takes too long: then it is still under way.

        Raises Hangs where an earlier call hangs: then nothing was begun.
        """
        call = STATE.begin(work, str(self._records.folder))
        await asyncio.wait({call.answer}, timeout=WRITE_LIMIT)
        if not call.answer.done():
            call.hangs = True
            told = f"{what} of {self.engine.name} has taken more than {WRITE_LIMIT:g} s"
            ended = _Ended(partial(_end_of, call.answer))
            raise Unfinished(told, f"look after the disk of {self._records.folder}", ended=ended)
        return call.answer.result()


class _Ended(Awaitable[None]):
    """The end of something that we stopped waiting for; may be awaited often, or never."""

    def __init__(self, wait: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._wait = wait

    def __await__(self) -> Generator[Any, Any, None]:
        return self._wait().__await__()


async def _end_of(answer: asyncio.Future[Any]) -> None:
    await asyncio.wait({answer})
