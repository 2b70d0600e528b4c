"""What `slotctl drift` and `slotctl plan` show of the four sides: tables to be read at a glance, worst first."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from slotproxy.render import Answer, clean, labelled, moment, refused, table, text

WIDTH: Final = 120  # characters that a table should fit in
SIDES: Final = ("declared", "created", "running", "verified")
HEADS: Final = {
    "blocks": "MUST NOT STAY SO",
    "unproven": "NOT WHAT WAS VERIFIED: another pair, which has to prove itself",
    "stale": "NOT WHAT IS DECLARED, in what makes a pair",
    "beside": "not what is declared, in what needs no proof",
    "cosmetic": "differs, and decides nothing",
}


def drift(answer: Answer) -> list[str]:
    """Each engine with its tables, an empty line between them."""
    blocks = [_engine(one) for one in answer.get("engines") or ()]
    return [line for n, block in enumerate(blocks) for line in ([""] if n else []) + block]


def tables(rows: Sequence[Answer]) -> list[str]:
    """A table for each severity; what would mend it stands below."""
    lines: list[str] = []
    for severity, group in groupby(rows, key=lambda row: str(row.get("severity"))):
        members = list(group)
        lines += [HEADS.get(severity, severity), *_indented(_table(members)), *_indented(_mends(members))]
    return lines


def _engine(one: Answer) -> list[str]:
    deployed = " (deployed)" if one.get("deployed") else ""
    lines = [labelled(str(one.get("label")).partition(":")[0], f"{one.get('label')}{deployed}: {_proof(one)}")]
    lines.append(labelled("created", _container(one)))
    if not one.get("differs"):
        return [*lines, labelled("drift", f"none: as declared{' and verified' if one.get('verified') else ''}")]
    lines += tables(one.get("drift") or ())
    for refusal in one.get("refusals") or ():
        lines += refused(str(refusal.get("what")), str(refusal.get("mend") or ""))
    return lines if len(lines) > 2 else [*lines, labelled("mend", _proving(one))]


def _proving(one: Answer) -> str:
    """Where no field differs and nothing refuses: it lacks evidence alone."""
    if one.get("status") == "running":
        return f"`slotctl pairs adopt {str(one.get('label')).partition(':')[0]}` makes evidence of what runs"
    return f"`slotctl swap to-{one.get('label')} --trial` runs it, and its success is the evidence"


def _proof(one: Answer) -> str:
    verified, before = one.get("verified"), one.get("before")
    if verified:
        return f"{one.get('proof')}, {moment(verified.get('when'))} by {verified.get('how')}"
    if before:
        return f"{one.get('proof')} as it is now; it was on {moment(before.get('when'))} by {before.get('how')}"
    return str(one.get("proof"))


def _container(one: Answer) -> str:
    """What there is now, and as which pair it was created."""
    status = one.get("status")
    if status is None:
        return "it can't be told"
    if status == "absent":
        return "nothing is there"
    what = "none of the configured pairs" if one.get("created_as") is None else str(one["created_as"])
    up = f"running since {moment(one.get('started_at'))}" if status == "running" else f"not running ({status})"
    where = f"{one.get('container')} ({text(one.get('id'))[:12]}): " if one.get("container") else ""
    return f"{where}{', '.join(part for part in (what, up) if part)}"


def _table(rows: Sequence[Answer]) -> list[str]:
    """Sides that say the same in all rows share a column."""
    columns: dict[tuple[str | None, ...], list[str]] = {}
    for side in SIDES:
        cells = tuple(None if row.get(side) is None else text(row[side]) for row in rows)
        if any(cell is not None for cell in cells):
            columns.setdefault(cells, []).append(side)
    fields = [text(row.get("field")) for row in rows]
    head = ["", *(", ".join(sides) for sides in columns.values())]
    body = [[field, *(cells[n] or "" for cells in columns)] for n, field in enumerate(fields)]
    return table([head, *body], widest=_widest(max(len(field) for field in fields), len(columns)))


def _widest(field: int, columns: int) -> int:
    """How wide a cell may be beside field names of this width, which are wrapped as the cells are."""
    room = WIDTH - 2 - 2 * columns
    alike = room // (columns + 1)
    return alike if field > alike else (room - field) // max(1, columns)


def _mends(rows: Sequence[Answer]) -> list[str]:
    """Once each; named where the rows of one table need several."""
    fields: dict[str, list[str]] = {}
    for row in rows:
        fields.setdefault(text(row.get("mend")), []).append(text(row.get("field")))
    several = len(fields) > 1
    lines = [f"mend {', '.join(dict.fromkeys(of))}: {how}" if several else f"mend: {how}" for how, of in fields.items()]
    trials = dict.fromkeys(f"or prove it: `{row['trial']}`" for row in rows if row.get("trial"))
    return [part for line in (*lines, *trials) for part in _wrapped(line)]


def _wrapped(line: str) -> Iterator[str]:
    yield from textwrap.wrap(line, WIDTH - 4, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {clean(line)}" for line in lines]
