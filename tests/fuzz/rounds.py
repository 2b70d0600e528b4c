"""Rounds of examples until the time is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import hypothesis

EXAMPLES: dict[str, Any] = {
    "database": None,
    "deadline": None,  # how fast the machine is says nothing of the code
    "suppress_health_check": list(hypothesis.HealthCheck),
}
"""How all examples are drawn: by their seed alone."""


def rounds(examples: Callable[[int, int], None], count: int, minutes: float, seed: int) -> str:
    """Rounds of `count` examples, each with the next seed, until the time is over or one has found something: what."""
    until = time.monotonic() + minutes * 60
    while time.monotonic() < until:
        try:
            examples(count, seed)
        except Exception as error:  # whatever it is, it was found
            return f"seed {seed}: {error!r}\n" + "\n".join(getattr(error, "__notes__", ()))
        seed += 1
    return ""
