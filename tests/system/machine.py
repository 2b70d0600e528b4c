"""A machine whose PID 1 is systemd, in a container: slotproxy installed there as the README says.

Engines are the simulators, without containers of their own. Everything is asked of the machine itself: systemd of the
unit, /proc of the engines, the journal of what was said.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tests.system.bed import DockerBed
from tests.system.images import ROOT
from tests.system.machine_image import BOOT, HOME, machine_image

LIMIT = 90.0  # seconds for what takes one or two: the machine may be busy
TRIES = 5  # of a question whose answer got lost
HOUSE = "/srv/house"
CONFIG = "/etc/slotproxy/slotproxy.yml"
FURNISH = """
import sys
from pathlib import Path
import yaml
from slotproxy import demo_files

house, config = Path(sys.argv[1]), Path(sys.argv[2])
demo_files.LOAD = 0.1
house.mkdir(parents=True)
written = yaml.safe_load(demo_files.write_house(house, 8080).read_text())
config.write_text(yaml.safe_dump({
    **written, "control": "/run/slotproxy/control.sock", "state": "/var/lib/slotproxy", "stop_limit": "20s"
}))
"""
ENGINES = """
import json
from pathlib import Path
found = {}
for process in Path("/proc").glob("[0-9]*"):
    try:
        words = (process / "cmdline").read_bytes().split(b"\\0")
        session, start = (int((process / "stat").read_text().rsplit(") ", 1)[1].split()[i]) for i in (3, 19))
    except OSError:
        continue
    for word in words:
        if word.endswith(b".simulator") and session == int(process.name):
            found[word.decode().split(".")[1]] = [session, start]
print(json.dumps(found))
"""

Json = dict[str, Any]
T = TypeVar("T")


class Machine:
    """Booted when it is made. `remove` it."""

    def __init__(self, bed: DockerBed) -> None:
        self._client = bed.client
        host = self._client.create_host_config(
            cap_add=["SYS_ADMIN"],
            security_opt=["seccomp=unconfined", "apparmor=unconfined"],
            tmpfs={"/run": "", "/run/lock": ""},
        )
        body = self._client.create_container_config(
            machine_image(bed.images),
            ["/bin/sh", "-c", BOOT],
            environment={"container": "docker"},
            stop_signal="SIGRTMIN+3",
        )
        body["HostConfig"] = {**host, "CgroupnsMode": "private"}
        self._id = self._client.create_container_from_config(body, bed.name("machine"))["Id"]
        self._client.start(self._id)
        self.wait(lambda: self.run("systemctl", "is-active", "multi-user.target")[0] == 0, "the machine to boot")

    def remove(self) -> None:
        self._client.remove_container(self._id, force=True, v=True)

    # ------------------------------------------------------------------------------------------ commands in there

    def run(self, *words: str) -> tuple[int, str]:
        """As root; the exit code, and what it said."""
        made = self._client.exec_create(self._id, list(words), environment={"PATH": f"{HOME}/bin:/usr/bin:/bin"})
        said = self._client.exec_start(made["Id"])
        return int(self._client.exec_inspect(made["Id"])["ExitCode"]), said.decode()

    def ok(self, *words: str) -> str:
        """What a command said that has to end with 0."""
        code, said = self.run(*words)
        assert code == 0, f"{' '.join(words)[:200]}: {code}\n{said}\n{self.journal()[-3000:]}"
        return said

    def python(self, program: str, *words: str) -> str:
        return self.ok("python", "-c", program, *words)

    def write(self, path: str, text: str) -> None:
        self.python("import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(sys.argv[2])", path, text)

    # ------------------------------------------------------------------------------------------ slotproxy's life

    def install(self) -> None:
        """By the README's commands, but for `systemctl`, which is the tests' own."""
        _, _, rest = (ROOT / "README.md").read_text().partition("**Under systemd**")
        block = rest.partition("```sh\n")[2].partition("```")[0].splitlines()
        commands = [line.removeprefix("sudo ") for line in block if "systemctl" not in line]
        self.ok("install", "-d", "/etc/slotproxy")
        self.ok("sh", "-ec", "\n".join(commands))

    def furnish(self) -> None:
        """The demo's house: two engines by `command:`, a simulated card."""
        self.python(FURNISH, HOUSE, CONFIG)
        self.ok("chown", "-R", "slotproxy:slotproxy", HOUSE)

    def change_unit(self, settings: Mapping[str, str]) -> None:
        """As `systemctl edit` does."""
        self.ok("install", "-d", "/etc/systemd/system/slotproxy.service.d")
        lines = [f"{name}={value}" for name, value in settings.items()]
        self.write("/etc/systemd/system/slotproxy.service.d/override.conf", "\n".join(["[Service]", *lines, ""]))
        self.ok("systemctl", "daemon-reload")

    def unit(self) -> dict[str, str]:
        """What systemd knows of it. Docker can lose what a command has said; then it is asked again."""
        for _ in range(TRIES):
            lines = self.ok("systemctl", "show", "slotproxy").splitlines()
            if lines:
                break
        return dict(line.partition("=")[::2] for line in lines)

    @property
    def pid(self) -> int:
        """The daemon's; 0: there is none."""
        return int(self.unit()["MainPID"])

    def status(self) -> Json:
        return dict(json.loads(self.ok("slotctl", "status", "--json")))

    def serves(self, engine: str) -> bool:
        code, said = self.run("slotctl", "status", "--json")
        return code == 0 and json.loads(said)["gate"] | {"state": "open", "engine": engine} == json.loads(said)["gate"]

    def engines(self) -> dict[str, list[int]]:
        """The pid and the start time of each engine that lives."""
        return dict(json.loads(self.python(ENGINES)))

    def journal(self) -> str:
        return self.run("journalctl", "--no-pager", "--output=cat", "--unit=slotproxy")[1]

    def wait(self, true: Callable[[], T], what: str) -> T:
        deadline = time.monotonic() + LIMIT
        while not (found := true()):
            assert time.monotonic() < deadline, f"waited {LIMIT:g} s for {what}\n{self.journal()[-3000:]}"
            time.sleep(0.1)
        return found
