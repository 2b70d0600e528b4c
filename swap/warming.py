"""Is what was started ready? Its own sign and a completion, by our very container, running before and after.

A trial asks for one completion more, of so many tokens that its speed says something: only then has the pair shown that
it generates. Meanwhile the card's memory is looked at, for people: nothing is decided by it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from engines.spec import Engine, GiB
from swap.known import Known
from swap.lastwords import how_it_ended
from swap.moves import Failed
from swap.ports import Card, Fault, Runtime, Sight, Unreachable
from swap.readiness import Answered, Readiness

POLL = 0.1  # seconds between two looks while something is awaited


@dataclass(frozen=True, slots=True)
class Warmed:
    """How a unit became ready, for its evidence. `answered`: the trial's completion where there was one.

    `ready_in`: seconds from its start; None: it ran already, somebody else has started it. `peak`: bytes of the card in
    use at most since then; None: nobody can tell.
    """

    ready_in: float | None
    answered: Answered
    peak: int | None


@dataclass
class Peak:
    """The most of the card that was seen in use. A card that can't be read holds nothing up: it is asked no more."""

    card: Card
    bytes: int | None = None
    silent: bool = False

    async def look(self, *, again: bool = False) -> None:
        """`again`: also where it couldn't be read before."""
        if self.silent and not again:
            return
        try:
            used = (await self.card.memory()).used
        except Fault:
            self.silent = True
            return
        self.bytes = used if self.bytes is None else max(self.bytes, used)


@dataclass
class Warming:
    """One unit's way from its start to serving; `begun` is when we started it, by the loop's clock."""

    label: str
    known: Known
    runtime: Runtime
    card: Card
    readiness: Readiness
    begun: float | None
    _peak: Peak = field(init=False)

    def __post_init__(self) -> None:
        self._peak = Peak(self.card)

    async def until_ready(self, n: int, trial: int | None) -> Warmed | Failed:
        """`n`: the number of the report. `trial`: how many tokens its completion asks for; None: it is no trial."""
        deadline = _now() + self.known.engine.start_deadline
        while True:
            await self._peak.look()
            sight = await self._sight()
            if sight is not None and not self.known.same_run(sight):
                return Failed(n, await self._how(sight), passing=True, gone=True)
            if sight is not None and (answered := await self._answers()):
                ready_in = None if self.begun is None else _now() - self.begun
                if trial is not None:
                    proved = await self._generates(n, trial)
                    if isinstance(proved, Failed):
                        return proved
                    answered = proved
                await self._peak.look(again=True)
                after = await self._sight()
                if after is not None and self.known.same_run(after):
                    return Warmed(ready_in, answered, self._peak.bytes)
            if _now() >= deadline:
                return Failed(n, f"not ready after {self.known.engine.start_deadline:g} s", passing=True)
            await asyncio.sleep(POLL)

    async def _answers(self) -> Answered | None:
        if not await self.readiness.sign(self.known.engine):
            return None
        return await self.readiness.completes(self.known.engine)

    async def _generates(self, n: int, tokens: int) -> Answered | Failed:
        """The trial's completion: what isn't able to do more than answer a few tokens is no success."""
        await self._peak.look()
        try:
            return await self.readiness.generates(self.known.engine, tokens)
        except Fault as fault:
            sight = await self._sight()
            gone = sight is not None and not self.known.same_run(sight)
            why = await self._how(sight) if gone and sight is not None else fault.what
            what = f"ready, but the trial's completion of {tokens} tokens failed: {why}"
            return Failed(n, what, passing=True, gone=gone)

    async def _how(self, sight: Sight) -> str:
        return await how_it_ended(self.label, self.runtime, self.known.id, sight)

    async def _sight(self) -> Sight | None:
        """None: it can't be asked just now, which says nothing about the engine."""
        try:
            return await self.runtime.look()
        except Unreachable:
            return None


def beyond(peak: int | None, engine: Engine, baseline: int) -> str:
    """What is to be said where more was in use than the engine is configured to need; empty: nothing."""
    if peak is None or peak <= engine.vram + baseline or engine.profile.takes_what_is_free:
        return ""
    besides = f" beside a baseline of {_gib(baseline)}" if baseline else ""
    return f"it used {_gib(peak)} of the card, engines.{engine.name}.vram says {_gib(engine.vram)}{besides}"


def _gib(size: int) -> str:
    return f"{size / GiB:.1f} GiB"


def _now() -> float:
    return asyncio.get_running_loop().time()
