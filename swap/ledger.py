"""Evidence of pairs: an append-only file, one in-toto Statement a line, each carrying the hash of the line before.

What a line looks like and which lines count is in `swap.statement`; here is the file. Two kinds of damage:

    a torn last line     a crash in the middle of an append (no newline yet, so `record` never returned): it is moved to
                         `ledger.jsonl.torn`, reported, and counts for nothing; what is before it counts
    a broken chain       a line that can't be read or doesn't follow from the one before: somebody edited the file.
                         Nothing from there on counts, nothing more is recorded, and the file is left as it is
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from swap.journal import sync_folder
from swap.ports import Evidence, Fault
from swap.statement import Chain, evidence_of, key, line_of, mask_argv, mask_env, parse

__all__ = ["FileLedger", "key", "mask_argv", "mask_env"]

LOCK_LIMIT = 5.0  # seconds to wait for another writer


class FileLedger:
    """The ledger in one file (0600). Reading uses memory; `record` touches the disk: call it off the event loop.

    Making one never raises, so that requests pass whatever the disk does: `problems()` says what is wrong with it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._torn_path = path.with_name(path.name + ".torn")
        self._chain = Chain()
        self._unusable = ""
        self._torn = False
        try:
            with self._locked() as fd:
                self._load(fd)
        except OSError as error:
            self._unusable = f"the ledger {path} can't be opened for writing: {error.strerror}; correct its permissions"
            self._read_only()
        except Fault as fault:
            self._unusable = str(fault)
            self._read_only()
        with contextlib.suppress(OSError):
            self._torn = self._torn_path.exists()

    def evidence(self) -> tuple[Evidence, ...]:
        return self._chain.evidence

    def problems(self) -> list[str]:
        """What was found wrong with the file, a line each. Touches no disk."""
        found = [self._unusable] if self._unusable else []
        if self._chain.broken:
            found.append(f"the ledger {self._path} is broken: {self._chain.broken}")
        if self._torn:
            found.append(
                f"a crash cut off the last line of {self._path}: it was set aside in {self._torn_path} and counts "
                "for nothing; look at it, then remove that file"
            )
        return found

    def record(self, evidence: Evidence) -> None:
        """Append, fsynced when it returns. `evidence.key` is computed here; secrets are masked.

        Raises Fault (disk full, read-only, broken chain): nothing that was there is lost.
        """
        try:
            with self._locked() as fd:
                if os.fstat(fd).st_size != self._chain.size:
                    self._load(fd)
                self._append(fd, evidence)
                self._unusable = ""
        except OSError as error:
            raise Fault(
                f"the ledger {self._path} can't be written: {error.strerror}",
                "make room or make it writable, then `slotctl pairs adopt` the engine that serves",
            ) from error

    # ------------------------------------------------------------------------------------------ reading

    def _load(self, fd: int) -> None:
        data = _read_all(fd)
        chain = parse(data)
        if chain.torn:
            self._set_aside(fd, chain.torn, keep=len(data) - len(chain.torn))
            chain = replace(chain, torn=b"", size=len(data) - len(chain.torn))
            self._torn = True
        self._chain = chain

    def _read_only(self) -> None:
        """What was recorded still counts where the file can only be read."""
        with contextlib.suppress(OSError):
            self._chain = parse(self._path.read_bytes())

    # ------------------------------------------------------------------------------------------ writing

    def _append(self, fd: int, evidence: Evidence) -> None:
        chain = self._chain
        if chain.broken:
            raise Fault(
                f"the ledger {self._path} is broken: {chain.broken}",
                "move the file away, then `slotctl pairs adopt` the engine that serves",
            )
        line = line_of(evidence, chain.last)
        try:
            _write_all(fd, line + b"\n")
            os.fsync(fd)
        except OSError:
            with contextlib.suppress(OSError):  # else the next load sets the half line aside
                os.ftruncate(fd, chain.size)
            raise
        stored = evidence_of(json.loads(line))
        last = hashlib.sha256(line).hexdigest()
        self._chain = Chain((*chain.evidence, stored), last, size=chain.size + len(line) + 1)

    def _set_aside(self, fd: int, torn: bytes, *, keep: int) -> None:
        """First a durable copy, then the cut: a crash between the two leaves the line twice, never nowhere."""
        aside = os.open(self._torn_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            _write_all(aside, torn + b"\n")
            os.fsync(aside)
        finally:
            os.close(aside)
        sync_folder(self._path.parent)
        os.ftruncate(fd, keep)
        os.fsync(fd)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """The file, opened for this one use, with every other writer kept out."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = not self._path.exists()
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            if new:
                sync_folder(self._path.parent)
            self._lock(fd)
            yield fd
        finally:
            os.close(fd)

    def _lock(self, fd: int) -> None:
        deadline = time.monotonic() + LOCK_LIMIT
        while True:
            try:
                return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Fault(
                        f"another process keeps the ledger {self._path} locked", "end that process", passing=True
                    ) from None
                time.sleep(0.02)


def _read_all(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    data = bytearray()
    while len(data) < size and (piece := os.pread(fd, size - len(data), len(data))):
        data += piece
    return bytes(data)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
