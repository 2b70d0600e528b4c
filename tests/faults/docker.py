"""`python -m tests.faults.docker`: the matrix on a real Docker, as a table; what is broken ends it with 1.

It starts a Docker daemon of its own (root), and takes ten minutes.

--write           also into docs/faults.md
--only TEXT       the cells that have this in `step / fault`
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from tests.faults.docker_cells import places, tried
from tests.faults.scene import Scene, scene
from tests.faults.table import BROKEN, DOCKER, Cell, render, rewritten
from tests.system.conftest import find_compose
from tests.system.private import lacking

DOCUMENT = Path(__file__).parents[2] / "docs" / "faults.md"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.docker")
    parser.add_argument("--write", action="store_true", help="also into docs/faults.md")
    parser.add_argument("--only", default="", help="the cells that have this in `step / fault`")
    options = parser.parse_args()
    if why := lacking():
        print(why, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended all the same
    with scene(find_compose()) as box:
        found = _run(box, options.only)
    print(render(found))
    broken = any(cell.result == BROKEN for cell in found)
    if options.write and not broken and not options.only:
        before = DOCUMENT.read_text() if DOCUMENT.exists() else ""
        DOCUMENT.write_text(rewritten(before, DOCKER, found))
    return 1 if broken else 0


def _run(box: Scene, only: str) -> list[Cell]:
    found = []
    for place in places():
        if only in f"{place.step} / {place.fault}":
            began = time.monotonic()
            found.append(cell := tried(box, place))
            note = f": {cell.note}" if cell.note else ""
            print(f"{time.monotonic() - began:5.1f} s  {' / '.join(cell.place)}: {cell.result}{note}", file=sys.stderr)
    return found


if __name__ == "__main__":
    sys.exit(main())
