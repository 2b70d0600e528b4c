"""Host memory: some engines pin tens of gigabytes of it, and give them back late."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engines.spec import GiB
from swap import proc
from swap.ports import Fault

SHOWN = 3  # processes that are named
WORTH = GiB  # bytes from which on a process is worth a word


@dataclass(frozen=True, slots=True)
class User:
    """A process that has so many bytes of host memory (its resident set, shared parts included)."""

    pid: int
    name: str
    bytes: int


def available(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Bytes that a new process could take without swapping (MemAvailable). Raises Fault when that can't be read."""
    try:
        for line in meminfo.read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) * 1024
    except (OSError, ValueError, IndexError) as error:
        raise Fault(f"{meminfo} can't be read: {error}", "look after /proc", passing=True) from error
    raise Fault(f"{meminfo} has no MemAvailable", "host memory can't be checked on this kernel")


def biggest() -> tuple[User, ...]:
    """Who has most of the host's memory, the biggest first; for messages, so what can't be read is left out."""
    most = sorted(_resident(), reverse=True)[:SHOWN]
    return tuple(User(pid, proc.name(pid) or "unknown", size) for size, pid in most if size >= WORTH)


def _resident() -> Iterator[tuple[int, int]]:
    """Bytes and pid of each process; the kernel's own threads have none."""
    for folder in proc.PROC.iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError, ValueError):
                lines = (folder / "status").read_text(errors="replace").splitlines()
                size = next((line.split()[1] for line in lines if line.startswith("VmRSS:")), "0")
                yield int(size) * 1024, int(folder.name)
