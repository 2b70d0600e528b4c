"""What a pair must have before it gets the card without a trial: each engine's `require`, and `card.on_change`. Pure.

What relaxes the rule is said in so many words: in the verdict that it lets through, and in the status.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from engines.spec import Engine, Require
from swap.findings import Refusal
from swap.standing import Standing

_RELAXED = {
    Require.ATTESTED: "a pair is given the card when the operator attests it",
    Require.CANDIDATE: "a pair is given the card when its files fit, proven or not",
}


def relaxed(engine: Engine) -> str:
    """In what this engine's rule is weaker than "verified"; empty: in nothing."""
    words = _RELAXED.get(engine.require)
    return f"{engine.name}: {words} (require: {engine.require.value})" if words else ""


def accepts(known: Standing, require: Require, *, strict: bool) -> bool:
    """`strict`: evidence of another GPU or driver doesn't count (what the operator attests does)."""
    return _counted(known, strict=strict).meets(require)


def refusal(label: str, known: Standing, require: Require, *, strict: bool) -> Refusal | None:
    """Why what is recorded isn't enough; None: it is."""
    if accepts(known, require, strict=strict):
        return None
    if known.doubts and known.meets(require):
        mend = f"`slotctl swap to-{label} --trial` proves it anew, or set `card.on_change: warn`"
        return Refusal(f"{label}: {'; '.join(known.doubts)}", mend)
    mend = f"`slotctl swap to-{label} --trial` runs it, and its success is the evidence"
    if require is Require.ATTESTED:
        mend += f"; or give your word: `slotctl pairs attest {label} --reason …`"
    what = _unproven(known, require)
    if known.lifted is not None and known.attested is not None:
        what += f"; attested since, on {known.attested.when}, which doesn't count here (require: {require.value})"
    return Refusal(f"{label} {what}", mend)


def warnings(label: str, known: Standing, require: Require, *, strict: bool) -> Iterator[str]:
    """What people should know of a pair that is accepted: doubts, and that it wasn't evidence that let it through."""
    yield from known.doubts
    if (leave := by_policy(label, known, require, strict=strict)) != "":
        yield leave


def by_policy(label: str, known: Standing, require: Require, *, strict: bool) -> str:
    """What lets an accepted pair through in place of evidence; empty where it is evidence."""
    counted = _counted(known, strict=strict)
    if counted.meets(Require.VERIFIED) or not counted.meets(require):
        return ""
    what = "isn't verified on this card and driver" if known.doubts else _unproven(known, Require.VERIFIED)
    if counted.attested is not None:
        word = f"attested on {counted.attested.when}: {counted.attested.reason or 'no reason given'}"
        return f"{label} {what}; it is allowed by `require: {require.value}` ({word})"
    return f"{label} {what}; it is allowed by `require: {require.value}`"


def in_words(known: Standing | None) -> str:
    """How a pair is proven, for people."""
    if known is None:
        return "evidence unknown"
    if known.revoked is not None:
        return f"revoked {known.revoked.when}: {known.revoked.reason or 'no reason given'}"
    if known.served is not None:
        return f"verified, but {'; '.join(known.doubts)}" if known.doubts else "verified"
    return "attested only, not verified" if known.attested is not None else "not verified"


def _counted(known: Standing, *, strict: bool) -> Standing:
    return replace(known, served=None) if strict and known.doubts else known


def _unproven(known: Standing, require: Require) -> str:
    """What is missing."""
    if (revoked := known.revoked or known.lifted) is not None:
        return f"was revoked on {revoked.when}: {revoked.reason or 'no reason given'}"
    tried = f" (tried on {known.failure.when}: {known.failure.reason or 'failed'})" if known.failure else ""
    if known.changed:
        assert known.before is not None
        return f"never ran on this card as it is now{tried}: since {known.before.when} {'; '.join(known.changed)}"
    word = " nor was attested" if require is Require.ATTESTED else ""
    return f"never ran on this card{word}{tried}"
