"""What an engine that serves says when it is asked: its own sign, and a tiny completion.

Not the questions of `swap.readiness`, where all that counts is whether it is ready yet: here it matters whether it
failed, said something else, or nothing at all.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from engines.failing import told
from engines.spec import Engine
from swap.readiness import Asked, Readiness

COMPLETION_LIMIT = 60.0  # seconds; longer than engines queue, who say then that they are busy


class How(enum.Enum):
    WELL = "well"
    FAILED = "failed"  # explicitly: an error of its own, not of what was asked
    GONE = "gone"  # refused the connection, or closed it without an answer
    SILENT = "silent"  # no whole answer in time
    OTHER = "other"  # an answer that says nothing of the engine: it is busy, or doesn't like the question


@dataclass(frozen=True, slots=True)
class Said:
    """`what`: for people; empty where it is well."""

    how: How
    what: str = ""


async def sign(readiness: Readiness, engine: Engine) -> Said:
    """Its own sign; WELL where its profile knows none."""
    if (known := engine.profile.sign) is None:
        return Said(How.WELL)
    asked = await readiness.ask("GET", engine, known.path, known.timeout)
    if (nothing := _no_answer(asked, known.path)) is not None:
        return nothing
    if known.judge(asked.status, asked.body):
        return Said(How.WELL)
    return Said(How.FAILED, f"{known.path} says {asked.status}: {told(asked.body)}")


async def completion(readiness: Readiness, engine: Engine) -> Said:
    """A tiny completion, as when it became ready."""
    probe = engine.profile.probe(await readiness.model(engine), engine.probe_tokens)
    asked = await readiness.ask("POST", engine, probe.path, COMPLETION_LIMIT, probe.body)
    if (nothing := _no_answer(asked, "a completion of ours")) is not None:
        return nothing
    if probe.judge(asked.status, asked.body):
        return Said(How.WELL)
    what = f"a completion of ours got HTTP {asked.status}: {told(asked.body)}"
    return Said(How.FAILED if engine.profile.broken(asked.status, asked.body) else How.OTHER, what)


def _no_answer(asked: Asked, what: str) -> Said | None:
    if asked.status:
        return None
    return Said(How.GONE if asked.gone else How.SILENT, f"{what}: {asked.fault}")
