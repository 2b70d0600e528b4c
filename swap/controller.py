"""One queue, one loop: event → step → gate, answers, effects → event.

Everything that happens comes in as an event, in one order, and only the loop touches the state. It writes the journal
before an effect that changes something, sets the gate as the state says, and starts the awaited effect as a task of
its own TaskGroup. What happens to engines without our doing is told by `swap.watch`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog

from engines.spec import Engine, Pair
from swap.answers import Answers
from swap.entry import entry_of, now_refused
from swap.hands import Hands
from swap.kept import keep_proven
from swap.known import run_of
from swap.machine import START, step
from swap.moves import (
    Aborted,
    Answer,
    Ascertain,
    Awaited,
    Done,
    Drain,
    Effect,
    Event,
    Failed,
    Free,
    Glance,
    Interrupt,
    Join,
    Order,
    Ordered,
    Overdue,
    PutBack,
    Record,
    Rest,
    Stage,
    Start,
    Steady,
    Stop,
    Unit,
    Up,
    Useless,
    Warm,
)
from swap.ports import Fault, Gate, Ledger, Sight
from swap.recorder import Recorder
from swap.state import Closed, Open, Refusing, State, gate, phase
from swap.telling import Telling
from swap.threads import STATE
from swap.tickets import Ticket
from swap.watches import Watches
from swap.wish import Wish

WRITE_LIMIT = 10.0  # seconds that a durable write may take
OWED_EVERY = 10.0  # seconds between tries to write down who serves, where that couldn't be
STEADY = 300.0  # seconds after which an engine that serves has ended its row of failures
CHANGES = Stage | PutBack | Stop | Start
WAITS = (Drain, Free, Warm, Glance, Ascertain, Rest)  # nothing of theirs is in the way of staging by hand


@dataclass
class Controller:
    """Owns the state. `run()` is the loop; the other methods may be called from anywhere on the same event loop."""

    engines: Mapping[str, Engine]
    hands: Hands
    ledger: Ledger
    gate: Gate
    state: State = START
    since: float = field(default_factory=time.monotonic)  # when the phase began
    serving_since: float = 0.0  # when what serves now began to
    text: str = ""
    watches: Watches = field(init=False)
    answers: Answers = field(init=False)
    recorder: Recorder = field(init=False)
    _events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    _task: asyncio.Task[None] | None = None
    _interrupted: set[int] = field(default_factory=set)
    _ending: Order | None = None  # decided, and not yet answered: its evidence is being written
    _last_gate: Open | Closed | Refusing | None = None
    _hands: asyncio.Lock = field(default_factory=asyncio.Lock)
    _owed: bool = False  # what is true now isn't in the journal
    _settled: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._log = structlog.get_logger("slotproxy.swap")
        self._telling = Telling(self.hands.times.backoff)
        self.hands.say = self.say
        self.hands.serving = lambda: self.state.serving
        self.answers = Answers(self.hands, lambda: self.state, lambda: self.text)
        self.recorder = Recorder(self.hands, self.ledger)
        self.watches = Watches(self.hands, self.ledger, lambda: self.state, self._events.put_nowait)

    # ------------------------------------------------------------------------------------------ what people ask

    def order(self, engine: str, pair: str, *, trial: bool, cut: bool, wish: Wish) -> Ticket:
        """Ask for a swap. The ticket tells how it goes; the order doesn't need it."""
        ticket = self.answers.begin(engine, pair, trial=trial, cut=cut, wish=wish)
        self._events.put_nowait(Ordered(ticket.order))
        return ticket

    def abort(self, note: str = "") -> str | None:
        """Give the order up that is under way; returns its target, None where there is none. Its answer adds `note`."""
        order = self.state.order
        if order is None:
            return None
        if note:
            self.answers.note(order, note)
        self._events.put_nowait(Aborted(note))
        return f"{order.engine}:{order.pair}"

    @property
    def hands_back(self) -> bool:
        """Is the order under way the way back of a trial?"""
        return self.answers.goes_back(self.state.order)

    def useless(self, unit: Unit, why: str) -> None:
        """What serves answers nothing but errors any more: it is stopped, and started anew; requests wait meanwhile."""
        self._events.put_nowait(Useless(unit, why))

    def write_again(self) -> None:
        """What the journal has may be old, or come late: its disk was full, or hung, and isn't any more."""
        self._owed = True
        self._events.put_nowait(Done(0))  # nobody's report: it only wakes the loop

    def proven(self, unit: Unit) -> None:
        """What runs has evidence now: where it was refused, it may serve."""
        if self.state.person and unit in self.state.up:
            self._events.put_nowait(Up(0, unit, fit=True))

    @property
    def pending(self) -> bool:
        """Something has happened that the machine hasn't been told yet."""
        return not self._events.empty()

    @property
    def staging(self) -> bool:
        """Somebody's hands are on a container."""
        return self._hands.locked()

    async def stage(self, engine: str, pair: Pair) -> Sight:
        """Make a stopped engine's container what the pair declares. Raises Fault: it runs, a swap is under way, …"""
        self._expect_idle(engine)
        async with self._hands:
            self._expect_idle(engine)
            sight = await self.hands.runtimes[engine].look()
            if sight.running:
                raise Fault(f"{engine} is running", "a swap stages it at the right moment; or swap away from it first")
            return await self.hands.runtimes[engine].stage(pair)

    @property
    def under_way(self) -> Order | None:
        """The order that isn't answered yet; a trial and its way back follow each other without a gap."""
        return self.state.order or self._ending

    def _expect_idle(self, engine: str) -> None:
        """Raises Fault where staging by hand would change what we are about to start."""
        order, goal = self.under_way, self.state.goal
        if order is not None:
            raise Fault(f"a swap to {order.engine} is under way", "stage when it has ended", passing=True)
        if goal is not None and goal.engine == engine:
            raise Fault(f"{goal.label} is being started", "stage when it serves, or swap to another", passing=True)

    async def settled(self) -> None:
        """Returns when something serves, or nothing will without a person or time: start-up is over."""
        await self._settled.wait()

    def say(self, text: str) -> None:
        """What the current wait is about, for who follows it."""
        if text != self.text:
            self.text = text
            self.answers.tell_progress()

    # ------------------------------------------------------------------------------------------ the loop

    async def run(self) -> None:
        """Until cancelled. Engines that run are left alone when it ends."""
        async with asyncio.TaskGroup() as tasks:
            self.watches.begin(tasks, self.engines)
            assert START.doing is not None
            await self._begin(START.doing, tasks)
            while True:
                event = self.answers.due() or await self._news()
                await self._take(event, tasks)

    async def _news(self) -> Event:
        """What happens next; nothing, now and then, as long as the journal is owed what is true."""
        try:
            async with asyncio.timeout(OWED_EVERY if self._owed else None):
                return await self._events.get()
        except TimeoutError:
            return Done(0)

    async def _take(self, event: Event, tasks: asyncio.TaskGroup) -> None:
        before = self.state
        self.state, effects = step(before, event)
        self._ending = before.order if self.state.order is None else None
        self._log.info("step", took=type(event).__name__, phase=phase(self.state), up=_labels(self.state.up))
        self._tell(before, event, effects)
        self._note_change(before)
        if self.state.doing != before.doing:
            self.since, self.text = time.monotonic(), ""
        self._set_gate()
        if self.state.serving != before.serving and self.state.serving:
            await self._write_journal("serving")
            tasks.create_task(self.recorder.recognize(self.state.serving), name="recognize what serves")
            tasks.create_task(self._grow_steady(self.state.serving), name="has it served long enough")
        elif self._owed and self.state.looked and self.state.doing is None:
            await self._write_journal("serving" if self.state.serving else "refusing")
        await self._note_refused()
        for effect in effects:
            await self._act(effect, tasks)
        self._ending = None
        if phase(self.state) != phase(before) or self.state.doing != before.doing:
            self.answers.tell_progress()
        if phase(self.state) in ("serving", "dark"):
            self._settled.set()

    def _tell(self, before: State, event: Event, effects: Sequence[Effect]) -> None:
        """The event log hears what this step decided. A bug of ours in the words costs the words."""
        try:
            for said in self._telling.of(before, event, self.state, effects, time.monotonic()):
                self.hands.decisions.add(said.kind, said.text, why=said.why, **said.facts)
        except Exception:
            self._log.exception("telling broke")

    def _note_change(self, before: State) -> None:
        """Who serves, and since when."""
        state = self.state
        if state.serving != before.serving and state.serving:
            self.serving_since = time.monotonic()
            self._log.info("an engine serves", pair=state.serving.label)

    async def _act(self, effect: Effect, tasks: asyncio.TaskGroup) -> None:
        match effect:
            case Answer(order, code, why):
                self.answers.answer(order, code, why)
            case Join(order):
                self.answers.join(order)
            case Record():
                await self._record(effect)
                tasks.create_task(keep_proven(self.hands.runtimes, self.ledger.evidence()[-1:]), name="keep images")
            case Interrupt(n):
                self._interrupt(n)
            case _:
                await self._begin(effect, tasks)

    async def _begin(self, effect: Awaited, tasks: asyncio.TaskGroup) -> None:
        fault = None
        if isinstance(effect, CHANGES):
            fault = await self._write_journal(type(effect).__name__.lower(), effect.unit)
        if fault is not None and self.state.target is not None and not self.state.failure:
            # What served may come back without a journal; nothing new is begun without one.
            why = f"the journal can't be written: {fault}"
            self._events.put_nowait(Failed(effect.n, why, passing=True, interrupted=True))
            return
        self._task = tasks.create_task(self._carry_out(effect), name=f"{type(effect).__name__} {effect.n}")
        await asyncio.sleep(0)  # a task that is cancelled before it has begun would report nothing

    async def _carry_out(self, effect: Awaited) -> None:
        """Exactly one report, whatever happens; a bug of ours fails that step, it does not end the daemon."""
        try:
            async with contextlib.nullcontext() if isinstance(effect, WAITS) else self._hands:
                report: Event = await self.hands.carry_out(effect, self.state.order)
        except asyncio.CancelledError:
            if effect.n not in self._interrupted:
                raise
            self._interrupted.discard(effect.n)
            report = Failed(effect.n, "given up by the operator", passing=True, interrupted=True)
        except Exception as error:
            self._log.exception("a step broke", step=type(effect).__name__)
            truth_unknown = isinstance(effect, Start | Stop)
            broke = f"{type(effect).__name__.lower()} broke: {error!r}"
            report = Overdue(effect.n) if truth_unknown else Failed(effect.n, broke, passing=True)
        self._events.put_nowait(report)

    async def _grow_steady(self, unit: Unit) -> None:
        """Once it has served long enough, what failed before counts no more."""
        since = self.serving_since
        await asyncio.sleep(STEADY)
        if self.state.serving == unit and self.serving_since == since:
            self._events.put_nowait(Steady(unit))

    def _interrupt(self, n: int) -> None:
        if self._task is not None and not self._task.done():
            self._interrupted.add(n)
            self._task.cancel()

    async def _record(self, record: Record) -> None:
        if record.order is None:
            return
        if record.served and (said := self.hands.too_big(record.unit)):
            self.answers.note(record.order, said)
        if why := await self.recorder.record(record):
            self.answers.unwritten(record.order, why)

    # ------------------------------------------------------------------------------------------ what follows a step

    def _set_gate(self) -> None:
        wanted = gate(self.state)
        if wanted == self._last_gate:
            return
        self._last_gate = wanted
        match wanted:
            case Open(unit):
                run = run_of(unit, self.hands.known[unit])
                self.gate.open(unit.engine, self.engines[unit.engine].concurrency, run)
            case Refusing(why):
                self.gate.refuse(why or "nothing serves")
            case Closed():
                self.gate.close()

    async def _note_refused(self) -> None:
        """Whoever comes after us refuses it, too."""
        refused = now_refused(self.state, self.hands.known, self.hands.refused)
        if self.state.looked and refused != self.hands.refused:
            self.hands.refused = refused
            await self._write_journal("refusing")

    async def _write_journal(self, doing: str, unit: Unit | None = None) -> Fault | None:
        """What we are about to do, on disk first. The fault is returned: not every caller can stop for it."""
        hands = self.hands
        entry = entry_of(self.state, hands.known, doing, unit, refused=hands.refused, before=hands.before)
        try:
            await STATE.run(partial(hands.journal.write, entry), "the journal's disk", WRITE_LIMIT)
        except Fault as fault:
            self._log.error("journal", fault=str(fault))
            self._owed = True
            return fault
        self._owed = False
        return None


def _labels(units: frozenset[Unit]) -> list[str]:
    return sorted(unit.label for unit in units)
