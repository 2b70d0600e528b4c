"""The look at start: what runs is adopted; where nothing runs, what served last is started, else the default.

First what an interrupted staging left is mended. Engines are looked at one by one, so that the fault of one is no
reason to leave another unserved. But nothing is started beside an engine that can't be looked at: it may be the one
that holds the card.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import structlog

from swap.checks import Checker, Verdict
from swap.moves import Found, Unit
from swap.ports import Fault, Foreign, Journal, Runtime, Sight, Unreachable
from swap.reading import Reading
from swap.threads import STATE

READ_LIMIT = 10.0  # seconds to read the journal
RECOVERY_LIMIT = 120.0  # seconds to mend what an interrupted staging left of one engine
KEPT_WAITING = 15.0  # the same, while clients wait for an engine that runs and could serve


@dataclass(frozen=True, slots=True)
class Boot:
    """What the look needs. `meet` names what runs, `expect` the unit of an allowed verdict; `say` tells people."""

    runtimes: Mapping[str, Runtime]
    checker: Checker
    journal: Journal
    default: str | None
    say: Callable[[str], None]
    meet: Callable[[str, Sight], Awaitable[Unit]]
    expect: Callable[[Verdict], Awaitable[Unit]]

    async def look(self, n: int) -> Found:
        """The report. Raises a passing Fault when looking again may show more."""
        served = await self._served_last()
        engine = (served or "").partition(":")[0]
        up, unseen = await self._what_runs(first=engine)
        if up:
            keep = up.get(engine) or min(up.values())
            return Found(n, frozenset(up.values()), keep, None)
        if unseen:
            raise Fault("; ".join(dict.fromkeys(map(str, unseen))), passing=True)
        start, why = await self._to_start(served)
        return Found(n, frozenset(), None, start, why)

    async def _what_runs(self, first: str) -> tuple[dict[str, Unit], list[Fault]]:
        """What runs, by engine; and why the rest can't be told. `first`: the engine that most likely runs."""
        up: dict[str, Unit] = {}
        unseen: list[Fault] = []
        for name, runtime in sorted(self.runtimes.items(), key=lambda one: one[0] != first):
            try:
                unmended = await self._recover(name, runtime, KEPT_WAITING if up else RECOVERY_LIMIT)
                sight = await runtime.look()
                if sight.running:
                    up[name] = await self.meet(name, sight)
                elif unmended is not None:
                    unseen.append(unmended)
            except Foreign as foreign:  # it isn't ours, and that is all there is to know
                self.say(str(foreign))
            except Fault as fault:  # the watch logs it, once and not at each try
                self.say(f"{name} can't be looked at: {fault}")
                unseen.append(fault)
        return up, unseen

    async def _recover(self, name: str, runtime: Runtime, limit: float) -> Unreachable | None:
        """Mend what staging left. What can't be mended keeps nobody from what runs: staging tries again, or refuses.

        Returned is that Docker couldn't be asked: then nothing is known, and the look is taken again.
        """
        log = structlog.get_logger("slotproxy.swap")
        try:
            async with asyncio.timeout(limit):
                done = await runtime.recover()
        except Unreachable as fault:
            return fault
        except (Fault, TimeoutError) as error:
            why = str(error) or f"nothing came in {limit:g} s; see `docker ps -a` and Docker's log"
            self.say(f"{name}: {why}")
            log.error("what an interrupted staging left isn't mended", engine=name, why=why)
            return None
        if done:
            self.say(f"{name}: {done}")
            log.warning("what an interrupted staging left was mended", engine=name, done=done)
        return None

    async def _served_last(self) -> str | None:
        """None: nobody knows. A journal that can't be read is no reason to leave what runs unserved."""
        try:
            last = await STATE.run(self.journal.read, "the journal's disk", READ_LIMIT)
            return last.serving if last else None
        except Fault as error:
            structlog.get_logger("slotproxy.swap").error("journal", fault=str(error))
            return None

    async def _to_start(self, served: str | None) -> tuple[Unit | None, str]:
        """What served last, else the default; only what is verified. Raises Fault where time may mend a refusal."""
        refused: list[Verdict] = []
        for label in dict.fromkeys(filter(None, (served, self.default))):
            engine, _, pair = label.partition(":")
            verdict = await self.checker.judge(engine, pair or None, trial=False, how=Reading(self.say))
            if verdict.allowed:
                return await self.expect(verdict), ""
            refused.append(verdict)
        if not refused:
            return None, "nothing runs, and no `default:` says what to start; `slotctl swap to-ENGINE` does"
        each = dict.fromkeys(f"{verdict.label} can't be started: {verdict.why}" for verdict in refused)
        why = f"nothing runs; {'; '.join(each)}"
        if any(verdict.passing for verdict in refused):  # a driver or a disk that comes late, say
            raise Fault(why, passing=True)
        return None, why
