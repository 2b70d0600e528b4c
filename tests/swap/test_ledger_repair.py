"""A repair lets a broken ledger go on, leaves out what does not count, and deletes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from swap.ledger import FileLedger
from swap.ports import Fault
from tests.swap.ledger_damage import (
    ONE_LINE,
    Damage,
    counted,
    edited,
    lines_of,
    recorded,
)
from tests.swap.test_ledger import served


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


@pytest.mark.parametrize(("damage", "first", "said"), ONE_LINE)
def test_a_repair_goes_on_from_what_counted_and_deletes_nothing(
    path: Path, damage: Damage, first: int, said: str
) -> None:
    recorded(path, 1, 2, 3, 4, 5)
    hurt = b"".join(damage(lines_of(path)))
    path.write_bytes(hurt)
    book = FileLedger(path)
    repair = book.repair("the disk was full of cats")
    assert (repair.first, repair.last) == (first, hurt.count(b"\n"))
    book.record(served(tokens=7))
    for read in (book, FileLedger(path)):
        assert [one.tokens for one in read.evidence()] == [*range(1, first), 7]
        assert read.problems() == []
    assert path.read_bytes().startswith(hurt)
    statement = json.loads(lines_of(path)[-2])
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "urn:slotproxy:repair:v1"
    assert statement["predicate"]["reason"] == "the disk was full of cats"
    path.with_suffix(".head").unlink()  # the lines alone say the same
    assert counted(path) == [*range(1, first), 7]


def test_a_whole_chain_is_not_repaired(path: Path) -> None:
    book = recorded(path, 1, 3)
    before = path.read_bytes()
    with pytest.raises(Fault, match=r"nothing is broken in the ledger .*: 2 lines count"):
        book.repair("to be sure")
    assert path.read_bytes() == before


def test_a_repair_accepts_a_head_that_is_missing(path: Path) -> None:
    recorded(path, 1, 3)
    path.with_suffix(".head").unlink()
    book = FileLedger(path)
    book.repair("moved here from another machine")
    assert book.problems() == []
    assert counted(path) == [1, 3]


def test_repairs_follow_one_another(path: Path) -> None:
    recorded(path, 1, 2, 3, 4, 5)
    path.write_bytes(b"".join(edited(3)(lines_of(path))))
    FileLedger(path).repair("first")  # line 6
    recorded(path, 7, 8)
    path.write_bytes(b"".join(edited(8)(lines_of(path))))
    assert counted(path) == [1, 2, 7]
    FileLedger(path).repair("second")  # line 9
    recorded(path, 10)
    assert counted(path) == [1, 2, 7, 10]
    path.write_bytes(b"".join(edited(2)(lines_of(path))))
    assert counted(path) == [1]
    FileLedger(path).repair("third")
    recorded(path, 12)
    assert counted(path) == [1, 12]
    assert FileLedger(path).problems() == []


@pytest.mark.parametrize(("number", "head"), [*((n, True) for n in range(1, 8)), (1, False), (4, False), (6, False)])
def test_damage_after_a_repair_is_found_wherever_it_is(path: Path, number: int, head: bool) -> None:
    """Also in the lines that were left out: the repair is of these very bytes."""
    recorded(path, 1, 2, 3, 4, 5)
    path.write_bytes(b"".join(edited(3)(lines_of(path))))
    FileLedger(path).repair("an editor")
    recorded(path, 7)
    lines = lines_of(path)
    lines[number - 1] = lines[number - 1].replace(b'"when":"2', b'"when":"3')
    path.write_bytes(b"".join(lines))
    if not head:
        path.with_suffix(".head").unlink()
    book = FileLedger(path)
    assert book.chain().broken is not None
    assert 7 not in [one.tokens for one in book.evidence()]
    book.repair("again")
    assert FileLedger(path).problems() == []


@pytest.mark.parametrize("edit", [b"sha256", b"an editor", b"repair"])
def test_what_a_repair_left_out_stays_out_when_the_repair_is_damaged(path: Path, edit: bytes) -> None:
    """The head was written after the edit; it vouches for no line that was left out then."""
    recorded(path, 1, 2, 3, 4)
    path.write_bytes(b"".join(edited(2)(lines_of(path))))
    FileLedger(path).repair("an editor")
    *lines, repair = lines_of(path)
    path.write_bytes(b"".join([*lines, repair.replace(edit, b"x")]))
    assert counted(path) == [1]
    assert FileLedger(path).chain().broken is not None


def test_a_crash_between_a_repair_and_its_head_leaves_the_repair_standing(path: Path) -> None:
    recorded(path, 1, 2, 3, 4, 5)
    head = path.with_suffix(".head").read_bytes()
    path.write_bytes(b"".join(edited(3)(lines_of(path))))
    FileLedger(path).repair("an editor")
    path.with_suffix(".head").write_bytes(head)
    for _ in range(2):
        book = FileLedger(path)
        assert (book.problems(), [one.tokens for one in book.evidence()]) == ([], [1, 2])
    book.record(served(tokens=7))
    assert counted(path) == [1, 2, 7]


def test_a_broken_ledger_with_a_torn_line_is_repaired_too(path: Path) -> None:
    recorded(path, 1, 2, 3, 4)
    path.write_bytes(b"".join(edited(2)(lines_of(path))) + b'{"_type')
    FileLedger(path).repair("both")
    recorded(path, 6)
    assert counted(path) == [1, 6]
    assert path.with_name("ledger.jsonl.torn").read_bytes() == b'{"_type\n'
