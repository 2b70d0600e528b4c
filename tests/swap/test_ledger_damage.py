"""What happens to the ledger's files behind our back is named, and nothing that was there is lost."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from swap import ledger as ledger_file
from swap.ledger import FileLedger
from swap.ports import Fault
from tests.swap.ledger_damage import (
    ONE_LINE,
    Damage,
    counted,
    doubled,
    edited,
    garbage,
    is_verified,
    lines_of,
    recorded,
    removed,
    revoked,
    swapped,
)
from tests.swap.test_ledger import failed, served


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


@pytest.mark.parametrize(("damage", "first", "said"), ONE_LINE)
def test_damage_is_named_with_its_first_line_and_all_before_it_counts(
    path: Path, damage: Damage, first: int, said: str
) -> None:
    recorded(path, 1, 2, 3, 4, 5)
    hurt = b"".join(damage(lines_of(path)))
    path.write_bytes(hurt)
    book = FileLedger(path)
    assert [one.tokens for one in book.evidence()] == list(range(1, first))
    broken = book.chain().broken
    assert broken is not None
    assert broken.line == first
    (problem,) = book.problems()
    with pytest.raises(Fault, match=said):
        book.record(served(tokens=6))
    assert str(path) in problem
    assert "slotctl pairs repair" in problem
    assert path.read_bytes() == hurt


@pytest.mark.parametrize(
    ("damage", "counts"),
    [
        (edited(1), []),
        (edited(3), [1, 2]),
        (removed(3), [1]),  # nobody can tell whether line 2 was changed, or what followed it is gone
        (swapped(3), [1, 2]),
        (doubled(3), [1, 2, 3]),
        (garbage(3), [1]),
    ],
)
def test_without_a_head_the_lines_vouch_for_each_other_and_what_none_vouches_for_does_not_count(
    path: Path, damage: Damage, counts: list[int]
) -> None:
    recorded(path, 1, 2, 3, 4, 5)
    path.write_bytes(b"".join(damage(lines_of(path))))
    path.with_suffix(".head").unlink()
    book = FileLedger(path)
    assert [one.tokens for one in book.evidence()] == counts
    broken = book.chain().broken
    assert broken is not None
    assert broken.line == len(counts) + 1


def test_the_file_gone_is_reported_and_nothing_is_written_over_it(path: Path) -> None:
    recorded(path, 1, 2, 3)
    path.unlink()
    book = FileLedger(path)
    assert book.evidence() == ()
    assert "all its lines are gone (3)" in book.problems()[0]
    with pytest.raises(Fault, match="all its lines are gone"):
        book.record(served())
    assert path.read_bytes() == b""


def test_an_edit_behind_our_back_is_noticed_before_the_next_line_whatever_the_size(path: Path) -> None:
    book = recorded(path, 1, 2, 3)
    lines = lines_of(path)
    path.write_bytes(b"".join([lines[0], lines[1].replace(b'"failed"', b'"served"'), lines[2]]))
    with pytest.raises(Fault, match="line 2 was changed"):
        book.record(served(tokens=4))
    assert [one.tokens for one in book.evidence()] == [1]


def test_another_file_in_its_place_is_noticed(path: Path) -> None:
    book = recorded(path, 1, 2, 3)
    other = path.with_name("other")
    other.write_bytes(b"".join(lines_of(path)[:2]))
    other.replace(path)
    with pytest.raises(Fault, match="its last line is gone"):
        book.record(served(tokens=4))


# ------------------------------------------------------------------------------------------------- the head


def test_a_head_that_is_missing_is_reported_and_the_lines_count(path: Path) -> None:
    recorded(path, 1, 3)
    path.with_suffix(".head").unlink()
    book = FileLedger(path)
    assert [one.tokens for one in book.evidence()] == [1, 3]
    assert "ledger.head is missing: somebody removed it" in book.problems()[0]
    book.record(served(tokens=4))
    assert [one.tokens for one in book.evidence()] == [1, 3, 4]
    assert "is missing" in book.problems()[0]  # it is said as long as this daemon lives


def test_lines_that_dont_count_arent_said_to_count_because_the_head_is_missing(path: Path) -> None:
    recorded(path, 1, 3)
    path.write_bytes(b"{}\n" + path.read_bytes())
    path.with_suffix(".head").unlink()
    broken, head = FileLedger(path).problems()
    assert "count for nothing" in broken
    assert "ledger.head is missing" in head
    assert "the lines count" not in head


def test_lines_of_an_earlier_format_are_reported_and_left_out_by_a_repair(path: Path) -> None:
    recorded(path, 1)
    statement = json.loads(path.read_bytes())
    del statement["predicate"]["imageContent"]
    path.write_text(json.dumps(statement) + "\n")
    path.with_suffix(".head").unlink()
    book = FileLedger(path)
    (problem,) = book.problems()
    assert "line 1 can't be read (it has no 'imageContent'): line 1 of 1" in problem
    assert not is_verified(book)
    book.repair("written by an earlier version")
    book.record(served(tokens=4))
    assert counted(path) == [4]


def test_what_is_written_beside_this_process_is_noticed_at_the_next_line(path: Path) -> None:
    book = recorded(path, 1, 3)
    FileLedger(path).record(served(tokens=4))
    book.record(served(tokens=5))
    with path.open("r+b") as file:
        file.write(b" ")
    with pytest.raises(Fault, match="line 1"):
        book.record(served(tokens=6))


@pytest.mark.parametrize("hurt", [b"", b"{", b"[]", b'{"lines":"x","revoked":[]}', b"\xff"])
def test_a_damaged_head_is_reported_and_the_lines_count(path: Path, hurt: bytes) -> None:
    recorded(path, 1, 3)
    path.with_suffix(".head").write_bytes(hurt)
    assert counted(path) == [1, 3]
    assert "ledger.head is damaged" in FileLedger(path).problems()[0]


def test_a_head_one_behind_is_a_crash_and_is_mended(path: Path) -> None:
    recorded(path, 1, 2, 3)
    behind = path.with_suffix(".head").read_bytes()
    recorded(path, 4)
    path.with_suffix(".head").write_bytes(behind)
    book = FileLedger(path)
    assert ([one.tokens for one in book.evidence()], book.problems()) == ([1, 2, 3, 4], [])
    path.write_bytes(b"".join(edited(4)(lines_of(path))))
    assert counted(path) == [1, 2, 3]


def test_a_crash_after_the_very_first_line_is_no_problem(path: Path) -> None:
    recorded(path, 1)
    path.with_suffix(".head").unlink()
    assert FileLedger(path).problems() == []
    assert path.with_suffix(".head").exists()


def test_an_old_head_is_reported(path: Path) -> None:
    recorded(path, 1, 2)
    old = path.with_suffix(".head").read_bytes()
    recorded(path, 3, 4)
    path.with_suffix(".head").write_bytes(old)
    assert counted(path) == [1, 2, 3, 4]
    assert "knows of 2 lines, there are 4" in FileLedger(path).problems()[0]


def test_a_head_that_knows_another_past_is_believed(path: Path) -> None:
    recorded(path, 1, 2, 3)
    head = path.with_suffix(".head").read_bytes()
    path.unlink()
    path.with_suffix(".head").unlink()
    recorded(path, 1, 3, 4, 5)
    path.with_suffix(".head").write_bytes(head)
    assert counted(path) == [1]


# ------------------------------------------------------------------------------------------------- a torn line


@pytest.mark.parametrize("crash", [True, False])
def test_a_torn_last_line_costs_nothing_that_was_there(path: Path, crash: bool) -> None:
    """`crash`: the head was never written; else somebody cut the line off later."""
    recorded(path, 1, 2, 3)
    behind = path.with_suffix(".head").read_bytes()
    recorded(path, 4)
    if crash:
        path.with_suffix(".head").write_bytes(behind)
    whole = path.read_bytes()
    start = len(b"".join(lines_of(path)[:3]))
    for cut in (start + 1, len(whole) - 1):
        path.write_bytes(whole[:cut])
        book = FileLedger(path)
        assert [one.tokens for one in book.evidence()] == [1, 2, 3]
        assert "crash cut off" in "".join(book.problems())
        assert FileLedger(path).chain().broken is None
        path.with_name("ledger.jsonl.torn").unlink()
        if crash:
            path.with_suffix(".head").write_bytes(behind)
    book.record(served(tokens=5))
    assert counted(path) == [1, 2, 3, 5]


def test_a_torn_revocation_stands_until_a_trial_lifts_it(path: Path) -> None:
    recorded(path, 1).record(revoked())
    path.write_bytes(path.read_bytes()[:-40])
    for _ in range(2):
        assert not is_verified(FileLedger(path))
    FileLedger(path).record(replace(served(), how="swap"))
    assert not is_verified(FileLedger(path))
    FileLedger(path).record(served())
    for _ in range(2):
        assert is_verified(FileLedger(path))


@pytest.mark.parametrize("damage", [removed(3), garbage(3), garbage(2), removed(5), lambda lines: lines[:1]])
def test_no_damage_gives_back_what_was_revoked(path: Path, damage: Damage) -> None:
    book = recorded(path, 1, 2)
    book.record(revoked())
    book.record(failed(tokens=4))
    book.record(failed(tokens=5))
    path.write_bytes(b"".join(damage(lines_of(path))))
    assert not is_verified(FileLedger(path))
    FileLedger(path).repair("restored")
    assert not is_verified(FileLedger(path))


def test_a_revocation_that_can_be_read_counts_wherever_it_stands(path: Path) -> None:
    book = recorded(path, 1, 2, 3)
    book.record(revoked())
    path.write_bytes(b"".join(edited(3)(lines_of(path))))
    path.with_suffix(".head").unlink()
    assert not is_verified(FileLedger(path))
    FileLedger(path).repair("an editor")
    path.with_suffix(".head").unlink()
    assert not is_verified(FileLedger(path))


# ------------------------------------------------------------------------------------------------- the disk, others


def test_two_processes_at_once_keep_one_chain(path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.swap.test_ledger import served; "
        "from swap.ledger import FileLedger; book = FileLedger(Path(sys.argv[1]))\n"
        "for n in range(50): book.record(served(tokens=n))"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(path)]) for _ in range(2)]
    assert [writer.wait(90) for writer in writers] == [0, 0]
    book = FileLedger(path)
    assert (len(book.evidence()), book.problems()) == (100, [])


def test_a_file_that_was_put_there_while_its_lock_was_waited_for_gets_the_line(path: Path) -> None:
    book = recorded(path, 1)
    new = path.with_name("new")
    new.write_bytes(path.read_bytes())
    with path.open("rb") as old, ThreadPoolExecutor(1) as pool:
        fcntl.flock(old, fcntl.LOCK_EX)
        recording = pool.submit(book.record, served(tokens=3))
        with pytest.raises(TimeoutError):
            recording.result(0.1)
        new.replace(path)
        fcntl.flock(old, fcntl.LOCK_UN)
        recording.result(10)
    assert counted(path) == [1, 3]


def test_a_disk_that_takes_no_more_is_a_fault_and_leaves_all_as_it_was(path: Path) -> None:
    recorded(path, 1, 3)
    before = path.read_bytes()
    code = (
        "import resource, sys; from pathlib import Path; from tests.swap.test_ledger import served; "
        "from swap.ledger import FileLedger; from swap.ports import Fault; book = FileLedger(Path(sys.argv[1]))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))\n"
        "try: book.record(served(tokens=4))\n"
        "except Fault as fault: print(fault)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(path), str(len(before) + 100)], capture_output=True, text=True, check=True
    )
    assert "can't be written: File too large" in ran.stdout
    assert "make it writable, then order it again" in ran.stdout  # a revocation isn't made good by an adoption
    assert path.read_bytes() == before
    book = FileLedger(path)
    assert ([one.tokens for one in book.evidence()], book.problems()) == ([1, 3], [])


def test_a_head_that_cannot_be_written_takes_its_line_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = recorded(path, 1, 3)
    before = path.read_bytes()

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ledger_file, "replace_file", full)
        with pytest.raises(Fault, match="No space left on device"):
            book.record(served(tokens=4))
    assert path.read_bytes() == before
    book.record(served(tokens=5))
    assert counted(path) == [1, 3, 5]


@pytest.mark.parametrize("torn", [b"", b'{"_type'])
def test_a_read_only_disk_is_reported_and_what_is_there_counts(
    path: Path, torn: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(path, 1, 3)
    path.write_bytes(path.read_bytes() + torn)
    before = path.read_bytes()
    opened = os.open

    def read_only(name: str | Path, flags: int, mode: int = 0o777) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(30, "Read-only file system")
        return opened(name, flags, mode)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", read_only)
        book = FileLedger(path)
        assert [one.tokens for one in book.evidence()] == [1, 3]
        assert "Read-only file system" in book.problems()[0]
        with pytest.raises(Fault, match="Read-only file system"):
            book.record(served(tokens=4))
    assert path.read_bytes() == before
    book.record(served(tokens=5))
    assert counted(path) == [1, 3, 5]
    assert not [problem for problem in book.problems() if "Read-only" in problem]


def test_what_is_known_is_kept_while_the_file_cannot_even_be_read(path: Path) -> None:
    book = recorded(path, 1, 3)
    away = path.with_name("away")
    path.rename(away)
    path.mkdir()  # stands for a disk that fails
    assert [one.tokens for one in book.reread().evidence] == [1, 3]
    assert not book.whole
    assert "can't be opened for writing: Is a directory" in book.problems()[0]
    path.rmdir()
    away.rename(path)
    book.record(served(tokens=4))
    assert counted(path) == [1, 3, 4]
    assert book.whole


def test_a_ledger_that_is_gone_with_its_head_is_told_and_what_it_said_counts_until_it_is_put_back(path: Path) -> None:
    path = path.parent / "state" / path.name
    path.parent.mkdir()
    book = recorded(path, 1, 2)
    path.parent.rename(path.parent.with_name("moved"))
    path.parent.mkdir()
    book.reread()
    assert [one.tokens for one in book.evidence()] == [1, 2]
    (problem,) = book.problems()
    assert "is gone, and its head with it: its 2 lines count as long as this slotproxy runs" in problem
    with pytest.raises(Fault, match="is gone, and its head with it"):
        book.record(served(tokens=3))
    path.parent.rmdir()  # fails if a new one was begun there
    path.parent.with_name("moved").rename(path.parent)
    book.record(served(tokens=3))
    assert counted(path) == [1, 2, 3]
    assert book.problems() == []


def test_another_ledger_in_a_folder_that_isnt_ours_any_more_is_neither_read_nor_written(tmp_path: Path) -> None:
    ours = True

    def guard() -> None:
        if not ours:
            raise OSError(116, "another folder is there")

    path = tmp_path / "ledger.jsonl"
    recorded(path, 1, 2)
    book = FileLedger(path, guard)
    ours = False
    for file in (path, path.with_suffix(".head")):
        file.unlink()
    recorded(path, 7)
    another = path.read_bytes()
    book.reread()
    assert [one.tokens for one in book.evidence()] == [1, 2]
    assert "isn't there: another folder is there; nothing more is recorded" in book.problems()[0]
    with pytest.raises(Fault, match="can't be written: another folder is there"):
        book.record(served(tokens=3))
    assert path.read_bytes() == another
