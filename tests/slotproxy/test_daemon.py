"""`slotproxy serve`: what it needs, what it refuses, how it ends. Real processes; engines are the simulators."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import yaml

from slotproxy import claims, config, daemon
from slotproxy.__main__ import main
from slotproxy.claims import CannotServe, claim_port, control_socket, listen_at
from slotproxy.ending import Ending
from tests.slotproxy.manager import listening
from tests.slotproxy.programs import (
    LIMIT,
    Serve,
    accepts,
    chat,
    ended_engines,
    env,
    free_port,
    quick_house,
    status,
    until,
)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Path]:
    """A configuration; its engines are ended."""
    with ended_engines(tmp_path):
        yield quick_house(tmp_path, stop_limit="6s")


def changed(house: Path, name: str, **changes: object) -> Path:
    """Another configuration beside it."""
    path = house.with_name(f"{name}.yml")
    path.write_text(yaml.safe_dump({**yaml.safe_load(house.read_text()), **changes}, sort_keys=False))
    return path


def refused(config: Path) -> tuple[int, str]:
    """Exit code and what was said, which is one line."""
    with Serve(config, name=f"refused-{config.stem}") as program:
        code = program.end()
        assert program.err.count("\n") == 1, program.err
        assert program.out == ""
        return code, program.err


# ------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("listen: [", "slotproxy.yml"),
        ("listne: 127.0.0.1:1\n", "listne"),
        ("card: {simulated: 32GiB}\nengines: {}\ndrain: 5 parsecs\n", "drain"),
        (None, "slotproxy.yml"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_one_line_and_exit_2(
    text: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "slotproxy.yml"
    if text is not None:
        path.write_text(text)
    assert main(["serve", "--config", str(path)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("slotproxy: ")
    assert said in shown.err
    assert shown.err.count("\n") == 1


def test_a_port_in_use_is_told_with_who_has_it_and_nothing_is_made(house: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, said = refused(changed(house, "taken", listen=address))
    assert code == 1
    assert said.startswith(f"slotproxy: can't listen at {address}: Address already in use; pid {os.getpid()} (")
    assert not (house.parent / "state").exists()
    assert not (house.parent / "control.sock").exists()


def test_a_state_folder_that_cannot_be_written_is_refused(house: Path) -> None:
    (house.parent / "file").touch()
    code, said = refused(changed(house, "unwritable", state=str(house.parent / "file" / "state")))
    assert code == 1
    assert f"state: {house.parent}/file/state can't be used: Not a directory; make it a folder" in said


def test_what_is_no_socket_is_left_alone(house: Path) -> None:
    (house.parent / "control.sock").write_text("precious")
    code, said = refused(house)
    assert (code, (house.parent / "control.sock").read_text()) == (1, "precious")
    assert "is there and is no socket; remove it" in said


# ------------------------------------------------------------------------------------------------- one of a kind


def test_a_live_daemons_folder_and_socket_are_its_own(house: Path) -> None:
    with Serve(house) as first:
        first.event("slotproxy is up")
        code, said = refused(changed(house, "same-state", control=str(house.parent / "other.sock")))
        assert code == 1
        assert f"another slotproxy (pid {first.pid}) works in this state folder; stop it, or" in said
        code, said = refused(changed(house, "same-socket", state=str(house.parent / "other-state")))
        assert code == 1
        assert f"a slotproxy is running at {first.control} already; stop it, or" in said
        assert first.slotctl("status").returncode == 0
        assert stat.S_IMODE(first.control.stat().st_mode) == 0o660
        assert first.end(signal.SIGTERM) == 0
    assert not first.control.exists()


def test_what_a_killed_daemon_left_is_taken_over(house: Path) -> None:
    with Serve(house) as first:
        first.event("slotproxy is up")
        first.end(signal.SIGKILL)
    assert first.control.is_socket()
    with Serve(house, name="second") as second:
        second.event("slotproxy is up")
        assert second.status()["pid"] == second.pid
        assert second.end(signal.SIGINT) == 0


def test_of_many_that_take_over_a_dead_socket_at_once_exactly_one_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "control.sock"
    over = threading.Event()
    alive = claims._alive

    def found_out_slowly(path: Path) -> bool:
        found = alive(path)
        time.sleep(0.01)
        return found

    monkeypatch.setattr(claims, "_alive", found_out_slowly)

    def live(_: int) -> str:
        try:
            with control_socket(path):
                over.wait(LIMIT)
                return "lived"
        except CannotServe as refusal:
            return str(refusal)

    for _ in range(3):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
        with ThreadPoolExecutor(8) as pool:
            lives = [pool.submit(live, n) for n in range(8)]
            until(lambda lives=lives: sum(one.done() for one in lives) == 7)  # type: ignore[misc]
            with socket.socket(socket.AF_UNIX) as knock:
                knock.connect(str(path))
            over.set()
        ends = sorted(one.result() for one in lives)
        assert ends[-1] == "lived"
        assert all("is running at" in end for end in ends[:-1])
        assert not path.exists()
        over.clear()


def test_a_socket_is_taken_from_the_dead_only_and_removed_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with control_socket(path):
        path.unlink()  # by somebody who tidies up
        with control_socket(path):
            ours = path.stat()
        assert not path.exists()
        replacement = socket.socket(socket.AF_UNIX)
        replacement.bind(str(path))
        replacement.listen()
    assert path.is_socket(), "another daemon's socket was removed"
    replacement.close()
    assert stat.S_IMODE(ours.st_mode) == 0o660


async def test_a_port_that_is_claimed_is_refused_to_others_and_opens_later() -> None:
    claimed = await claim_port("127.0.0.1", 0, "give another")
    with claimed, socket.socket() as knock:
        assert knock.connect_ex(claimed.getsockname()) != 0
        await listen_at(claimed, "give another")
        with socket.create_connection(claimed.getsockname(), 5):
            pass


# ------------------------------------------------------------------------------------------------- what it lacks


def test_case_42_without_docker_and_without_a_card_it_is_up_and_says_so_once(house: Path) -> None:
    """Its clients, slotctl, the log, and systemd, for which it is ready: it can be asked, and says what is amiss."""
    folder = house.parent
    engine = {
        "profile": "ninfer",
        "container": "ninfer-eval",
        "compose": {"file": "docker-compose.yml", "service": "ninfer-eval"},
        "vram": "30GiB",
        "pairs": {"v2": {"image": "ninfer:local", "artifact": "models/qwen3_8_27b_nvfp4.ninfer"}},
    }
    (folder / "docker-compose.yml").write_text("services: {}\n")
    more = {"docker": f"unix://{folder}/docker.sock", "card": {"gpu": 0}, "engines": {"ninfer": engine}}
    changed(house, "slotproxy", **more, default="ninfer", models={})
    with (
        listening(str(folder / "notify")) as manager,
        Serve(house, NOTIFY_SOCKET=manager.name, WATCHDOG_USEC=4_000_000) as serve,
    ):
        serve.until(lambda: "READY=1" in manager.every())
        assert httpx.get(f"{serve.url}/health", timeout=1).status_code == 200
        dark = serve.until(lambda: serve.status()["dark"])
        assert "docker.sock" in dark["reason"]
        assert dark["passing"] is True
        assert 0 < dark["retry_in"] <= 5
        shown = serve.slotctl("status")
        assert shown.returncode == 0
        assert "it is tried again in" in shown.stdout
        serve.until(lambda: manager.every().count("WATCHDOG=1") >= 3)  # 4 s: long enough to say it again
        said = [line.get("why", "") + line.get("fault", "") for line in serve.log if line["level"] == "warning"]
        assert len([one for one in said if "docker.sock" in one]) == 3, said  # nothing serves, no look, no events
        assert len([one for one in said if "NVML" in one]) == 1, said
        assert serve.end(signal.SIGTERM) == 0
        told = manager.every()
        assert told[-1] == "STOPPING=1|STATUS=stopping"
        (line,) = {text for text in told if "docker.sock" in text}
        assert line.startswith("STATUS=nothing serves: ")


def test_a_body_too_large_and_an_unknown_pair_are_told_as_such(house: Path) -> None:
    with Serve(changed(house, "small", limits={"max_body": "1KiB"})) as serve:
        answer = httpx.post(f"{serve.url}/v1/chat/completions", json=chat(padding="x" * 2000), timeout=LIMIT)
        assert answer.status_code == 413
        assert answer.json()["error"]["message"]
        unknown = serve.slotctl("swap", "to-gpt")
        assert (unknown.returncode, unknown.stdout) == (2, "")
        assert unknown.stderr == "slotctl: there is no engine 'gpt'; the engines are strata, ninfer\n"
        unknown = serve.slotctl("plan", "to-ninfer:v4")
        assert unknown.returncode == 2
        assert unknown.stderr == "slotctl: ninfer has no pair 'v4'; its pairs are v2, v3\n"


# ------------------------------------------------------------------------------------------------- its end


HANGS = """
import sys, time
from slotproxy.__main__ import main
from swap.journal import FileJournal

FileJournal.read = lambda journal: time.sleep(100)
sys.exit(main(["serve", "--config", sys.argv[1]]))
"""


def test_a_disk_and_a_card_that_hang_hold_nothing_up(house: Path) -> None:
    slow = house.parent / "card" / "delays"
    slow.mkdir(parents=True)
    (slow / "memory").write_text("100\n")
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-c", HANGS, str(changed(house, "hanging", listen=address))]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=env()) as serve:
        try:
            until(lambda: accepts(int(address.partition(":")[2])))
            assert httpx.get(f"http://{address}/health", timeout=LIMIT).status_code == 200
            assert status(house.parent / "control.sock")["state"] == "looking"
            serve.send_signal(signal.SIGTERM)
            serve.communicate(timeout=20)  # the call takes longer
            assert serve.returncode == 0
        finally:
            serve.kill()


NO_THREAD = """
import sys, threading, time
from slotproxy.__main__ import main
from slotproxy.ending import leave_after

def none(timer):
    raise RuntimeError("can't start new thread")

threading.Timer.start = none
if len(sys.argv) > 1:
    sys.exit(main(["serve", "--config", sys.argv[1]]))
leave_after(0.1, 1)
time.sleep(100)
"""


def test_a_machine_that_gives_no_thread_at_the_end_costs_nobody_anything(house: Path) -> None:
    """Who must be gone in time is ended by an alarm then."""
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-c", NO_THREAD, str(changed(house, "threadless", listen=address))]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=env()) as serve:
        try:
            until(lambda: accepts(int(address.partition(":")[2])))
            serve.send_signal(signal.SIGTERM)
            _, said = serve.communicate(timeout=LIMIT)
            assert (serve.returncode, b"Traceback" in said) == (0, False)
        finally:
            serve.kill()
    late = subprocess.run([sys.executable, "-c", NO_THREAD], timeout=LIMIT, env=env(), check=False)
    assert late.returncode == -signal.SIGALRM


BREAKS = """
import asyncio, socket, sys, uvicorn
from slotproxy.__main__ import main
from swap.controller import Controller

async def ends(server, sockets):
    if (sockets[0].family is socket.AF_UNIX) == (part == "the control API"):
        await asyncio.sleep(0.2)
    else:
        await serve(server, sockets)

async def breaks(controller):
    await asyncio.sleep(0.2)
    raise RuntimeError("broken on purpose")

part, house = sys.argv[1:]
serve = uvicorn.Server._serve
if part == "the controller":
    Controller.run = breaks
else:
    uvicorn.Server._serve = ends
sys.exit(main(["serve", "--config", house]))
"""


@pytest.mark.parametrize("part", ["the control API", "the client port", "the controller"])
def test_when_a_part_breaks_the_whole_ends_and_says_so(part: str, house: Path) -> None:
    """Half a daemon is worse than none: the next one adopts what runs."""
    command = [sys.executable, "-c", BREAKS, part, str(house)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=env(), check=False)
    log = [json.loads(line) for line in ended.stderr.splitlines()]
    assert ended.returncode == 1
    assert [line["part"] for line in log if line["level"] == "error"] == [part]
    assert log[-1]["event"] == "slotproxy has ended; engines run on"
    assert not (house.parent / "control.sock").exists()


async def test_what_reads_files_aside_is_told_when_clients_wait(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = [False]
    monkeypatch.setattr(daemon, "clients_wait", lambda *_: waiting[0])
    built = await asyncio.to_thread(lambda: daemon.build(config.load(house), Ending()))
    hasher = built.desk.checker._hasher
    assert not hasher.pause()
    waiting[0] = True
    assert hasher.pause()
    await built.readiness.close()
