"""How much of the host's memory is there, and who has most of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.spec import GiB
from swap import proc
from swap.hostmemory import User, available, biggest
from swap.ports import Fault


def test_what_is_available_is_the_kernels_own_figure(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  131072000 kB\nMemFree: 1024 kB\nMemAvailable:   10485760 kB\n")
    assert available(meminfo) == 10 * GiB
    assert available() > 0


@pytest.mark.parametrize("text", [None, "", "MemTotal: 1 kB\n", "MemAvailable: much\n", "MemAvailable:\n"])
def test_a_figure_that_isnt_there_is_a_fault_and_no_zero(tmp_path: Path, text: str | None) -> None:
    meminfo = tmp_path / "meminfo"
    if text is not None:
        meminfo.write_text(text)
    with pytest.raises(Fault):
        available(meminfo)


def test_the_three_biggest_are_named_from_a_gigabyte_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "PROC", tmp_path)
    sizes = {"1": 2, "2": 40, "3": 1, "4": 8, "5": None}
    for pid, size in sizes.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cmdline").write_text(f"/usr/bin/server-{pid}\0--api-key\0secret\0")
        if size is not None:
            (tmp_path / pid / "status").write_text(f"Name: x\nVmRSS:\t{size * 1024 * 1024} kB\n")
    (tmp_path / "6").mkdir()
    (tmp_path / "6" / "status").write_text("Name: kworker\n")
    assert biggest() == (User(2, "server-2", 40 * GiB), User(4, "server-4", 8 * GiB), User(1, "server-1", 2 * GiB))
    (tmp_path / "4" / "status").write_text("VmRSS:\t1024 kB\n")
    (tmp_path / "1" / "status").write_text("VmRSS:\t1024 kB\n")
    assert [user.pid for user in biggest()] == [2, 3]
