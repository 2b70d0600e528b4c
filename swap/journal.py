"""What we were doing, on disk before we do it: one small JSON file, replaced whole or not at all."""

from __future__ import annotations

from pathlib import Path

import msgspec

from swap.durable import Guard, anywhere, read_file, replace_file
from swap.ports import Fault, JournalEntry


class FileJournal:
    """The journal in one file. Its calls touch the disk (fsync): call them off the event loop where that matters."""

    def __init__(self, path: Path, guard: Guard = anywhere) -> None:
        self._path, self._guard = path, guard

    def read(self) -> JournalEntry | None:
        """The last entry; None when none was written yet. Raises Fault when the file is damaged or unreadable."""
        try:
            return msgspec.json.decode(read_file(self._path), type=JournalEntry)
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
        """Durable and atomic when it returns. Raises Fault (disk full, read-only): the old entry stands then.

        A folder that is gone isn't made again: what else was in it is gone, too, and somebody must know.
        """
        try:
            self._guard()
            replace_file(self._path, msgspec.json.encode(entry) + b"\n")
        except OSError as error:
            raise Fault(
                f"the journal {self._path} can't be written: {error.strerror}",
                "make room or make its folder writable: nothing is changed without it",
            ) from error
