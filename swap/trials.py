"""May this order go on? The verdict on the pair, and on what would be left if it failed.

A trial runs what never ran, so it may well fail, and then what was serving is put back: that must be proven itself.
Where nothing serves there is nothing to lose, and nothing to restore. An order to a pair that is proven may leave
anything behind. A trial that is to hand the card back (`--and-back`) needs a way back that would be allowed now.
"""

from __future__ import annotations

from dataclasses import replace

from swap.adoption import may_have_read
from swap.checks import Checker, Verdict
from swap.findings import Refusal
from swap.known import Known, unit_of
from swap.moves import Unit
from swap.ports import Fault
from swap.reading import Reading
from swap.standing import Standing, subject_differences

Serving = tuple[Unit, Known]


async def judge(
    checker: Checker,
    serving: Serving | None,
    engine: str,
    pair: str | None,
    *,
    trial: bool,
    may_stage: bool = True,
    and_back: bool = False,
    how: Reading | None = None,
) -> Verdict:
    """The verdict on this order while `serving` serves. What an operator can mend is never raised."""
    how = how or Reading()
    verdict = await checker.judge(engine, pair, trial=trial, may_stage=may_stage, how=how)
    if serving is not None and await means(verdict, serving):
        return verdict  # nothing would be tried
    beside = Reading(how.say, aside=how.aside)  # what serves isn't read anew, whatever was asked of the other one
    refusal = await _unrestorable(checker, serving, verdict, beside) if trial else None
    if refusal is None and and_back:
        refusal = await _no_way_back(checker, serving, beside, may_stage=may_stage)
    against = filter(None, (refusal, await checker.unwritable()))
    return replace(verdict, refusals=(*verdict.refusals, *against))


async def means(verdict: Verdict, serving: Serving) -> bool:
    """Is what serves the very unit that the verdict is about?"""
    unit, known = serving
    if verdict.declared is None or verdict.engine != unit.engine:
        return False
    return await unit_of(known.engine, known.engine.pairs[verdict.pair], verdict.declared) == unit


async def find_out(checker: Checker, known: Known, how: Reading) -> Standing:
    """What is recorded of what runs, by its files as they are now: hashed, if they changed. Raises Fault."""
    subject = await checker.subject_of(known.engine, known.recipe, known.pair, how)
    standing = await checker.standing_of(subject, known.pair.label if known.pair else "")
    # What it was checked with stays what its evidence is about; what ran already may have read something else.
    if known.subject == subject or (known.subject is None and await may_have_read(subject, known.started_at)):
        known.subject, known.standing = subject, standing
    return standing


async def _unrestorable(checker: Checker, serving: Serving | None, verdict: Verdict, how: Reading) -> Refusal | None:
    """Why the trial of something unproven would leave nothing to fall back on."""
    if serving is None or verdict.standing is None:
        return None
    unit, known = serving
    if checker.accepts(checker.engine(verdict.engine), verdict.standing):
        return None
    try:
        standing = await find_out(checker, known, how)
    except Fault as fault:
        return _nothing_left(f"{unit.label} serves, and whether it is verified can't be told ({fault})", known)
    if checker.accepts(known.engine, standing):
        return None
    revoked = standing.revoked is not None
    return _nothing_left(f"{unit.label} serves and {_lacks(standing)}", known, revoked=revoked)


def _nothing_left(what: str, known: Known, *, revoked: bool = False) -> Refusal:
    engine = known.engine.name
    if revoked:
        mend = f"swap to a verified pair first; `slotctl pairs adopt {engine}` would lift the revocation"
    elif known.pair is None:
        mend = f"see `slotctl plan to-{engine}` for what differs from its pairs, or swap to a verified pair first"
    else:
        mend = f"`slotctl pairs adopt {engine}` first"
    return Refusal(f"{what}, so nothing verified could be restored if the trial fails", mend)


def _lacks(standing: Standing) -> str:
    if standing.revoked is not None:
        return "was revoked"
    return "is in doubt (" + "; ".join(standing.doubts) + ")" if standing.doubts else "isn't verified"


async def _no_way_back(checker: Checker, serving: Serving | None, how: Reading, *, may_stage: bool) -> Refusal | None:
    """Why the card could not be handed back."""
    mend = "order the trial without --and-back"
    if serving is None:
        return Refusal("nothing served before; there is nothing to hand back to", mend)
    unit, known = serving
    if known.pair is None:
        return Refusal(f"what {unit.engine} runs is none of its pairs, so it can't be handed back to", mend)
    back = await checker.judge(unit.engine, unit.pair, trial=False, may_stage=may_stage, how=how)
    why = back.why or await _another_now(checker, known, back, how)
    return Refusal(f"{unit.label} could not be handed back to: {why}", f"mend that, or {mend}") if why else None


async def _another_now(checker: Checker, known: Known, back: Verdict, how: Reading) -> str:
    """In what that which serves isn't what its name declares now; empty: in nothing that makes another pair."""
    assert back.subject is not None
    try:
        serves = await checker.subject_of(known.engine, known.recipe, known.pair, how)
    except Fault as fault:
        return str(fault)
    differs = "; ".join(subject_differences(serves, back.subject))
    return f"what serves isn't what it declares now ({differs})" if differs else ""
