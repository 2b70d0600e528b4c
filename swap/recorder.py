"""Evidence of what became of an order, and whether what was adopted has any.

That it can't be written is said, and changes nothing else: what serves, serves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import structlog

from swap.adoption import expect_its_files
from swap.evidence import evidence_of
from swap.hands import Hands
from swap.moves import Record, Unit
from swap.ports import Fault, Ledger
from swap.reading import Reading
from swap.threads import STATE
from swap.trials import find_out

WRITE_LIMIT = 10.0  # seconds that a durable write may take


@dataclass(frozen=True, slots=True)
class Recorder:
    hands: Hands
    ledger: Ledger

    async def record(self, record: Record) -> str:
        """Write it down. What is returned is why that failed; empty: it didn't, or there is nothing to write."""
        if record.order is None:
            return ""
        try:
            await self._write(record)
        except Fault as error:
            structlog.get_logger("slotproxy.swap").error("no evidence", why=str(error))
            return f"no evidence was written: {error}"
        return ""

    async def _write(self, record: Record) -> None:
        known, card = self.hands.known[record.unit], await self.hands.card.identity()
        warmed = self.hands.warmed.get(record.unit)
        evidence = evidence_of(record, known, warmed, card)
        if evidence is None:
            return
        if record.served:
            await expect_its_files(self.hands.checker, record.unit, known, warmed, evidence.subject)
        await STATE.run(partial(self.ledger.record, evidence), "the ledger's disk", WRITE_LIMIT)
        if record.served:
            known.standing = await self.hands.checker.standing_of(evidence.subject, record.unit.label)

    async def recognize(self, unit: Unit) -> None:
        """Whether what was adopted is verified, while it serves: hashing takes time, and may break without harm."""
        log, known = structlog.get_logger("slotproxy.swap"), self.hands.known[unit]
        if known.subject is not None:
            return
        try:
            await find_out(self.hands.checker, known, Reading(aside=True))
            if known.subject is None:
                log.warning("its files changed since it was started: nobody knows what it has read", unit=unit.label)
        except Fault as fault:
            log.warning("can't tell whether it is verified", unit=unit.label, why=str(fault))
        except Exception:
            log.exception("can't tell whether it is verified", unit=unit.label)
