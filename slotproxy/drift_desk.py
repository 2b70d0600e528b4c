"""The operator's desk for drift: each engine's four sides, beside each other, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from engines.spec import Engine, Pair
from slotproxy.config import Settings
from slotproxy.refusal import named
from swap.checks import Checker, Verdict
from swap.controller import Controller
from swap.drift import same_image
from swap.policy import in_words
from swap.ports import Evidence, Fault, Ledger
from swap.reading import Reading, Say, nobody
from swap.sides import Facts, Row, Severity, proof_of, rows

Json = dict[str, Any]


@dataclass
class DriftDesk:
    """Looks, and changes nothing."""

    settings: Settings
    controller: Controller
    checker: Checker
    ledger: Ledger

    async def drift(self, engine: str | None, pair: str | None, *, say: Say = nobody) -> Json:
        """Of one engine or of all; without a pair it is the one on the card, else the deployed one."""
        engines = [named(self.settings, engine, pair)[0]] if engine is not None else [*self.settings.engines.values()]
        found = [await self._engine(one, self.pair_of(one, pair), Reading(say, aside=True)) for one in engines]
        return {"engines": found, "differs": any(one["differs"] for one in found)}

    def pair_of(self, engine: Engine, name: str | None) -> Pair:
        """The pair that is meant: without a name the one on the card, else the deployed one."""
        if name is not None:
            return engine.pairs[name]
        holder = self.controller.state.holder
        on_card = engine.pairs.get(holder.pair) if holder is not None and holder.engine == engine.name else None
        return on_card or engine.deployed_pair

    async def _engine(self, engine: Engine, pair: Pair, how: Reading) -> Json:
        verdict = await self.checker.judge(engine.name, pair.name, trial=True, how=how)  # evidence is told by its state
        table, sight = await self.sides(verdict), verdict.sight
        proven = verdict.standing is not None and verdict.standing.meets(engine.require)
        return {
            "label": verdict.label,
            "deployed": pair.name == engine.deployed,
            "container": engine.container,
            "status": sight.status.value if sight else None,
            "id": sight.id if sight else "",
            "started_at": sight.started_at if sight else "",
            "created_as": await self._created_as(engine, verdict, table),
            **about_proof(verdict),
            "drift": plain(table),
            "refusals": [asdict(refusal) for refusal in verdict.refusals],
            "differs": bool(table or verdict.refusals) or not proven,
        }

    async def sides(self, verdict: Verdict) -> tuple[Row, ...]:
        """Where the four sides of what a verdict is about differ."""
        engine = self.settings.engines[verdict.engine]
        return rows(verdict, engine, await self._facts(verdict, engine))

    async def _facts(self, verdict: Verdict, engine: Engine) -> Facts:
        """What can't be told now is left out: the verdict's refusals say why."""
        runtime, sight = self.controller.hands.runtimes[engine.name], verdict.sight
        if verdict.declared is None and verdict.passing:  # nobody answers: each further question would wait as long
            return Facts()
        proof = await self._proof(verdict)
        verified = _ids(proof, self.ledger.evidence()) if proof is not None else []
        created = [sight.recipe.image_id] if sight is not None and sight.recipe is not None else []
        try:
            running = await runtime.running() if sight is not None and sight.running else None
            gone = [image for image in dict.fromkeys([*created, *verified]) if not await runtime.has_image(image)]
            name = engine.pairs[verdict.pair].image if verdict.declared is None else ""
            untagged = name if name and not await runtime.has_image(name) else ""
        except Fault:
            return Facts()
        there = next((image for image in verified if image not in gone), "")
        return Facts(running, frozenset(gone), there, untagged, proof)

    async def _proof(self, verdict: Verdict) -> Evidence | None:
        """Where nothing is declared, nobody has looked yet what its name was verified as."""
        return proof_of(verdict) if verdict.declared else await self.checker.verified_as(verdict.label)

    async def _created_as(self, engine: Engine, verdict: Verdict, table: tuple[Row, ...]) -> str | None:
        """The pair that its container is; None: it is none of them; empty: it can't be told."""
        if verdict.sight is None or verdict.sight.recipe is None or verdict.declared is None:
            return ""
        told = [one for one in table if one.created is not None and one.severity in _PAIR]
        if all(one.created == one.declared for one in told):
            return verdict.label
        if all(one.created == one.verified for one in told):
            return f"{verdict.label} as it was verified"
        try:
            name = await self.checker.pair_of(engine, verdict.sight.recipe)
        except Fault:
            return ""
        return None if name is None else engine.pairs[name].label


_PAIR = (Severity.UNPROVEN, Severity.STALE)


def plain(table: tuple[Row, ...]) -> list[Json]:
    return [{**asdict(row), "severity": row.severity.value} for row in table]


def about_proof(verdict: Verdict) -> Json:
    """How what is declared is proven; `before`: what its name was verified as, where it isn't."""
    served, proof = verdict.verified, proof_of(verdict)
    return {
        "state": verdict.state.value,
        "proof": in_words(verdict.standing),
        "verified": {"when": served.when, "how": served.how} if served else None,
        "before": {"when": proof.when, "how": proof.how} if proof and not served else None,
    }


def _ids(proof: Evidence, evidence: Sequence[Evidence]) -> list[str]:
    """The ids under which the verified content has run, that of its proof first."""
    ids = [one.subject.image_id for one in reversed(evidence) if same_image(one.subject, proof.subject)]
    return list(dict.fromkeys([proof.subject.image_id, *ids]))
