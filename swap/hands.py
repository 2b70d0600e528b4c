"""The controller's hands: each awaited effect carried out, each giving exactly one report.

Nothing is decided here. Faults become reports: `Failed` where the truth is known, `Overdue` where a call is still
under way. Waits that end early when an order is given up are simply cancelled by the controller.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from engines.spec import Engine, Pair
from swap import trials
from swap.boot import Boot
from swap.checks import Checker, Verdict
from swap.decisions import Decisions
from swap.drift import differences
from swap.entry import Before
from swap.fallback import Fallback
from swap.inspection import inspect, replaced
from swap.known import Known, unit_of
from swap.moves import (
    Ascertain,
    Awaited,
    Check,
    Checked,
    Choose,
    Done,
    Drain,
    Failed,
    Free,
    Glance,
    Inspect,
    Look,
    Order,
    Overdue,
    PutBack,
    Report,
    Rest,
    Seen,
    Stage,
    Start,
    Stop,
    Unit,
    Up,
    Warm,
)
from swap.ports import Card, Fault, Foreign, Gate, Journal, Recipe, Runtime, Sight, Unfinished, Unreachable
from swap.readiness import Readiness
from swap.reading import Reading
from swap.room import lacking
from swap.warming import POLL, Warmed, Warming, beyond
from swap.wish import Wish

CUT_LIMIT = 5.0  # seconds that requests have to end once they are cut
GLANCE_LIMIT = 15.0  # seconds to wait for an overdue call before saying that it can't be asked
MEANT = 5.0  # seconds that Docker must go on after a stop, for that to be somebody's own
BACKOFF = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0)  # seconds, by attempt

Told = Report | Up | Overdue


@dataclass(frozen=True, slots=True)
class Times:
    """How long to wait, in seconds. `drain` and `freeing` from the configuration; an order may bring its own drain."""

    drain: float = 60.0
    freeing: float = 60.0
    backoff: tuple[float, ...] = BACKOFF


@dataclass
class Hands:
    """Everything that effects act on. `say` tells people what a wait is about; `headroom` and `baseline` in bytes."""

    engines: Mapping[str, Engine]
    runtimes: Mapping[str, Runtime]
    card: Card
    checker: Checker
    gate: Gate
    journal: Journal
    readiness: Readiness
    headroom: int
    default: str | None
    say: Callable[[str], None]
    in_flight: Callable[[], int]
    times: Times = field(default_factory=Times)
    baseline: int = 0
    decisions: Decisions = field(default_factory=Decisions)
    serving: Callable[[], Unit | None] = lambda: None  # set by the controller, who knows
    known: dict[Unit, Known] = field(default_factory=dict)
    wishes: dict[int, Wish] = field(default_factory=dict)
    warmed: dict[Unit, Warmed] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)  # ids of containers that run, and got no request
    before: Before = field(default_factory=Before)
    asked: dict[str, float] = field(default_factory=dict)  # when each engine was last asked to start: time.monotonic()
    _calls: dict[Unit, Awaitable[None]] = field(default_factory=dict)
    _started: dict[Unit, float] = field(default_factory=dict)

    async def carry_out(self, effect: Awaited, order: Order | None) -> Told:
        """The one report of this effect."""
        try:
            return await self._carry_out(effect, order)
        except Fault as fault:
            return Failed(effect.n, str(fault), passing=fault.passing)

    async def _carry_out(self, effect: Awaited, order: Order | None) -> Told:
        match effect:
            case Look(n):
                return await self._boot.look(n)
            case Check():
                return await self._check(effect)
            case Stage():
                return await self._stage(effect)
            case PutBack(n, unit):
                self.known[unit].saw(await self._runtime(unit).put_back(self.known[unit].recipe))
                return Done(n)
            case Drain():
                return await self._drain(effect, order)
            case Stop():
                return await self._stop(effect)
            case Free():
                return await self._free(effect)
            case Inspect():
                return await self._inspect(effect, order)
            case Start():
                return await self._start(effect)
            case Warm():
                return await self._warm(effect, order)
            case Glance():
                return await self._glance(effect)
            case Choose():
                return await self._fallback.choose(effect)
            case Ascertain(n):
                await asyncio.sleep(MEANT)
                return Done(n)
            case Rest(n, attempt):
                await asyncio.sleep(self.times.backoff[min(attempt, len(self.times.backoff) - 1)])
                return Done(n)

    @property
    def _boot(self) -> Boot:
        asked = self.runtimes, self.checker, self.journal
        told = self.refused, self.before, self.decisions
        return Boot(*asked, self.default, self.say, self.meet, self.expect, *told)

    @property
    def _fallback(self) -> Fallback:
        found = self.engines, self.checker, self.checker.ledger, self.decisions
        proven, served = self.warmed.__contains__, self._boot.served_last
        return Fallback(*found, self.default, self.say, self.expect, self.known, proven, served)

    def _runtime(self, unit: Unit) -> Runtime:
        return self.runtimes[unit.engine]

    # ------------------------------------------------------------------------------------------ what is there

    async def meet(self, engine: str, sight: Sight) -> Unit:
        """The unit that a container is; it is known from now on. Raises Fault when its files can't be looked at."""
        assert sight.recipe is not None
        if (unit := await self._known_as(engine, sight)) is not None:
            return unit
        chosen = self.engines[engine]
        pair = await self._pair_of(chosen, sight.recipe)
        unit = await unit_of(chosen, pair, sight.recipe)
        self.known.setdefault(unit, Known(chosen, pair, sight.recipe)).saw(sight)
        return unit

    async def _pair_of(self, engine: Engine, recipe: Recipe) -> Pair | None:
        """None also where what is declared can't be used: that is no reason to leave what runs unserved."""
        try:
            name = await self.checker.pair_of(engine, recipe)
        except Unreachable:
            raise
        except Fault as fault:
            self.say(f"{engine.name} runs, and which of its pairs it is can't be told: {fault}")
            return None
        return engine.pairs[name] if name is not None else None

    async def _known_as(self, engine: str, sight: Sight) -> Unit | None:
        """Who a container is doesn't change with what is declared; it does when its files have."""
        for unit, known in tuple(self.known.items()):
            if unit.engine != engine or known.id != sight.id or sight.recipe is None:
                continue
            if known.same_run(sight) or await unit_of(known.engine, known.pair, sight.recipe) == unit:
                known.saw(sight)
                return unit
        return None

    async def _check(self, effect: Check) -> Told:
        order = effect.order
        wish = self.wishes[order.id]
        stage, and_back = wish.stage, wish.and_back
        how = Reading(self.say, anew=wish.rehash)
        verdict = await self.judge(order.engine, order.pair, trial=order.trial, stage=stage, and_back=and_back, how=how)
        serving = self._now_serving()
        if verdict.allowed:
            for warning in verdict.warnings:
                self.say(warning)
            wish.unit = await self.expect(verdict, stage=stage)
            if serving is None or wish.unit != serving[0]:
                wish.before = serving[0] if serving is not None and and_back else None
                wish.leave = "" if order.trial else self.checker.leave(verdict)
            return Checked(effect.n, wish.unit)
        if serving is not None and await trials.means(verdict, serving):
            # Nothing is started: that it isn't verified is said, and changes nothing.
            return Checked(effect.n, serving[0])
        return Failed(effect.n, "; ".join([*how.alarms, verdict.why]))

    async def judge(
        self,
        engine: str,
        pair: str | None,
        *,
        trial: bool,
        stage: bool = True,
        and_back: bool = False,
        how: Reading | None = None,
    ) -> Verdict:
        """What a check of such an order comes to now; changes nothing."""
        return await trials.judge(
            self.checker,
            self._now_serving(),
            engine,
            pair,
            trial=trial,
            may_stage=stage,
            and_back=and_back,
            how=how,
        )

    def _now_serving(self) -> trials.Serving | None:
        unit = self.serving()
        return None if unit is None else (unit, self.known[unit])

    async def expect(self, verdict: Verdict, *, stage: bool = True) -> Unit:
        """The unit of an allowed verdict; what it declares is what must be found in its container from now on."""
        assert verdict.declared is not None
        engine = self.engines[verdict.engine]
        pair = engine.pairs[verdict.pair]
        unit = await unit_of(engine, pair, verdict.declared)
        if unit == self.serving():  # nothing is started, and what it has read is known, or isn't
            return unit
        known = self.known.setdefault(unit, Known(engine, pair, verdict.declared))
        known.engine, known.pair = engine, pair  # as they are configured now
        known.recipe, known.stage = verdict.declared, stage and (engine.compose is not None or not engine.container)
        known.subject, known.standing = verdict.subject, verdict.standing
        known.artifact_version = verdict.artifact_version
        return unit

    # ------------------------------------------------------------------------------------------ making containers

    async def _stage(self, effect: Stage) -> Told:
        known, runtime = self.known[effect.unit], self._runtime(effect.unit)
        sight = await runtime.look()
        differ = differences(known.recipe, sight.recipe) if sight.recipe else None
        if differ is None or (differ and known.stage):
            if not known.stage or known.pair is None:
                return Failed(effect.n, f"there is no container for {effect.unit.label}, and it may not be made")
            what = ", ".join(one.field for one in differ) if differ else "there was none"
            self.say(f"recreating the container: {what}")
            sight = await runtime.stage(known.pair)
        known.saw(sight)
        return Done(effect.n)

    async def _inspect(self, effect: Inspect, order: Order | None) -> Told:
        """What was ordered, or has never been ready, must be what was checked; what served comes back as it is."""
        unit, known = effect.unit, self.known[effect.unit]
        sight = await self._runtime(unit).look()
        await inspect(unit.label, known, sight)
        if known.subject is not None and (files := await self.checker.changed(known.subject)):
            wish = self.wishes.get(order.id) if order else None
            if unit not in self.warmed or (wish is not None and wish.unit == unit):
                if wish is not None:
                    wish.unit = None  # from here on it can only be put back
                raise replaced(unit.label, files)
            self.say(f"{', '.join(files)} changed since {unit.label} served")
        known.saw(sight)
        return Done(effect.n)

    # ------------------------------------------------------------------------------------------ up and down

    async def _drain(self, effect: Drain, order: Order | None) -> Told:
        wish = self.wishes.get(order.id) if order else None
        limit = wish.drain if wish and wish.drain is not None else self.times.drain
        self.say(_requests(self.in_flight()))
        if await self.gate.drained(limit):
            return Done(effect.n)
        if not effect.cut:
            left = _requests(self.in_flight())
            return Failed(effect.n, f"{left} after {limit:g} s; `--cut` ends them, `--drain` waits longer")
        self.say(f"{self.gate.cut()} requests are being ended")
        if await self.gate.drained(CUT_LIMIT):
            return Done(effect.n)
        return Failed(effect.n, f"{_requests(self.in_flight())} {CUT_LIMIT:g} s after they were told to end")

    async def _stop(self, effect: Stop) -> Told:
        runtime, known = self._runtime(effect.unit), self.known[effect.unit]
        try:
            if (there := await self._running_as(effect.unit)) is None:
                return Done(effect.n)
            ended = await runtime.stop(there, known.engine.stop_grace)
        except Unfinished as fault:
            self._calls[effect.unit] = fault.ended
            return Overdue(effect.n)
        except Unreachable:
            return Overdue(effect.n)  # it may have heard us
        if ended.forced:
            self.say(f"{effect.unit.label} had to be killed after {known.engine.stop_grace:g} s")
        return Done(effect.n)

    async def _running_as(self, unit: Unit) -> str | None:
        """Whose name a foreign container has taken is stopped by its own id, if it still runs under another name."""
        try:
            sight = await self._runtime(unit).look()
        except Foreign:
            return self.known[unit].id
        return sight.id if sight.running else None

    async def _free(self, effect: Free) -> Told:
        """Twice in a row the need must be free: an absolute condition, never "it went down by"."""
        known = self.known[effect.unit]
        need = known.engine.vram + self.headroom
        deadline = _now() + self.times.freeing
        good, why = 0, ""
        while good < 2:
            why = await lacking(self.card, need, known.engine.host_memory, self.baseline)
            good = 0 if why else good + 1
            if why:
                self.say(why)
                if _now() >= deadline:
                    return Failed(effect.n, f"{why} after {self.times.freeing:g} s", passing=True)
            await asyncio.sleep(POLL if good < 2 else 0)
        return Done(effect.n)

    async def _start(self, effect: Start) -> Told:
        runtime, known = self._runtime(effect.unit), self.known[effect.unit]
        self._started[effect.unit], self.asked[effect.unit.engine] = _now(), time.monotonic()
        try:
            await runtime.start(known.id)
            known.saw(await runtime.look())
        except Unfinished as fault:
            self._calls[effect.unit] = fault.ended
            return Overdue(effect.n)
        except Unreachable:
            return Overdue(effect.n)  # it may be up: nobody says so until a look answers
        return Up(effect.n, effect.unit)

    async def _glance(self, effect: Glance) -> Told:
        if (ended := self._calls.get(effect.unit)) is not None:
            try:
                async with asyncio.timeout(GLANCE_LIMIT):
                    await _settled(ended)
            except TimeoutError:
                what = f"a call on {effect.unit.label} hasn't ended yet; Docker may hang, look at its log"
                return Failed(effect.n, what, passing=True)
            del self._calls[effect.unit]
        sight = await self._runtime(effect.unit).look()
        if sight.running:
            self.known[effect.unit].saw(sight)
        return Seen(effect.n, sight.running)

    # ------------------------------------------------------------------------------------------ ready

    async def _warm(self, effect: Warm, order: Order | None) -> Told:
        unit, known = effect.unit, self.known[effect.unit]
        begun = self._started.pop(unit, None)
        warming = Warming(unit.label, known, self._runtime(unit), self.card, self.readiness, begun)
        ended = await warming.until_ready(effect.n, self._trial_tokens(unit, order))
        if isinstance(ended, Failed):
            return ended
        self.warmed[unit] = ended
        return Done(effect.n)

    def _trial_tokens(self, unit: Unit, order: Order | None) -> int | None:
        """How many tokens a trial of this unit asks for; None: it is none, such as the restore after a trial."""
        wish = self.wishes.get(order.id) if order is not None and order.trial else None
        if wish is None or wish.unit != unit:
            return None
        return wish.tokens or self.known[unit].engine.trial_tokens

    def too_big(self, unit: Unit) -> str:
        """What is to be said where it took more of the card than it is configured to need; empty: nothing."""
        warmed, engine = self.warmed.get(unit), self.engines[unit.engine]
        return beyond(warmed.peak, engine, self.baseline) if warmed is not None else ""


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _settled(ended: Awaitable[None]) -> None:
    """Giving up this wait must not end what is waited for, which is asked again later."""
    await (asyncio.shield(ended) if isinstance(ended, asyncio.Future) else ended)


def _requests(count: int) -> str:
    return f"{count} request{'s'[: count != 1]} in flight"
