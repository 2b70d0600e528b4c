"""slotctl pairs and its actions against a daemon that speaks the control API over a real unix socket."""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from slotproxy.cli import main
from tests.slotproxy.control_double import STATEMENT, Daemon, serving


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "control.sock"


@pytest.fixture
def daemon(socket: Path) -> Iterator[Daemon]:
    with serving(socket, Daemon()) as daemon:
        yield daemon


def slotctl(socket: Path, *words: str) -> int:
    return main(["--control", str(socket), *words])


def test_the_operators_word_goes_to_the_daemon_with_its_reason(daemon: Daemon, socket: Path) -> None:
    assert slotctl(socket, "pairs", "attest", "ninfer:v3", "--reason", " ran it by hand ") == 0
    assert slotctl(socket, "pairs", "revoke", "ninfer", "--reason", "hot") == 0
    assert daemon.words == [
        {"path": "/pairs/attest", "engine": "ninfer", "pair": "v3", "reason": "ran it by hand"},
        {"path": "/pairs/revoke", "engine": "ninfer", "pair": None, "reason": "hot"},
    ]


def test_the_log_is_a_table_oldest_first(daemon: Daemon, socket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert slotctl(socket, "pairs", "log") == 0
    assert slotctl(socket, "pairs", "log", "ninfer:v2") == 0
    head, served, failed, why, repair, reason = capsys.readouterr().out.splitlines()[:6]
    assert re.fullmatch(r"when +pair +outcome +how +card +ready in +tokens/s", head)
    assert re.fullmatch(r"2026-01-01 +ninfer:v2 +served +trial +Card +9\.5 s +160\.2", served)
    assert re.fullmatch(r"2026-01-01 +ninfer:v2 +failed +trial +simulated", failed)
    assert why == "    exit 1"
    assert re.fullmatch(r"2026-01-02 +repair", repair)
    assert reason == "    an editor (lines 3 to 4 are left out)"
    assert [(one["engine"], one["pair"]) for one in daemon.words] == [(None, None), ("ninfer", "v2")]


def test_an_export_is_the_very_line_on_stdout_or_in_a_file(
    daemon: Daemon, socket: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert slotctl(socket, "pairs", "export", "ninfer") == 0
    assert capsys.readouterr().out == STATEMENT + "\n"
    file = tmp_path / "v2.intoto.jsonl"
    assert slotctl(socket, "pairs", "export", "ninfer", "--output", str(file)) == 0
    assert file.read_text() == STATEMENT + "\n"
    assert capsys.readouterr().out == f"the statement that verifies ninfer:v2 is in {file}\n"


def test_an_export_never_writes_over_a_file(
    daemon: Daemon, socket: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "v2.intoto.jsonl"
    file.write_text("mine")
    assert slotctl(socket, "pairs", "export", "ninfer", "--output", str(file)) == 3
    assert "is there already" in capsys.readouterr().err
    assert file.read_text() == "mine"
    assert slotctl(socket, "pairs", "export", "ninfer", "--output", str(tmp_path / "gone" / "x")) == 3
    assert "can't be written: No such file or directory" in capsys.readouterr().err


def test_an_export_that_the_disk_doesnt_take_leaves_no_half_of_it(
    daemon: Daemon, socket: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, limits = tmp_path / "v2.intoto.jsonl", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(STATEMENT) // 2, limits[1]))
    try:
        assert slotctl(socket, "pairs", "export", "ninfer", "--output", str(file)) == 3
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "can't be written: File too large" in capsys.readouterr().err
    assert not file.exists()


def test_what_is_not_verified_is_not_exported_and_makes_no_file(
    daemon: Daemon, socket: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "v3.intoto.jsonl"
    assert slotctl(socket, "pairs", "export", "ninfer:v3", "--output", str(file)) == 3
    assert capsys.readouterr().err == "slotctl: ninfer:v3 is candidate, not verified; see `slotctl pairs`\n"
    assert not file.exists()


def test_a_check_exits_0_for_a_whole_ledger_and_3_for_a_broken_one_until_it_is_repaired(
    daemon: Daemon, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert slotctl(socket, "pairs", "check") == 0
    assert capsys.readouterr().out == "/s/ledger.jsonl is whole: 5 lines\n"
    assert slotctl(socket, "pairs", "repair", "--reason", "to be sure") == 3
    daemon.broken = True
    assert slotctl(socket, "pairs", "check") == 3
    assert capsys.readouterr().out.splitlines() == [
        "/s/ledger.jsonl is broken at line 3: 2 of 5 lines count",
        "problem   the ledger is broken: line 3 was changed",
    ]
    assert slotctl(socket, "pairs", "check", "--json") == 3
    assert json.loads(capsys.readouterr().out)["broken"]["line"] == 3
    assert slotctl(socket, "pairs", "repair", "--reason", "an editor") == 0
    assert slotctl(socket, "pairs", "check") == 0


def test_json_may_stand_before_the_action_or_after(
    daemon: Daemon, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (("pairs", "--json", "check"), ("pairs", "check", "--json")):
        assert slotctl(socket, *words) == 0
        assert json.loads(capsys.readouterr().out)["whole"] is True
