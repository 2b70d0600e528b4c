"""`slotproxy demo` as people run it: what it promises, and what is left of it however it ends."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM

import httpx
import pytest
import yaml

from slotproxy import demo_files
from slotproxy.claims import CannotServe
from slotproxy.demo_files import Quarters
from tests.slotproxy.programs import (
    BIN,
    LIMIT,
    Demo,
    Program,
    Serve,
    accepts,
    chat,
    ended_engines,
    engines,
    env,
    free_port,
    get,
    quick_house,
    status,
    until,
)

LOST = 5.0  # seconds within which a slotctl notices that its daemon has gone
TOUR = 60.0  # seconds that a tour may take


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """One for all who leave it as it is: in a relative folder with a space in its name, made by the demo itself."""
    above = tmp_path_factory.mktemp("demo")
    folder, port = above / "the demo", free_port()
    with ended_engines(folder), Demo(folder, "--port", port, cwd=above) as running:
        seen: list[bool] = []
        while not running.facts:
            if accepts(port):  # then all of it is true already
                pairs = {one["label"]: one for one in get(running.control, "/pairs")["pairs"]}
                seen.append(status(running.control)["pair"] == "strata:current")
                seen.append([pairs[label]["how"] for label in ("strata:current", "ninfer:v2")] == ["trial", "trial"])
                seen.append(pairs["ninfer:v3"]["state"] == "candidate")
            assert running.alive, running.err
            time.sleep(0.01)
        assert all(seen), "clients were let in too early"
        assert running.ready["port"] == port
        yield running


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Path]:
    """A demo's folder as one that was killed at once has left it, but for engines that load at once."""
    folder = tmp_path / "demo"
    with ended_engines(folder):
        quick_house(folder)
        yield folder


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*")) if folder.exists() else []


# ------------------------------------------------------------------------------------------------- what it promises


def test_clients_are_let_in_when_the_trials_are_over_and_strata_serves(demo: Demo) -> None:
    said = [line for line in demo.err.splitlines() if line.startswith("trial of")]
    assert said == ["trial of ninfer:v2 …", "trial of strata:current …"]
    assert demo.status()["pid"] == demo.pid == demo.ready["pid"]
    assert {"slotproxy.yml", "models", "control.sock"} <= {path.name for path in demo.folder.iterdir()}
    settings = yaml.safe_load((demo.folder / "slotproxy.yml").read_text())
    assert settings["models"]["qwen3.8-27b"].keys() == {"ninfer", "strata"}
    urls = {engine["url"] for engine in settings["engines"].values()}
    assert len(urls | {demo.ready["url"]}) == 3


def test_the_three_commands_do_what_they_say_when_they_are_pasted(demo: Demo) -> None:
    curl, swap, look = demo.ready["commands"]
    assert curl in demo.err
    said = [_pasted(line) for line in (curl, swap, look, curl)]
    assert said[0].rstrip().endswith("data: [DONE]")
    assert said[1].endswith("ninfer:v2 serves\n")
    assert said[2].startswith("serving   ninfer:v2 (verified), since ")
    assert said[3].rstrip().endswith("data: [DONE]")


def _pasted(line: str) -> str:
    ran = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=LIMIT, check=True, env=env())
    return ran.stdout


def test_the_pair_that_never_ran_is_refused_and_a_trial_verifies_it(demo: Demo) -> None:
    before = {name: one["id"] for name, one in demo.status()["engines"].items()}
    refused = demo.slotctl("swap", "to-ninfer:v3")
    assert refused.returncode == 3
    assert "ninfer:v3 never ran on this card" in refused.stderr
    assert {name: one["id"] for name, one in demo.status()["engines"].items()} == before
    assert demo.slotctl("plan", "to-ninfer:v3").returncode == 3
    assert demo.slotctl("swap", "to-ninfer:v3", "--trial").returncode == 0
    assert re.search(r"^ninfer:v3 +verified", demo.slotctl("pairs").stdout, re.MULTILINE)
    assert demo.slotctl("swap", "to-ninfer:v3").returncode == 0


def test_a_hold_returns_when_nothing_is_in_flight_and_ends_by_itself(demo: Demo) -> None:
    assert demo.slotctl("hold", "--for", "2s").returncode == 0
    assert demo.status()["gate"]["state"] == "held"
    began = time.monotonic()
    answer = httpx.post(f"{demo.ready['url']}/v1/chat/completions", json=chat(), timeout=LIMIT)
    assert answer.status_code == 200
    assert time.monotonic() - began > 0.2
    assert demo.status()["hold"] is None


def test_a_second_demo_takes_neither_port_nor_folder(demo: Demo) -> None:
    port = demo.ready["port"]
    above = demo.folder.parent
    with Program(above, "demo", "--port", port, "--state", above / "new", name="second") as second:
        assert second.end() == 1
        assert second.err.startswith(f"slotproxy: can't listen at 127.0.0.1:{port}: Address already in use; pid ")
        assert f"pid {demo.pid} (" in second.err
        assert second.err.endswith("give another --port\n")
        assert second.out == ""
        assert not (above / "new").exists()
    with Program(above, "demo", "--port", 0, "--state", demo.folder, name="third") as third:
        assert third.end() == 1
        assert f"another slotproxy (pid {demo.pid}) works in this state folder" in third.err
        assert third.err.count("\n") == 1
    assert demo.status()["serving"]


# ------------------------------------------------------------------------------------------------- how it ends


def test_only_the_daemon_ends_by_sigterm_and_the_next_one_adopts_the_engine_untouched(house: Path) -> None:
    with Demo(house, "--port", 0) as first:
        assert first.ready
        before = engines(house)
        assert first.end(SIGTERM) == 0
        assert f"serve --config {house}/slotproxy.yml" in first.err
    assert engines(house) == before != []
    with Serve(house / "slotproxy.yml", folder=house.parent) as serve:
        assert serve.event("an engine serves")["pair"] == "strata:current"
        answer = httpx.post(f"{serve.url}/v1/chat/completions", json=chat(), timeout=LIMIT)
        assert answer.headers["x-slotproxy-engine"] == "strata"
        assert serve.status()["verified"] is True
        said = json.loads(serve.slotctl("events", "--json").stdout)["events"]
        lives = [one["kind"] for one in said if one["kind"] in ("started", "serving", "ended", "adopted")]
        assert lives == ["started", "serving", "ended", "started", "adopted"]
        assert serve.end(SIGTERM) == 0
    assert engines(house) == before
    with Demo(house, "--port", 0, name="again") as again:
        assert again.ready
        assert "trial of" not in again.err
        assert engines(house) == before
        assert again.end(SIGINT) == 0
    assert (engines(house), files(house)) == ([], [])


def test_killed_in_a_swap_it_is_missed_within_5_s_and_the_next_demo_goes_on(house: Path) -> None:
    with Demo(house, "--port", 0) as first:
        assert first.ready
        stream = _long_stream(first)
        swap = subprocess.Popen([*_slotctl(first), "swap", "to-ninfer"], stdout=subprocess.PIPE, env=env())
        first.until(lambda: first.status()["state"] == "draining")
        first.end(SIGKILL)
        killed = time.monotonic()
        assert swap.wait(LIMIT) == 6
        assert time.monotonic() - killed < LOST
        swap.communicate()
        stream.close()
    assert engines(house) != []
    with Demo(house, "--port", 0, name="again") as again:
        assert again.ready
        assert "trial of" not in again.err
        assert again.status()["pair"] == "strata:current"
        answer = httpx.post(f"{again.ready['url']}/v1/chat/completions", json=chat(), timeout=LIMIT)
        assert answer.status_code == 200
        # Ctrl-C in the middle of a swap, and once more
        swap = subprocess.Popen([*_slotctl(again), "swap", "to-ninfer"], stdout=subprocess.PIPE, env=env())
        again.until(lambda: again.status()["state"] in ("starting", "warming"))
        again.signal(SIGINT)
        until(lambda: not accepts(again.ready["port"]))
        again.signal(SIGINT)
        assert again.end() == 0
        assert swap.wait(LIMIT) == 6
        swap.communicate()
    assert (engines(house), files(house)) == ([], [])


def _slotctl(demo: Demo) -> list[str]:
    return [str(BIN / "slotctl"), "--control", str(demo.control)]


def _long_stream(demo: Demo) -> httpx.Client:
    """A client that reads the beginning of an endless answer."""
    client = httpx.Client(timeout=LIMIT)
    request = client.build_request("POST", f"{demo.ready['url']}/v1/chat/completions", json=chat(100_000, stream=True))
    client.send(request, stream=True)
    demo.until(lambda: demo.status()["gate"]["in_flight"] == 1)
    return client


@pytest.fixture
def short() -> Iterator[Path]:
    """A temporary folder in whose folders a socket's path still fits."""
    with tempfile.TemporaryDirectory(prefix="sp") as folder:
        yield Path(folder)


def test_ctrl_c_during_the_trials_leaves_nothing_not_even_the_temporary_folder(tmp_path: Path, short: Path) -> None:
    with Program(tmp_path, "demo", "--port", 0, TMPDIR=short) as demo:
        demo.until(lambda: "trial of ninfer:v2" in demo.out)
        (folder,) = short.iterdir()
        with ended_engines(folder):
            demo.until(lambda: engines(folder))
            demo.signal(SIGINT)
            demo.signal(SIGINT)
            assert demo.end() == 0
            assert engines(folder) == []
        assert demo.err == ""
    assert files(short) == []


def test_sigterm_during_the_trials_leaves_what_the_next_demo_goes_on_with(house: Path) -> None:
    with Demo(house, "--port", 0) as first:
        first.until(lambda: engines(house))
        assert first.end(SIGTERM) == 0
        assert "The engines run on" in first.err
    assert engines(house) != []
    with Demo(house, "--port", 0, name="again") as again:
        assert again.ready
        pairs = {one["label"]: one["state"] for one in get(again.control, "/pairs")["pairs"]}
        assert pairs == {"strata:current": "verified", "ninfer:v2": "verified", "ninfer:v3": "candidate"}
        assert again.status()["pair"] == "strata:current"
        assert again.end(SIGINT) == 0
    assert (engines(house), files(house)) == ([], [])


# ------------------------------------------------------------------------------------------------- the tour


def test_a_tour_says_that_no_request_failed_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "by the demo"
    began = time.monotonic()
    with ended_engines(folder), Program(tmp_path, "demo", "--tour", "--json", "--port", 0, "--state", folder) as tour:
        assert tour.end() == 0
        assert time.monotonic() - began < TOUR
        report = json.loads(tour.out)
        assert (report["failed"], report["good"]) == (0, True)
        assert report["requests"] > 4
        assert [(one["to"], one["code"]) for one in report["swaps"]] == [
            ("ninfer:v2", 0),
            ("strata:current", 0),
            ("ninfer:v2", 4),
        ]
        assert all(0 < one["dark"] < TOUR for one in report["swaps"])
        assert "failed        0" in tour.err
        assert engines(folder) == []
    assert not (tmp_path / "made").exists()


def test_a_tour_in_which_a_request_fails_exits_1(tmp_path: Path) -> None:
    """Strata's engine process dies in the middle of each answer that is longer than the proof of its readiness."""
    folder = tmp_path / "demo"
    path = quick_house(folder)
    settings = yaml.safe_load(path.read_text())
    settings["engines"]["strata"]["env"]["STRATA_SIM_FAULT"] = "crash:15"
    settings["engines"]["strata"]["trial_tokens"] = 8
    path.write_text(demo_files.HEAD + yaml.safe_dump(settings))
    with ended_engines(folder), Program(tmp_path, "demo", "--tour", "--json", "--port", 0, "--state", folder) as tour:
        assert tour.end() == 1
        report = json.loads(tour.out)
        assert report["failed"] > 0
        assert report["failures"]
        assert engines(folder) == []
    assert files(folder) == []


# ------------------------------------------------------------------------------------------------- where it may live


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ("models/precious.gguf", "models is there, and no demo's; give another folder"),
        ("slotproxy.yml", "slotproxy.yml is no demo's; give another folder"),
    ],
)
def test_a_folder_of_somebody_elses_is_refused_and_left_alone(there: str, said: str, tmp_path: Path) -> None:
    (tmp_path / there).parent.mkdir(exist_ok=True)
    (tmp_path / there).write_text("precious")
    with pytest.raises(CannotServe, match=re.escape(said)):
        Quarters(tmp_path)
    assert (tmp_path / there).read_text() == "precious"


def test_a_folder_whose_socket_would_have_too_long_a_path_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100)
    with pytest.raises(
        CannotServe, match=r"--state: .*control.sock would have \d+ bytes, a socket's path may have 107"
    ):
        Quarters(deep)
    assert not deep.exists()


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotServe, match="can't be used: "):
        Quarters(tmp_path / "file" / "demo")


def test_what_was_there_before_stays_and_what_the_demo_made_goes(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    ours.mkdir()
    (ours / "note").touch()
    for folder in (ours, tmp_path / "a" / "b"):
        with Quarters(folder) as quarters:
            demo_files.write_house(quarters.folder, 1)
            quarters.over = True
    assert files(tmp_path) == [ours, ours / "note"]


def test_engines_get_ports_that_nobody_has_and_connections_never_get() -> None:
    ports = demo_files._free_ports(0)
    chosen = [next(ports) for _ in range(20)]
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert len(set(chosen)) == 20
    assert all(1024 <= port < low for port in chosen)
    with socket.create_server(("127.0.0.1", chosen[0])):
        taken = demo_files._free_ports(0)
        assert chosen[0] not in [next(taken) for _ in range(900)]
