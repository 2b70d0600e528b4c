"""The simulated card's folder: how a simulated engine takes and releases "VRAM".

One folder is one card. The fake NVML library of the tests and `swap.simulated.SimulatedCard` read it; simulated
engines write into it. The state is in the files at each moment, nobody has to run for it to be true:

    total           bytes of the card, decimal (missing: 32 GiB)
    reserved        bytes that the driver keeps: part of neither used (v2) nor free (missing: 0)
    baseline        bytes in use by no process that could be stopped, such as a desktop (missing: 0)
    allocations/N   one file per allocation: `BYTES [LINGER]`, held under an exclusive POSIX lock (fcntl) by the process
                    that took it. Lock held: BYTES are in use and F_GETLK tells the pid, also from inside a container.
                    Lock gone: free at once, or with LINGER (seconds, decimal) still in use until the file's mtime is
                    LINGER seconds old: the owner touches the file every 100 ms while it lives (late release).
    foreign/N       `BYTES PID NAME`: a holder in no container (bytes in use while the file exists)
    errors/CALL     an NVML return code, decimal, that CALL (`init`, `memory`, `processes`, `name`, …) answers with
    delays/CALL     seconds that CALL takes before it answers

A process that dies, however it dies, loses its lock: `docker kill` frees its VRAM as a real card would.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

DEFAULT_TOTAL = 32 * 1024**3
_FLOCK = struct.Struct("hhqqi4x")  # struct flock on 64-bit Linux: type, whence, start, length, pid


class OutOfMemory(Exception):
    """The card has fewer bytes free than were asked for."""

    def __init__(self, wanted: int, free: int) -> None:
        super().__init__(f"only {free} bytes are free, {wanted} wanted")
        self.wanted, self.free = wanted, free


def read_number(path: Path, default: int = 0) -> int:
    """The first word of a file as a whole number of bytes; `default` where there is no such file."""
    try:
        return int(path.read_text().split()[0])
    except (FileNotFoundError, IndexError):
        return default


@dataclass(frozen=True, slots=True)
class Use:
    """Bytes in use on the simulated card, and by whom (pid 0: a late release, nobody lives any more)."""

    name: str
    bytes: int
    pid: int


def uses(folder: Path) -> list[Use]:
    """Who holds memory now: locked or lingering allocations, then foreign holders."""
    found = [use for path in _files(folder / "allocations") if (use := _allocation(path)) is not None]
    return found + [use for path in _files(folder / "foreign") if (use := _foreign(path)) is not None]


def free_bytes(folder: Path) -> int:
    """Bytes that a new allocation could take."""
    total = read_number(folder / "total", DEFAULT_TOTAL)
    taken = read_number(folder / "reserved") + read_number(folder / "baseline") + sum(u.bytes for u in uses(folder))
    return max(0, total - taken)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _allocation(path: Path) -> Use | None:
    try:
        with path.open("rb") as file:
            words = file.read().split()
            pid = _lock_holder(file.fileno())
            age = time.time() - os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return None
    if not words:
        return None
    linger = float(words[1]) if len(words) > 1 else 0.0
    if pid or age < linger:
        return Use(path.name, int(words[0]), pid)
    return None


def _foreign(path: Path) -> Use | None:
    try:
        words = path.read_text().split(maxsplit=2)
    except FileNotFoundError:  # it left just now
        return None
    return Use(words[2].strip() if len(words) > 2 else path.name, int(words[0]), int(words[1])) if words else None


def _lock_holder(fd: int) -> int:
    """The pid that holds a write lock on the file; 0 if none does."""
    query = _flock(fcntl.F_WRLCK)
    answer = fcntl.fcntl(fd, fcntl.F_GETLK, query)
    kind, _, _, _, pid = _FLOCK.unpack(answer)
    return 0 if kind == fcntl.F_UNLCK else int(pid)


def _flock(kind: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0)


class Allocation:
    """VRAM taken by this process until `release()`, or its death. Use as a context manager or keep it alive.

    Raises OutOfMemory when the card hasn't `size` bytes free.
    """

    def __init__(self, folder: Path, name: str, size: int, *, linger: float = 0.0) -> None:
        (folder / "allocations").mkdir(parents=True, exist_ok=True)
        self._path = folder / "allocations" / name
        with (folder / "lock").open("w") as turn:
            fcntl.lockf(turn, fcntl.LOCK_EX)  # two engines must not both see the same free bytes
            free = free_bytes(folder)
            if free < size:
                raise OutOfMemory(size, free)
            self._file = self._path.open("w")
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file.write(f"{size} {linger}\n")
            self._file.flush()
        self._stop = threading.Event()
        if linger:
            threading.Thread(target=self._beat, name="vram-beat", daemon=True).start()

    def _beat(self) -> None:
        while not self._stop.wait(0.1):
            os.utime(self._file.fileno())

    def release(self) -> None:
        """Give the memory back (with a linger: late)."""
        self._stop.set()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
