"""The table of the fault matrix: what a cell is, how `docs/faults.md` shows it, and how it is read back.

One file, two sections: what the fakes give and what a real Docker gives. Each is made by its own run, and writing one
leaves the other as it is. Within a section each step of a swap has a table: a row for each fault, a column for each
variant. A cell holds its result and, after a colon, a note.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FAKES, DOCKER = "On the fakes", "On a real Docker"
SECTIONS = (FAKES, DOCKER)

NEW, OLD, OTHER, DARK = "the new one serves", "the old one serves", "another one serves", "dark"
NOT_APPLICABLE = "n/a"  # its note says why it can't happen
BROKEN = "BROKEN"  # its note says which promise; never in the file
RESULTS = (NEW, OLD, OTHER, DARK, NOT_APPLICABLE, BROKEN)

INTRODUCTION = """\
# The fault matrix

Written by `python -m tests.faults --write`; a test fails when it isn't what the run gives. The second section is
written by `python -m tests.faults.docker --write`, and CI plays a sample of it. Each cell is one swap (from the old one
to the new one) with one fault in one step of it. After each the same is looked at from outside: never two engines up,
in the end exactly one serves or the daemon says why none does, the exit code given is the truth, the journal can be
read, no evidence of what didn't serve, each client that waited answered once, and a following ordinary swap works,
there and back. The result is who served when the fault was over and nobody had ordered anything anew; the note is the
order's exit code, or *no answer* where the daemon ended before it could give one.
"""


@dataclass(frozen=True, slots=True)
class Cell:
    """One swap with one fault in one step. `result` is one of RESULTS; `note` is for people: the exit code, why n/a."""

    step: str
    fault: str
    variant: str
    result: str
    note: str = ""

    def __post_init__(self) -> None:
        assert self.result in RESULTS, self.result
        assert not set("|\n") & set(f"{self.step}{self.fault}{self.variant}{self.note}"), self

    @property
    def place(self) -> tuple[str, str, str]:
        return self.step, self.fault, self.variant


def render(cells: Sequence[Cell]) -> str:
    """A section without its heading. Steps, faults and variants stand in the order in which they come."""
    by_step: dict[str, list[Cell]] = {}
    for cell in cells:
        by_step.setdefault(cell.step, []).append(cell)
    return "\n".join(_table(step, of_step) for step, of_step in by_step.items())


def _table(step: str, cells: Sequence[Cell]) -> str:
    faults, variants = _order(cell.fault for cell in cells), _order(cell.variant for cell in cells)
    shown = {cell.place: f"{cell.result}: {cell.note}" if cell.note else cell.result for cell in cells}
    rows = [["fault", *variants], ["---"] * (len(variants) + 1)]
    rows += [[fault, *(shown.get((step, fault, variant), "") for variant in variants)] for fault in faults]
    return f"### {step}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _order(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def read(document: str, section: str) -> list[Cell]:
    """The cells that this section of the document shows."""
    cells: list[Cell] = []
    step, variants = "", [""]
    for line in _section(document, section):
        if line.startswith("### "):
            step = line.removeprefix("### ")
        elif line.startswith("| fault "):
            variants = _row(line)[1:]
        elif line.startswith("| ") and not line.startswith("| ---"):
            fault, *shown = _row(line)
            cells += [_cell(step, fault, *pair) for pair in zip(variants, shown, strict=True) if pair[1]]
    return cells


def _cell(step: str, fault: str, variant: str, shown: str) -> Cell:
    result, _, note = shown.partition(": ")
    return Cell(step, fault, variant, result, note)


def _row(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _section(document: str, section: str) -> list[str]:
    lines = itertools.dropwhile(lambda line: line != f"## {section}", document.splitlines())
    return list(itertools.takewhile(lambda line: not line.startswith("## "), itertools.islice(lines, 1, None)))


def rewritten(document: str, section: str, cells: Sequence[Cell]) -> str:
    """The document with this section anew, the other one as it is."""
    parts = [INTRODUCTION]
    for name in SECTIONS:
        body = render(cells) if name == section else "\n".join(_section(document, name)).strip() + "\n"
        parts.append(f"## {name}\n\n{body.strip()}\n" if body.strip() else f"## {name}\n")
    return "\n".join(parts)


def differences(written: Sequence[Cell], found: Sequence[Cell]) -> list[str]:
    """What the file says otherwise than the run; empty where they agree."""
    before, now = ({cell.place: cell for cell in cells} for cells in (written, found))
    return [
        f"{' / '.join(place)}: written {_said(before.get(place))}, found {_said(now.get(place))}"
        for place in sorted(before.keys() | now.keys())
        if before.get(place) != now.get(place)
    ]


def _said(cell: Cell | None) -> str:
    return "nothing" if cell is None else f"{cell.result!r} ({cell.note})"
