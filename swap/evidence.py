"""What the ledger is told of an order's outcome. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from swap.contents import VERSION
from swap.ledger import key
from swap.moves import Record
from swap.ports import CardIdentity, Evidence, Outcome

if TYPE_CHECKING:
    from swap.known import Known
    from swap.warming import Warmed


def evidence_of(record: Record, known: Known, warmed: Warmed | None, card: CardIdentity) -> Evidence | None:
    """None where the files of the pair were never hashed: then nobody could say what the evidence is about."""
    if known.subject is None:
        return None
    served = record.served and warmed is not None
    return Evidence(
        subject=known.subject,
        key=key(known.subject),
        outcome=Outcome.SERVED if served else Outcome.FAILED,
        pair=record.unit.label,
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        how="trial" if record.order and record.order.trial else "swap",
        card=card,
        image=known.recipe.image,
        ready_in=round(warmed.ready_in, 3) if served and warmed and warmed.ready_in is not None else None,
        tokens=warmed.answered.tokens if served and warmed else None,
        tokens_per_second=warmed.answered.tokens_per_second if served and warmed else None,
        vram_peak=warmed.peak if served and warmed else None,
        reason=record.why,
        recipe=known.recipe,
        extra=extra_of(known),
    )


def extra_of(known: Known) -> dict[str, object]:
    """What only some engines can tell."""
    extra: dict[str, object] = {}
    if known.artifact_version is not None:
        extra[VERSION] = known.artifact_version
    if known.recipe.config_hash:
        extra["compose_hash"] = known.recipe.config_hash
    return extra
