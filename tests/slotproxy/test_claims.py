"""Who may have a state folder: one daemon, also where nothing can be written there."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from slotproxy.claims import CannotServe, state_folder
from swap.decisions import Decisions
from swap.ledger import FileLedger
from swap.statefolder import StateFolder
from tests.swap.disks import small_disk

NOBODY = 65534


def refusal(state: Path) -> str:
    """Why another daemon can't have it; empty: it can."""
    try:
        with state_folder(state):
            return ""
    except CannotServe as why:
        return str(why)


def test_a_read_only_folder_is_had_by_one_daemon(tmp_path: Path) -> None:
    with small_disk(tmp_path / "state") as disk:
        with state_folder(disk.path):  # so that there is a lock file
            pass
        disk.make_read_only()
        with state_folder(disk.path):
            assert refusal(disk.path).startswith(f"{disk.path}: another slotproxy (pid {os.getpid()}) works in")
        assert refusal(disk.path) == ""


def test_a_read_only_folder_without_a_lock_file_is_had_by_one_daemon_also_once_it_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slotproxy.claims.TURN_LIMIT", 0.1)
    with small_disk(tmp_path / "state") as disk:
        disk.make_read_only()
        with state_folder(disk.path):
            assert "another slotproxy works in this state folder" in refusal(disk.path)
            disk.mend()
            assert "another slotproxy works in this state folder" in refusal(disk.path)
        assert refusal(disk.path) == ""
        assert (disk.path / "daemon.lock").exists()


def test_a_full_folder_is_had_by_one_daemon(tmp_path: Path) -> None:
    with small_disk(tmp_path / "state") as disk:
        disk.fill()
        with state_folder(disk.path):
            assert "works in this state folder" in refusal(disk.path)
        assert refusal(disk.path) == ""


def test_a_lock_that_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "daemon.lock")
    assert refusal(tmp_path).startswith(f"state: {tmp_path}/daemon.lock is no regular file; remove it")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder that is another's")
@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_a_folder_of_another_user_is_had_where_it_can_be_locked_and_else_refused(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slotproxy.claims.TURN_LIMIT", 0.1)
    tmp_path.chmod(0o755)
    state = tmp_path / "state"
    state.mkdir(mode=mode)

    def look() -> str:
        with state_folder(Path("state")):
            folder = StateFolder(Path("state"), Decisions())
            ledger = FileLedger(Path("state/ledger.jsonl"), folder.guard)
            with pytest.raises(Exception, match="can't be written: Permission denied"):
                folder._write()
            with pytest.raises(Exception, match="can't be written: Permission denied"):
                folder._look()
            return f"had; {ledger.problems()}; {refusal(Path('state'))}"

    said = as_nobody(tmp_path, look)
    if mode == 0o700:
        assert "state: state can't be used: Permission denied; make it a folder that this user may write" in said
    else:
        assert said.startswith("had; [\"the ledger state/ledger.jsonl can't be opened for writing: Permission denied")
        assert "another slotproxy works in this state folder" in said
    assert list(state.iterdir()) == []


def as_nobody(folder: Path, work: Callable[[], str]) -> str:
    """What it returns, or raises, in a process of a user who has no rights, in this folder: the way there isn't his."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.chdir(folder)
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writing, work().encode())
        except BaseException as error:
            os.write(writing, "".join(traceback.format_exception_only(error)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said.strip()
