"""The operator's desk for the ledger itself: reading it, mending it, and putting the operator's own word into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from engines.spec import Require
from slotproxy.evidence_desk import EvidenceDesk
from slotproxy.reason import wrong_reason
from slotproxy.refusal import Refusal, named
from swap.chain import Entry
from swap.checks import Verdict
from swap.kept import proven
from swap.ledger import FileLedger, key
from swap.ports import CardIdentity, Evidence, Fault, Outcome, Recipe, Subject
from swap.reading import Reading, Say, nobody
from swap.statement import Repair
from swap.threads import STATE

T = TypeVar("T")
Json = dict[str, Any]

LIMIT = 30.0  # seconds that a long ledger may take to be read or written


@dataclass(frozen=True)
class _Word:
    """What the operator says, of a pair by this name."""

    label: str
    outcome: Outcome
    reason: str
    card: CardIdentity


@dataclass
class LedgerDesk:
    """What is recorded, line by line. Nothing here changes who holds the card."""

    about: EvidenceDesk

    @property
    def _ledger(self) -> FileLedger:
        return self.about.ledger

    # ------------------------------------------------------------------------------------------ reading it

    async def log(self, engine: str | None, pair: str | None) -> Json:
        """Oldest first. What was recorded of pairs that the configuration doesn't have any more is there, too."""
        chain = await _on_disk(self._ledger.reread)
        written = {id(entry.what) for entry in chain.entries}
        lost = [Entry(0, one, counts=False) for one in chain.evidence if id(one) not in written]
        entries = [one for one in (*chain.entries, *lost) if _is_of(one, engine, pair)]
        if engine is not None and not entries:
            named(self.about.settings, engine, pair)
        lines = await _on_disk(lambda: [_line(entry) for entry in entries])
        return {"lines": lines, "problems": self._ledger.problems()}

    async def check(self) -> Json:
        """The file as it is on disk now."""
        chain = await _on_disk(self._ledger.reread)
        broken = chain.broken
        return {
            "file": str(self._ledger.path),
            "whole": self._ledger.whole,
            "lines": len(chain.lines),
            "counting": chain.counting,
            "broken": {"line": broken.line, "why": broken.why} if broken is not None else None,
            "problems": self._ledger.problems(),
        }

    async def export(self, engine: str, pair: str | None, *, say: Say = nobody) -> Json:
        """The line that verifies the pair as it is declared now, byte for byte as it stands in the ledger."""
        verdict = await self._judged(engine, pair, Reading(say, aside=True))
        served = verdict.verified
        line = None if served is None else await _on_disk(lambda: self._ledger.line(served))
        if line is None:
            why = "; ".join(one.what for one in verdict.refusals if verdict.subject is None)
            what = f"{verdict.label} is {verdict.state.value}, not verified" + (f": {why}" if why else "")
            raise Refusal(what, "see `slotctl pairs`; only what served has a statement that says so", 3)
        return {"label": verdict.label, "line": line.decode("ascii")}

    # ------------------------------------------------------------------------------------------ writing into it

    async def repair(self, reason: str) -> Json:
        reason = _good(reason)
        repair = await _on_disk(lambda: self._ledger.repair(reason))
        if repair.last < repair.first:
            out = "no line that is there is left out of account"
        elif repair.last == repair.first:
            out = f"line {repair.first} counts for nothing"
        else:
            out = f"lines {repair.first} to {repair.last} count for nothing"
        left = (await self.check())["counting"]
        return {"code": 0, "text": f"the ledger goes on: {out}, nothing was deleted, {left} lines count"}

    async def attest(self, engine: str, pair: str | None, reason: str, *, say: Say = nobody) -> Json:
        """The operator's word that the pair runs as it is declared now."""
        reason, (chosen, _) = _good(reason), named(self.about.settings, engine, pair)
        how = Reading(say, aside=True)
        verdict = await self._judged(engine, pair, how)
        if how.alarms:
            raise Refusal("; ".join(how.alarms), "nobody knows which bytes you mean; nothing was recorded", 3)
        subject, declared = verdict.subject, verdict.declared
        if subject is None or declared is None:
            what = f"{verdict.label} can't be attested: {'; '.join(one.what for one in verdict.refusals)}"
            raise Refusal(what, verdict.refusals[0].mend if verdict.refusals else "", 3)
        word = _Word(verdict.label, Outcome.ATTESTED, reason, await self.about.card.identity())
        await self._say_of(subject, declared, word)
        counts = chosen.require is not Require.VERIFIED
        said = "it counts" if counts else "it counts for nothing"
        text = f"{verdict.label} is attested; {said}: engines.{chosen.name}.require is {chosen.require.value}"
        return {"code": 0, "text": text, "counts": counts}

    async def revoke(self, engine: str, pair: str | None, reason: str, *, say: Say = nobody) -> Json:
        """The operator's word that it shall not run: as it is declared now, as it serves, and as it was verified last.

        Works also where the files are gone, or the card can't be asked.
        """
        reason = _good(reason)
        verdict = await self._judged(engine, pair, Reading(say, aside=True))
        subjects = self._of_that_name(verdict)
        if not subjects:
            mend = "see `slotctl plan`; what can't be read gets the card no more than what is revoked"
            raise Refusal(f"{verdict.label} was never verified, and what it is now can't be told", mend, 3)
        word = _Word(verdict.label, Outcome.REVOKED, reason, await self._card())
        for subject, recipe in subjects:
            await self._say_of(subject, recipe, word)
        text = f"{verdict.label} is revoked; `slotctl swap to-{verdict.label} --trial` proves it anew"
        if (serving := self.about.controller.state.serving) is not None and serving.label == verdict.label:
            text += "; it serves on until another gets the card"
        return {"code": 0, "text": text}

    # ------------------------------------------------------------------------------------------ what it is about

    async def _judged(self, engine: str, pair: str | None, how: Reading) -> Verdict:
        chosen, declared = named(self.about.settings, engine, pair)
        return await self.about.checker.judge(chosen.name, declared.name, trial=True, how=how)

    def _of_that_name(self, verdict: Verdict) -> list[tuple[Subject, Recipe | None]]:
        found: dict[str, tuple[Subject, Recipe | None]] = {}
        if verdict.subject is not None:
            found[key(verdict.subject)] = verdict.subject, verdict.declared
        serving = self.about.controller.state.serving
        known = self.about.controller.hands.known.get(serving) if serving is not None else None
        if serving is not None and serving.label == verdict.label and known is not None and known.subject is not None:
            found.setdefault(key(known.subject), (known.subject, known.recipe))
        last = next((one for one in proven(self._ledger.evidence()) if one.pair == verdict.label), None)
        if last is not None:
            found.setdefault(last.key, (last.subject, last.recipe))
        return list(found.values())

    async def _card(self) -> CardIdentity:
        """A revocation counts whatever card it was made on."""
        try:
            return await self.about.card.identity()
        except Fault:
            return CardIdentity("unknown", "", "", simulated=self.about.settings.card.gpu is None)

    async def _say_of(self, subject: Subject, recipe: Recipe | None, word: _Word) -> None:
        """Record it, and let what serves know it."""
        evidence = Evidence(
            subject=subject,
            key=key(subject),
            outcome=word.outcome,
            pair=word.label,
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            how="operator",
            card=word.card,
            image=recipe.image if recipe is not None else "",
            reason=word.reason,
            recipe=recipe,
        )
        await _on_disk(lambda: self._ledger.record(evidence))
        for known in tuple(self.about.controller.hands.known.values()):
            if known.subject is not None and key(known.subject) == evidence.key:
                name = known.pair.label if known.pair is not None else ""
                known.standing = await self.about.checker.standing_of(known.subject, name)


async def _on_disk(work: Callable[[], T]) -> T:
    return await STATE.run(work, "the ledger's disk", LIMIT)


def _good(reason: str) -> str:
    if problem := wrong_reason(reason):
        raise Refusal(problem, "give it with --reason", 2)
    return reason.strip()


# ------------------------------------------------------------------------------------------------- lines


def _is_of(entry: Entry, engine: str | None, pair: str | None) -> bool:
    if engine is None:
        return True
    what = entry.what
    if isinstance(what, Repair):
        return False
    return what.subject.engine == engine and (pair is None or what.pair == f"{engine}:{pair}")


def _line(entry: Entry) -> Json:
    what = entry.what
    if isinstance(what, Repair):
        out = {"first": what.first, "last": what.last}
        return {"line": entry.number, "outcome": "repair", "when": what.when, "reason": what.reason, **out}
    shown = ("pair", "when", "how", "image", "ready_in", "tokens", "tokens_per_second", "vram_peak", "reason", "key")
    return {
        "line": entry.number or None,
        "outcome": what.outcome.value,
        **{name: getattr(what, name) for name in shown},
        "card": asdict(what.card),
        "counts": entry.counts or what.outcome is Outcome.REVOKED,
    }
