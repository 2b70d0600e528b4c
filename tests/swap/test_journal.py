"""The journal: the last thing that we were about to do, whatever the moment of a crash."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from swap.journal import FileJournal
from swap.ports import Fault, JournalEntry

STOPPING = JournalEntry(
    step="stopping", serving="strata:current", serving_id="c1", goal="ninfer:v3", order="o-7", trial=True
)
STARTING = JournalEntry(step="starting", serving="strata:current", goal="ninfer:v3", when="2026-01-02T03:04:05Z")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    return tmp_path / "state" / "journal.json"


def test_before_the_first_entry_there_is_nothing_to_read(path: Path) -> None:
    assert FileJournal(path).read() is None


def test_the_next_daemon_reads_the_last_entry_whole(path: Path) -> None:
    FileJournal(path).write(STOPPING)
    FileJournal(path).write(STARTING)
    assert FileJournal(path).read() == STARTING


def test_the_file_is_the_owners_alone_and_leaves_no_draft(path: Path) -> None:
    FileJournal(path).write(STOPPING)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_entry(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = FileJournal(path)
    journal.write(STOPPING)

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Fault, match=r"journal\.json can't be written: No space left on device; make room"):
        journal.write(STARTING)
    assert journal.read() == STOPPING
    assert list(path.parent.iterdir()) == [path]


def test_the_entry_is_on_disk_before_it_gets_its_name_and_the_name_before_write_returns(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story: list[str] = []
    fsync, rename = os.fsync, Path.replace

    def note_fsync(fd: int) -> None:
        story.append(f"fsync {Path(f'/proc/self/fd/{fd}').readlink().name}")
        fsync(fd)

    def note_rename(draft: Path, target: Path) -> Path:
        story.append(f"rename to {target.name}")
        return rename(draft, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(Path, "replace", note_rename)
    FileJournal(path).write(STOPPING)
    assert story == ["fsync journal.json.new", "rename to journal.json", "fsync state"]


@pytest.mark.parametrize("damage", [b"", b'{"step": "stop', b"\xff\xfe\x00", b'{"serving": "x"}', b'["step"]'])
def test_a_damaged_file_is_named_not_taken_for_an_empty_one(path: Path, damage: bytes) -> None:
    FileJournal(path).write(STOPPING)
    path.write_bytes(damage)
    with pytest.raises(Fault, match=r"journal\.json is damaged"):
        FileJournal(path).read()


def test_an_entry_of_a_newer_version_is_still_read(path: Path) -> None:
    path.write_text('{"step": "starting", "goal": "ninfer:v3", "later": 1}')
    assert FileJournal(path).read() == JournalEntry(step="starting", goal="ninfer:v3")
