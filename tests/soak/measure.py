"""Does the daemon grow? Measured in quiet moments: nobody asks, nothing is under way."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

MiB = 1024**2
MORE_FILES = 4  # descriptors that one quiet moment may show more than another
MORE_THREADS = 8  # the pool for blocking calls fills as it is needed
MORE_MEMORY = 12 * MiB  # that a life may add once it is warm
A_REQUEST = 512  # bytes that each request may leave behind: logs, counts, fragments


@dataclass(frozen=True, slots=True)
class Size:
    """Of one process, when so many requests had been answered in its life. `memory`: resident bytes."""

    requests: int
    memory: int
    files: int
    threads: int

    def __str__(self) -> str:
        return f"{self.memory / MiB:.1f} MiB, {self.files} files, {self.threads} threads"


def measure(pid: int, requests: int) -> Size:
    lines = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
    files = len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - names are all that is wanted
    return Size(requests, int(lines["VmRSS"].split()[0]) * 1024, files, int(lines["Threads"]))


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
    return f"{', '.join(grown)} grew over {last.requests - first.requests} requests: {first} → {last}" if grown else ""
