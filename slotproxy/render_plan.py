"""What `slotctl plan` shows: where the four sides differ, what would run, and whether it would be allowed."""

from __future__ import annotations

from slotproxy import render_drift
from slotproxy.render import Answer, labelled, moment, refused, text, warnings
from slotproxy.units import format_size


def plan(answer: Answer) -> list[str]:
    lines = [labelled("plan", f"{answer.get('label')}, {_verified(answer)}")]
    if answer.get("drift"):
        lines += render_drift.tables(answer["drift"])
    elif answer.get("would_run") and answer.get("container") not in (None, "absent"):
        lines.append(labelled("created", "as the pair declares"))
    if answer.get("would_run"):
        lines += _would_run(answer["would_run"])
    if answer.get("stage"):
        lines.append(labelled("stage", "made as declared first (--no-stage refuses instead)"))
    lines += warnings(answer)
    for refusal in answer.get("refusals") or ():
        lines += refused(str(refusal.get("what")), str(refusal.get("mend") or ""))
    return [*lines, labelled("verdict", "allowed" if answer.get("allowed") else "refused, nothing would be changed")]


def _verified(answer: Answer) -> str:
    """Where image or files are refused already, nobody has asked for evidence."""
    if verified := answer.get("verified"):
        return f"verified {moment(verified.get('when'))} by {verified.get('how')}"
    if before := answer.get("before"):
        return f"not verified as it is now; it was on {moment(before.get('when'))} by {before.get('how')}"
    if not answer.get("judged"):
        return "evidence unknown"
    proof = str(answer.get("proof") or "not verified")
    return f"{proof}: it never ran here" if proof == "not verified" else proof


def _would_run(run: Answer) -> list[str]:
    lines = [
        labelled("image", f"{run.get('image')}  {run.get('image_id')}"),
        labelled("would run", text(list(run.get("argv") or []))),
    ]
    for file in run.get("artifacts") or ():
        size = format_size(file.get("size") or 0)
        lines.append(labelled("artifact", f"{file.get('path')}  {size}  sha256:{file.get('sha256')}"))
    return lines
