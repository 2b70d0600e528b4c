"""An engine's own restart policy must be `no`: another brings the stopped engine back beside the one that serves.

Docker does that whenever it starts anew, so the holder's own counts, too: after a reboot nobody else decides who comes
up. A swap to a container with another policy is refused, `status` and `doctor` tell of it, and on request it is
corrected in place: the container stays, and so does what runs in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from engines.spec import Engine
from swap.decisions import Decisions, Kind
from swap.ports import Fault, Runtime, Sight


@dataclass(frozen=True, slots=True)
class Correction:
    """`was`: the policy that was taken away; empty where there was none. `fault`: why it couldn't be looked at."""

    engine: Engine
    was: str = ""
    fault: Fault | None = None


def come_back(who: str, policy: str) -> str:
    """Why a policy is against the rules. `who` has it or gives it: `the container ninfer-eval has`."""
    return f"{who} the restart policy {policy!r}, it would come back beside the other engine"


def policy_of(sight: Sight) -> str:
    """The policy of the container that was seen; empty where Docker leaves it alone."""
    policy = sight.recipe.restart if sight.recipe is not None else ""
    return "" if policy == "no" else policy


def against_the_rules(engine: Engine, sight: Sight) -> str:
    """What is wrong with the container that was seen; empty: nothing."""
    policy = policy_of(sight)
    return come_back(f"the container {engine.container} has", policy) if policy else ""


def mend(engine: Engine) -> str:
    return f"`slotctl correct {engine.name}`, or `docker update --restart=no {engine.container}`"


async def correct(engine: Engine, runtime: Runtime, decisions: Decisions) -> Correction:
    """Take its policy away, whether or not it runs. Only what a second look shows is told as done."""
    try:
        before = await runtime.look()
        was = policy_of(before)
        if not was:
            return Correction(engine)
        await runtime.correct_restart(before.id)
        after = await runtime.look()
    except Fault as fault:
        return Correction(engine, fault=fault)
    if policy_of(after):
        what = f"the container {engine.container} still has the restart policy {policy_of(after)!r}"
        return Correction(engine, fault=Fault(what, "see who else changes it"))
    text = f"the restart policy of {engine.container} is 'no' now, it was {was!r}"
    decisions.add(Kind.CORRECTED, text, why="it would have come back beside the other engine", engine=engine.name)
    return Correction(engine, was)


async def warn(engines: Mapping[str, Engine], runtimes: Mapping[str, Runtime], decisions: Decisions) -> None:
    """Once, of every container that Docker would start by itself. What can't be looked at, the watch complains of."""
    for name, engine in engines.items():
        try:
            wrong = against_the_rules(engine, await runtimes[name].look())
        except Fault:
            continue
        except Exception:
            structlog.get_logger("slotproxy").exception("can't tell the restart policy", engine=name)
            continue
        if wrong:
            decisions.add(Kind.PERSON, wrong, why=mend(engine), engine=name)
