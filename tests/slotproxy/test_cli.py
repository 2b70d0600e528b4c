"""slotctl against a daemon that speaks the control API over a real unix socket."""

from __future__ import annotations

import argparse
import errno
import json
import os
import re
import signal
import socket as sockets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from slotproxy import config, control_client, render
from slotproxy.cli import main
from slotproxy.cli_args import EXIT_CODES, build_parser
from tests.shim.build import build_shim
from tests.slotproxy.control_double import Daemon, serving, wait_until

ROOT = Path(__file__).parents[2]
SLOTCTL = Path(sys.executable).parent / "slotctl"
DEMO = """
control: nowhere.sock
card: {simulated: 32GiB}
engines:
  llama: {profile: openai, vram: 1GiB, command: [/bin/true], pairs: {one: {artifact: []}}}
"""
LOST = 5.0  # seconds within which a lost daemon must be noticed


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Daemon]]:
    """One healthy daemon for all who need no other."""
    socket = tmp_path_factory.mktemp("daemon") / "control.sock"
    with serving(socket, Daemon()) as daemon:
        yield socket, daemon


@pytest.fixture
def daemon(shared: tuple[Path, Daemon]) -> Daemon:
    shared[1].reset()
    return shared[1]


@pytest.fixture
def socket(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The shared daemon's where the test has that one, else one where nobody listens yet."""
    if "daemon" in request.fixturenames:
        return Path(request.getfixturevalue("shared")[0])
    return tmp_path / "control.sock"


@pytest.fixture
def faulty(request: pytest.FixtureRequest, socket: Path) -> Iterator[Daemon]:
    with serving(socket, Daemon(request.param)) as daemon:
        yield daemon


def slotctl(socket: Path, *words: str) -> int:
    return main(["--control", str(socket), *words])


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


@contextmanager
def daemon_process(socket: Path, fault: str = "") -> Iterator[subprocess.Popen[str]]:
    with process(sys.executable, "-m", "tests.slotproxy.control_double", str(socket), fault) as child:
        wait_until(lambda: answers(socket))
        yield child


def answers(path: Path) -> bool:
    with sockets.socket(sockets.AF_UNIX) as knock:
        return knock.connect_ex(str(path)) == 0


# ------------------------------------------------------------------------------------------------- each command


def test_status_says_who_serves_and_who_waits(daemon: Daemon, socket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert slotctl(socket, "status") == 0
    shown = capsys.readouterr().out
    assert "serving   strata:current (verified), since 2026-01-02 03:04:05Z\n" in shown
    assert "gate      open to strata: 1 in flight, 2 waiting, 2KiB held, longest wait 1.5 s\n" in shown
    assert "card      Card: 1GiB free of 32GiB, 31GiB in use\n" in shown
    assert "warning   the tree has moved\n" in shown


def test_status_says_what_is_relaxed_and_how_what_serves_is_proven(
    daemon: Daemon, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert slotctl(socket, "status") == 0
    assert "policy" not in capsys.readouterr().out
    daemon.policy = ["ninfer: a pair is given the card when its files fit, proven or not (require: candidate)"]
    daemon.verified.clear()
    assert slotctl(socket, "status") == 0
    shown = capsys.readouterr().out
    assert f"policy    {daemon.policy[0]}\n" in shown
    assert "serving   strata:current (not verified), since" in shown


def test_times_are_shown_as_people_read_them() -> None:
    assert render.moment("2026-01-02T03:04:05.678901+00:00") == "2026-01-02 03:04:05Z"
    assert render.moment("2026-01-02T03:04:05.678901234Z") == "2026-01-02 03:04:05Z"
    assert render.moment(None) == ""


def test_plan_shows_differences_what_would_run_and_the_verdict(
    daemon: Daemon, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert slotctl(socket, "plan", "to-ninfer") == 0
    shown = capsys.readouterr().out
    assert re.search(r"^ +declared +created$", shown, re.MULTILINE)
    assert re.search(r"^  image +ninfer:v3 +ninfer:local$", shown, re.MULTILINE)
    assert "would run a 'b c'\n" in shown
    assert f"artifact  /srv/models/v3.ninfer  22GiB  sha256:{'55' * 32}\n" in shown
    assert shown.endswith("verdict   allowed\n")


def test_drift_shows_every_engine_and_exits_3_where_something_differs(
    daemon: Daemon, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert slotctl(socket, "drift") == 3
    shown = capsys.readouterr().out
    first, second = shown.split("\n\n")
    assert first.startswith("strata    strata:current (deployed): verified, 2026-01-01 by trial\n")
    assert first.endswith("drift     none: as declared and verified")
    assert second.startswith("ninfer    ninfer:v3: not verified\n")
    assert "created   ninfer:v2, not running (exited)\n" in second
    assert re.search(r"^  image +ninfer:v3 +ninfer:local$", second, re.MULTILINE)
    assert "refused   v3.ninfer is truncated\n          mend: copy it again\n" in second


def test_drift_of_one_engine_asks_for_that_and_exits_0_where_nothing_differs(daemon: Daemon, socket: Path) -> None:
    assert slotctl(socket, "drift", "strata") == 0
    assert slotctl(socket, "drift", "ninfer:v3") == 0
    assert daemon.orders == [{"engine": "strata", "pair": None}, {"engine": "ninfer", "pair": "v3"}]


def test_a_refused_plan_exits_3_and_shows_what_would_mend_it(
    daemon: Daemon, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert slotctl(socket, "plan", "ninfer:v3") == 3
    shown = capsys.readouterr().out
    assert "refused   ninfer:v3 never ran on this card\n          mend: use --trial\n" in shown
    assert slotctl(socket, "plan", "ninfer:v3", "--trial") == 0


def test_a_swap_shows_its_phases_as_they_pass_and_exits_0_when_the_pair_serves(
    daemon: Daemon, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert slotctl(socket, "swap", "to-ninfer:v2") == 0
    assert daemon.pair == "ninfer:v2"
    shown = capsys.readouterr().out
    assert "  1.2 s  draining   2 requests in flight\n" in shown
    assert shown.endswith("ninfer:v2 serves\n")


def test_words_of_others_cannot_move_the_cursor_or_break_a_line(
    daemon: Daemon, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slotctl(socket, "swap", "to-ninfer:v2")
    assert "  0.0 s  checking   hashing ninfer:v2 [2J\n" in capsys.readouterr().out


def test_a_swap_that_is_refused_exits_3_and_nothing_changes(
    daemon: Daemon, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert slotctl(socket, "swap", "to-ninfer:v3") == 3
    assert daemon.pair == "strata:current"
    assert capsys.readouterr().err == "slotctl: ninfer:v3 never ran on this card; slotctl swap to-… --trial\n"


@pytest.mark.parametrize(("faulty", "code"), [("restored", 4), ("dark", 5)], indirect=["faulty"])
@pytest.mark.parametrize("json_too", [False, True])
def test_a_swap_that_fails_exits_with_what_is_true_now(
    faulty: Daemon, socket: Path, code: int, json_too: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert slotctl(socket, "swap", "to-ninfer", *(["--json"] if json_too else [])) == code
    out, err = capsys.readouterr()
    assert err.splitlines()[-1].startswith("slotctl: ")
    assert not json_too or json.loads(out)["code"] == code


def test_every_swap_option_reaches_the_daemon(daemon: Daemon, socket: Path) -> None:
    written = ["--trial", "--and-back", "--cut", "--no-stage", "--drain", "10m", "--tokens", "256", "--rehash"]
    slotctl(socket, "swap", "ninfer:v3", *written)
    slotctl(socket, "swap", "to-ninfer")
    every = {"trial": True, "cut": True, "stage": False, "drain": 600.0, "tokens": 256}
    every |= {"rehash": True, "and_back": True}
    none = {"trial": False, "cut": False, "stage": True, "drain": None, "tokens": None}
    none |= {"rehash": False, "and_back": False}
    assert daemon.orders == [
        {"engine": "ninfer", "pair": "v3", **every},
        {"engine": "ninfer", "pair": None, **none},
    ]


@pytest.mark.parametrize("faulty", ["slow"], indirect=True)
def test_an_abort_gives_up_the_swap_under_way(faulty: Daemon, socket: Path) -> None:
    with process(str(SLOTCTL), "--control", str(socket), "swap", "to-ninfer") as swap:
        wait_until(lambda: faulty.orders)
        assert slotctl(socket, "swap", "--abort") == 0
        assert swap.wait(20) == 4


def test_an_abort_without_a_swap_is_refused(daemon: Daemon, socket: Path) -> None:
    assert slotctl(socket, "swap", "--abort") == 3


def test_hold_returns_when_nothing_is_in_flight_and_release_ends_it(
    daemon: Daemon, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert slotctl(socket, "hold", "--for", "10m") == 0
    assert (daemon.held, daemon.hold) == (True, 600.0)
    slotctl(socket, "status")
    assert "hold      set: requests wait, 10 min 0 s left, or slotctl release\n" in capsys.readouterr().out
    assert slotctl(socket, "release") == 0
    assert not daemon.held


def test_stage_tells_what_was_made_anew(daemon: Daemon, socket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert slotctl(socket, "stage", "ninfer:v2") == 0
    assert capsys.readouterr().out.splitlines() == [
        "ninfer:v2 is staged",
        "field  declared  created",
        "image  b         a        part of the pair",
    ]


def test_pairs_lists_evidence_and_last_failures(
    daemon: Daemon, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert slotctl(socket, "pairs") == 0
    shown = capsys.readouterr().out
    assert re.search(
        r"^ninfer:v2 +deployed +verified +2026-01-01 +trial +9\.5 s +30GiB +160\.2 +i$", shown, re.MULTILINE
    )
    assert "ninfer:v3  failed 2026-01-03: exit 1\n" in shown


def test_adopt_makes_evidence_of_what_serves_and_of_nothing_else(daemon: Daemon, socket: Path) -> None:
    assert slotctl(socket, "pairs", "adopt", "strata") == 0
    assert slotctl(socket, "pairs", "adopt", "ninfer") == 3


def test_gpu_shows_the_card_and_its_holders(daemon: Daemon, socket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert slotctl(socket, "gpu") == 0
    shown = capsys.readouterr().out
    assert "memory    1GiB free of 32GiB, 31GiB in use\n" in shown
    assert re.search(r"^4711 +31GiB +strata +strata$", shown, re.MULTILINE)
    assert re.search(r"^1 +unknown", shown, re.MULTILINE)


@pytest.mark.parametrize("faulty", ["gpu"], indirect=True)
def test_a_card_that_cannot_be_read_is_said_with_what_to_do(
    faulty: Daemon, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert slotctl(socket, "gpu") == 3
    assert capsys.readouterr().err == "slotctl: NVML: driver/library version mismatch; reboot\n"


@pytest.mark.parametrize("faulty", ["ill"], indirect=True)
def test_doctor_shows_what_is_wrong_with_its_mend_and_exits_3(
    faulty: Daemon, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert slotctl(socket, "doctor") == 3
    assert capsys.readouterr().out.splitlines() == [
        "problem   ninfer:v2: its file is gone",
        "          mend: restore it",
        "warning   slotproxy: requests are held",
        "seen      Docker 20.10.24, API 1.41; compose 2.40.3",
        "found     1 problem, 1 warning",
    ]


@pytest.mark.parametrize(
    ("faulty", "last"),
    [("", "found     1 warning\n"), ("well", "found     nothing that needs anybody\n")],
    indirect=["faulty"],
)
def test_doctor_exits_0_where_nothing_needs_a_person(
    faulty: Daemon, socket: Path, last: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert slotctl(socket, "doctor") == 0
    assert capsys.readouterr().out.endswith(last)


@pytest.mark.parametrize("faulty", ["well"], indirect=True)
def test_doctor_says_when_the_daemon_is_of_another_version(
    faulty: Daemon, socket: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("slotproxy.cli_doctor.__version__", "0.2.0")
    assert slotctl(socket, "doctor") == 0
    assert "warning   slotproxy: the daemon is of version 0.1.0, slotctl of 0.2.0\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("control: nowhere.sock\nlisten: here\n", "problem   configuration: {file}: card: is missing: "),
        (DEMO, "seen      {file}: good\nfound     1 problem\n"),
    ],
)
def test_doctor_looks_at_the_configuration_also_where_there_is_no_daemon(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "slotproxy.yml"
    file.write_text(text)
    assert main(["doctor", "--config", str(file)]) == 6
    shown = capsys.readouterr()
    assert f"problem   slotproxy: no daemon at {tmp_path}/nowhere.sock\n          mend: start it " in shown.out
    assert said.format(file=file) in shown.out
    assert shown.err.startswith(f"slotctl: no daemon at {tmp_path}/nowhere.sock; start it")
    assert main(["doctor", "--json", "--config", str(file)]) == 6
    assert json.loads(capsys.readouterr().out)["code"] == 6


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["plan", "to-ninfer"],
        ["plan", "to-ninfer:v3"],
        ["drift"],
        ["swap", "to-ninfer"],
        ["swap", "to-ninfer:v3"],
        ["swap", "--abort"],
        ["stage", "ninfer"],
        ["pairs"],
        ["pairs", "adopt", "ninfer"],
        ["pairs", "attest", "ninfer:v3", "--reason", "I saw it"],
        ["pairs", "revoke", "ninfer", "--reason", "hot"],
        ["pairs", "log"],
        ["pairs", "export", "ninfer:v2"],
        ["pairs", "export", "ninfer:v3"],
        ["pairs", "check"],
        ["pairs", "repair", "--reason", "an editor"],
        ["gpu"],
        ["doctor"],
        ["hold"],
        ["release"],
    ],
    ids=" ".join,
)
def test_with_json_stdout_is_one_document_and_people_read_stderr(
    daemon: Daemon, socket: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = slotctl(socket, *words, "--json")
    out, err = capsys.readouterr()
    document = json.loads(out)
    if words == ["swap", "to-ninfer"]:
        assert [line["phase"] for line in document["phases"]] == ["checking", "draining"]
        assert "draining" in err
    if code == 3 and words[0] not in ("plan", "drift"):
        assert (document["code"], err[:9]) == (3, "slotctl: ")


# ------------------------------------------------------------------------------------------------- a lost daemon


@pytest.mark.parametrize("words", [["status"], ["swap", "to-ninfer"], ["plan", "to-ninfer"], ["hold", "--json"]])
def test_without_a_daemon_it_says_what_to_do_and_exits_6(
    socket: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert slotctl(socket, *words) == 6
    err = capsys.readouterr().err
    assert err == f"slotctl: no daemon at {socket}; start it (slotproxy serve), or name its socket with --control\n"


def test_a_socket_that_nobody_listens_at_is_told_apart(socket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with sockets.socket(sockets.AF_UNIX) as dead:
        dead.bind(str(socket))
    assert slotctl(socket, "status") == 6
    assert f"nobody listens at {socket}: the daemon has died" in capsys.readouterr().err


@pytest.mark.parametrize("faulty", ["mute"], indirect=True)
def test_a_server_that_is_not_slotproxy_is_told_apart(
    faulty: Daemon, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert slotctl(socket, "status") == 6
    assert "no answer of slotproxy's (HTTP 404)" in capsys.readouterr().err


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_a_daemon_that_goes_away_in_the_middle_of_a_swap_is_noticed_within_5_s(
    socket: Path, blow: signal.Signals
) -> None:
    with (
        daemon_process(socket, "slow") as daemon,
        process(str(SLOTCTL), "--control", str(socket), "swap", "to-ninfer") as swap,
    ):
        assert swap.stdout is not None
        wait_until(lambda: "draining" in swap.stdout.readline())
        struck = time.monotonic()
        daemon.send_signal(blow)
        assert swap.wait(30) == 6
        assert time.monotonic() - struck < LOST
        assert swap.stderr is not None
        assert len(swap.stderr.read().splitlines()) == 1


@pytest.mark.parametrize("faulty", ["silent"], indirect=True)
def test_a_swap_without_a_tick_counts_as_lost_within_5_s(
    faulty: Daemon, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = time.monotonic()
    assert slotctl(socket, "swap", "to-ninfer") == 6
    assert time.monotonic() - begun < LOST
    assert "has not answered for 3 s; it hangs or is overloaded" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["status"], ["plan", "to-ninfer"]])
def test_a_daemon_that_hangs_is_lost_also_where_no_ticks_come(
    socket: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with daemon_process(socket) as daemon:
        daemon.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(control_client, "SILENCE", 0.5)
        begun = time.monotonic()
        assert slotctl(socket, *words) == 6
        assert time.monotonic() - begun < LOST


def test_a_proxy_of_the_users_is_not_asked(daemon: Daemon, socket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert slotctl(socket, "status") == 0


def test_a_plan_that_hashes_for_long_shows_how_far_it_is_while_the_daemon_lives(
    socket: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(control_client, "SILENCE", 1.5)
    with serving(socket, Daemon(plan_takes=3.0)) as daemon:
        assert slotctl(socket, "plan", "to-ninfer", "--rehash", "--json") == 0
        assert [plan["rehash"] for plan in daemon.plans] == [True]
    out, err = capsys.readouterr()
    assert json.loads(out).keys() >= {"label", "allowed"}
    assert "done" not in json.loads(out)
    assert "checking   hashing /srv/models/v3.ninfer: 1.0 of 22.0 GiB\n" in err


@pytest.mark.parametrize("faulty", ["late"], indirect=True)
def test_a_plan_that_is_refused_after_a_while_exits_with_its_code(
    faulty: Daemon, socket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert slotctl(socket, "plan", "to-ninfer") == 3
    assert capsys.readouterr().err == "slotctl: the disk stalls; look after it\n"


def test_ctrl_c_only_detaches_and_the_swap_goes_on(socket: Path) -> None:
    with (
        serving(socket, Daemon("slow")) as daemon,
        process(str(SLOTCTL), "--control", str(socket), "swap", "to-ninfer") as swap,
    ):
        assert swap.stdout is not None
        wait_until(lambda: "draining" in swap.stdout.readline())
        swap.send_signal(signal.SIGINT)
        assert swap.wait(20) == 7
        assert swap.stderr is not None
        assert swap.stderr.read().startswith("slotctl: detached; the swap goes on; look with: slotctl status")
        assert not daemon.aborted.is_set()


# ------------------------------------------------------------------------------------------------- usage


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["dance"],
        ["swap"],
        ["swap", "to-"],
        ["swap", "to-ninfer", "--and-back"],
        ["swap", "--abort", "--and-back"],
        ["swap", "to-ninfer:"],
        ["swap", "to-ninfer", "--abort"],
        ["swap", "--abort", "--cut"],
        ["swap", "--abort", "--tokens", "8"],
        ["swap", "to-ninfer", "--tokens", "8"],
        ["swap", "to-ninfer", "--trial", "--tokens", "0"],
        ["swap", "to-ninfer", "--trial", "--tokens", "10001"],
        ["swap", "to-ninfer", "--trial", "--tokens", "many"],
        ["swap", "to-ninfer", "--drain", "10"],
        ["swap", "to-ninfer", "--tri"],
        ["pairs", "adopt"],
        ["pairs", "drop", "ninfer"],
        ["pairs", "attest", "ninfer"],
        ["pairs", "attest", "--reason", "x"],
        ["pairs", "revoke", "ninfer", "--reason", " "],
        ["pairs", "revoke", "ninfer", "--reason", "two\nlines"],
        ["pairs", "repair", "--reason", "x" * 501],
        ["pairs", "export"],
        ["hold", "--for", "soon"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "slotctl" in capsys.readouterr().err


def test_the_socket_is_the_options_the_environments_or_the_configurations(
    daemon: Daemon, socket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "slotproxy.yml"
    file.write_text(yaml.safe_dump({"control": str(socket)}))
    assert main(["--config", str(file), "status"]) == 0
    assert main(["status", "--config", str(file)]) == 0
    monkeypatch.setenv("SLOTPROXY_CONFIG", str(file))
    assert main(["status"]) == 0
    monkeypatch.setenv("SLOTPROXY_CONTROL", str(tmp_path / "other.sock"))
    assert main(["status"]) == 6
    assert main(["status", "--control", str(socket)]) == 0


def test_a_configuration_in_a_folder_that_is_closed_to_us_leaves_the_usual_socket(
    daemon: Daemon, socket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Root sees into every folder, so the error is made."""
    closed, real = tmp_path / "closed" / "slotproxy.yml", Path.stat

    def stat(path: Path, **more: bool) -> os.stat_result:
        if path == closed:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, **more)

    monkeypatch.setattr(Path, "stat", stat)
    monkeypatch.setattr(config, "DEFAULT_PATH", closed)
    monkeypatch.setattr(config, "DEFAULT_CONTROL", socket)
    assert main(["status"]) == 0
    assert "slotctl: " not in capsys.readouterr().err


def test_a_named_configuration_that_is_broken_exits_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(tmp_path / "gone.yml"), "status"]) == 2
    assert "gone.yml: can't be read: No such file or directory" in capsys.readouterr().err


def test_check_config_needs_no_daemon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine: dict[str, Any] = {"profile": "strata", "container": "s", "vram": "30GiB"}
    document = {"card": {"gpu": 0}, "engines": {"strata": engine | {"pairs": {"v2": {"image": "i", "artifact": "a"}}}}}
    file = tmp_path / "slotproxy.yml"
    file.write_text(yaml.safe_dump(document))
    assert main(["check-config", str(file)]) == 0
    assert capsys.readouterr().out.startswith(f"{file}: good; pairs strata:v2; slots anonymous\n")
    file.write_text(yaml.safe_dump(document).replace("vram:", "require: attested\n    vram:"))
    assert main(["check-config", str(file)]) == 0
    words = "strata: a pair is given the card when the operator attests it (require: attested)"
    assert words in capsys.readouterr().out.splitlines()
    file.write_text(yaml.safe_dump(document).replace("30GiB", "30"))
    assert main(["--config", str(file), "check-config"]) == 2
    assert capsys.readouterr().err.startswith(f"slotctl: {file}: engines.strata.vram: 30 has no unit; ")
    assert main(["check-config", str(file), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["code"] == 2


def test_check_config_prints_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-config", "--schema"]) == 0
    assert "engines" in json.loads(capsys.readouterr().out)["$defs"]["FileKeys"]["properties"]


def below(parser: argparse.ArgumentParser, path: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Each command, also those of another, by the words that call it."""
    for action in parser._actions:
        for name, command in action.choices.items() if isinstance(action.choices, dict) else ():
            yield f"{path}{name}", command
            yield from below(command, f"{path}{name} ")


def test_help_lists_every_command_option_and_exit_code() -> None:
    parser = build_parser()
    shown = parser.format_help()
    commands = dict(below(parser))
    assert {"status", "plan", "swap", "stage", "pairs", "gpu", "hold", "release", "check-config"} <= set(commands)
    assert "pairs adopt" in commands
    for name, command in commands.items():
        own = command.format_help()
        for option in (option for action in command._actions for option in action.option_strings):
            assert f"{option} " in own.replace(",", " ").replace("]", " ").replace("\n", " "), (name, option)
            assert option in shown, (name, option)
        assert f"slotctl {name} " in shown
    for code, truth in EXIT_CODES.items():
        assert f"  {code}  {truth}" in shown


def test_a_pipe_that_closes_early_makes_no_traceback(daemon: Daemon, socket: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write) as stdout:
        ended = subprocess.run(
            [SLOTCTL, "--control", socket, "status"], stdout=stdout, stderr=subprocess.PIPE, check=False, timeout=30
        )
    assert b"Traceback" not in ended.stderr


@pytest.mark.parametrize(("vram", "code", "said"), [("30.5GiB", 0, "good"), ("40GiB", 2, "engines.solo.vram")])
def test_check_config_holds_sizes_against_the_card_where_the_driver_answers(
    vram: str, code: int, said: str, tmp_path: Path
) -> None:
    ran = _check_on_the_shim(tmp_path, vram, {"SLOTPROXY_SHIM_CARD": str(tmp_path)})
    assert (ran.returncode, said in ran.stdout + ran.stderr) == (code, True), ran.stderr


def test_check_config_says_when_the_card_cannot_be_asked(tmp_path: Path) -> None:
    ran = _check_on_the_shim(tmp_path, "40GiB", {})
    assert ran.returncode == 0
    assert "can't be told" in ran.stdout


def _check_on_the_shim(folder: Path, vram: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """slotctl in a process of its own, whose NVML library is the tests': it has a card of 32 GiB, or none."""
    file = folder / "gpu.yml"
    file.write_text(
        f"card: {{gpu: 0}}\nengines: {{solo: {{profile: openai, url: 'http://127.0.0.1:9', command: [/bin/true], "
        f"vram: {vram}, pairs: {{only: {{artifact: []}}}}}}}}\n"
    )
    words = [str(Path(sys.executable).with_name("slotctl")), "check-config", str(file)]
    surroundings = {**os.environ, "LD_LIBRARY_PATH": str(build_shim(folder / "shim")), **env}
    return subprocess.run(words, env=surroundings, capture_output=True, text=True, timeout=60, check=False)


UNTOLD = [["status"], ["status", "--json"], ["swap", "to-ninfer"], ["check-config", "--schema"]]


@pytest.mark.parametrize("words", UNTOLD)
def test_where_its_output_can_t_be_written_it_is_one_line_and_exit_1(
    words: list[str], daemon: Daemon, socket: Path
) -> None:
    ended = to_a_full_disk(["--control", str(socket), *words], stderr=subprocess.PIPE)
    said = "slotctl: stdout can't be written: No space left on device; what was ordered goes on; look with: slotctl"
    assert (ended.returncode, ended.stderr) == (1, f"{said} status\n")


def test_where_neither_output_can_be_written_it_still_ends_with_its_code(daemon: Daemon, socket: Path) -> None:
    assert to_a_full_disk(["--control", str(socket), "status"], stderr=subprocess.STDOUT).returncode == 1


def to_a_full_disk(words: list[str], stderr: int) -> subprocess.CompletedProcess[str]:
    with Path("/dev/full").open("w") as full:
        return subprocess.run([SLOTCTL, *words], stdout=full, stderr=stderr, text=True, timeout=60, check=False)
