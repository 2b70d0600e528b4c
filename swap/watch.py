"""What happens behind our back: each engine watched level-triggered.

Whatever its runtime tells, and now and then anyway, we look, and say what differs from what the machine believes. An
event only adds what a look can't show: that somebody meant it to stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field

import structlog

from swap.adoption import may_have_read
from swap.decisions import Kind
from swap.hands import MEANT, Hands
from swap.moves import Died, Event, Glance, NotByHand, PutBack, Stage, Start, Stop, Unit, Up, Warm
from swap.ports import Change, Fault, Foreign, Ledger, Runtime, RuntimeEvent, Sight
from swap.state import State
from swap.warming import POLL

PAUSE = 1.0  # seconds before asking for events again after their source broke
LOOK_EVERY = 10.0  # seconds between looks at each engine, whatever its events say
QUICK = 1.0  # seconds in which it may be found out whether what came up is verified, before it is told unfit
UNSEEN = {"can't look": "can't be looked at", "events broke": "can't be heard of"}
SEEN = {"can't look": "can be looked at again", "events broke": "is heard of again"}
TOLD_WITHIN = 3.0  # seconds that a death which a look has shown may wait for its event


@dataclass
class Watch:
    """One engine's. `state` is the machine's now, `tell` gives it an event."""

    name: str
    hands: Hands
    ledger: Ledger
    state: Callable[[], State]
    tell: Callable[[Event], None]
    _news: asyncio.Queue[RuntimeEvent | None] = field(default_factory=asyncio.Queue)
    _said: dict[str, str] = field(default_factory=dict)  # what was complained of and still holds
    _broke: asyncio.Event = field(default_factory=asyncio.Event)  # the source of events, since the last stop
    _tasks: asyncio.TaskGroup = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._log = structlog.get_logger("slotproxy.swap").bind(engine=self.name)

    async def run(self) -> None:
        """Until cancelled. A bug of ours costs one look, not the daemon."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._listen(), name=f"events of {self.name}")
            while True:
                news = await self._next(LOOK_EVERY)
                try:
                    await self._happened(news)
                    self._can_again("can't look")
                except Foreign:
                    self._lost()
                except Fault as fault:
                    self._complain("can't look", fault)
                except Exception:
                    self._log.exception("watching broke")

    async def _listen(self) -> None:
        """Hand on each event, in order; nothing is missed while a look takes its time."""
        while True:
            try:
                async with aclosing(self._runtime.events()) as events:
                    self._news.put_nowait(None)  # what happened before we listened
                    async for event in events:
                        self._can_again("events broke")
                        if event.change is Change.STOPPED:
                            self._broke.clear()
                        self._news.put_nowait(event)
            except Fault as fault:
                self._complain("events broke", fault)
            except Exception:
                self._log.exception("listening broke")
            self._broke.set()
            await asyncio.sleep(PAUSE)

    async def _next(self, limit: float) -> RuntimeEvent | None:
        try:
            async with asyncio.timeout(limit):
                return await self._news.get()
        except TimeoutError:
            return None

    @property
    def _runtime(self) -> Runtime:
        return self.hands.runtimes[self.name]

    def _complain(self, what: str, fault: Fault) -> None:
        """Once, however often it is tried: what matters would drown in it."""
        if self._said.get(what) != str(fault):
            self._said[what] = str(fault)
            self.hands.decisions.add(Kind.UNSEEN, f"{self.name} {UNSEEN[what]}", why=str(fault))

    def _can_again(self, what: str) -> None:
        if self._said.pop(what, None) is not None:
            self.hands.decisions.add(Kind.UNSEEN, f"{self.name} {SEEN[what]}")

    # ------------------------------------------------------------------------------------------ what differs

    async def _happened(self, news: RuntimeEvent | None, *, told: bool = False) -> None:
        """Compare what a look shows with what the machine believes; what our own effect is about, its report tells."""
        meant = news is not None and news.change is Change.STOPPED and not self._busy()
        sight = await self._sight()
        if not self.state().looked:
            return
        believed = self._believed
        if believed is not None and not self.hands.known[believed].same_run(sight):
            if news is None and not told and not sight.running:
                # Only its event says whether somebody meant it, and may be on its way.
                await self._happened(await self._next(TOLD_WITHIN), told=True)
                return
            by_hand = meant and not sight.running
            self.tell(Died(believed, "was stopped by hand" if by_hand else _how(sight), by_hand=by_hand))
            if by_hand:
                self._tasks.create_task(self._make_sure(believed), name=f"who stopped {believed.label}")
            believed = None
        if sight.running and believed is None:
            await self._came_up(sight)

    @property
    def _believed(self) -> Unit | None:
        """What of this engine is up, as the machine has it."""
        return next((unit for unit in self.state().up if unit.engine == self.name), None)

    async def _make_sure(self, unit: Unit) -> None:
        """A Docker that goes down stops all that runs, and says so as of a stop by hand; then its events end.

        A look alone can't tell: where systemd holds the socket, the Docker that comes next answers it.
        """
        try:
            async with asyncio.timeout(MEANT):
                await self._broke.wait()
        except TimeoutError:
            if await self._answers() and not self._broke.is_set():
                return
        self.tell(NotByHand(unit))

    async def _answers(self) -> bool:
        try:
            await self._runtime.look()
        except Foreign:
            return True
        except Fault:
            return False
        except Exception:
            self._log.exception("watching broke")
        return True

    def _lost(self) -> None:
        """Its name is a foreign container's now, which isn't ours to touch; a check says so to whom it concerns."""
        if (believed := self._believed) is not None:
            self.tell(Died(believed, "was replaced by a foreign container"))

    async def _sight(self) -> Sight:
        """What is there while we do nothing with it ourselves, and not older than what the machine was told last.

        Raises Foreign on the same terms.
        """
        while True:
            number = self.state().number
            try:
                sight = None if self._busy() else await self._runtime.look()
            except Foreign:
                if self.state().number == number:
                    raise
                sight = None
            if sight is not None and self.state().number == number:
                return sight
            await asyncio.sleep(POLL)

    async def _came_up(self, sight: Sight) -> None:
        """Told at once, since it may be in the way of something; that it may serve may be found out later."""
        unit = await self.hands.meet(self.name, sight)
        fit = self._tasks.create_task(self._fit(unit), name=f"is {unit.label} verified")
        done, _ = await asyncio.wait([fit], timeout=QUICK)
        if not self._busy():
            self.tell(Up(0, unit, bool(done) and fit.result()))
        if not done:
            self._tasks.create_task(self._found_fit(unit, fit), name=f"adopt {unit.label}")

    async def _found_fit(self, unit: Unit, fit: asyncio.Task[bool]) -> None:
        """Tell it again once it is found verified, if it is up still, in the same run."""
        if not await fit:
            return
        try:
            sight = await self._sight()
        except Fault:
            return  # the next look finds out
        if self._believed == unit and self.hands.known[unit].same_run(sight):
            self.tell(Up(0, unit, fit=True))

    async def _fit(self, unit: Unit) -> bool:
        """May what came up by itself serve? What served before may; else it must be verified.

        Asked only when it might: hashing takes half a minute, and what is in the way is to be stopped at once.
        """
        state = self.state()
        if unit == state.last:
            return True
        if state.serving is not None or state.order is not None:
            return False
        known = self.hands.known[unit]
        try:
            subject = await self.hands.checker.subject_of(known.engine, known.recipe, known.pair)
            if not await may_have_read(subject, known.started_at):
                return self._unfit(unit, "its files changed since it was started: nobody knows what it has read")
            await self.hands.card.identity()  # nobody knows whose evidence counts on a card that can't be asked
            standing = await self.hands.checker.standing_of(subject, unit.label)
            return self.hands.checker.accepts(known.engine, standing) or self._unfit(unit, "it isn't verified")
        except Fault as fault:
            return self._unfit(unit, f"it can't be told whether it is verified: {fault}")
        except Exception:
            self._log.exception("can't tell whether it is verified", unit=unit.label)
            return False

    def _unfit(self, unit: Unit, why: str) -> bool:
        text = f"{unit.label} was started by hand and gets no requests"
        self.hands.decisions.add(Kind.REFUSED, text, why=why, unit=unit.label)
        return False

    def _busy(self) -> bool:
        """Our own hands are on it."""
        doing = self.state().doing
        return isinstance(doing, Start | Stop | Glance | Stage | PutBack | Warm) and doing.unit.engine == self.name


def _how(sight: Sight) -> str:
    if sight.running:
        return "was started anew by somebody else"
    return "ended" if sight.exit_code is None else f"exited with code {sight.exit_code}"
