"""Who gets the card after the engine that had it has failed: the same again, or another one that is verified.

The same container gets it again without anything being read or asked, until it has failed `max_failures` times in a
row, or for a reason that time can't mend. Then another verified pair does: what served last by the journal, the
default, and whatever the ledger says has served, newest first. Where there is none, whoever's failures time may mend
goes on being tried: the same, else one that was given up for it. What runs unproven is served where it is found, but
isn't started by us; nor is what was revoked meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

from engines.spec import Engine
from swap.checks import Checker, Verdict
from swap.decisions import Decisions, Kind
from swap.known import Known
from swap.moves import Choose, Chosen, Unit
from swap.ports import Ledger, Outcome
from swap.reading import Reading, Say


@dataclass(frozen=True, slots=True)
class Fallback:
    """`served`: the label that the journal has; `proven`: units that were ready once in this daemon's life."""

    engines: Mapping[str, Engine]
    checker: Checker
    ledger: Ledger
    decisions: Decisions
    default: str | None
    say: Say
    expect: Callable[[Verdict], Awaitable[Unit]]
    known: Mapping[Unit, Known]
    proven: Callable[[Unit], bool]
    served: Callable[[], Awaitable[str | None]]

    async def choose(self, effect: Choose) -> Chosen:
        failed, again = effect.failed, await self._may_again(effect.failed)
        if again and effect.passing and effect.failures < self._most(failed):
            self.decisions.add(Kind.RESTARTING, f"{failed.label} is started again", why=effect.why)
            return Chosen(effect.n, failed)
        if (other := await self._another(effect, but=effect.spent)) is not None:
            why = f"{failed.label} has failed {_times(effect.failures)} ({effect.why}), and {other.label} is verified"
            self.decisions.add(Kind.FALLBACK, f"{other.label} gets the card", why=why)
            return Chosen(effect.n, other, why)
        if again and effect.passing:
            self.decisions.add(
                Kind.RESTARTING, f"{failed.label} is started again: no other is verified", why=effect.why
            )
            return Chosen(effect.n, failed)
        if (other := await self._another(effect, but=effect.spent - effect.later)) is not None:
            why = f"{failed.label} can't have it ({effect.why}), and {other.label}, which failed before, is verified"
            self.decisions.add(Kind.FALLBACK, f"{other.label} is tried again", why=why)
            return Chosen(effect.n, other, why)
        unproven = "" if again else f"; {failed.label} isn't verified, and is started by nobody but you"
        return Chosen(effect.n, None, f"{effect.why}; no other pair is verified{unproven}")

    def _most(self, unit: Unit) -> int:
        engine = self.engines.get(unit.engine)
        return engine.max_failures if engine is not None else 1

    async def _may_again(self, unit: Unit) -> bool:
        """It has been ready, or was checked and allowed. What was only found running is checked now."""
        known = self.known[unit]
        if await self._is_revoked(known, unit.label):
            return False
        if self.proven(unit) or known.subject is not None:
            return True
        if known.pair is None or unit.engine not in self.engines:
            return False
        verdict = await self.checker.judge(unit.engine, unit.pair, trial=False, how=Reading(self.say))
        return verdict.allowed and await self.expect(verdict) == unit

    async def _is_revoked(self, known: Known, label: str) -> bool:
        """The card is asked for nothing where nobody has ever revoked anything."""
        if known.subject is None or all(one.outcome is not Outcome.REVOKED for one in self.ledger.evidence()):
            return False
        return (await self.checker.standing_of(known.subject, label)).revoked is not None

    async def _another(self, effect: Choose, but: Collection[Unit]) -> Unit | None:
        """The first that would be allowed now. Raises Fault where it can't be told."""
        for engine, pair in await self._candidates():
            if (engine, pair) == (effect.failed.engine, effect.failed.pair):
                continue
            verdict = await self.checker.judge(engine, pair, trial=False, how=Reading(self.say))
            if verdict.allowed and (unit := await self.expect(verdict)) not in {effect.failed, *but}:
                return unit
        return None

    async def _candidates(self) -> list[tuple[str, str]]:
        """Engine and pair, the likeliest first: by the journal, the configuration, the ledger."""
        labels = [await self.served(), self.default]
        labels += [one.pair for one in reversed(self.ledger.evidence()) if one.outcome is Outcome.SERVED]
        return list(dict.fromkeys(filter(None, map(self._configured, labels))))

    def _configured(self, label: str | None) -> tuple[str, str] | None:
        name, _, pair = (label or "").partition(":")
        engine = self.engines.get(name)
        if engine is None or (pair or engine.deployed) not in engine.pairs:
            return None
        return name, pair or engine.deployed


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
