"""Small files of our own that survive a crash whole, and can be read without waiting for anybody."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

Guard = Callable[[], None]
"""Raises OSError where nothing may be written, whatever the disk says: the folder isn't ours any more."""


def anywhere() -> None:
    """No guard."""


def replace_file(path: Path, data: bytes) -> None:
    """Make `data` the whole content of `path`, durably: after a crash the file is the old one or the new one.

    The file is the owner's alone (0600). Raises OSError, also where there is no folder: the old content stands then.
    """
    draft = path.with_name(path.name + ".new")
    try:
        _write_through(draft, data)
        draft.replace(path)
    except OSError:
        _remove(draft)
        raise
    sync_folder(path.parent)


def _write_through(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)


def _remove(draft: Path) -> None:
    """Why the write failed is what is to be said, not why its remains stay."""
    try:
        draft.unlink(missing_ok=True)
    except OSError:
        return


def sync_folder(folder: Path) -> None:
    """Make what was created, renamed or removed in `folder` survive a crash."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_file(path: Path) -> bytes:
    """All of it. Raises OSError, also where it is no regular file: a fifo would keep us waiting for ever."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        expect_regular(fd, path)
        with os.fdopen(fd, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(fd)


def expect_regular(fd: int, path: Path) -> None:
    """Raises OSError where what was opened is a fifo, a folder, a device."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
