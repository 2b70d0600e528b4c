"""Is what was started ready? Its own sign and a completion, by our very container, running before and after.

A trial asks for one completion more, of so many tokens that its speed says something: only then has the pair shown that
it generates. Meanwhile the card's memory is looked at, for people: nothing is decided by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from engines.spec import Engine, GiB
from swap.known import Known
from swap.lastwords import how_it_ended
from swap.moves import Failed
from swap.ports import Card, Fault, Runtime, Sight, Unreachable
from swap.readiness import Answered, Readiness

T = TypeVar("T")

POLL = 0.1  # seconds between two looks while something is awaited
PEAK_LIMIT = 1.0  # seconds that the card may take to tell its memory in use; clients wait meanwhile


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
            async with asyncio.timeout(PEAK_LIMIT):
                used = (await self.card.memory()).used
        except (Fault, TimeoutError):
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
            if sight is not None and (answered := await self._unless_gone(self._answers())):
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
            if answered := await self._unless_gone(self.readiness.generates(self.known.engine, tokens)):
                return answered
            why = ""
        except Fault as fault:
            why = fault.what
        return await self._no_proof(n, tokens, why)

    async def _no_proof(self, n: int, tokens: int, why: str) -> Failed:
        sight = await self._sight()
        gone = sight is not None and not self.known.same_run(sight)
        why = await self._how(sight) if gone and sight is not None else why
        what = f"ready, but the trial's completion of {tokens} tokens failed: {why}"
        return Failed(n, what, passing=True, gone=gone)

    async def _unless_gone(self, question: Coroutine[Any, Any, T]) -> T | None:
        """The answer; None as soon as it isn't our run any more: who has died may leave a question without one.

        Raises what the question does, and what the look at the container does.
        """
        trouble: Exception | None = None
        answer: T | None = None
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(_caught(question))
            try:
                await self._end_of(asked)
            except Fault as fault:
                trouble = fault  # raised below: from in here it would come out as a group
            if asked.done():
                answer, trouble = asked.result()
            asked.cancel()
        if trouble is not None:
            raise trouble
        return answer

    async def _end_of(self, asked: asyncio.Task[Any]) -> None:
        """Returns when it has an answer, or when a look shows that ours has gone."""
        while not (await asyncio.wait([asked], timeout=POLL))[0]:
            sight = await self._sight()
            if sight is not None and not self.known.same_run(sight):
                return

    async def _how(self, sight: Sight) -> str:
        return await how_it_ended(self.label, self.runtime, self.known.id, sight, ours=self.begun is not None)

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


async def _caught(question: Coroutine[Any, Any, T]) -> tuple[T | None, Exception | None]:
    """A failing task would end its group, and come out as a group."""
    try:
        return await question, None
    except Exception as error:
        return None, error


def _gib(size: int) -> str:
    return f"{size / GiB:.1f} GiB"


def _now() -> float:
    return asyncio.get_running_loop().time()
