"""A box whose Docker may be restarted, and a swap that is held in the step that is wanted.

    with scene(folder) as box, box.held("warm", old="strata", new="ninfer") as swap:
        box.house.kill()                    # while the new engine warms
        swap.let_go()

Strata and NInfer, simulated, in a private dockerd (`tests.system.private`). What holds a swap is never the product's
own doing: a compose that waits, an engine that stands still, somebody else's VRAM, a start in Docker's hands.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from engines.simvram import uses
from engines.spec import MiB
from tests.shim.build import build_shim
from tests.system.bed import DockerBed
from tests.system.house import House
from tests.system.private import PrivateDocker
from tests.system.tenants import Tenant, ninfer, strata
from tests.system.traps import editor

STEPS = ("check", "stage", "drain", "stop", "free", "start", "warm", "serve")
BACK = ("back: free", "back: start", "back: warm")  # of putting the old one back, after the new one has died warming
PHASES = {"check": "checking", "stage": "staging", "drain": "draining", "stop": "stopping"}
PHASES |= {"free": "freeing", "start": "starting", "warm": "warming"}
IN_THE_WAY = 1400 * MiB  # it fits beside an engine, but leaves less than a start asks for
LASTING = 0.8  # seconds that an engine takes to stop: in which it can be told to stand still
SOON = 0.01  # seconds between two looks
LIMIT = 40.0  # seconds for what takes one or two
GPU = {"resources": {"reservations": {"devices": [{"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}]}}}
COMPOSE = """#!/bin/sh
# The real compose, which waits while the file stands that is named after what it does.
for word; do
    case $word in
        config | up) while [ -e {folder}/hold-$word ]; do touch {folder}/held-$word; sleep 0.02; done ;;
    esac
done
exec {real} "$@"
"""


@dataclass
class Held:
    """A swap under way, held. `order` is its slotctl; None: it has ended well. `let_go` may be called twice."""

    old: str
    new: str
    order: subprocess.Popen[str] | None
    let_go: Callable[[], None]

    def code(self) -> int:
        """slotctl's exit code, once it has ended."""
        return 0 if self.order is None else self.order.wait(LIMIT)


@dataclass
class Scene:
    """The box. `holds`: the folder with the files that a held compose waits for."""

    private: PrivateDocker
    house: House
    holds: Path
    _stopped: set[int] = field(default_factory=set)  # pids that stand still

    @contextmanager
    def held(self, step: str, old: str, new: str) -> Iterator[Held]:
        """A swap from `old`, which serves, to `new`, held in this step; clients have to be asking."""
        if step == "serve":
            self.house.ok("swap", f"to-{new}")
            yield Held(old, new, None, lambda: None)
            return
        there = "warm" if step in BACK else step
        self._prepare(there, old, new)
        try:
            with self.house.order("swap", f"to-{new}") as order:
                self._reach(there, new if there == "warm" else old, order)
                if step in BACK:
                    self._fail(step, new)
                    self._reach(step, old, order)
                yield Held(old, new, order, self.let_go)
        finally:
            self.let_go()

    def _prepare(self, step: str, old: str, new: str) -> None:
        match step:
            case "check":
                self._hold_compose("config")
            case "stage":
                self._edit_beside(new)
                self._hold_compose("up")
            case "drain":
                self.stand_still(old)
                self.house.wait(lambda: self.house.status()["gate"]["in_flight"], "a request that doesn't end")
            case "free":
                self.house.occupy(IN_THE_WAY)
            case "start":
                self.private.hold_starts()

    def _fail(self, step: str, new: str) -> None:
        """The new one dies as it warms, and the old one is to be held on its way back."""
        if step == "back: free":
            self.house.occupy(IN_THE_WAY)
        elif step == "back: start":
            self.private.hold_starts()
        self.house.bed.client.kill(self.house.container(new)["Id"])

    def _reach(self, step: str, engine: str, order: subprocess.Popen[str]) -> None:
        """`engine`: which one stands still, where that is what holds the swap."""
        deadline = time.monotonic() + LIMIT
        while not self._there(step):
            assert order.poll() is None, f"the swap has ended before {step}: {order.communicate()}"
            assert time.monotonic() < deadline, f"waited for {step}\n{self.house.tail()}"
            time.sleep(SOON)
        if step.endswith(("stop", "warm")):
            self.stand_still(engine)

    def _there(self, step: str) -> bool:
        status = self.house.status()
        if status["state"] != PHASES[step.removeprefix("back: ")]:
            return False
        if step in BACK and not (status["swap"] or {}).get("failure"):
            return False
        match step.removeprefix("back: "):
            case "check" | "stage":
                return (self.holds / f"held-{'config' if step == 'check' else 'up'}").exists()
            case "start":
                return self.private.held.exists()
            case _:
                return True

    def mend(self) -> None:
        """After a cell that broke: nothing is held, Docker and the daemon are there."""
        self.let_go()
        self.private.start_if_down()

    def let_go(self) -> None:
        """Nothing is held any more."""
        for file in self.holds.glob("h*-*"):
            file.unlink(missing_ok=True)
        for file in (self.house.card / "foreign").glob("*"):
            file.unlink()
        self.private.let_start()
        for pid in self._stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._stopped.clear()

    def _hold_compose(self, word: str) -> None:
        (self.holds / f"held-{word}").unlink(missing_ok=True)
        (self.holds / f"hold-{word}").touch()

    def _edit_beside(self, engine: str) -> None:
        """An edit that is no part of the pair, so that the container has to be made anew."""
        with editor(self.house, engine) as service:
            before = service.get("healthcheck", {}).get("interval")
            interval = "3601s" if before == "3600s" else "3600s"
            service["healthcheck"] = {"test": ["CMD", "python3", "-c", "0"], "interval": interval}

    def stand_still(self, engine: str) -> None:
        """SIGSTOP to the process that has its VRAM, once there is one."""
        deadline = time.monotonic() + LIMIT
        while not (pids := self.pids(engine)):
            assert time.monotonic() < deadline, f"{engine} never took VRAM"
            time.sleep(SOON)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        self._stopped |= pids

    def pids(self, engine: str) -> set[int]:
        """The processes of this engine that have VRAM, seen from here."""
        return {use.pid for use in uses(self.house.card) if use.pid and use.name.startswith(engine)}


@contextmanager
def scene(real_compose: Path) -> Iterator[Scene]:
    """A box of its own, both engines proven; the calling thread is inside its network as long as the block runs."""
    with TemporaryDirectory(prefix="spf-") as name, pytest.MonkeyPatch.context() as patch:  # short: sockets lie in it
        folder = Path(name)
        compose = folder / "compose"
        compose.write_text(COMPOSE.format(folder=folder, real=real_compose))
        compose.chmod(0o755)
        patch.setenv("SLOTPROXY_COMPOSE", str(compose))
        with PrivateDocker(folder / "docker") as private, private.inside(), _house(private, folder) as house:
            yield Scene(private, house, folder)


@contextmanager
def _house(private: PrivateDocker, folder: Path) -> Iterator[House]:
    bed, box = DockerBed(private.address), folder / "box"
    box.mkdir()
    with House(bed, build_shim(folder), box) as house:
        house.config["freeing"] = "60s"  # longer than it takes to strike in it
        house.take_in(*(_with_a_gpu(one) for one in _engines(bed, box)))
        house.write()
        house.serve()
        house.prove(*reversed(house.tenants))
        yield house
    bed.client.close()


def _engines(bed: DockerBed, folder: Path) -> tuple[Tenant, Tenant]:
    return strata(bed, folder, unpin=LASTING), ninfer(bed, folder, stop_s=LASTING)


def _with_a_gpu(tenant: Tenant) -> Tenant:
    tenant.service["deploy"] = GPU
    return tenant
