"""What the journal is told: what we are about to do, and what whoever comes after us must know."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from swap.known import Known
from swap.moves import Unit
from swap.ports import JournalEntry
from swap.state import State


@dataclass(slots=True)
class Before:
    """What served last in an earlier life of the daemon, and its container's id; until something serves in ours."""

    serving: str | None = None
    serving_id: str | None = None


def entry_of(
    state: State,
    known: Mapping[Unit, Known],
    doing: str,
    unit: Unit | None,
    *,
    refused: Collection[str],
    before: Before,
) -> JournalEntry:
    """`unit`: what `doing` is about; `refused`: ids of containers that run, and got no request.

    What served last is never forgotten: we may be killed again before anything serves.
    """
    served = state.serving or state.last
    return JournalEntry(
        step=doing,
        serving=served.label if served else before.serving,
        serving_id=_id(known, served) if served else before.serving_id,
        goal=state.goal.label if state.goal else None,
        order=f"{state.order.engine}:{state.order.pair}" if state.order else None,
        trial=bool(state.order and state.order.trial),
        when=datetime.now(UTC).isoformat(timespec="milliseconds"),
        unit=unit.label if unit else None,
        unit_id=_id(known, unit),
        refused=tuple(sorted(refused)),
    )


def now_refused(state: State, known: Mapping[Unit, Known], before: Collection[str]) -> set[str]:
    """What runs while nothing serves, and isn't about to; it stays refused until it serves, or is gone."""
    up = {known[unit].id for unit in state.up}
    refused = up if state.person else up & set(before)
    return refused - {known[state.serving].id} if state.serving else refused


def _id(known: Mapping[Unit, Known], unit: Unit | None) -> str | None:
    return known[unit].id if unit is not None and unit in known else None
