"""The look at start: what runs is adopted; where nothing runs, what served last is started, else the default.

First what an interrupted staging left is mended. Engines are looked at each for itself, so that the fault of one is
no reason to leave another unserved. But nothing is started beside an engine that can't be looked at: it may be the one
that holds the card.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

import structlog

from swap.checks import Checker, Verdict
from swap.decisions import Decisions, Kind
from swap.entry import Before
from swap.moves import Found, Unit
from swap.ports import Fault, Foreign, Journal, JournalEntry, Runtime, Sight, Unreachable
from swap.reading import Reading
from swap.threads import STATE

READ_LIMIT = 10.0  # seconds to read the journal
RECOVERY_LIMIT = 120.0  # seconds to mend what an interrupted staging left of one engine
ARRIVE = 2.0  # seconds that a call of the daemon before us may have taken to reach Docker
KEPT_WAITING = 15.0  # the same, while clients wait for an engine that runs and could serve


@dataclass(frozen=True, slots=True)
class Met:
    """What was found running."""

    unit: Unit
    sight: Sight


@dataclass(frozen=True, slots=True)
class Boot:
    """What the look needs. `meet` names what runs, `expect` the unit of an allowed verdict; `say` tells people.

    `refused`: takes the ids of what was refused before we came, and runs still; `before`: what served last.
    """

    runtimes: Mapping[str, Runtime]
    checker: Checker
    journal: Journal
    default: str | None
    say: Callable[[str], None]
    meet: Callable[[str, Sight], Awaitable[Unit]]
    expect: Callable[[Verdict], Awaitable[Unit]]
    refused: set[str]
    before: Before
    decisions: Decisions

    async def look(self, n: int) -> Found:
        """The report. Raises a passing Fault when looking again may show more."""
        entry, unread = await self._entry()
        served = entry.serving if entry else None
        if entry is not None:
            self.before.serving, self.before.serving_id = entry.serving, entry.serving_id
        await _let_it_arrive(entry)
        met, unseen = await self._what_runs()
        up = {name: one.unit for name, one in met.items()}
        ending = await self._ending(entry, met)
        able = [one for one in met.values() if one.unit != ending]
        if wanted := [one for one in able if not self._was_refused(one, entry)]:
            return Found(n, frozenset(up.values()), _to_keep(wanted, entry), None, ending=ending)
        if able:
            return Found(n, frozenset(up.values()), None, None, _refused(able), ending)
        if unseen:
            raise Fault("; ".join(dict.fromkeys(map(str, unseen))), passing=True)
        start, why = await self._to_start(served, unread)
        return Found(n, frozenset(up.values()), None, start, why, ending)

    def _was_refused(self, met: Met, entry: JournalEntry | None) -> bool:
        """By us, and nobody has proven it since: it gets no request now either."""
        if entry is None or met.sight.id not in entry.refused:
            return False
        self.refused.add(met.sight.id)
        return True

    async def _ending(self, entry: JournalEntry | None, met: Mapping[str, Met]) -> Unit | None:
        """What the daemon before us told to stop when it died: it runs, and may be gone any moment."""
        if entry is None or entry.step != "stop":
            return None
        for name, one in met.items():
            if one.sight.id == entry.unit_id and await self.runtimes[name].ending(one.sight.id, _unix(entry.when)):
                self.say(f"{one.unit.label} was told to stop before slotproxy ended: it is stopped, and started anew")
                return one.unit
        return None

    async def _what_runs(self) -> tuple[dict[str, Met], list[Fault]]:
        """What runs, by engine; and why the rest can't be told. Side by side: a Docker that hangs costs its time once.

        Once one is found up, clients wait for it alone, and not long for what is to be mended of the others.
        """
        up: dict[str, Met] = {}
        unseen: list[Fault] = []
        limits: list[asyncio.Timeout] = []
        async with asyncio.TaskGroup() as tasks:
            for name, runtime in self.runtimes.items():
                tasks.create_task(self._see(name, runtime, up, unseen, limits), name=f"look at {name}")
        return up, unseen

    async def _see(
        self, name: str, runtime: Runtime, up: dict[str, Met], unseen: list[Fault], limits: list[asyncio.Timeout]
    ) -> None:
        try:
            unmended = await self._recover(name, runtime, limits)
            sight = await runtime.look()
            if sight.running:
                up[name] = Met(await self.meet(name, sight), sight)
                _hurry(limits)
            elif unmended is not None:
                unseen.append(unmended)
        except Foreign as foreign:  # it isn't ours, and that is all there is to know
            self.say(str(foreign))
        except Fault as fault:  # the watch logs it, once and not at each try
            self.say(f"{name} can't be looked at: {fault}")
            unseen.append(fault)

    async def _recover(self, name: str, runtime: Runtime, limits: list[asyncio.Timeout]) -> Unreachable | None:
        """Mend what staging left. What can't be mended keeps nobody from what runs: staging tries again, or refuses.

        Returned is that Docker couldn't be asked: then nothing is known, and the look is taken again.
        """
        try:
            async with asyncio.timeout(RECOVERY_LIMIT) as limit:
                limits.append(limit)
                try:
                    done = await runtime.recover()
                finally:
                    limits.remove(limit)
        except Unreachable as fault:
            return fault
        except (Fault, TimeoutError) as error:
            why = str(error) or "nothing came in time; see `docker ps -a` and Docker's log"
            self.say(f"{name}: {why}")
            self.decisions.add(
                Kind.PERSON, f"{name}: what an interrupted staging left isn't mended", why=why, engine=name
            )
            return None
        if done:
            self.say(f"{name}: {done}")
            self.decisions.add(
                Kind.MENDED, f"{name}: what an interrupted staging left was mended", why=done, engine=name
            )
        return None

    async def served_last(self) -> str | None:
        """By the journal; None: nobody knows."""
        entry, _ = await self._entry()
        return entry.serving if entry else None

    async def _entry(self) -> tuple[JournalEntry | None, Fault | None]:
        """And why it can't be read, which is no reason to leave what runs unserved."""
        try:
            return await STATE.run(self.journal.read, "the journal's disk", READ_LIMIT), None
        except Fault as fault:
            structlog.get_logger("slotproxy.swap").error("journal", fault=str(fault))
            return None, fault

    async def _to_start(self, served: str | None, unread: Fault | None) -> tuple[Unit | None, str]:
        """What served last, else the default; only what is verified. Raises Fault where time may mend a refusal.

        `unread`: why nobody knows what served last.
        """
        unknown = f"; what served last isn't known: {unread}" if unread else ""
        refused: list[Verdict] = []
        asked = {
            self.default: f"nothing ran, and it is the default{unknown}",
            served: "nothing ran, and it served last",
        }
        for label in filter(None, dict.fromkeys((served, self.default))):
            engine, _, pair = label.partition(":")
            verdict = await self.checker.judge(engine, pair or None, trial=False, how=Reading(self.say))
            if verdict.allowed:
                return await self.expect(verdict), asked[label]
            refused.append(verdict)
        if not refused and unread is not None and unread.passing:  # it may be known soon
            raise Fault(f"nothing runs{unknown}", passing=True)
        if not refused:
            return None, f"nothing runs, and no `default:` says what to start; `slotctl swap to-ENGINE` does{unknown}"
        each = dict.fromkeys(f"{verdict.label} can't be started: {verdict.why}" for verdict in refused)
        why = f"nothing runs; {'; '.join(each)}{unknown}"
        if any(verdict.passing for verdict in refused):  # a driver or a disk that comes late, say
            raise Fault(why, passing=True)
        return None, why


def _hurry(limits: list[asyncio.Timeout]) -> None:
    """What is being mended gets this long from now on."""
    soon = asyncio.get_running_loop().time() + KEPT_WAITING
    for limit in (one for one in limits if not one.expired()):
        limit.reschedule(min(soon, limit.when() or soon))


def _to_keep(met: list[Met], entry: JournalEntry | None) -> Unit:
    """The very container that served last, else the engine that did."""
    served, container = (entry.serving or "", entry.serving_id) if entry else ("", None)
    engine = served.partition(":")[0]
    best = min(met, key=lambda one: (one.sight.id != container, one.unit.engine != engine, one.unit))
    return best.unit


def _refused(met: list[Met]) -> str:
    each = " and ".join(sorted(one.unit.label for one in met))
    engine = met[0].unit.engine
    return (
        f"{each} was started by hand, isn't verified, and was refused before slotproxy was started again;"
        f" `slotctl pairs adopt {engine}` or a trial proves it"
    )


async def _let_it_arrive(entry: JournalEntry | None) -> None:
    """A start or stop that the daemon before us asked for as it died may not have reached Docker yet.

    Once it has, Docker's looks wait for a start, and `ending` knows of a stop.
    """
    if entry is None or entry.step not in ("start", "stop"):
        return
    age = time.time() - _unix(entry.when)
    if 0 <= age < ARRIVE:
        await asyncio.sleep(ARRIVE - age)


def _unix(when: str) -> float:
    """Seconds since 1970; 0 for what is no time."""
    try:
        return datetime.fromisoformat(when).timestamp()
    except ValueError:
        return 0.0
