"""What `slotctl correct` answers: which restart policies were taken away, and which couldn't be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from swap.ports import Fault
from swap.restart_policy import Correction

Json = dict[str, Any]


def corrected(done: Sequence[Correction]) -> Json:
    """3 where one couldn't be looked at or changed; the others are corrected all the same."""
    failed = [one for one in done if one.fault is not None]
    return {
        "code": 3 if failed else 0,
        "text": "; ".join(map(_in_words, done)),
        "engines": {one.engine.name: _plain(one) for one in done},
    }


def _in_words(one: Correction) -> str:
    if one.fault is not None:
        return f"{one.engine.name}: {_said(one.fault)}"
    if one.was:
        return f"{one.engine.name}: the restart policy of {one.engine.container} was {one.was!r}, it is 'no' now"
    return f"{one.engine.name}: nothing to correct"


def _said(fault: Fault) -> str:
    return f"{fault.what} ({fault.mend})" if fault.mend else fault.what


def _plain(one: Correction) -> Json:
    fault = _said(one.fault) if one.fault is not None else None
    return {"container": one.engine.container, "was": one.was or None, "error": fault}
