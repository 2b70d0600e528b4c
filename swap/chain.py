"""The chain that the ledger's lines make, what breaks it, and what counts then. Pure.

One rule: a line counts only where something that was written after it vouches for it. A later line does, by carrying
its hash; and the head does, a file beside the ledger that holds every line's hash and is written after each line:

    a line was edited       it isn't what the head says; without a head, the line after it doesn't carry its hash: then
                            neither counts, for nobody can tell which was edited
    lines are gone          the head knows of more; without it, the line after the gap doesn't follow
    the head is behind      by one line: a crash came between a line and the head. By more: somebody put an old head
                            there; it is reported, and the lines count as far as they vouch for each other
    the head is missing     somebody removed it: the same

Nothing after a break counts, until a repair: a line that carries the hash of *all* bytes before it, and says which
lines it leaves out of account. Nothing is ever deleted.

One thing counts wherever it stands, a revocation: it only takes away. The head remembers them, too, so that no damage
to the ledger gives back what an operator took.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, TypeGuard

import msgspec

from swap.ports import Evidence, Outcome
from swap.standing import standing_revocations
from swap.statement import UNREADABLE, Repair, evidence_of, line_of, read_line

GENESIS = "0" * 64  # what the first line carries in place of a hash
OUT = "-"  # before the hash of a line that a repair left out of account


@dataclass(frozen=True, slots=True)
class Entry:
    """One line that was read. `counts`: False for a revocation that stands where nothing else counts."""

    number: int
    what: Evidence | Repair
    counts: bool = True


@dataclass(frozen=True, slots=True)
class Break:
    """The first line that doesn't count, and why; it may be one that isn't there any more."""

    line: int
    why: str


@dataclass(frozen=True, slots=True)
class Head:
    """What stood in the ledger when it was written last: each line's mark, and all that was revoked."""

    lines: tuple[str, ...]
    revoked: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Chain:
    """What a ledger file says. `evidence` is what counts, oldest first."""

    entries: tuple[Entry, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    lines: tuple[str, ...] = ()  # of each whole line in the file its mark: its hash, after OUT where it doesn't count
    last: str = GENESIS  # hash of the last line that counts: the next one must carry it
    torn: bytes = b""  # after the last newline
    broken: Break | None = None
    doubt: str = ""  # what is wrong with the head, while the lines are whole

    @property
    def head(self) -> Head:
        """What the head must say of it. A revocation whose line is lost is remembered until something lifts it."""
        written = [one for entry in self.entries if _revokes(one := entry.what)]
        lost = [one for one in standing_revocations(self.evidence) if one not in written]
        return Head(self.lines, (*written, *lost))

    @property
    def counting(self) -> int:
        return sum(entry.counts for entry in self.entries)

    def grown(self, line: bytes) -> Chain:
        """With this line more, which carries `last`."""
        what, _ = read_line(line)
        here = sha256(line)
        return replace(
            self,
            entries=(*self.entries, Entry(len(self.lines) + 1, what)),
            evidence=(*self.evidence, what) if isinstance(what, Evidence) else self.evidence,
            lines=(*self.lines, here),
            last=here,
        )


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def parse(data: bytes, head: Head | None) -> Chain:
    """Read a ledger. Without a head it is taken as it stands: whether one should be there is the caller's to know."""
    *lines, torn = data.split(b"\n")
    hashes = tuple(map(sha256, lines))
    known = head.lines if head is not None else ()
    walk = _Walk(data, lines, hashes, known)
    walk.run()
    marks = walk.marks
    if walk.repaired and known[: len(lines) - 1] != marks[:-1]:
        known = ()  # a crash came between the repair and its head, which knows what stood there before the damage
    broken = _first(walk.broken, _against_head(known, marks, torn))
    entries, last = walk.entries, walk.last
    if broken is not None:
        entries, last = walk.upto(broken.line)
        entries = [*entries, *walk.revocations(broken.line)]
    evidence = [entry.what for entry in entries if isinstance(entry.what, Evidence)]
    forgotten = [one for one in head.revoked if one not in evidence] if head else []
    return Chain(
        entries=tuple(entries),
        evidence=(*evidence, *forgotten),
        lines=marks,
        last=last,
        torn=torn,
        broken=broken,
        doubt=_doubt(known, marks) if known and broken is None else "",
    )


@dataclass
class _Walk:
    """Along the lines, from repair to repair, as far as they vouch for each other."""

    data: bytes
    lines: list[bytes]
    hashes: tuple[str, ...]
    known: tuple[str, ...]  # their marks as the head has them
    entries: list[Entry] = field(default_factory=list)
    last: str = GENESIS
    broken: Break | None = None
    offsets: list[int] = field(init=False)  # of each line in the data

    def __post_init__(self) -> None:
        self.offsets = list(accumulate((len(line) + 1 for line in self.lines), initial=0))

    def run(self) -> None:
        number = 1
        while number <= len(self.lines) and self.broken is None:
            number = self._step(number)

    def _step(self, number: int) -> int:
        """The number of the line to go on with."""
        line = self.lines[number - 1]
        try:
            what, carries = read_line(line)
            why = "" if carries == self.last else self._gap(number)
        except UNREADABLE as error:
            what, why = None, f"line {number} can't be read ({_short(error)})"
        if what is not None and isinstance(what, Repair) and not why and not self._is_of(what, number):
            why = f"line {number} is a repair of something else"
        if what is not None and not why:
            self.entries.append(Entry(number, what))
            self.last = self.hashes[number - 1]
            return number + 1
        return self._broke(number, why)

    def _broke(self, number: int, why: str) -> int:
        """Where a repair takes the chain up again; without one this is the end."""
        for after in range(number, len(self.lines) + 1):
            repair = self._repair(after)
            if repair is not None and repair.first <= number:
                kept, _ = self.upto(repair.first)
                self.entries = [*kept, *self.revocations(repair.first, after), Entry(after, repair)]
                self.last = self.hashes[after - 1]
                return after + 1
        self.broken = Break(number if self._vouched(number) else number - 1, why)
        return number

    def _repair(self, number: int) -> Repair | None:
        """The repair that this line is, of just what stands before it."""
        try:
            what, _ = read_line(self.lines[number - 1])
        except UNREADABLE:
            return None
        if not isinstance(what, Repair) or not self._is_of(what, number):
            return None
        return what if what.previous == self.upto(what.first)[1] else None

    def _is_of(self, repair: Repair, number: int) -> bool:
        offset = self.offsets[number - 1]
        return repair.first <= number and (repair.size, repair.sha256) == (offset, sha256(self.data[:offset]))

    def _vouched(self, number: int) -> bool:
        """Whether the head, or anything from this line on, has the hash of the one before."""
        if number == 1 or self.known[number - 2 : number - 1] == (self.last,):
            return True
        return self.data.find(self.last.encode(), self.offsets[number - 1]) >= 0

    def _gap(self, number: int) -> str:
        if number == 1:
            return "line 1 doesn't begin a ledger: it was changed, or lines before it are gone"
        if self._vouched(number):
            return f"line {number} doesn't follow from line {number - 1}: it was changed, or put there"
        return (
            f"line {number} doesn't follow from line {number - 1}: line {number - 1} was changed, line {number} was "
            "put there, or a line between them is gone"
        )

    @property
    def marks(self) -> tuple[str, ...]:
        counting = {entry.number for entry in self.entries if entry.counts}
        return tuple(one if number in counting else OUT + one for number, one in enumerate(self.hashes, start=1))

    @property
    def repaired(self) -> bool:
        """The last line is a repair, of all that stands before it."""
        return (
            bool(self.entries)
            and self.entries[-1].number == len(self.lines)
            and isinstance(self.entries[-1].what, Repair)
        )

    def upto(self, number: int) -> tuple[list[Entry], str]:
        """What counts before this line, and the hash of the last that does."""
        kept = [entry for entry in self.entries if entry.number < number]
        counting = [entry for entry in kept if entry.counts]
        return kept, self.hashes[counting[-1].number - 1] if counting else GENESIS

    def revocations(self, first: int, end: int | None = None) -> list[Entry]:
        """Those that can be read in the lines from `first` on that don't count."""
        found = []
        for number in range(first, (end or len(self.lines) + 1)):
            try:
                what, _ = read_line(self.lines[number - 1])
            except UNREADABLE:
                continue
            if _revokes(what):
                found.append(Entry(number, what, counts=False))
        return found


# ------------------------------------------------------------------------------------------------- the head


def _against_head(known: tuple[str, ...], there: tuple[str, ...], torn: bytes) -> Break | None:
    """The first line that isn't what the head knows."""
    for number, (then, now) in enumerate(zip(known, there, strict=False), start=1):
        if then != now:
            return Break(number, f"line {number} {_how(then, now, known, there)}")
    gone = len(known) - len(there)
    if gone < 1 or (gone == 1 and torn):  # the torn piece is that line
        return None
    if not there:
        return Break(1, f"all its lines are gone ({gone}): the file was removed or emptied")
    which = "line is" if gone == 1 else f"{gone} lines are"
    return Break(len(there) + 1, f"its last {which} gone, there were {len(known)}")


def _how(then: str, now: str, known: tuple[str, ...], there: tuple[str, ...]) -> str:
    if then == OUT + now:
        return "was left out of account, by a repair that doesn't hold any more"
    if _among(then, there):
        return "isn't the one that stood there: lines were put in, or changed places"
    return "is gone" if _among(now, known) else "was changed"


def _among(mark: str, marks: tuple[str, ...]) -> bool:
    return mark.removeprefix(OUT) in {one.removeprefix(OUT) for one in marks}


def _revokes(what: Evidence | Repair) -> TypeGuard[Evidence]:
    return isinstance(what, Evidence) and what.outcome is Outcome.REVOKED


def _first(one: Break | None, other: Break | None) -> Break | None:
    """Where both know of a break, the head's words are the more exact."""
    if one is None or other is None:
        return one or other
    return other if other.line <= one.line else one


def _doubt(known: tuple[str, ...], there: tuple[str, ...]) -> str:
    """A crash leaves the head one line behind, never more."""
    if len(there) - len(known) > 1:
        return f"knows of {len(known)} lines, there are {len(there)}: somebody put an old one there"
    return ""


def write_head(head: Head) -> bytes:
    revoked = [json.loads(line_of(one, GENESIS)) for one in head.revoked]
    return json.dumps({"lines": head.lines, "revoked": revoked}).encode("ascii") + b"\n"


def read_head(data: bytes) -> Head:
    """Raises one of UNREADABLE."""
    said: dict[str, Any] = json.loads(data)
    revoked = [evidence_of(statement) for statement in said["revoked"]]
    return Head(msgspec.convert(said["lines"], tuple[str, ...]), tuple(revoked))


def _short(error: BaseException) -> str:
    if isinstance(error, KeyError):
        return f"it has no {error}"
    return " ".join(str(error).split())[:80] or type(error).__name__
