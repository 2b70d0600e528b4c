"""The operator's desk for evidence: what is recorded of each pair, and making more of it from what serves now."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from engines.spec import Engine, Pair, Require
from slotproxy.config import Settings, SlotSettings
from slotproxy.gate import SlotGate
from slotproxy.in_force import InForce
from slotproxy.places import Place
from slotproxy.refusal import Refusal, named
from swap.adoption import expect_read, version_of
from swap.checks import Checker
from swap.controller import Controller
from swap.evidence import extra_of
from swap.findings import off_loop
from swap.kept import image_gone, keep_proven
from swap.ledger import FileLedger, key
from swap.moves import Unit
from swap.ports import Card, Evidence, Fault, Outcome, Subject
from swap.readiness import Answered, Readiness
from swap.reading import Reading, Say, nobody
from swap.standing import Standing
from swap.threads import STATE
from swap.warming import Peak

WRITE_LIMIT = 10.0  # seconds that a durable write may take
PROBE = SlotSettings(name="(probe)", priority=1_000_000, max_hold=120.0)

Json = dict[str, Any]


@dataclass
class EvidenceDesk:
    """Everything about pairs and their evidence. Nothing here changes who holds the card."""

    in_force: InForce
    controller: Controller
    checker: Checker
    ledger: FileLedger
    card: Card
    gate: SlotGate
    readiness: Readiness

    @property
    def settings(self) -> Settings:
        return self.in_force.settings

    async def pairs(self, say: Say = nobody) -> Json:
        how = Reading(say, aside=True)
        rows = [
            await self._pair(engine, pair, how)
            for engine in self.settings.engines.values()
            for pair in engine.pairs.values()
        ]
        return {"pairs": rows, "problems": self.ledger.problems()}

    async def _pair(self, engine: Engine, pair: Pair, how: Reading) -> Json:
        verdict = await self.checker.judge(engine.name, pair.name, trial=True, how=how)
        known = verdict.standing or Standing()
        served, attested = known.served, known.attested
        before = await self.checker.verified_as(pair.label) if verdict.standing is None else None
        return {
            "label": pair.label,
            "deployed": pair.name == engine.deployed,
            "state": verdict.state.value,
            "when": served.when if served else None,
            "how": served.how if served else None,
            "ready_in": served.ready_in if served else None,
            "tokens": served.tokens if served else None,
            "tokens_per_second": served.tokens_per_second if served else None,
            "vram_peak": served.vram_peak if served else None,
            "last_failure": known.failure and _said(known.failure),
            "attested": attested and {**_said(attested), "counts": engine.require is not Require.VERIFIED},
            "revoked": known.revoked and _said(known.revoked),
            "changed": {"since": known.before.when, "what": list(known.changed)} if known.before else None,
            "before": before and {"when": before.when, "how": before.how},
            "doubts": list(known.doubts),
            "require": engine.require.value,
            "image": pair.image,
            "image_gone": await self._image_gone(engine, pair) if served is None else False,
            "image_id": verdict.declared.image_id if verdict.declared else None,
            "artifacts": [str(path) for path in pair.artifacts],
            "refusals": [asdict(refusal) for refusal in verdict.refusals],
        }

    async def _image_gone(self, engine: Engine, pair: Pair) -> bool | None:
        runtime = self.controller.hands.runtimes[engine.name]
        return await image_gone(runtime, self.ledger.evidence(), pair.label)

    async def adopt(self, engine: str, *, rehash: bool = False, say: Say = nobody) -> Json:
        """Evidence from the engine that serves now: its files, its recipe, and a completion that it answers.

        What runs and was refused serves from then on.
        """
        named(self.settings, engine, None)
        serving = self._runs(engine)
        known = self.controller.hands.known[serving]
        if known.pair is None:
            mend = f"see `slotctl plan to-{engine}` for what differs, and correct the configuration"
            raise Refusal(f"what {engine} runs is none of its configured pairs", mend, 3)
        began, run = time.monotonic(), (known.id, known.started_at)
        how = Reading(say, anew=rehash, aside=True)
        subject = await self.checker.subject_of(known.engine, known.recipe, known.pair, how)
        if how.alarms:
            raise Refusal(
                "; ".join(how.alarms), "nobody knows which bytes the engine has read; nothing was recorded", 3
            )
        try:
            await expect_read(known.pair.label, subject, known.started_at)
        except Fault as fault:
            raise Refusal(fault.what, fault.mend, 3) from fault
        peak = Peak(self.card)
        await peak.look()
        answered = await self._probe(known.engine)
        await peak.look(again=True)
        version = await off_loop(partial(version_of, known.engine, known.pair, known.recipe), known.pair.label)
        card = await self.card.identity()
        await self._expect_same(serving, run, subject)
        known.subject, known.artifact_version = subject, version
        evidence = Evidence(
            subject=subject,
            key=key(subject),
            outcome=Outcome.SERVED,
            pair=known.pair.label,
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            how="adopt",
            card=card,
            image=known.recipe.image,
            tokens=answered.tokens,
            tokens_per_second=answered.tokens_per_second,
            vram_peak=peak.bytes,
            recipe=known.recipe,
            extra=extra_of(known),
        )
        await STATE.run(partial(self.ledger.record, evidence), "the ledger's disk", WRITE_LIMIT)
        await keep_proven(self.controller.hands.runtimes, [evidence], pauses=())
        known.standing = await self.checker.standing_of(subject, known.pair.label)
        self.controller.proven(serving)
        return {"code": 0, "text": f"{known.pair.label} is verified: it serves now ({time.monotonic() - began:.1f} s)"}

    def _runs(self, engine: str) -> Unit:
        """What serves, or runs and was refused while nothing serves. Raises Refusal."""
        state = self.controller.state
        if state.serving is not None and state.serving.engine == engine:
            return state.serving
        if state.person and (refused := next((unit for unit in state.up if unit.engine == engine), None)):
            return refused
        now = f"{state.serving.label} serves" if state.serving else "nothing serves"
        raise Refusal(f"{engine} isn't serving: {now}", "only what serves now can be adopted", 3)

    async def _expect_same(self, unit: Unit, run: tuple[str, str], subject: Subject) -> None:
        """Raises Refusal unless what was hashed and asked is what serves still, in that very run."""
        sight = await self.controller.hands.runtimes[unit.engine].look()
        if not sight.running or (sight.id, sight.started_at) != run or unit not in self.controller.state.up:
            raise Refusal(f"{unit.label} was stopped meanwhile", "adopt it when it serves; nothing was recorded", 3)
        if not await self.checker.unchanged(subject):
            mend = f"when nobody writes them: swap to another engine, then `slotctl swap to-{unit.label} --trial`"
            raise Refusal(f"the files of {unit.label} changed meanwhile; nothing was recorded", mend, 3)

    async def _probe(self, engine: Engine) -> Answered:
        """A completion as long as a trial's, with a place at the gate like any request (while one serves)."""
        if self.controller.state.serving is None:
            return await self._generates(engine)
        place = await self.gate.enter(PROBE, size=0)
        if not isinstance(place, Place):
            raise Refusal(f"{engine.name} could not be asked: {place.reason}", "try again", 3)
        try:
            if place.engine != engine.name:  # it has waited for a swap
                raise Refusal(
                    f"{engine.name} serves no more: {place.engine} does", "only what serves can be adopted", 3
                )
            return await self._generates(engine)
        finally:
            place.leave()

    async def _generates(self, engine: Engine) -> Answered:
        try:
            return await self.readiness.generates(engine, engine.trial_tokens)
        except Fault as fault:
            what = f"{engine.name} answered no completion of {engine.trial_tokens} tokens: {fault.what}"
            raise Refusal(what, "look at its log; nothing was recorded", 3) from fault


def _said(one: Evidence) -> Json:
    return {"when": one.when, "reason": one.reason}
