"""What the soak stands on: a real `slotproxy serve`, NInfer and Strata, the simulated card, and hands on all of it.

Everything here blocks, for a bounded time: call it from threads.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import docker
import yaml
from docker.errors import APIError

from slotproxy import demo_files
from swap import proc
from tests.slotproxy.programs import BIN, LIMIT, ended_engines, env, free_port, quick_house
from tests.system.bed import DockerBed
from tests.system.house import House
from tests.system.tenants import ninfer, strata

ENGINES = ("ninfer", "strata")
LINGER = 0.8  # seconds for which NInfer's memory stays taken after its end
DECODE = 1  # milliseconds a token
PREFILL = 20_000  # tokens a second
YOUNG = 3.0  # seconds in which a process may still become an engine
AN_ENGINE = 0.0


class Ground(Protocol):
    """`card`: the simulated card's folder. `control`: the daemon's socket. `pid`: the daemon's; None: it is down.

    `pooled`: connections that the daemon may keep for their next use.
    """

    pooled: int
    card: Path
    control: Path
    url: str

    @property
    def pid(self) -> int | None: ...

    def serve(self) -> None:
        """Start the daemon."""

    def end(self, number: signal.Signals) -> int:
        """Signal the daemon and wait for its end; its exit code."""

    def up(self) -> dict[str, frozenset[str]]:
        """Which engines are up, seen from outside, and which runs of them: another run has another name."""

    def kill(self, engine: str) -> bool:
        """SIGKILL it; False: it isn't up."""

    def maim(self, engine: str) -> bool:
        """SIGKILL what it has begun itself, so that it lives and is of no use; False: there is no such thing."""

    def tail(self) -> str:
        """The end of the daemon's log."""


class ProcessGround:
    """Engines as child processes, in the demo's house."""

    pooled = 0

    def __init__(self, folder: Path) -> None:
        self.folder, self.card, self.control = folder, folder / "card", folder / "control.sock"
        self._config = quick_house(
            folder, listen=f"127.0.0.1:{free_port()}", freeing="8s", drain="20s", stop_limit="6s"
        )
        _settle_in(self._config)
        self.url = f"http://{yaml.safe_load(self._config.read_text())['listen']}"
        self._daemon: subprocess.Popen[bytes] | None = None
        self._first_seen: dict[int, float] = {}  # by pid; who is no engine after a while will be none

    @property
    def pid(self) -> int | None:
        return self._daemon.pid if self._daemon is not None else None

    def serve(self) -> None:
        assert self._daemon is None
        with (self.folder / "daemon.log").open("ab") as log:
            command = [str(BIN / "slotproxy"), "serve", "--config", str(self._config)]
            self._daemon = subprocess.Popen(command, env=env(), stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def end(self, number: signal.Signals) -> int:
        daemon, self._daemon = self._daemon, None
        assert daemon is not None
        daemon.send_signal(number)
        try:
            return daemon.wait(LIMIT)
        finally:
            daemon.kill()
            daemon.wait()

    def up(self) -> dict[str, frozenset[str]]:
        found: dict[str, set[str]] = {}
        for pid in self._pids():
            if (name := self._engine(pid)) and (there := proc.process(pid)) is not None and not there.dead:
                found.setdefault(name, set()).add(f"pid {pid} since {there.start}")
        return {name: frozenset(runs) for name, runs in found.items()}

    def kill(self, engine: str) -> bool:
        return _killed([pid for pid in self._pids() if self._engine(pid) == engine and _leads(pid)])

    def maim(self, engine: str) -> bool:
        return _killed([pid for pid in self._pids() if self._engine(pid) == engine and not _leads(pid)])

    def tail(self) -> str:
        return "\n".join((self.folder / "daemon.log").read_text().splitlines()[-12:])

    def _pids(self) -> list[int]:
        """Of whoever may be an engine."""
        now, known = time.monotonic(), self._first_seen
        seen = {pid: known.get(pid, now) for pid in map(int, filter(str.isdecimal, _names("/proc")))}
        self._first_seen = seen
        return [pid for pid, first in seen.items() if now - first < YOUNG or first == AN_ENGINE]

    def _engine(self, pid: int) -> str:
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{pid}/environ").read_bytes() + b"\0"
            for name in ENGINES:
                if f"{name.upper()}_SIM_CARD={self.card}\0".encode() in environment:
                    self._first_seen[pid] = AN_ENGINE
                    return name
        return ""


def _names(folder: str) -> list[str]:
    return os.listdir(folder)  # noqa: PTH208 - names are all that is wanted, at a tenth of the cost


def _killed(pids: list[int]) -> bool:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(pids)


def _leads(pid: int) -> bool:
    found = proc.process(pid)
    return found is not None and found.session == pid


def _settle_in(config: Path) -> None:
    """Quick engines, one of which gives its memory back late."""
    house = yaml.safe_load(config.read_text())
    ninfer = {"DECODE_MS": DECODE, "LINGER_S": LINGER, "PREFILL_TPS": PREFILL}
    strata = {"DECODE": DECODE, "PREFILL": PREFILL}
    house["engines"]["ninfer"]["env"] |= {f"NINFER_SIM_{name}": str(value) for name, value in ninfer.items()}
    house["engines"]["strata"]["env"] |= {f"STRATA_SIM_{name}": str(value) for name, value in strata.items()}
    config.write_text(demo_files.HEAD + yaml.safe_dump(house, sort_keys=False))


class DockerGround:
    """Engines in containers of the Docker daemon that the tests may use."""

    pooled = 20  # the SDK's: ten for questions, ten for changes

    def __init__(self, house: House) -> None:
        self._house = house
        self.card, self.control, self.url = house.card, Path(house.config["control"]), house.url
        self._names = {f"/{tenant.container}": name for name, tenant in house.tenants.items()}
        self._eyes: Any = docker.APIClient(base_url=house.bed.address, version="auto", timeout=30)  # for their thread

    def close(self) -> None:
        self._eyes.close()

    @property
    def pid(self) -> int | None:
        return self._house.pid

    def serve(self) -> None:
        self._house.serve()

    def end(self, number: signal.Signals) -> int:
        return self._house.stop(number)

    def up(self) -> dict[str, frozenset[str]]:
        listed = self._eyes.containers(filters={"name": self._house.bed.prefix})  # the running ones
        found = [(self._names[name], one) for one in listed for name in one["Names"] if name in self._names]
        return {name: frozenset([f"container {one['Id'][:12]}"]) for name, one in found}

    def kill(self, engine: str) -> bool:
        container = self._house.container(engine)
        if not container.get("State", {}).get("Running"):
            return False
        with contextlib.suppress(APIError):  # it has ended just now
            self._house.bed.client.kill(container["Id"])
        return True

    def maim(self, engine: str) -> bool:
        """Its processes are Docker's to end."""
        return False

    def tail(self) -> str:
        return self._house.tail()


@contextmanager
def on_processes(folder: Path) -> Iterator[Ground]:
    with ended_engines(folder):
        ground = ProcessGround(folder)
        try:
            yield ground
        finally:
            if ground.pid is not None:
                ground.end(signal.SIGKILL)


@contextmanager
def on_docker(bed: DockerBed, shim: Path, folder: Path) -> Iterator[Ground]:
    with House(bed, shim, folder) as house:
        house.take_in(
            strata(bed, folder, decode=DECODE, prefill=PREFILL),
            ninfer(bed, folder, decode_ms=DECODE, linger_s=LINGER, prefill_tps=PREFILL),
        )
        house.config |= {"freeing": "8s"}
        house.write()
        ground = DockerGround(house)
        try:
            yield ground
        finally:
            ground.close()


def until(truth: Callable[[], object], what: str, limit: float = LIMIT) -> None:
    deadline = time.monotonic() + limit
    while not truth():
        assert time.monotonic() < deadline, f"waited {limit:g} s for {what}"
        time.sleep(0.05)
