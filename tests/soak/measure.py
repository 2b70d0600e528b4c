"""Does the daemon grow? Measured in quiet moments: nobody asks, nothing is under way."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

MiB = 1024**2
MORE_FILES = 4  # descriptors that one quiet moment may show more than another
MORE_THREADS = 8  # the pool for blocking calls fills as it is needed
MORE_MEMORY = 12 * MiB  # that a life may add once it is warm
SAMPLES, BETWEEN = 5, 0.15  # seconds
A_REQUEST = 512  # bytes that each request may leave behind: logs, counts, fragments


@dataclass(frozen=True, slots=True)
class Size:
    """Of one process, when so many requests had been answered in its life. `memory`: resident bytes.

    `open`: what its descriptors are, for people.
    """

    requests: int
    memory: int
    files: int
    threads: int
    open: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.memory / MiB:.1f} MiB, {self.files} files, {self.threads} threads"


def measure(pid: int, requests: int) -> Size:
    """The least of some samples: whoever looks at the daemon has a connection to it."""
    samples = []
    for _ in range(SAMPLES):
        samples.append(_sample(pid, requests))
        time.sleep(BETWEEN)
    least = min(samples, key=lambda size: size.files)
    return replace(least, memory=samples[-1].memory, threads=min(size.threads for size in samples))


def _sample(pid: int, requests: int) -> Size:
    lines = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
    files = [_what(file) for file in Path(f"/proc/{pid}/fd").iterdir()]
    told = ", ".join(f"{count} {what}" for what, count in Counter(files).most_common())
    return Size(requests, int(lines["VmRSS"].split()[0]) * 1024, len(files), int(lines["Threads"]), told)


def _what(file: Path) -> str:
    with contextlib.suppress(OSError):
        target = str(file.readlink())
        return target.partition(":[")[0]
    return "gone"


def growth(sizes: list[Size], pooled: int = 0) -> str:
    """What has grown in one life since its first quiet moment, which comes when it is warm; empty: nothing has.

    `pooled`: connections that may be kept for the next use.
    """
    if len(sizes) < 2:
        return ""
    first, last = sizes[0], sizes[-1]
    memory = MORE_MEMORY + A_REQUEST * (last.requests - first.requests)
    faults = {
        "file descriptors": last.files - first.files > MORE_FILES + pooled,
        "threads": last.threads - first.threads > MORE_THREADS,
        "memory": last.memory - first.memory > memory,
    }
    grown = [name for name, true in faults.items() if true]
    if not grown:
        return ""
    requests = last.requests - first.requests
    return f"{', '.join(grown)} grew over {requests} requests: {first} → {last}; {first.open} → {last.open}"
