"""`python -m tests.fuzz SURFACE`: see the package. Exits with 1, and tells what it found, when something was wrong."""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable

from tests.fuzz import answers, bodies, event_streams, http_surface

SURFACES: dict[str, Callable[[float, int], str]] = {
    "answers": answers.fuzz,
    "bodies": bodies.fuzz,
    "http": http_surface.fuzz,
    "sse": event_streams.fuzz,
}


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Hostile input, at random.")
    parser.add_argument("surface", choices=SURFACES, help="what is fuzzed")
    parser.add_argument("--minutes", type=float, default=10.0, help="no round begins later (default: 10)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="what is drawn (default: any)")
    args = parser.parse_args(words)
    print(f"seed {args.seed}", flush=True)
    found = SURFACES[args.surface](args.minutes, args.seed)
    print(found or "nothing was wrong")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
