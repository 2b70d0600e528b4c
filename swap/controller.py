"""One queue, one loop: event → step → gate, answers, effects → event.

Everything that happens comes in as an event, in one order, and only the loop touches the state. It writes the journal
before an effect that changes something, sets the gate as the state says, and starts the awaited effect as a task of
its own TaskGroup. What happens to engines without our doing is told by `swap.watch`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

import structlog

from engines.spec import Engine, Pair
from swap.adoption import expect_its_files
from swap.evidence import evidence_of
from swap.handback import HandBack
from swap.hands import Hands, Wish
from swap.kept import keep_proven
from swap.known import run_of
from swap.machine import START, step
from swap.moves import (
    Aborted,
    Answer,
    Awaited,
    Code,
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
    Stop,
    Unit,
    Warm,
)
from swap.ports import Fault, Gate, JournalEntry, Ledger, Sight
from swap.reading import Reading
from swap.state import Closed, Open, Refusing, State, gate, phase
from swap.telling import Telling
from swap.threads import STATE
from swap.tickets import Ended, Progress, Ticket, truth
from swap.trials import find_out
from swap.watches import Watches

WRITE_LIMIT = 10.0  # seconds that a durable write may take
CHANGES = (Stage, PutBack, Stop, Start)
WAITS = (Drain, Free, Warm, Glance, Rest)  # nothing of theirs is in the way of staging by hand


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
    _events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    _tickets: list[Ticket] = field(default_factory=list)
    _ids: Callable[[], int] = field(default_factory=lambda: itertools.count(1).__next__)
    _task: asyncio.Task[None] | None = None
    _interrupted: set[int] = field(default_factory=set)
    _notes: dict[int, str] = field(default_factory=dict)  # by order: what its answer adds
    _unwritten: dict[int, str] = field(default_factory=dict)  # by order: why it left no evidence
    _back: HandBack = field(default_factory=HandBack)
    _ending: Order | None = None  # decided, and not yet answered: its evidence is being written
    _last_gate: Open | Closed | Refusing | None = None
    _hands: asyncio.Lock = field(default_factory=asyncio.Lock)
    _settled: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._log = structlog.get_logger("slotproxy.swap")
        self._telling = Telling(self.hands.times.backoff)
        self.hands.say = self.say
        self.hands.serving = lambda: self.state.serving
        self.watches = Watches(self.hands, self.ledger, lambda: self.state, self._events.put_nowait)

    # ------------------------------------------------------------------------------------------ what people ask

    def order(self, engine: str, pair: str, *, trial: bool, cut: bool, wish: Wish) -> Ticket:
        """Ask for a swap. The ticket tells how it goes; the order doesn't need it."""
        order = Order(self._ids(), engine, pair, trial, cut)
        self.hands.wishes[order.id] = wish
        ticket = Ticket(order)
        self._tickets.append(ticket)
        self._events.put_nowait(Ordered(order))
        return ticket

    def abort(self, note: str = "") -> str | None:
        """Give the order up that is under way; returns its target, None where there is none. Its answer adds `note`."""
        order = self.state.order
        if order is None:
            return None
        if note:
            self._notes[order.id] = note
        self._events.put_nowait(Aborted())
        return f"{order.engine}:{order.pair}"

    @property
    def hands_back(self) -> bool:
        """Is the order under way the way back of a trial?"""
        return self._back.goes(self.state.order)

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
            self._tell_progress()

    # ------------------------------------------------------------------------------------------ the loop

    async def run(self) -> None:
        """Until cancelled. Engines that run are left alone when it ends."""
        async with asyncio.TaskGroup() as tasks:
            self.watches.begin(tasks, self.engines)
            assert START.doing is not None
            await self._begin(START.doing, tasks)
            while True:
                event = self._back.due() or await self._events.get()
                await self._take(event, tasks)

    async def _take(self, event: Event, tasks: asyncio.TaskGroup) -> None:
        before = self.state
        self.state, effects = step(before, event)
        self._ending = before.order if self.state.order is None else None
        self._log.info("step", took=type(event).__name__, phase=phase(self.state), up=_labels(self.state.up))
        for said in self._telling.of(before, event, self.state, effects, time.monotonic()):
            self.hands.decisions.add(said.kind, said.text, why=said.why, **said.facts)
        self._note_change(before)
        if self.state.doing != before.doing:
            self.since, self.text = time.monotonic(), ""
        self._set_gate()
        if self.state.serving != before.serving and self.state.serving:
            await self._write_journal("serving")
            tasks.create_task(self._recognize(self.state.serving), name="recognize what serves")
        for effect in effects:
            await self._act(effect, tasks)
        self._ending = None
        if phase(self.state) != phase(before) or self.state.doing != before.doing:
            self._tell_progress()
        if phase(self.state) in ("serving", "dark"):
            self._settled.set()

    def _note_change(self, before: State) -> None:
        """Who serves, and since when."""
        state = self.state
        if state.serving != before.serving and state.serving:
            self.serving_since = time.monotonic()
            self._log.info("an engine serves", pair=state.serving.label)

    async def _act(self, effect: Effect, tasks: asyncio.TaskGroup) -> None:
        match effect:
            case Answer(order, code, why):
                self._answer(order, code, why)
            case Join(order):
                self._join(order)
            case Record():
                await self._record(effect)
                tasks.create_task(keep_proven(self.hands.runtimes, self.ledger.evidence()[-1:]), name="keep images")
            case Interrupt(n):
                self._interrupt(n)
            case _:
                await self._begin(effect, tasks)

    async def _begin(self, effect: Awaited, tasks: asyncio.TaskGroup) -> None:
        fault = await self._write_journal(type(effect).__name__.lower()) if isinstance(effect, CHANGES) else None
        if fault is not None and self.state.order is not None and not self.state.failure:
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

    def _interrupt(self, n: int) -> None:
        if self._task is not None and not self._task.done():
            self._interrupted.add(n)
            self._task.cancel()

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

    async def _write_journal(self, doing: str) -> Fault | None:
        """What we are about to do, on disk first. The fault is returned: not every caller can stop for it."""
        state = self.state
        served = state.serving or state.last
        known = self.hands.known.get(served) if served else None
        entry = JournalEntry(
            step=doing,
            serving=served.label if served else None,
            serving_id=known.id if known else None,
            goal=state.goal.label if state.goal else None,
            order=f"{state.order.engine}:{state.order.pair}" if state.order else None,
            trial=bool(state.order and state.order.trial),
            when=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
        try:
            await STATE.run(partial(self.hands.journal.write, entry), "the journal's disk", WRITE_LIMIT)
        except Fault as fault:
            self._log.error("journal", fault=str(fault))
            return fault
        return None

    async def _record(self, record: Record) -> None:
        """Evidence of an order's outcome. That it can't be written is said, and changes nothing else."""
        if record.order is None:
            return
        if record.served and (said := self.hands.too_big(record.unit)):
            self._notes[record.order.id] = said
        try:
            await self._write_evidence(record)
        except Fault as error:
            why = str(error)
            self._unwritten[record.order.id] = f"no evidence was written: {why}"
            self._log.error("no evidence", why=why)

    async def _write_evidence(self, record: Record) -> None:
        known, card = self.hands.known[record.unit], await self.hands.card.identity()
        warmed = self.hands.warmed.get(record.unit)
        evidence = evidence_of(record, known, warmed, card)
        if evidence is None:
            return
        if record.served:
            await expect_its_files(self.hands.checker, record.unit, known, warmed, evidence.subject)
        await STATE.run(partial(self.ledger.record, evidence), "the ledger's disk", WRITE_LIMIT)
        if record.served:
            known.standing = await self.hands.checker.standing_of(evidence.subject, record.unit.label)

    async def _recognize(self, unit: Unit) -> None:
        """Whether what was adopted is verified, while it serves: hashing takes time, and may break without harm."""
        if self.hands.known[unit].subject is not None:
            return
        try:
            await find_out(self.hands.checker, self.hands.known[unit], Reading(aside=True))
            if self.hands.known[unit].subject is None:
                self._log.warning(
                    "its files changed since it was started: nobody knows what it has read", unit=unit.label
                )
        except Fault as fault:
            self._log.warning("can't tell whether it is verified", unit=unit.label, why=str(fault))
        except Exception:
            self._log.exception("can't tell whether it is verified", unit=unit.label)

    def _answer(self, order: Order, code: Code, why: str) -> None:
        wish, note = self.hands.wishes.pop(order.id, Wish()), self._notes.pop(order.id, "")
        unwritten = self._unwritten.pop(order.id, "")
        if code is Code.SERVES and wish.before is not None:
            back = self._back.begin(order, wish.before, id=self._ids(), unwritten=unwritten, note=note)
            self._hand_back(order, back, wish)
            return
        serving = self.state.serving.label if self.state.serving else None
        added = "; ".join(filter(None, (unwritten, note)))
        alone = code, truth(code, serving, why) + (f"; {added}" if added else self._beside(code, wish))
        both = self._back.ended(order, code, serving, why) if self._back.goes(order) else alone
        for ticket in [t for t in self._tickets if t.order.id == order.id]:
            truly, text = both if ticket.tried else alone  # who has joined the way back has tried nothing
            ticket.news.put_nowait(Ended(int(truly), text, serving, time.monotonic() - ticket.since))
            self._tickets.remove(ticket)
        self._log.info("order ended", target=f"{order.engine}:{order.pair}", code=int(both[0]), why=why)

    def _hand_back(self, trial: Order, back: Order, wish: Wish) -> None:
        """The trial has ended well: whoever waits for it waits for the way back, which is next."""
        self.hands.wishes[back.id] = Wish(stage=wish.stage, drain=wish.drain)
        for ticket in self._tickets:
            if ticket.order.id == trial.id:
                ticket.order, ticket.tried = back, True
                ticket.tell(Progress(phase(self.state), self._back.news(back), time.monotonic() - ticket.since))
        self._log.info("trial ended", target=f"{trial.engine}:{trial.pair}", news=self._back.news(back))

    def _beside(self, code: Code, wish: Wish) -> str:
        """What the answer adds: by what it got the card, that it serves unproven, that nothing was handed back."""
        if code is not Code.SERVES:
            return ""
        if wish.leave:
            return f"; it got the card by policy: {wish.leave}"
        none = "; it served already, so nothing was tried and nothing is handed back" if wish.and_back else ""
        return none + self._unproven()

    def _unproven(self) -> str:
        """An order for what serves already changes nothing, so it makes no evidence either."""
        serving = self.state.serving
        known = self.hands.known.get(serving) if serving else None
        if serving is None or known is None or known.verified is not False:
            return ""
        return f"; it isn't verified: `slotctl pairs adopt {serving.engine}` makes evidence of it"

    def _join(self, order: Order) -> None:
        """Whoever asked for it follows the order that is under way."""
        current = self.state.order
        assert current is not None
        if self.hands.wishes[order.id].and_back != self.hands.wishes[current.id].and_back:
            how = "without" if self.hands.wishes[order.id].and_back else "with"
            self._answer(
                order, Code.REFUSED, f"a swap to {current.engine}:{current.pair} {how} --and-back is under way"
            )
            return
        for ticket in self._tickets:
            if ticket.order.id == order.id:
                ticket.order = current
                ticket.tell(self._progress(ticket, f"joined the swap to {current.engine}:{current.pair}"))
        self.hands.wishes.pop(order.id, None)

    def _tell_progress(self) -> None:
        current = self.state.order
        for ticket in self._tickets:
            if current is not None and ticket.order.id == current.id:
                ticket.tell(self._progress(ticket, self.text))

    def _progress(self, ticket: Ticket, text: str) -> Progress:
        word = phase(self.state)
        if self.state.failure:
            word, text = f"restoring: {word}", text or self.state.failure
        elif self._back.goes(self.state.order):
            word = f"back: {word}"
        return Progress(word, text, time.monotonic() - ticket.since)


def _labels(units: frozenset[Unit]) -> list[str]:
    return sorted(unit.label for unit in units)
