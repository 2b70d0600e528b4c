"""Evidence of pairs: an append-only file, one in-toto Statement a line, each carrying the hash of the line before.

The subjects of a statement are the image and each file that the engine really read, the predicate says what
happened. `parse` is pure; `FileLedger` does the I/O. Two kinds of damage, treated apart:

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
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from swap.drift import looks_secret
from swap.journal import sync_folder
from swap.ports import CardIdentity, Evidence, Fault, FileDigest, Mount, Outcome, Subject

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:slotproxy:run:v1"
GENESIS = "0" * 64  # what the first line carries in place of a hash
LOCK_LIMIT = 5.0  # seconds to wait for another writer

_MASKED = re.compile(r"sha256:[0-9a-f]{64}")


def mask_env(env: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The environment, sorted, with the values of secrets replaced by their sha256. Masking twice changes nothing."""
    return tuple(sorted((name, _masked(value) if looks_secret(name) else value) for name, value in env))


def mask_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """The command line with the values of `--api-key X`, `--hf-token=X` and their like replaced by their sha256."""
    return tuple(_masked_word(before, word) for before, word in zip(("", *argv), argv, strict=False))


def _masked_word(before: str, word: str) -> str:
    name, equals, value = word.partition("=")
    if equals and name.startswith("-") and looks_secret(name):
        return f"{name}={_masked(value)}"
    follows_secret = before.startswith("-") and "=" not in before and looks_secret(before)
    return _masked(word) if follows_secret and not word.startswith("-") else word


def _masked(value: str) -> str:
    return value if _MASKED.fullmatch(value) else "sha256:" + hashlib.sha256(_bytes(value)).hexdigest()


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def key(subject: Subject) -> str:
    """The pair's name in the ledger: sha256 over canonical JSON of all that decides what runs.

    Files count by content and order, not by where they lie on the host; a mount by where the engine sees it.
    """
    what = {
        "engine": subject.engine,
        "image_id": subject.image_id,
        "argv": mask_argv(subject.argv),
        "env": mask_env(subject.env),
        "files": [[file.sha256, file.size] for file in subject.files],
        "working_dir": subject.working_dir,
        "user": subject.user,
        "mounts": sorted([mount.target, mount.read_only] for mount in subject.mounts),
        "devices": list(subject.devices),
    }
    return hashlib.sha256(_canonical(what)).hexdigest()


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


# ------------------------------------------------------------------------------------------------- one line


def line_of(evidence: Evidence, previous: str) -> bytes:
    """The statement as one line without its newline; `previous` is the hash of the line before."""
    subject = evidence.subject
    image = {"name": evidence.image or subject.image_id, "digest": {"sha256": _hex(subject.image_id)}}
    files = [
        {"name": file.path, "digest": {"sha256": file.sha256}, "annotations": {"size": file.size}}
        for file in subject.files
    ]
    predicate = {
        "previous": previous,
        "engine": subject.engine,
        "imageId": subject.image_id,
        "argv": mask_argv(subject.argv),
        "env": mask_env(subject.env),
        "workingDir": subject.working_dir,
        "user": subject.user,
        "mounts": [asdict(mount) for mount in subject.mounts],
        "devices": subject.devices,
        "key": key(subject),
        "outcome": evidence.outcome.value,
        "pair": evidence.pair,
        "when": evidence.when,
        "how": evidence.how,
        "card": asdict(evidence.card),
        "image": evidence.image,
        "readyIn": evidence.ready_in,
        "tokens": evidence.tokens,
        "reason": evidence.reason,
        "extra": dict(evidence.extra),
    }
    statement = {
        "_type": STATEMENT,
        "subject": [image, *files],
        "predicateType": PREDICATE,
        "predicate": predicate,
    }
    return _canonical(statement)


def evidence_of(statement: Mapping[str, Any]) -> Evidence:
    """The evidence that a statement holds.

    Raises ValueError, KeyError, TypeError or MsgspecError when it isn't one of ours.
    """
    if (statement["_type"], statement["predicateType"]) != (STATEMENT, PREDICATE):
        raise ValueError("not a statement of ours")
    it = statement["predicate"]
    files = [
        FileDigest(one["name"], one["annotations"]["size"], one["digest"]["sha256"]) for one in statement["subject"][1:]
    ]
    subject = Subject(
        engine=it["engine"],
        image_id=it["imageId"],
        argv=tuple(it["argv"]),
        env=tuple((name, value) for name, value in it["env"]),
        files=tuple(files),
        working_dir=it["workingDir"],
        user=it["user"],
        mounts=msgspec.convert(it["mounts"], tuple[Mount, ...]),
        devices=tuple(it["devices"]),
    )
    return Evidence(
        subject=subject,
        key=it["key"],
        outcome=Outcome(it["outcome"]),
        pair=it["pair"],
        when=it["when"],
        how=it["how"],
        card=msgspec.convert(it["card"], CardIdentity),
        image=it["image"],
        ready_in=it["readyIn"],
        tokens=it["tokens"],
        reason=it["reason"],
        extra=it["extra"],
    )


def _hex(image_id: str) -> str:
    return image_id.removeprefix("sha256:")


# ------------------------------------------------------------------------------------------------- the chain


@dataclass(frozen=True, slots=True)
class Chain:
    """What a ledger file says. `last` is the hash that the next line must carry."""

    evidence: tuple[Evidence, ...] = ()
    last: str = GENESIS
    torn: bytes = b""  # after the last newline
    broken: str = ""  # why nothing more counts; empty: the chain is whole
    size: int = 0  # bytes of the file when it was read


def parse(data: bytes) -> Chain:
    """Read a ledger: as far as the chain holds."""
    *lines, torn = data.split(b"\n")
    found: list[Evidence] = []
    last = GENESIS
    for number, line in enumerate(lines, start=1):
        try:
            statement = json.loads(line)
            evidence = evidence_of(statement)
            previous = statement["predicate"]["previous"]
        except (ValueError, KeyError, TypeError, msgspec.MsgspecError) as error:
            return Chain(tuple(found), last, b"", _broken(number, len(lines), f"can't be read ({error})"), len(data))
        if previous != last:
            why = _broken(number, len(lines), f"doesn't follow from {'the one before' if found else 'nothing'}")
            return Chain(tuple(found), last, b"", why, len(data))
        found.append(evidence)
        last = hashlib.sha256(line).hexdigest()
    return Chain(tuple(found), last, torn, "", len(data))


def _broken(number: int, lines: int, why: str) -> str:
    return f"line {number} of {lines} {why}: it and what comes after it count for nothing"


class FileLedger:
    """The ledger in one file (0600). Reading uses memory; `record` touches the disk: call it off the event loop.

    A file that can't be opened makes an empty ledger that says so in `problems()`, so that requests still pass.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._torn_path = path.with_name(path.name + ".torn")
        self._chain = Chain()
        self._unusable = ""
        try:
            with self._locked() as fd:
                self._load(fd)
        except OSError as error:
            self._unusable = f"the ledger {path} can't be opened for writing: {error.strerror}; correct its permissions"
            self._read_only()
        except Fault as error:
            self._unusable = str(error)
            self._read_only()

    def verified(self, subject: Subject, card: CardIdentity | None) -> Evidence | None:
        """The newest `served` evidence of exactly this subject that counts on this card.

        It counts on the very card (UUID) that it was made on, and never between a simulated and a real one. Without
        a card (it can't be asked now) any real card's counts: nothing is started while the card is unknown.
        """
        return self._newest(subject, lambda one: one.outcome is Outcome.SERVED and _counts(one.card, card))

    def last_failure(self, subject: Subject) -> Evidence | None:
        """The newest `failed` evidence of this subject, whatever came after it, on whichever card."""
        return self._newest(subject, lambda one: one.outcome is Outcome.FAILED)

    def evidence(self) -> tuple[Evidence, ...]:
        return self._chain.evidence

    def problems(self) -> list[str]:
        """What is wrong with the file, a line each, for `status` and `pairs`."""
        found = [self._unusable] if self._unusable else []
        if self._chain.broken:
            found.append(f"the ledger {self._path} is broken: {self._chain.broken}")
        if self._torn_path.exists():
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

    def _newest(self, subject: Subject, counts: Callable[[Evidence], bool]) -> Evidence | None:
        wanted = key(subject)
        for one in reversed(self._chain.evidence):
            if one.subject.image_id == subject.image_id and counts(one) and key(one.subject) == wanted:
                return one
        return None

    def _load(self, fd: int) -> None:
        data = _read_all(fd)
        chain = parse(data)
        if chain.torn:
            self._set_aside(fd, chain.torn, keep=len(data) - len(chain.torn))
            chain = replace(chain, torn=b"", size=len(data) - len(chain.torn))
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


def _counts(made_on: CardIdentity, card: CardIdentity | None) -> bool:
    if card is None:
        return not made_on.simulated
    return (made_on.uuid, made_on.simulated) == (card.uuid, card.simulated)


def _read_all(fd: int) -> bytes:
    size = os.fstat(fd).st_size
    data = bytearray()
    while len(data) < size and (piece := os.pread(fd, size - len(data), len(data))):
        data += piece
    return bytes(data)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
