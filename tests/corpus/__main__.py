"""`python -m tests.corpus`: see the package. Exits with 1 when an answer came harmed, after telling all that did."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Iterable

from tests.corpus import engines, framings, odd
from tests.corpus.answer import Answer
from tests.corpus.sending import every
from tests.corpus.through import road


def answers() -> list[Answer]:
    return [*engines.answers(), *odd.answers(), *framings.long(), *framings.short(), *framings.broken()]


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.corpus", description="Every answer, cut in every way.")
    parser.add_argument("--only", default="", help="answers whose name has this text in it")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the random cuts (default: any)")
    args = parser.parse_args(words)
    began, chosen = time.monotonic(), [answer for answer in answers() if args.only in answer.name]
    sent, harmed = asyncio.run(_send(chosen, random.Random(args.seed)))
    for each in harmed:
        print(each)
    seconds = time.monotonic() - began
    print(f"seed {args.seed}: {len(chosen)} answers sent {sent} times in {seconds:.0f} s, {len(harmed)} times harmed")
    return 1 if harmed or not sent else 0


async def _send(chosen: Iterable[Answer], chance: random.Random) -> tuple[int, list[str]]:
    harmed = []
    async with road() as way:
        for answer in chosen:
            for sending in every(answer, chance):
                try:
                    await way.go(sending)
                except (AssertionError, TimeoutError) as error:
                    harmed.append(f"{sending}: {error!r}")
    return way.sent, harmed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
