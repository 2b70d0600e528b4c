"""What we were doing, on disk before we do it: one small JSON file, replaced whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from swap.ports import Fault, JournalEntry


def replace_file(path: Path, data: bytes) -> None:
    """Make `data` the whole content of `path`, durably: after a crash the file is the old one or the new one.

    The file is the owner's alone (0600). Raises OSError; the old content stands then.
    """
    draft = path.with_name(path.name + ".new")
    try:
        _write_through(draft, data)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _write_through(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)


def sync_folder(folder: Path) -> None:
    """Make what was created, renamed or removed in `folder` survive a crash."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class FileJournal:
    """The journal in one file. Its calls touch the disk (fsync): call them off the event loop where that matters."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> JournalEntry | None:
        """The last entry; None when none was written yet. Raises Fault when the file is damaged or unreadable."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=JournalEntry)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Fault(f"the journal {self._path} can't be read: {error.strerror}", "make it readable") from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Fault(
                f"the journal {self._path} is damaged: {error}",
                "move it away; what runs is then adopted as it is",
            ) from error

    def write(self, entry: JournalEntry) -> None:
        """Durable and atomic when it returns. Raises Fault (disk full, read-only): the old entry stands then."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, msgspec.json.encode(entry) + b"\n")
        except OSError as error:
            raise Fault(
                f"the journal {self._path} can't be written: {error.strerror}",
                "make room or make its folder writable: nothing is changed without it",
            ) from error
