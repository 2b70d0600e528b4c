"""What `slotctl pairs` and its actions show."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Final

from slotproxy.render import Answer, clean, moment, table
from slotproxy.units import format_duration, format_size

WIDTH: Final = 120  # columns that a line may have


def pairs(answer: Answer) -> list[str]:
    known = answer.get("pairs") or []
    rows: list[list[object]] = [["pair", "", "state", "when", "how", "ready in", "VRAM peak", "tokens/s", "image"]]
    rows += [_row(pair) for pair in known]
    said = [(str(pair.get("label")), words) for pair in known for words in _said(pair)]
    return [*_fitting(rows), *_paragraphs(said), *_problems(answer)]


def log(answer: Answer) -> list[str]:
    """A row for each line, and below it why."""
    lines = answer.get("lines") or []
    rows: list[list[object]] = [["when", "pair", "outcome", "how", "card", "ready in", "tokens/s"]]
    head, *logged = table([*rows, *(_logged(line) for line in lines)], widest=WIDTH)
    said = [part for row, line in zip(logged, lines, strict=True) for part in (row, *_why(line))]
    return [*([head, *said] if lines else ["nothing is recorded"]), *_problems(answer)]


def check(answer: Answer) -> list[str]:
    lines, counting = answer.get("lines") or 0, answer.get("counting") or 0
    if answer.get("whole"):
        said = f"{answer.get('file')} is whole: {lines} lines"
        said += "" if counting == lines else f", of which {counting} count (see `slotctl pairs log`)"
    elif broken := answer.get("broken"):
        said = f"{answer.get('file')} is broken at line {broken.get('line')}: {counting} of {lines} lines count"
    else:
        said = f"{answer.get('file')}: {counting} of {lines} lines count"
    return [clean(said), *_problems(answer)]


def exported(answer: Answer) -> list[str]:
    """The very line where it goes to stdout; else where it went."""
    if "output" not in answer:
        return [str(answer.get("line"))]
    return [clean(f"the statement that verifies {answer.get('label')} is in {answer['output']}")]


# ------------------------------------------------------------------------------------------------- one pair


def _row(pair: Answer) -> list[object]:
    return [
        pair.get("label"),
        "deployed" if pair.get("deployed") else "",
        pair.get("state"),
        moment(pair.get("when")),
        pair.get("how"),
        _duration(pair.get("ready_in")),
        _size(pair.get("vram_peak")),
        _rate(pair.get("tokens_per_second")),
        pair.get("image"),
    ]


def _fitting(rows: list[list[object]]) -> list[str]:
    """The table with long names, as of an image, in as many lines as it takes to stay within the width."""
    lines: list[str] = []
    for widest in (44, 32, 26, 20):
        lines = table(rows, widest)
        if max(map(len, lines)) <= WIDTH:
            break
    return lines


def _said(pair: Answer) -> Iterator[str]:
    """What a pair's row has no room for."""
    if revoked := pair.get("revoked"):
        yield f"revoked {moment(revoked.get('when'))}: {revoked.get('reason')}"
    if changed := pair.get("changed"):
        yield f"changed since it was verified {moment(changed.get('since'))}: {'; '.join(changed.get('what') or ())}"
    yield from (f"doubt: {doubt}" for doubt in pair.get("doubts") or ())
    if attested := pair.get("attested"):
        counts = "counts" if attested.get("counts") else "counts for nothing"
        how = f"{counts}, require: {pair.get('require')}"
        yield f"attested {moment(attested.get('when'))} by the operator ({how}): {attested.get('reason')}"
    if failed := pair.get("last_failure"):
        yield f"failed {moment(failed.get('when'))}: {failed.get('reason')}"
    if before := pair.get("before"):
        yield f"was verified {moment(before.get('when'))} by {before.get('how')}; what refuses it now:"
    if pair.get("state") == "declared":
        for refusal in pair.get("refusals") or ():
            yield " - ".join(filter(None, (f"refused: {refusal.get('what')}", refusal.get("mend"))))
    if pair.get("image_gone"):
        what = "the image that served isn't on this machine any more"
        yield f"{what}; load it again (`docker load`), or prove another by a trial"


def _paragraphs(said: list[tuple[str, str]]) -> Iterator[str]:
    widest = max((len(label) for label, _ in said), default=0)
    for label, words in said:
        start, rest = f"{label:<{widest}}  ", " " * (widest + 2)
        yield from textwrap.wrap(clean(words), WIDTH, initial_indent=clean(start), subsequent_indent=rest)


def _problems(answer: Answer) -> list[str]:
    return [clean(f"problem   {problem}") for problem in answer.get("problems") or ()]


# ------------------------------------------------------------------------------------------------- one line


def _logged(line: Answer) -> list[object]:
    card = line.get("card") or {}
    return [
        moment(line.get("when")),
        line.get("pair"),
        line.get("outcome"),
        line.get("how"),
        "simulated" if card.get("simulated") else card.get("name"),
        _duration(line.get("ready_in")),
        _rate(line.get("tokens_per_second")),
    ]


def _why(line: Answer) -> list[str]:
    first, last = line.get("first") or 0, line.get("last") or 0
    left_out = f" (lines {first} to {last} are left out)" if last >= first > 0 else ""
    words = clean(f"{line.get('reason') or ''}{left_out}")
    return textwrap.wrap(words, WIDTH, initial_indent="    ", subsequent_indent="    ")


def _duration(seconds: float | None) -> str:
    return "" if seconds is None else format_duration(seconds)


def _size(size: int | None) -> str:
    return "" if size is None else format_size(size)


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{rate:.1f}"
