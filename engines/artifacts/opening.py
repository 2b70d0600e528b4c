"""Opening a file that an operator's path points to. It may be anything, and may become something else meanwhile."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LONGEST_NAME = 256
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class BadFile(Exception):
    """What is wrong with the file, in one line and without its name."""


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A regular file, open for reading. `size` as it was when it was opened."""

    fd: int
    size: int

    def read(self, count: int, offset: int) -> bytearray:
        """Exactly these bytes. Raises BadFile where it has become shorter."""
        found = bytearray(count)
        done = 0
        while done < count:
            more = os.preadv(self.fd, [memoryview(found)[done:]], offset + done)
            if not more:
                raise BadFile(f"it became shorter while it was read: {offset + done} bytes")
            done += more
        return found

    def head(self, count: int) -> bytes:
        """The first bytes, as many as there are."""
        return os.pread(self.fd, count, 0)


@contextlib.contextmanager
def opened(path: Path, expected: str) -> Iterator[OpenFile]:
    """Never blocks on a pipe or a device. `expected` says what it should be. Raises BadFile, OSError."""
    _require_regular(path.stat().st_mode, expected)
    # Between the look and the open the name may have come to mean a pipe: O_NONBLOCK, and a second look.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        facts = os.fstat(fd)
        _require_regular(facts.st_mode, expected)
        yield OpenFile(fd, facts.st_size)
    finally:
        os.close(fd)


def _require_regular(mode: int, expected: str) -> None:
    if not stat.S_ISREG(mode):
        raise BadFile(f"{_KINDS.get(stat.S_IFMT(mode), 'a special file')}, expected {expected}")


def printable(text: str) -> str:
    return text if text.isprintable() else ascii(text)


def begins(head: bytes) -> str:
    """The first bytes of a file, for a message."""
    return f"begins with {head[:8]!r}" if head else "empty"


def fault_of(error: OSError) -> str:
    """Why a part can't be read, in one line."""
    return "it does not exist" if isinstance(error, FileNotFoundError) else f"it can't be read: {error.strerror}"
