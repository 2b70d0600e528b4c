"""Evidence of pairs: an append-only file, one in-toto Statement a line, each carrying the hash of the line before.

What a line looks like is in `swap.statement`, which lines count in `swap.chain`; here are the files:

    ledger.jsonl         the lines; nothing in it is ever changed or removed
    ledger.jsonl.torn    what a crash cut off in the middle of an append: set aside, reported, counting for nothing
    ledger.head          each line's hash, and what is revoked: written after each line, it shows what is lost or edited

Where the chain is broken nothing more is recorded until `repair`: then what is there could not be told from what was.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from swap.chain import Chain, Head, parse, read_head, sha256, write_head
from swap.durable import Guard, anywhere, expect_regular, read_file, replace_file, sync_folder
from swap.ports import Evidence, Fault
from swap.standing import standing_revocations
from swap.statement import UNREADABLE, Repair, key, line_of, mask_argv, mask_env, repair_line

__all__ = ["FileLedger", "key", "mask_argv", "mask_env"]

PIECE = 1 << 20  # bytes read at once
LOCK_LIMIT = 5.0  # seconds to wait for another writer


class FileLedger:
    """The ledger in one file (0600). `evidence`, `chain` and `problems` use memory; the others touch the disk: call
    them off the event loop.

    Making one never raises, so that requests pass whatever the disk does: `problems()` says what is wrong with it.
    """

    def __init__(self, path: Path, guard: Guard = anywhere) -> None:
        self.path, self._guard = path, guard
        self._torn_path = path.with_name(path.name + ".torn")
        self._head_path = path.with_suffix(".head")
        self._chain = Chain()
        self._read = hashlib.sha256()  # all bytes that the chain was read from: whatever else is in the file is news
        self._unusable = ""
        self._head_trouble = ""
        self._torn = False
        self.reread()

    def evidence(self) -> tuple[Evidence, ...]:
        return self._chain.evidence

    def chain(self) -> Chain:
        """What was read or written last."""
        return self._chain

    @property
    def whole(self) -> bool:
        """Nothing is lost, changed or out of reach. A torn line that was set aside was none."""
        return not (self._unusable or self._damaged)

    @property
    def _damaged(self) -> bool:
        return self._chain.broken is not None or bool(self._head_trouble or self._chain.doubt)

    def problems(self) -> list[str]:
        """What was found wrong with the file, a line each. Touches no disk."""
        found = [self._unusable] if self._unusable else []
        if self._chain.broken is not None:
            found.append(f"{self._broken()}; look what happened to it, then `slotctl pairs repair --reason TEXT`")
        if self._head_trouble or self._chain.doubt:
            count = "" if self._chain.broken is not None else "the lines count, but "
            found.append(
                f"the head {self._head_path} {self._head_trouble or self._chain.doubt}; {count}look what happened, "
                "then `slotctl pairs repair --reason TEXT`"
            )
        if self._torn:
            found.append(
                f"a crash cut off the last line of {self.path}: it was set aside in {self._torn_path} and counts "
                "for nothing; look at it, then remove that file"
            )
        return found

    def reread(self) -> Chain:
        """What is in the file now, whoever wrote it. Sets a torn last line aside where it can. Never raises."""
        self._unusable = ""
        try:
            self._guard()
        except OSError as error:  # what is there now isn't ours: what was read before counts on
            self._unusable = f"the ledger {self.path} isn't there: {error.strerror}; nothing more is recorded"
            return self._chain
        try:
            with self._locked() as fd:
                self._load(fd)
        except OSError as error:
            self._unusable = f"the ledger {self.path} can't be opened for writing: {error.strerror}"
            self._unusable += "; make room or correct its permissions: what it says counts, nothing more is recorded"
            self._read_only()
        except Fault as fault:
            self._unusable = str(fault)
            self._read_only()
        with contextlib.suppress(OSError):
            self._torn = self._torn_path.exists()
        return self._chain

    def record(self, evidence: Evidence) -> None:
        """Append, fsynced when it returns. `evidence.key` is computed here; secrets are masked.

        Raises Fault (disk full, read-only, broken chain): nothing that was there is lost.
        """
        with self._writing() as fd:
            self._notice(fd)
            if self._chain.broken is not None:
                raise Fault(self._broken(), "look what happened to it, then `slotctl pairs repair --reason TEXT`")
            line = line_of(evidence, self._chain.last)
            self._append(fd, line, self._chain.grown(line))

    def repair(self, reason: str) -> Repair:
        """Let the chain go on after damage, with a line that says what it leaves out of account. Deletes nothing.

        Raises Fault: nothing is broken, or the disk won't have it.
        """
        with self._writing() as fd:
            self._load(fd)
            chain = self._chain
            if not self._damaged:
                raise Fault(f"nothing is broken in the ledger {self.path}: {chain.counting} lines count")
            if chain.torn:
                self._set_aside(fd, chain.torn)
            data = _read_all(fd)
            self._read = hashlib.sha256(data)
            line, repair = self._mending(data, reason)
            mended = parse(data + line + b"\n", None)
            assert mended.broken is None, mended.broken
            revoked = [one for one in standing_revocations(chain.evidence) if one not in mended.evidence]
            self._append(fd, line, replace(mended, evidence=(*mended.evidence, *revoked)))
            self._head_trouble = ""
            return repair

    def _mending(self, data: bytes, reason: str) -> tuple[bytes, Repair]:
        chain = self._chain
        repair = Repair(
            first=chain.broken.line if chain.broken is not None else len(chain.lines) + 1,
            last=len(chain.lines),
            reason=reason,
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            size=len(data),
            sha256=sha256(data),
            previous=chain.last,
        )
        return repair_line(repair, self.path.name), repair

    def line(self, evidence: Evidence) -> bytes | None:
        """The very bytes of the line that holds this evidence, without the newline; None: it is there no more."""
        chain = self.reread()
        found = next((entry for entry in chain.entries if entry.what == evidence), None)
        try:
            return None if found is None else read_file(self.path).split(b"\n")[found.number - 1]
        except OSError as error:
            raise Fault(f"the ledger {self.path} can't be read: {error.strerror}", "make it readable") from error

    def _broken(self) -> str:
        broken = self._chain.broken
        assert broken is not None
        there = f"line {broken.line} of {len(self._chain.lines)} and what comes after it count for nothing"
        rest = there if broken.line <= len(self._chain.lines) else "nothing more is recorded"
        return f"the ledger {self.path} is broken: {broken.why}: {rest}"

    # ------------------------------------------------------------------------------------------ reading

    def _load(self, fd: int) -> None:
        """Read the file; mend what a crash of ours leaves, and only that."""
        data = _read_all(fd)
        head = self._take(data)
        chain = self._chain
        crashed = head != chain.head if head is not None else len(chain.lines) == 1
        if crashed and chain.broken is None and not self._head_trouble and not chain.doubt and chain.lines:
            self._write_head(chain)  # before the cut: a head that is ahead of the lines means that some are gone
        if chain.torn and chain.broken is None:
            self._set_aside(fd, chain.torn)
            self._chain, self._read = replace(chain, torn=b""), hashlib.sha256(data[: -len(chain.torn)])

    def _take(self, data: bytes) -> Head | None:
        head, self._head_trouble = self._head()
        self._chain, self._read = parse(data, head), hashlib.sha256(data)
        if head is None and not self._head_trouble and len(self._chain.lines) > 1:
            self._head_trouble = "is missing: somebody removed it"
        return head

    def _head(self) -> tuple[Head | None, str]:
        """None where there is none; and why one that is there can't be read."""
        try:
            return read_head(read_file(self._head_path)), ""
        except FileNotFoundError:
            return None, ""
        except OSError as error:
            return None, f"can't be read: {error.strerror}"
        except UNREADABLE as error:
            return None, f"is damaged ({error})"

    def _notice(self, fd: int) -> None:
        """Read again what somebody else has written, or changed, meanwhile; and what could only be read so far."""
        if self._chain.torn or _digest(fd) != self._read.digest():
            self._load(fd)

    def _read_only(self) -> None:
        """What was recorded still counts where the file can only be read; and what is known, where not even that."""
        with contextlib.suppress(OSError):  # `_unusable` says so already
            self._take(read_file(self.path))

    # ------------------------------------------------------------------------------------------ writing

    def _append(self, fd: int, line: bytes, chain: Chain) -> None:
        """The line, and the head of the chain that it makes; neither where either fails."""
        size = os.fstat(fd).st_size
        try:
            _write_all(fd, line + b"\n")
            os.fsync(fd)
            self._write_head(chain)
        except OSError:
            with contextlib.suppress(OSError):  # else the next load sets the half line aside
                os.ftruncate(fd, size)
            raise
        self._chain = chain
        self._read.update(line + b"\n")  # a long ledger isn't read once more

    def _write_head(self, chain: Chain) -> None:
        replace_file(self._head_path, write_head(chain.head))

    def _set_aside(self, fd: int, torn: bytes) -> None:
        """First a durable copy, then the cut: a crash between the two leaves the line twice, never nowhere."""
        aside = os.open(self._torn_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            _write_all(aside, torn + b"\n")
            os.fsync(aside)
        finally:
            os.close(aside)
        sync_folder(self.path.parent)
        os.ftruncate(fd, os.fstat(fd).st_size - len(torn))
        os.fsync(fd)
        self._torn = True

    @contextlib.contextmanager
    def _writing(self) -> Iterator[int]:
        try:
            self._guard()
            with self._locked() as fd:
                yield fd
                self._unusable = ""
        except OSError as error:
            raise Fault(
                f"the ledger {self.path} can't be written: {error.strerror}",
                "make room or make it writable, then order it again, or if it serves: `slotctl pairs adopt` it",
            ) from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """The file, opened for this one use, with every other writer kept out."""
        self._expect_there()
        fd = self._open()
        try:
            yield fd
        finally:
            os.close(fd)

    def _expect_there(self) -> None:
        """Nothing that was recorded is lost without a word: a new ledger is begun only where none is known."""
        if self._chain.lines and not self.path.exists() and not self._head_path.exists():
            what = f"the ledger {self.path} is gone, and its head with it"
            known = f"its {len(self._chain.lines)} lines count as long as this slotproxy runs"
            raise Fault(f"{what}: {known}, nothing more is recorded", "put its folder back as it was")

    def _open(self) -> int:
        """Locked, and still the file of that name: another may have been put in its place while we waited."""
        while True:
            new = not self.path.exists()
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
            try:
                expect_regular(fd, self.path)
                if new:
                    sync_folder(self.path.parent)
                _lock(fd, self.path)
                if os.path.samestat(os.fstat(fd), self.path.stat()):
                    return fd
            except FileNotFoundError:
                pass
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)


def _lock(fd: int, path: Path) -> None:
    deadline = time.monotonic() + LOCK_LIMIT
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise Fault(
                    f"another process keeps the ledger {path} locked", "end that process", passing=True
                ) from None
            time.sleep(0.02)


def _read_all(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    data = bytearray()
    while len(data) < size and (piece := os.pread(fd, size - len(data), len(data))):
        data += piece
    return bytes(data)


def _digest(fd: int) -> bytes:
    """Of the whole file, a piece at a time."""
    digest, offset = hashlib.sha256(), 0
    while piece := os.pread(fd, PIECE, offset):
        digest.update(piece)
        offset += len(piece)
    return digest.digest()


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
