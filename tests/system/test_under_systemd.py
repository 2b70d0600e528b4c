"""slotproxy under a real systemd, by the unit that is shipped: ready, watched, stopped, started; engines don't notice.

One machine and one life of it: each test says with which state it begins.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.bed import DockerBed
from tests.system.machine import CONFIG, HOUSE, Machine
from tests.system.machine_image import INIT, SHARE

pytestmark = [pytest.mark.docker, pytest.mark.slow]

BARE = """
card: {gpu: 0}
default: ninfer
engines:
  ninfer:
    profile: ninfer
    url: http://127.0.0.1:8095
    container: ninfer-eval
    vram: 30GiB
    pairs: {v2: {image: "ninfer:local", artifact: /srv/models/qwen3_8_27b_nvfp4.ninfer}}
slots: {anonymous: {}}
"""
LISTEN = """
import socket, sys, time
with socket.create_server(("127.0.0.1", 8080)):
    time.sleep(float(sys.argv[1]))
"""
REACHED = "import socket; socket.create_connection(('127.0.0.1', 8080), 5)"
COMPLETION = """
import json, urllib.request
body = {"model": "qwen3.8-27b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
request = urllib.request.Request("http://127.0.0.1:8080/v1/chat/completions", json.dumps(body).encode())
assert urllib.request.urlopen(request, timeout=60).status == 200
"""
STREAM = """
import json, urllib.request
body = {"model": "qwen3.8-27b", "messages": [{"role": "user", "content": "hi"}], "stream": True}
body |= {"sim_tokens": 100_000, "max_tokens": 100_000}
request = urllib.request.Request("http://127.0.0.1:8080/v1/chat/completions", json.dumps(body).encode())
with urllib.request.urlopen(request) as answer:
    for line in answer:
        pass
"""
AS = """
import os, sys
os.setgroups([]), os.setgid(int(sys.argv[1])), os.setuid(65534)
os.execv("/opt/slotproxy/bin/slotctl", ["slotctl", *sys.argv[2:]])
"""


@pytest.fixture(scope="module")
def empty(docker_bed: DockerBed) -> Iterator[Machine]:
    """A machine with slotproxy installed: no Docker, no card, no configuration."""
    if shutil.which("dpkg-query") is None or not Path(INIT).exists():
        pytest.skip("Debian's package systemd isn't installed here")
    machine = Machine(docker_bed)
    try:
        machine.install()
        yield machine
    finally:
        machine.remove()


@pytest.fixture(scope="module")
def lived_in(empty: Machine) -> Machine:
    """With two engines and a card, one of them proven; systemd's patience is shorter than usual."""
    empty.ok("systemctl", "stop", "slotproxy")
    empty.furnish()
    empty.change_unit({"WatchdogSec": "5s", "RestartSec": "100ms"})
    empty.ok("systemctl", "restart", "slotproxy")
    empty.ok("slotctl", "swap", "to-strata", "--trial")
    return empty


@pytest.fixture
def machine(lived_in: Machine) -> Machine:
    """Strata serves."""
    lived_in.ok("systemctl", "start", "slotproxy")
    lived_in.wait(lambda: lived_in.serves("strata"), "strata to serve")
    return lived_in


def test_the_unit_is_good_and_exposes_little(empty: Machine) -> None:
    assert empty.ok("systemd-analyze", "verify", "slotproxy.service") == ""
    empty.ok("systemd-analyze", "security", "--offline=true", "--threshold=35", "slotproxy.service")
    unit = empty.unit()  # what NVML and CUDA need
    assert (unit["DevicePolicy"], unit.get("DeviceAllow"), unit["PrivateDevices"]) == ("auto", None, "no")


def test_case_42_ready_is_when_clients_are_let_in_whatever_else_is_missing(empty: Machine) -> None:
    """No Docker, no driver; and first, somebody else at the port. No `daemon-reload` is needed (case 33)."""
    empty.write(CONFIG, BARE)
    empty.ok("systemctl", "enable", "--no-reload", "slotproxy")
    empty.ok("systemd-run", "--unit=somebody", "/opt/slotproxy/bin/python", "-c", LISTEN, "1000")
    empty.wait(lambda: empty.run("python", "-c", REACHED)[0] == 0, "somebody to listen")
    assert empty.run("systemctl", "start", "slotproxy")[0] != 0
    assert empty.unit()["ActiveState"] in ("activating", "failed")

    empty.ok("systemctl", "stop", "somebody")
    empty.wait(lambda: empty.unit()["ActiveState"] == "active", "the next try to be ready")
    empty.ok("python", "-c", REACHED)
    said = empty.wait(lambda: empty.unit()["StatusText"], "a status line")
    empty.wait(lambda: "docker.sock" in empty.unit()["StatusText"], f"it to say more than {said}")
    assert empty.status()["dark"]["passing"] is True


def test_a_configuration_that_cannot_be_used_is_not_tried_again_and_again(empty: Machine) -> None:
    empty.ok("systemctl", "stop", "slotproxy")
    empty.write(CONFIG, "listne: 1\n")
    assert empty.run("systemctl", "start", "slotproxy")[0] != 0
    unit = empty.unit()
    assert (unit["ActiveState"], unit["ExecMainStatus"], unit["Result"]) == ("failed", "2", "exit-code")
    assert "listne" in empty.journal()


def test_case_44_engines_outlive_a_stop_and_a_restart_and_are_adopted(machine: Machine) -> None:
    engines, pid = machine.engines(), machine.pid
    assert list(engines) == ["strata"]
    machine.ok("systemctl", "restart", "slotproxy")
    assert machine.pid != pid
    machine.wait(lambda: machine.serves("strata"), "strata to be adopted")
    machine.ok("systemctl", "stop", "slotproxy")
    assert machine.unit()["ActiveState"] == "inactive"
    assert machine.engines() == engines
    machine.ok("systemctl", "start", "slotproxy")
    machine.wait(lambda: machine.serves("strata"), "strata to be adopted again")
    assert machine.engines() == engines
    assert machine.status()["verified"] is True


def test_case_44_a_daemon_that_is_killed_comes_back_and_engines_do_not_notice(machine: Machine) -> None:
    engines, pid = machine.engines(), machine.pid
    machine.ok("kill", "-9", str(pid))
    machine.wait(lambda: machine.pid not in (0, pid) and machine.serves("strata"), "the next daemon to serve")
    assert machine.engines() == engines


def test_case_42_a_daemon_that_hangs_is_ended_and_started_anew_and_says_where_it_hung(machine: Machine) -> None:
    """Case 44: and the engine isn't touched by that."""
    engines, pid = machine.engines(), machine.pid
    machine.ok("kill", "-STOP", str(pid))
    machine.wait(lambda: machine.pid not in (0, pid) and machine.serves("strata"), "the next daemon to serve")
    assert machine.engines() == engines
    said = machine.journal()
    assert f"Killing process {pid} (slotproxy) with signal SIGABRT" in said
    assert "Fatal Python error: Aborted" in said
    assert "asyncio/base_events.py" in said


def test_with_its_socket_unit_nobody_is_refused_while_it_is_started_anew(machine: Machine) -> None:
    """Who comes after it was killed is answered by the next daemon."""
    machine.ok("systemctl", "stop", "slotproxy")
    machine.ok("install", "-m", "644", f"{SHARE}/deploy/slotproxy.socket", "/etc/systemd/system/slotproxy.socket")
    machine.ok("systemctl", "start", "slotproxy.socket")
    machine.ok("python", "-c", COMPLETION)  # which starts it
    machine.wait(lambda: machine.serves("strata"), "strata to be adopted")
    pid = machine.pid
    machine.ok("sh", "-c", f"kill -9 {pid}; exec python -c '{COMPLETION}'")
    assert machine.pid not in (0, pid)
    machine.ok("systemctl", "restart", "slotproxy")
    machine.ok("python", "-c", COMPLETION)
    machine.ok("systemctl", "stop", "slotproxy.socket", "slotproxy")
    assert machine.run("python", "-c", REACHED)[0] != 0
    assert list(machine.engines()) == ["strata"]


def test_a_reload_takes_the_configuration_over_and_is_over_for_systemd_too(machine: Machine) -> None:
    engines, pid, good = machine.engines(), machine.pid, machine.ok("cat", CONFIG)
    machine.write(CONFIG, good + "drain: 7s\n")
    machine.ok("systemctl", "reload", "slotproxy")
    machine.wait(lambda: "drain" in reloaded(machine), "the edit to be taken over")
    machine.write(CONFIG, "listne: 1\n")
    machine.ok("systemctl", "reload", "slotproxy")
    machine.wait(lambda: "listne" in reloaded(machine), "the mistake to be told")
    machine.wait(lambda: machine.unit()["ActiveState"] == "active", "systemd to hear of the end")
    machine.write(CONFIG, good)
    assert (machine.engines(), machine.pid) == (engines, pid)
    assert "strata:current serves" in machine.unit()["StatusText"]


def reloaded(machine: Machine) -> str:
    """What the event log says of reloads."""
    events = json.loads(machine.ok("slotctl", "events", "--json"))["events"]
    return " ".join(str(one) for one in events if one["kind"] == "reloaded")


def test_case_42_its_end_is_told_to_systemd_while_requests_still_end(machine: Machine) -> None:
    """SIGTERM by hand: only the daemon itself can say that it is ending now, and isn't in trouble."""
    machine.ok("systemd-run", "--unit=client", "/opt/slotproxy/bin/python", "-c", STREAM)
    machine.wait(lambda: machine.status()["gate"]["in_flight"] == 1, "the client to be served")
    pid = machine.pid
    machine.ok("kill", "-TERM", str(pid))
    machine.wait(lambda: machine.unit()["ActiveState"] == "deactivating", "systemd to hear of it")
    unit = machine.unit()
    assert (unit["MainPID"], unit["StatusText"]) == (str(pid), "stopping")
    machine.ok("systemctl", "stop", "client")
    machine.wait(lambda: machine.unit()["ActiveState"] == "inactive", "its end")
    assert machine.unit()["Result"] == "success"
    assert list(machine.engines()) == ["strata"]


def test_its_files_are_its_own_and_slotctl_is_for_its_group(machine: Machine) -> None:
    seen = machine.python(
        "import os, sys; print([oct(os.stat(path).st_mode & 0o777) for path in sys.argv[1:]])",
        "/var/lib/slotproxy",
        "/run/slotproxy",
        "/run/slotproxy/control.sock",
    )
    assert seen.strip() == "['0o700', '0o755', '0o660']"
    owner = machine.python("import os, sys; print(os.stat(sys.argv[1]).st_uid)", f"/proc/{machine.pid}")
    assert owner != machine.python("import os; print(os.getuid())")
    assert HOUSE in machine.ok("slotctl", "plan", "to-ninfer", "--trial", "--json")

    group = machine.python("import grp; print(grp.getgrnam('slotproxy').gr_gid)").strip()
    assert "strata:current" in machine.python(AS, group, "status")
    code, said = machine.run("python", "-c", AS, "65534", "status")
    assert code == 6
    assert said.startswith(
        "slotctl: /run/slotproxy/control.sock: permission denied; run slotctl as root, or as a member"
    )
