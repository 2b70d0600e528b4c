"""Small files of our own: whole after a crash, and nobody is kept waiting by what is in their place."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from swap.creation import CreationFile
from swap.durable import read_file, replace_file
from swap.hashing import Hasher
from swap.journal import FileJournal
from swap.ledger import FileLedger
from swap.ports import CannotStage, Fault, JournalEntry, Unreachable
from swap.record import Records
from tests.swap.disks import small_disk


def test_what_is_no_regular_file_is_an_error_and_not_a_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path):
        with pytest.raises(OSError, match="it is not a regular file"):
            read_file(path)


def test_a_draft_that_is_a_fifo_is_an_error_and_not_a_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "file.new")
    with pytest.raises(OSError, match="No such device or address"):
        replace_file(tmp_path / "file", b"new")


def test_a_disk_that_is_full_keeps_the_old_content_and_no_draft(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        replace_file(disk.path / "file", b"old")
        disk.fill()
        with pytest.raises(OSError, match="No space left on device"):
            replace_file(disk.path / "file", bytes(8192))
        assert read_file(disk.path / "file") == b"old"
        assert sorted(path.name for path in disk.path.iterdir()) == ["file", "filler"]


Reads = Callable[[Path], object]
READERS: list[tuple[str, Reads, type[Exception], str]] = [
    ("journal.json", lambda path: FileJournal(path).read(), Fault, "the journal .* can't be read: it is not a regular"),
    (
        "current.json",
        lambda path: Records(path.parent).current(),
        Unreachable,
        "can't be read: it is not a regular file",
    ),
    ("c.json", lambda path: CreationFile(path).kept(), CannotStage, "can't be read: .*it is not a regular file"),
]


@pytest.mark.parametrize(("name", "read", "fault", "said"), READERS, ids=[one[0] for one in READERS])
def test_a_fifo_in_the_place_of_one_is_said(
    name: str, read: Reads, fault: type[Exception], said: str, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(fault, match=said):
        read(tmp_path / name)


@pytest.mark.parametrize("name", ["ledger.jsonl", "ledger.head"])
def test_a_fifo_in_the_place_of_the_ledger_or_its_head_is_a_problem_that_is_told(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    ledger = FileLedger(tmp_path / "ledger.jsonl")
    (problem,) = ledger.problems()
    assert "it is not a regular file" in problem
    assert not ledger.whole


async def test_a_fifo_in_the_place_of_what_was_hashed_costs_nothing_and_makes_way(tmp_path: Path) -> None:
    cache, model = tmp_path / "hashes.json", tmp_path / "model"
    model.write_bytes(b"weights")
    os.mkfifo(cache)
    assert (await Hasher(cache).digest(model)).size == 7
    assert cache.is_file()


def test_a_folder_that_is_gone_isn_t_made_again(tmp_path: Path) -> None:
    gone = tmp_path / "state"
    with pytest.raises(Fault, match="can't be written: No such file or directory"):
        FileJournal(gone / "journal.json").write(JournalEntry("stop"))
    with pytest.raises(CannotStage, match=r"can't be kept in .*: No such file or directory") as raised:
        CreationFile(gone / "creation.json").begin(None)
    assert raised.value.passing  # there is room again one day, and who shall be put back is waited for
    with pytest.raises(OSError, match="No such file"):
        Records(gone / "processes" / "engine")._make_folder()
    assert "can't be opened" in FileLedger(gone / "ledger.jsonl").problems()[0]
    assert not gone.exists()
