"""Does the engine that serves still serve anybody? Listens to what clients get, asks for its sign, and gives it up.

What counts is in `swap.strikes`, what an answer means in the engine's profile; here is when it is asked:

- its own sign every `health_every`, on a connection of its own. That there is no answer says nothing while the engine
  has work, nor do its answers while the card is being moved;
- a completion, before anybody is given up: with a place of its own, or with that of the client who got an error, so
  that nobody else runs into it meanwhile. Its silence says nothing while the engine has other work.

An engine that isn't there any more is nobody's to give up here: the watch tells how it ended, and whether by hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import structlog

from engines.spec import Engine
from swap import examination
from swap.ends import Tried, ended_before
from swap.examination import How, Said
from swap.hands import Hands
from swap.known import run_of
from swap.moves import Check, Unit
from swap.ports import Fault
from swap.state import State, moving
from swap.strikes import Limits, Strikes

IDLE = 10.0  # seconds between looks whether there is anything to look after
ASKED_AGAIN = 1.0  # seconds between two completions that fail
PLACE_LIMIT = 30.0  # seconds to wait for a place; an engine that has work so long isn't useless yet
TAKEN_AWAY = 10.0  # seconds in which who was given up has the gate closed to it


@dataclass
class Health:
    """Of whatever serves. A run is named as the gate names it.

    `taken`: how many places at the engine are, also by requests whose clients have left. `place(seconds)`: one for us;
    it gives whether it was to be had in that time. `useless` tells the machine, and the event log.
    """

    hands: Hands
    state: Callable[[], State]
    useless: Callable[[Unit, str], None]
    taken: Callable[[], int]
    place: Callable[[float], AbstractAsyncContextManager[bool]]
    _strikes: Strikes = field(default_factory=Strikes)
    _examining: asyncio.Lock = field(default_factory=asyncio.Lock)
    _hurry: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._log = structlog.get_logger("slotproxy.swap")

    # ------------------------------------------------------------------------------------------ told by requests

    def answered(self, run: str) -> None:
        """A client has a whole answer of that run."""
        self._strikes = self._of(run).answered() if run == self._run else self._strikes

    def error(self, run: str, why: str) -> bool:
        """A client got an explicit error of the engine. True: `examine` it, and keep the client's place meanwhile."""
        if run != self._run:
            return False
        self._strikes = self._of(run).error(why)
        self._log.info("an error of the engine's own", why=why, in_a_row=self._strikes.errors)
        return self._due(run)

    def unreached(self, run: str) -> None:
        """A client's connection was refused, or closed without an answer: look at its sign at once.

        Only the first time: it may be on its way out, and who stops it by hand may take as long as a few looks.
        """
        if run == self._run and not self._of(run).failures:
            self._hurry.set()

    async def ended_before(self, engine: str, tried: Tried) -> bool:
        """Whether that run is proven to have ended before a request was sent to it.

        Of a process nobody knows when it ended, and nobody stands there for it when it has.
        """
        if self.hands.engines[engine].container is None:
            return False
        return await ended_before(self.hands.runtimes[engine], tried, lambda: self.hands.asked.get(engine, 0.0))

    async def examine(self, run: str) -> None:
        """Ask it until it answers, or is given up; who asks has a place at the engine. Bounded, and never raises."""
        async with self._examining:
            while self._due(run):
                if await self._asked(run):
                    return
                await asyncio.sleep(ASKED_AGAIN)

    # ------------------------------------------------------------------------------------------ by ourselves

    async def run(self) -> None:
        """Until cancelled. A bug of ours costs one look, not the daemon."""
        while True:
            await self._wait()
            if not (run := self._run):
                continue
            try:
                await self._look(run)
            except Exception:
                self._log.exception("looking after the engine broke")

    async def _wait(self) -> None:
        unit = self.state().serving
        every = self._engine(unit).health_every if unit else 0.0
        try:
            async with asyncio.timeout(every or IDLE):
                await self._hurry.wait()
        except TimeoutError:
            return
        self._hurry.clear()

    async def _look(self, run: str) -> None:
        """Its sign, and where things have added up, a completion."""
        engine = self._engine(self.state().serving)
        if engine.health_every and engine.health_failures:
            had_work = self.taken() > 0
            said = await examination.sign(self.hands.readiness, engine)
            if run != self._run:
                return
            self._heard_sign(run, said, had_work or self.taken() > 0)
        if self._due(run):
            async with self.place(PLACE_LIMIT) as ours:
                if ours:
                    await self.examine(run)

    def _heard_sign(self, run: str, said: Said, has_work: bool) -> None:
        if said.how in (How.FAILED, How.GONE) or (said.how is How.SILENT and not has_work):
            self._strikes = self._of(run).sign_failed(said.what)
            self._log.info("a bad sign of health", why=said.what, in_a_row=self._strikes.failures)
        elif said.how is How.WELL:
            self._strikes = self._of(run).sign_good()

    # ------------------------------------------------------------------------------------------ asking and deciding

    async def _asked(self, run: str) -> bool:
        """One completion; True: that was it, for now."""
        engine = self._engine(self.state().serving)
        alone = self.taken() <= 1
        said = await examination.completion(self.hands.readiness, engine)
        if run != self._run:
            return True
        match said.how:
            case How.WELL:
                self._strikes = self._of(run).answered_us()
                return True
            case How.SILENT if not alone or self.taken() > 1:
                return True
            case How.OTHER:
                return True
            case How.FAILED:
                self._strikes = self._of(run).error(said.what)
        explicit = said.how is How.FAILED
        if self._of(run).useless(self._limits(engine), explicit=explicit):
            await self._give_up(run)
            return True
        return not explicit

    async def _give_up(self, run: str) -> None:
        """Unless it isn't there, or somebody is at it already; returns when the gate is closed to it."""
        unit = self.state().serving
        assert unit is not None
        why = self._strikes.told
        try:
            sight = await self.hands.runtimes[unit.engine].look()
        except Fault as fault:
            self._log.warning("it is useless, and can't be looked at", unit=unit.label, why=why, fault=str(fault))
            return
        if run != self._run or not self.hands.known[unit].same_run(sight):
            return
        self._strikes = Strikes(run)
        self.useless(unit, why)
        deadline = _now() + TAKEN_AWAY
        while run == self._run and _now() < deadline:  # noqa: ASYNC110  (the machine has no event to offer)
            await asyncio.sleep(0.05)

    # ------------------------------------------------------------------------------------------ which run

    @property
    def _run(self) -> str:
        """What serves and is to be looked after; empty: nothing, or the card is on its way to another."""
        state = self.state()
        on_its_way = moving(state) and not isinstance(state.doing, Check)
        if state.serving is None or state.closed or on_its_way:
            return ""
        return run_of(state.serving, self.hands.known[state.serving])

    def _of(self, run: str) -> Strikes:
        """What is held against this run: a new one starts afresh."""
        return self._strikes if self._strikes.run == run else Strikes(run)

    def _due(self, run: str) -> bool:
        """Should it be asked now?"""
        engine = self._engine(self.state().serving) if run and run == self._run else None
        return engine is not None and self._of(run).to_be_asked(self._limits(engine))

    def _engine(self, unit: Unit | None) -> Engine:
        assert unit is not None
        return self.hands.known[unit].engine

    def _limits(self, engine: Engine) -> Limits:
        return Limits(engine.useless_after, engine.health_failures)


def _now() -> float:
    return asyncio.get_running_loop().time()
