"""Is our hashing as fast as sha256sum? Side by side on one file, in turn, from a warm page cache.

    python -m tests.bench.hashing [SIZE]     a file of SIZE (2GiB), in a temporary folder ($TMPDIR)

Prints each round, and the ratio of the best rounds: ours may take 1.10 of what sha256sum takes.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from slotproxy.units import format_size, parse_size
from swap.hashing import Hasher
from swap.reading import Reading

ROUNDS = 5
BLOCK = 1024 * 1024
LIMIT = 1800.0  # seconds that sha256sum may take


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds."""

    ours: float
    sha256sum: float


def main(words: list[str]) -> int:
    size = parse_size(words[0]) if words else parse_size("2GiB")
    if shutil.which("sha256sum") is None:
        print("there is no sha256sum here to compare with", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        rounds = asyncio.run(compare(write(Path(folder) / "file", size), ROUNDS))
    print(f"{format_size(size)}, seconds")
    print(f"{'round':>5}  {'ours':>7}  {'sha256sum':>9}")
    for n, one in enumerate(rounds, 1):
        print(f"{n:>5}  {one.ours:>7.3f}  {one.sha256sum:>9.3f}")
    print(f"ratio of the best: {ratio(rounds):.3f}")
    return 0


def write(path: Path, size: int) -> Path:
    """A file of bytes that nothing can compress."""
    block = os.urandom(BLOCK)
    with path.open("wb") as file:
        for done in range(0, size, BLOCK):
            file.write(block[: size - done])
    return path


async def compare(path: Path, rounds: int) -> list[Round]:
    """One unmeasured round first, to warm the cache. Raises AssertionError where the two disagree."""
    hasher = Hasher(path.with_name("hashes.json"))
    measured = []
    for _ in range(rounds + 1):
        ours, mine = await _ours(hasher, path)
        theirs, other = await asyncio.to_thread(_sha256sum, path)
        assert mine == other, f"we say {mine}, sha256sum says {other}"
        measured.append(Round(ours, theirs))
    return measured[1:]


async def _ours(hasher: Hasher, path: Path) -> tuple[float, str]:
    began = time.monotonic()
    digest = await hasher.digest(path, Reading(anew=True))
    return time.monotonic() - began, digest.sha256


def _sha256sum(path: Path) -> tuple[float, str]:
    began = time.monotonic()
    ran = subprocess.run(["sha256sum", str(path)], capture_output=True, text=True, check=True, timeout=LIMIT)
    return time.monotonic() - began, ran.stdout.split()[0]


def ratio(rounds: list[Round]) -> float:
    """Of the best rounds: what else the machine did only ever adds."""
    return min(one.ours for one in rounds) / min(one.sha256sum for one in rounds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
