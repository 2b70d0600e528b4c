"""Why somebody attests, revokes or repairs: it stands in the ledger for good, for whoever reads it later."""

from __future__ import annotations

REASON_LIMIT = 500  # characters


def wrong_reason(written: str) -> str:
    """What is wrong with a reason; empty: nothing."""
    if not written.strip():
        return "the reason is empty: say why, whoever reads the ledger later will ask"
    if not written.isprintable():
        return "the reason must be one line of printable characters"
    if len(written) > REASON_LIMIT:
        return f"the reason has {len(written)} characters; {REASON_LIMIT} are enough"
    return ""
