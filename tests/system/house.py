"""A whole slotproxy for tests: a real `slotproxy serve` as a child process, engines in containers, the simulated card.

    with House(docker_bed, shim, tmp_path) as house:
        house.take_in(ninfer(docker_bed, tmp_path, decode_ms=2), llama(docker_bed, tmp_path))
        house.write()                       # compose files and slotproxy.yml, from `tenants` and `config`
        house.serve()
        house.prove("llama", "ninfer")      # first evidence, by trials; the last one serves
        code, out, err = house.slotctl("swap", "to-llama")

Below `folder`: `slotproxy.yml`, `control.sock`, `state/`, `daemon.log`, `card/` (`engines.simvram`), `models/`,
`log/` (the engines' request logs), and a folder with its compose file for each engine. When it ends, the daemon is
ended by its pid and the engines' containers are removed by id; a fault of slotproxy's own in the daemon's log fails
the test.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import yaml
from docker.errors import NotFound

from tests.system.bed import DockerBed, free_port
from tests.system.tenants import MODEL, Tenant

LIMIT = 40.0  # seconds for what takes one or two; an order is given up before pytest gives the test up
PAUSE = 0.05
BIN = Path(sys.executable).parent
FOREIGN = "trainer"
OUR_FAULTS = ("Traceback", "a fault of slotproxy's own", "a step broke")

Said = tuple[int, str, str]  # exit code, stdout, stderr
Json = dict[str, Any]


class House:
    """See the module. Every method is blocking and bounded; call them from threads where things go on at once."""

    def __init__(self, bed: DockerBed, shim: Path, folder: Path) -> None:
        self.bed, self.folder = bed, folder
        self.tenants: dict[str, Tenant] = {}
        self.port = free_port()
        self.config: Json = {
            "listen": f"127.0.0.1:{self.port}",
            "control": str(folder / "control.sock"),
            "state": str(folder / "state"),
            "docker": bed.address,
            "card": {"gpu": 0, "headroom": "256MiB"},
            "drain": "20s",
            "freeing": "10s",
            "stop_limit": "7s",
        }
        self._env = {name: value for name, value in os.environ.items() if not name.startswith(("DOCKER", "SLOTPROXY"))}
        self._env |= {"LD_LIBRARY_PATH": str(shim), "SLOTPROXY_SHIM_CARD": str(self.card)}
        self._env |= {"SLOTPROXY_COMPOSE": os.environ["SLOTPROXY_COMPOSE"], "PYTHONUNBUFFERED": "1"}
        self._daemon: subprocess.Popen[bytes] | None = None

    @property
    def card(self) -> Path:
        """The simulated card's folder."""
        return self.folder / "card"

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"http://127.0.0.1:{self.port}"

    # ------------------------------------------------------------------------------------------ building it

    def take_in(self, *tenants: Tenant) -> None:
        self.tenants |= {tenant.name: tenant for tenant in tenants}

    def write(self) -> None:
        """All files. The first tenant is the default engine; `MODEL` is mapped to all of them."""
        self.card.mkdir(exist_ok=True)
        for tenant in self.tenants.values():
            file = Path(tenant.keys["compose"]["file"])
            file.parent.mkdir(exist_ok=True)
            project = {"name": self.bed.name(tenant.name), "services": {tenant.name: tenant.service}}
            file.write_text(yaml.safe_dump(project, sort_keys=False))
        self.config.setdefault("default", next(iter(self.tenants)))
        self.config.setdefault("models", {MODEL: {name: tenant.model for name, tenant in self.tenants.items()}})
        self.config["engines"] = {name: tenant.keys for name, tenant in self.tenants.items()}
        (self.folder / "slotproxy.yml").write_text(yaml.safe_dump(self.config, sort_keys=False))

    def edit(self, engine: str, old: str, new: str) -> None:
        """Change an engine's compose file, as an operator would."""
        file = Path(self.tenants[engine].keys["compose"]["file"])
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    # ------------------------------------------------------------------------------------------ the daemon

    def serve(self) -> None:
        """Start the daemon; returns when it answers on its control socket and has found out what runs."""
        assert self._daemon is None
        with (self.folder / "daemon.log").open("ab") as log:
            command = [str(BIN / "slotproxy"), "serve", "--config", str(self.folder / "slotproxy.yml")]
            self._daemon = subprocess.Popen(command, env=self._env, stderr=log, stdout=log)
        self.wait(self._answers, "the daemon to answer")

    def _answers(self) -> bool:
        assert self._daemon is not None
        assert self._daemon.poll() is None, f"the daemon has ended:\n{self.tail()}"
        try:
            return bool(self.status()["state"] != "looking")
        except OSError:
            return False

    @property
    def pid(self) -> int | None:
        """The daemon's; None while none runs."""
        return self._daemon.pid if self._daemon is not None else None

    def kill(self) -> None:
        """SIGKILL: no last words."""
        self.stop(signal.SIGKILL)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End the daemon by its pid; the engines stay. Returns its exit code."""
        daemon, self._daemon = self._daemon, None
        assert daemon is not None
        daemon.send_signal(number)
        try:
            return daemon.wait(LIMIT)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait(LIMIT)
            raise

    def log(self) -> list[Json]:
        """The daemon's log, one dictionary a line."""
        lines = (self.folder / "daemon.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    # ------------------------------------------------------------------------------------------ the operator

    def slotctl(self, *arguments: str) -> Said:
        """Run the real slotctl to its end."""
        done = subprocess.run(
            self._slotctl(*arguments), env=self._env, capture_output=True, text=True, timeout=LIMIT, check=False
        )
        return done.returncode, done.stdout, done.stderr

    @contextmanager
    def order(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """A slotctl that runs while the block does; `communicate(timeout=LIMIT)` waits for its end."""
        pipe = subprocess.PIPE
        process = subprocess.Popen(self._slotctl(*arguments), env=self._env, stdout=pipe, stderr=pipe, text=True)
        with process:
            try:
                yield process
            finally:
                process.kill()

    def ok(self, *arguments: str) -> str:
        """Run slotctl, which has to end with 0; what it printed."""
        code, out, err = self.slotctl(*arguments)
        assert code == 0, f"slotctl {' '.join(arguments)}: {code}\n{out}{err}\n{self.tail()}"
        return out

    def _slotctl(self, *arguments: str) -> list[str]:
        return [str(BIN / "slotctl"), "--control", str(self.config["control"]), *arguments]

    def status(self) -> Json:
        """As `slotctl status --json` prints it, but asked of the control socket: a hundred times as quick."""
        with closing(_Unix(str(self.config["control"]))) as control:
            control.request("GET", "/status")
            return dict(json.load(control.getresponse()))

    def prove(self, *labels: str) -> None:
        """First evidence of each, by a trial; the last one serves in the end."""
        for label in labels:
            self.ok("swap", f"to-{label}", "--trial")

    def wait(self, true: Callable[[], object], what: str, limit: float = LIMIT) -> None:
        deadline = time.monotonic() + limit
        while not true():
            assert time.monotonic() < deadline, f"waited {limit:g} s for {what}\n{self.tail()}"
            time.sleep(PAUSE)

    def wait_serving(self, engine: str) -> None:
        self.wait(lambda: self.gate() == ("open", engine), f"{engine} to serve")

    def make_serve(self, engine: str) -> None:
        """However the test before left the house: nobody else's VRAM, the daemon up, no hold, this engine serving."""
        for file in (self.card / "foreign").glob("*"):
            file.unlink()
        if self._daemon is None:
            self.serve()
        self.wait(lambda: self.status()["swap"] is None, "the swap under way to end")
        if self.status()["hold"]:
            self.ok("release")
        if self.gate() != ("open", engine):
            self.ok("swap", f"to-{engine}")

    def occupy(self, size: int) -> Path:
        """Somebody in no container takes `size` bytes of the card, until the file that is returned is removed."""
        (self.card / "foreign").mkdir(exist_ok=True)
        file = self.card / "foreign" / FOREIGN
        file.write_text(f"{size} {os.getpid()} {FOREIGN}\n")
        return file

    def gate(self) -> tuple[str, str | None]:
        """`open`, `held`, `closed` or `refusing`; and to which engine it is open."""
        gate = self.status()["gate"]
        return gate["state"], gate["engine"]

    def tail(self) -> str:
        """The last lines of the daemon's log, for messages."""
        return "\n".join((self.folder / "daemon.log").read_text().splitlines()[-12:])

    # ------------------------------------------------------------------------------------------ seen from outside

    def container(self, engine: str) -> Json:
        """What Docker says of an engine's container, by its name; empty where there is none."""
        try:
            return dict(self.bed.client.inspect_container(self.tenants[engine].container))
        except NotFound:
            return {}

    def run_of(self, engine: str) -> tuple[str, str]:
        """Which container, and which run of it: neither changes as long as nobody touches it."""
        container = self.container(engine)
        return container["Id"], container["State"]["StartedAt"]

    def running(self) -> list[str]:
        """The engines whose containers run, asked of Docker."""
        return [name for name in self.tenants if self.container(name).get("State", {}).get("Running")]

    def requests(self, engine: str) -> list[Json]:
        """The engine's own log of requests (the simulators write one), our probes included."""
        file = self.folder / "log" / f"{engine}.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def get(self, path: str) -> bytes:
        """What a client gets there at the proxy."""
        answer = httpx.get(self.url + path, timeout=LIMIT, trust_env=False)
        assert answer.status_code == 200, answer.text
        return answer.content

    # ------------------------------------------------------------------------------------------ its end

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._daemon is not None:
                self.stop()
        finally:
            for name in self.tenants:
                if found := self.container(name):
                    self.bed.client.remove_container(found["Id"], force=True, v=True)
        log = self.folder / "daemon.log"
        ours = [line for line in log.read_text().splitlines() if any(one in line for one in OUR_FAULTS)]
        assert not ours or error is not None, ours


class _Unix(HTTPConnection):
    """HTTP over a unix socket."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(LIMIT)
        self.sock.connect(self.host)
