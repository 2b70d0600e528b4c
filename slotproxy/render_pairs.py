"""What `slotctl pairs` and its actions show."""

from __future__ import annotations

from slotproxy.render import Answer, clean, moment, table
from slotproxy.units import format_duration


def pairs(answer: Answer) -> list[str]:
    known = answer.get("pairs") or []
    rows: list[list[object]] = [["pair", "", "state", "when", "how", "ready in", "image"]]
    for pair in known:
        ready = pair.get("ready_in")
        rows.append(
            [
                pair.get("label"),
                "deployed" if pair.get("deployed") else "",
                pair.get("state"),
                moment(pair.get("when")),
                pair.get("how"),
                "" if ready is None else format_duration(ready),
                pair.get("image"),
            ]
        )
    failures = [(pair.get("label"), pair["last_failure"]) for pair in known if pair.get("last_failure")]
    said = [clean(f"{label} failed {moment(last.get('when'))}: {last.get('reason')}") for label, last in failures]
    gone = [clean(_gone(str(pair.get("label")))) for pair in known if pair.get("image_gone")]
    return [*table(rows), *said, *gone]


def _gone(label: str) -> str:
    what = f"{label}: the image that served isn't on this machine any more"
    return f"{what}; load it again (`docker load`), or prove another by a trial"
