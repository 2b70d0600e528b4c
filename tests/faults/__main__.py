"""`python -m tests.faults`: the matrix on the fakes, as a table; what is broken ends it with 1.

--write           also into docs/faults.md
--only TEXT       the cells whose step, fault or variant has this in it, with their stories
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.faults.matrix import bench, places
from tests.faults.table import BROKEN, FAKES, Cell, render, rewritten

DOCUMENT = Path(__file__).parents[2] / "docs" / "faults.md"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", action="store_true", help="also into docs/faults.md")
    parser.add_argument("--only", default="", help="the cells that have this in `step / fault / variant`, with stories")
    options = parser.parse_args()
    found = _played(options.only)
    print(render(found))
    broken = [cell for cell in found if cell.result == BROKEN]
    for cell in broken:
        print(f"BROKEN {' / '.join(cell.place)}: {cell.note}", file=sys.stderr)
    if options.write and not broken and not options.only:
        before = DOCUMENT.read_text() if DOCUMENT.exists() else ""
        DOCUMENT.write_text(rewritten(before, FAKES, found))
    return 1 if broken else 0


def _played(only: str) -> list[Cell]:
    found = []
    with bench() as stage:
        for step, mishap, variant in places():
            if only in f"{step} / {mishap.name} / {variant.name}":
                cell, verdict = stage.cell(step, mishap, variant)
                found.append(cell)
                if only and verdict is not None:
                    print(f"# {' / '.join(cell.place)}", *verdict.story, sep="\n    ")
    return found


if __name__ == "__main__":
    sys.exit(main())
