"""A ledger that is written and then hurt, one line or another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from engines.spec import Require
from swap.ledger import FileLedger
from swap.ports import Evidence, Outcome
from swap.standing import standing
from tests.swap.fakes import REAL
from tests.swap.test_ledger import SUBJECT, failed, served

Lines = list[bytes]
Damage = Callable[[Lines], Lines]


def counted(path: Path) -> list[int | None]:
    return [one.tokens for one in FileLedger(path).evidence()]


def recorded(path: Path, *tokens: int) -> FileLedger:
    """The second is a failure; whoever edits it makes a success of it."""
    book = FileLedger(path)
    for number in tokens:
        book.record((failed if number == 2 else served)(tokens=number))
    return book


def lines_of(path: Path) -> Lines:
    return path.read_bytes().splitlines(keepends=True)


def revoked(**more: object) -> Evidence:
    return replace(served(), outcome=Outcome.REVOKED, how="operator", reason="hot", **more)  # type: ignore[arg-type]


def is_verified(book: FileLedger) -> bool:
    return standing(book.evidence(), SUBJECT, "ninfer:v2", REAL).meets(Require.VERIFIED)


def edited(number: int) -> Damage:
    def edit(lines: Lines) -> Lines:
        line = lines[number - 1]
        other = line.replace(b'"failed"', b'"served"')
        if other == line:
            other = line.replace(b'"tokens":%d,' % number, b'"tokens":99,')
        assert other != line
        return [*lines[: number - 1], other, *lines[number:]]

    return edit


def removed(number: int) -> Damage:
    return lambda lines: lines[: number - 1] + lines[number:]


def swapped(number: int) -> Damage:
    return lambda lines: [*lines[: number - 1], lines[number], lines[number - 1], *lines[number + 1 :]]


def doubled(number: int) -> Damage:
    return lambda lines: [*lines[:number], *lines[number - 1 :]]


def garbage(number: int) -> Damage:
    return lambda lines: [*lines[: number - 1], b"\x00\xff{\n", *lines[number:]]


ONE_LINE = [
    *((edited(n), n, "was changed") for n in (1, 2, 3, 5)),
    *((removed(n), n, "gone") for n in (1, 2, 3, 4)),
    (removed(5), 5, "its last line is gone, there were 5"),
    (lambda lines: lines[:2], 3, "its last 3 lines are gone, there were 5"),
    (lambda lines: [], 1, r"all its lines are gone \(5\): the file was removed or emptied"),
    *((swapped(n), n, "changed places") for n in (1, 3, 4)),
    *((doubled(n), n + 1, "put in") for n in (1, 3)),
    (doubled(5), 6, "line 6 doesn't follow from line 5: it was changed, or put there"),
    *((garbage(n), n, "was changed") for n in (1, 3, 5)),
    (lambda lines: [*lines, b"garbage\n"], 6, "line 6 can't be read"),
    (lambda lines: [*lines, b"[" * 100_000 + b"\n"], 6, "line 6 can't be read"),
]
