"""The doctor: looks at everything at once, and says what of it needs somebody, each thing once. Changes nothing.

Each check stands alone and has a bound: one that fails, or doesn't end, is a finding itself and not the doctor's end.
"""

from __future__ import annotations

import asyncio
import enum
import shutil
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from engines.spec import Engine, MiB, Pair
from slotproxy import __version__, config
from slotproxy.config_tls import day
from slotproxy.desk import Desk, Json
from slotproxy.units import format_duration, format_size
from swap import restart_policy, source
from swap.address import listener
from swap.compose import compose_version
from swap.creation import CreationFile
from swap.policy import relaxed
from swap.ports import Fault
from swap.reading import Reading
from swap.sides import Row, Severity
from swap.threads import MODELS, STATE

LOOKING = 60.0  # seconds that a check may take
FIELDS = 3  # fields that a finding names; `slotctl drift` names all
WRITING = 10.0  # seconds that the state folder's disk may take
JUDGING = 300.0  # seconds that one pair may take: its files may have to be hashed
LONG = 600.0  # seconds that no change of a container takes
LITTLE = 256 * MiB  # free room in the state folder that is worth a word: a ledger and a journal need far less

_TOLD_ELSEWHERE = (Severity.BLOCKS, Severity.COSMETIC)


class Weight(enum.Enum):
    """How bad it is, worst first."""

    PROBLEM = "problem"  # it needs a person
    WARNING = "warning"  # a person should know
    SEEN = "seen"  # it was looked at, and is this


@dataclass(frozen=True, slots=True)
class Finding:
    """`where`: the part of the house that it is about, such as `card` or `ninfer:v2`."""

    where: str
    what: str
    mend: str = ""
    weight: Weight = Weight.PROBLEM


Check = AsyncGenerator[Finding, None]


@dataclass
class Doctor:
    desk: Desk

    async def examine(self) -> Json:
        """All findings, worst first, and slotctl's exit code: 3 where one needs a person."""
        checks = [
            ("slotproxy", self._serving()),
            ("Docker", self._docker()),
            ("card", self._card()),
            ("ledger", self._ledger()),
            ("state", self._state()),
            ("configuration", self._configuration()),
            ("tls", self._certificate()),
            *((name, self._engine(engine)) for name, engine in self.desk.settings.engines.items()),
        ]
        async with asyncio.TaskGroup() as tasks:
            looking = [tasks.create_task(_all_of(where, check, LOOKING)) for where, check in checks]
            judging = tasks.create_task(self._pairs())
        found = once(finding for task in [*looking, judging] for finding in task.result())
        return answer([finding for weight in Weight for finding in found if finding.weight is weight])

    # ------------------------------------------------------------------------------------------ what is going on

    async def _serving(self) -> Check:
        desk, view = self.desk, self.desk.gate.view()
        if dark := desk.dark():
            what = f"nothing serves: {dark['reason'] or view.reason}"
            weight = Weight.WARNING if dark["passing"] else Weight.PROBLEM
            yield Finding("slotproxy", what, self._way_out(dark), weight)
        if view.held_for is not None:
            yield Finding("slotproxy", "requests are held", "`slotctl release` lets them through", Weight.WARNING)
        if (serving := desk.controller.state.serving) is not None:
            known = desk.controller.hands.known.get(serving)
            yield Finding("slotproxy", f"{serving.label} serves", weight=Weight.SEEN)
            if known is not None and known.verified is False:
                what = f"{serving.label} serves, and nothing is recorded that verifies it"
                mend = f"`slotctl pairs adopt {serving.engine}` makes evidence of it"
                yield Finding(serving.label, what, mend, Weight.WARNING)

    def _way_out(self, dark: Json) -> str:
        if self.desk.controller.state.order is not None:
            return "an order is under way: `slotctl status`"
        if not dark["passing"]:
            return "mend that, then swap to an engine"
        soon = "" if dark["retry_in"] is None else f", next in {format_duration(dark['retry_in'])}"
        return f"it is tried again by itself{soon}"

    # ------------------------------------------------------------------------------------------ what it stands on

    async def _docker(self) -> Check:
        docker = self.desk.docker
        if docker is None:
            return
        version = await docker.version()
        yield Finding("Docker", f"Docker {version.get('Version')}, API {version.get('ApiVersion')}", weight=Weight.SEEN)
        if any(engine.compose for engine in self.desk.settings.engines.values()):
            yield Finding("Docker", f"compose {await compose_version(docker.address)}", weight=Weight.SEEN)

    async def _card(self) -> Check:
        """What can't fit it is each pair's own refusal."""
        identity, memory = await self.desk.card.identity(), await self.desk.card.memory()
        what = f"{identity.name}, driver {identity.driver}, {format_size(memory.total)}"
        yield Finding("card", what, weight=Weight.SEEN)

    async def _ledger(self) -> Check:
        for problem in self.desk.ledger.problems():
            yield Finding("ledger", problem)

    async def _state(self) -> Check:
        folder = self.desk.state.path
        try:
            await self.desk.state.expect_writable()
            free = await STATE.run(lambda: shutil.disk_usage(folder).free, f"the disk of {folder}", WRITING)
        except OSError as error:
            raise Fault(f"how full the disk of {folder} is can't be told: {error.strerror}", "see `df`") from error
        if free < LITTLE:
            what = f"the disk of the state folder {folder} has {format_size(free)} left"
            yield Finding("state", what, "make room", Weight.WARNING)

    async def _configuration(self) -> Check:
        path = self.desk.settings.path
        try:
            now = await MODELS.run(partial(config.load, path), f"the disk of {path}", LOOKING)
        except config.ConfigError as error:
            yield Finding(
                "configuration", str(error), "correct it: slotproxy runs on what it read, and won't start again"
            )
            return
        if now == self.desk.settings:
            return
        if replace(now, tls=self.desk.settings.tls) == self.desk.settings:
            what = f"the certificate that {path} names is another one on disk than clients are shown"
            yield Finding("tls", what, "`slotctl reload` shows it to new connections", Weight.WARNING)
        else:
            mend = "`slotctl reload` takes it over, or says what is in the way; or undo the edit"
            yield Finding("configuration", f"{path} was edited since slotproxy read it", mend, Weight.WARNING)

    async def _certificate(self) -> Check:
        tls = self.desk.settings.tls
        if tls is None:
            return
        if trouble := tls.trouble():
            weight = Weight.WARNING if tls.valid() else Weight.PROBLEM
            yield Finding("tls", trouble, "renew it, then `slotctl reload`", weight)
        else:
            yield Finding("tls", f"the certificate is valid until {day(tls.expires)}", weight=Weight.SEEN)
        if await MODELS.run(tls.open_to_others, f"the disk of {tls.key}", LOOKING):
            yield Finding("tls", tls.exposed, f"`chmod o= {tls.key}`", Weight.WARNING)

    # ------------------------------------------------------------------------------------------ engines and pairs

    async def _engine(self, engine: Engine) -> Check:
        if words := relaxed(engine):
            mend = f"`slotctl pairs` shows what is verified; then leave engines.{engine.name}.require out"
            yield Finding(engine.name, words.removeprefix(f"{engine.name}: "), mend, Weight.WARNING)
        if (finding := await self._left_behind(engine.name)) is not None:
            yield finding
        sight = await self.desk.controller.hands.runtimes[engine.name].look()
        if wrong := restart_policy.against_the_rules(engine, sight):
            yield Finding(engine.name, wrong, restart_policy.mend(engine))
        if not sight.running:
            address = urlsplit(engine.url)
            if other := await listener(address.hostname or "127.0.0.1", address.port or 80):
                what = f"{engine.name} is stopped, and {other} listens at its address {engine.url}"
                yield Finding(engine.name, what, "stop that: it would answer in the engine's place")

    async def _left_behind(self, engine: str) -> Finding | None:
        state = self.desk.settings.state
        return await STATE.run(partial(_left_behind, engine, state), f"the disk of {state}", WRITING)

    async def _pairs(self) -> list[Finding]:
        """One after the other: they may have files of many gigabytes hashed."""
        each = [(engine, pair) for engine in self.desk.settings.engines.values() for pair in engine.pairs.values()]
        return [f for engine, pair in each for f in await _all_of(pair.label, self._pair(engine, pair), JUDGING)]

    async def _pair(self, engine: Engine, pair: Pair) -> Check:
        """What isn't deployed is no fallback of anybody's: it needs no evidence yet, and what it lacks can wait."""
        deployed = pair.name == engine.deployed
        verdict = await self.desk.checker.judge(engine.name, pair.name, trial=not deployed, how=Reading(aside=True))
        weight = Weight.PROBLEM if deployed else Weight.WARNING
        for refusal in verdict.refusals:
            yield Finding(pair.label, refusal.what, refusal.mend, weight)
        for warning in verdict.warnings:
            yield Finding(pair.label, warning, "", Weight.WARNING)
        for fault in await source.look(pair, verdict.declared):
            yield Finding(pair.label, fault.what, fault.mend, Weight.WARNING)
        if pair == self.desk.drift.pair_of(engine, None):
            # What blocks is a refusal, and told; what is cosmetic isn't worth a word.
            rows = [row for row in await self.desk.drift.sides(verdict) if row.severity not in _TOLD_ELSEWHERE]
            if rows:
                what = f"what is declared, created, running and verified differs in {', '.join(_some(rows))}"
                yield Finding(
                    pair.label, what, f"`slotctl drift {engine.name}` shows what would mend it", Weight.WARNING
                )


def _left_behind(engine: str, state: Path) -> Finding | None:
    """What staging has begun, and nobody has ended or mended."""
    creation = CreationFile.of(engine, state)
    began = creation.begun_at()
    if began is None or time.time() - began < LONG:
        return None
    what = f"a staging was interrupted, and what it left isn't mended: {creation.begun} is still there"
    return Finding(engine, what, "slotproxy tries again when it starts, and its log says what is in the way")


async def _all_of(where: str, check: Check, limit: float) -> list[Finding]:
    """What the check finds; whatever ends it early is one more finding."""
    found: list[Finding] = []
    try:
        async with asyncio.timeout(limit), aclosing(check):
            async for finding in check:
                found.append(finding)  # noqa: PERF401 - what is found before a check breaks counts
    except Fault as fault:
        found.append(Finding(where, fault.what, fault.mend))
    except TimeoutError:
        what = f"this wasn't looked at to its end: it took longer than {limit:g} s"
        found.append(Finding(where, what, "look again; see what its disk or daemon is doing"))
    except Exception as error:
        structlog.get_logger("slotproxy").exception("a check broke", check=where)
        found.append(Finding(where, f"the check itself failed: {error!r}", "slotproxy's log says more"))
    return found


def _some(rows: Sequence[Row]) -> Iterator[str]:
    fields = list(dict.fromkeys(row.field for row in rows))
    yield from fields[:FIELDS]
    if len(fields) > FIELDS:
        yield f"and {len(fields) - FIELDS} more"


def once(findings: Iterable[Finding]) -> list[Finding]:
    """Each thing with its mend once, with all the places that it was found at, as bad as at the worst of them."""
    met: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        what = finding.what.replace("card's identity", "card's memory")  # both are asked, and one driver answers
        if (before := met.get((what, finding.mend))) is None:
            met[what, finding.mend] = finding
            continue
        where = dict.fromkeys([*before.where.split(", "), finding.where])
        worst = next(weight for weight in Weight if weight in (before.weight, finding.weight))
        met[what, before.mend] = replace(before, where=", ".join(where), weight=worst)
    return list(met.values())


def answer(findings: Iterable[Finding]) -> Json:
    """As slotctl gets it."""
    told = list(_plain(findings))
    code = 3 if any(one["severity"] == Weight.PROBLEM.value for one in told) else 0
    return {
        "code": code,
        "version": __version__,
        "findings": [one for one in told if one["severity"] != Weight.SEEN.value],
        "seen": [one["what"] for one in told if one["severity"] == Weight.SEEN.value],
    }


def _plain(findings: Iterable[Finding]) -> Iterator[Json]:
    for one in findings:
        yield {"where": one.where, "what": one.what, "mend": one.mend, "severity": one.weight.value}
