"""`slotproxy` and `slotctl` as programs for tests: started in the background, watched, and ended by their pids."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGKILL, Signals
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
import pytest
import yaml

from slotproxy import demo_files

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
LIMIT = 60.0  # seconds for what takes one or two: the machine may be busy
MODEL = "qwen3.8-27b"

Json = dict[str, Any]
T = TypeVar("T")


class Program:
    """One `slotproxy …`; leaving the block kills it, if it still lives. Its output is in files, so it never blocks."""

    def __init__(
        self, folder: Path, *words: object, name: str = "slotproxy", cwd: Path | None = None, **variables: object
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        with self._out.open("w") as out, self._err.open("w") as err:
            self._child = subprocess.Popen(
                [BIN / "slotproxy", *map(str, words)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=cwd,
                env=env(**{"PYTHONASYNCIODEBUG": 1, "PYTHONWARNINGS": "default", **variables}),
            )
        self.pid = self._child.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.kill()
        self._child.wait()
        if error is not None:
            print(f"--- stdout\n{self.out}--- stderr\n{self.err}")

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    @property
    def log(self) -> list[Json]:
        """What it has logged on stderr; half a line isn't in it yet."""
        return [json.loads(line) for line in self.err.splitlines(keepends=True) if line[0] == "{" and line[-1] == "\n"]

    @property
    def troubles(self) -> list[str]:
        """What a quiet life has none of: warnings, errors, and whatever isn't of the log (a traceback, …)."""
        lines = self.err.splitlines()
        bad = [line for line in lines if line[0] != "{" or json.loads(line)["level"] != "info"]
        return [line for line in bad if '"event": "Executing <' not in line]  # asyncio's, on a busy machine

    def until(self, truth: Callable[[], T]) -> T:
        """What `truth` says once it is true; fails if the program ends before."""

        def asked() -> T:
            found = truth()
            assert found or self.alive, f"it ended: {self.out}{self.err}"
            return found

        return until(asked)

    def event(self, name: str) -> Json:
        """Its first log line of that name, waited for."""
        return self.until(lambda: next((line for line in self.log if line["event"] == name), None)) or {}

    def signal(self, number: Signals) -> None:
        self._child.send_signal(number)

    def end(self, number: Signals | None = None, within: float = LIMIT) -> int:
        """The exit code."""
        if number is not None:
            self.signal(number)
        return self._child.wait(within)


class Serve(Program):
    """`slotproxy serve --config FILE`; its output goes beside the file, or to `folder`."""

    def __init__(self, config: Path, name: str = "slotproxy", folder: Path | None = None, **variables: object) -> None:
        super().__init__(folder or config.parent, "serve", "--config", config, name=name, cwd=None, **variables)
        self.control = Path(yaml.safe_load(config.read_text())["control"])

    @property
    def url(self) -> str:
        return f"http://{self.event('slotproxy is up')['listen']}"

    def slotctl(self, *words: object) -> subprocess.CompletedProcess[str]:
        return slotctl(self.control, *words)

    def status(self) -> Json:
        return status(self.control)


class Demo(Program):
    """`slotproxy demo --json --state DIR`."""

    def __init__(self, state: Path, *words: object, name: str = "demo", cwd: Path | None = None) -> None:
        given = state.relative_to(cwd) if cwd else state
        super().__init__(state.parent, "demo", "--json", "--state", given, *words, name=name, cwd=cwd)
        self.folder = state
        self.control = state / "control.sock"

    @property
    def ready(self) -> Json:
        """What it says when it serves, waited for."""
        return self.until(lambda: self.facts)[0]

    @property
    def facts(self) -> list[Json]:
        """What it has said on stdout."""
        return [json.loads(line) for line in self.out.splitlines(keepends=True) if line[-1] == "\n"]

    def slotctl(self, *words: object) -> subprocess.CompletedProcess[str]:
        return slotctl(self.control, *words)

    def status(self) -> Json:
        return status(self.control)


def slotctl(control: Path, *words: object) -> subprocess.CompletedProcess[str]:
    command = [BIN / "slotctl", "--control", control, *words]
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=LIMIT, check=False, env=env()
    )


def env(**more: object) -> dict[str, str]:
    """Nobody's Docker, nobody's daemon, and bytecode that the next process finds."""
    apart = ("DOCKER", "SLOTPROXY", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(apart)}
    return kept | {name: str(value) for name, value in more.items()}


def status(control: Path) -> Json:
    """Asked directly: a `slotctl` takes longer to start than to ask."""
    return get(control, "/status")


def get(control: Path, path: str) -> Json:
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(control)), base_url="http://x", timeout=LIMIT) as client:
        answer: Json = client.get(path).json()
    return answer


def until(truth: Callable[[], T], limit: float = LIMIT) -> T:
    """What `truth` says once it is true."""
    deadline = time.monotonic() + limit
    while not (found := truth()):
        assert time.monotonic() < deadline, "it didn't come to pass"
        time.sleep(0.03)
    return found


def quick_house(folder: Path, **changes: object) -> Path:
    """The demo's house for `slotproxy serve` on any free port: engines that load at once. `changes`: its keys."""
    folder.mkdir(parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo_files, "LOAD", 0.1)
        path = demo_files.write_house(folder, 0)
    house = {**yaml.safe_load(path.read_text()), **changes}
    path.write_text(demo_files.HEAD + yaml.safe_dump(house, sort_keys=False))
    return path


def engines(folder: Path) -> list[int]:
    """The pids of the simulators that take their memory from this folder's card."""
    mark = f"_SIM_CARD={folder / 'card'}\0".encode()
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return sorted(pid for pid in pids if mark in _environment(pid))


def _environment(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes() + b"\0"
    return b""


@contextlib.contextmanager
def ended_engines(*folders: Path) -> Iterator[None]:
    """Whatever runs there in the end is killed, by its pid."""
    try:
        yield
    finally:
        for folder in folders:
            for pid in engines(folder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, SIGKILL)


def free_port() -> int:
    """Below the ports that connections get, so that it stays free until it is used."""
    return next(demo_files._free_ports(0))


def accepts(port: int) -> bool:
    with socket.socket() as knock:
        knock.settimeout(5)
        return knock.connect_ex(("127.0.0.1", port)) == 0


def chat(tokens: int = 3, **more: object) -> Json:
    """`sim_tokens` is the simulators' own word for how long the answer is."""
    message = {"role": "user", "content": "hello"}
    return {"model": MODEL, "messages": [message], "sim_tokens": tokens, "max_tokens": tokens, **more}
