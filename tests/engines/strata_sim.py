"""Starts Strata simulators as child processes, each in a group of its own, and ends the whole group again."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx

FAST = ("--sim-load", "0", "--sim-decode", "1", "--sim-unpin", "0", "--sim-prefill", "1e9")
LIMIT = 30.0  # seconds; generous, for a machine that is busy


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], object], limit: float = LIMIT) -> None:
    """Wait until `condition()` is true. Raises AssertionError after `limit` seconds."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, f"{condition} did not become true in {limit} s"
        time.sleep(0.02)


@dataclass
class Simulator:
    """A running (or ended) simulator. `log` is its request log."""

    process: subprocess.Popen[str]
    port: int
    folder: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> Any:
        return httpx.get(self.url + path, timeout=LIMIT).json()

    def post(self, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
        return httpx.post(self.url + path, json=body, headers=headers, timeout=LIMIT)

    def events(self, name: str) -> list[dict[str, Any]]:
        """The request log's lines about one kind of event."""
        log = self.folder / "requests.jsonl"
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return [line for line in lines if line["event"] == name]

    def open(self) -> bool:
        """Whether something accepts connections at the port."""
        with socket.socket() as trial:
            return trial.connect_ex(("127.0.0.1", self.port)) == 0

    def ready(self) -> None:
        """Until it answers: the port alone is open a moment before signals are handled."""
        until(lambda: self.answers() or self.process.poll() is not None)
        assert self.process.poll() is None, self.process.communicate()

    def answers(self) -> bool:
        try:
            return bool(self.get("/health")["loaded"])
        except httpx.TransportError:
            return False

    def ended(self) -> tuple[int, str]:
        """Exit code and standard error of a simulator that ends by itself or has been told to."""
        _, errors = self.process.communicate(timeout=LIMIT)
        return self.process.returncode, errors


@contextmanager
def started(folder: Path, *flags: str, config: dict[str, Any] | None = None, wait: bool = True) -> Iterator[Simulator]:
    """A simulator by its server's command line."""
    file = folder / "strata.json"
    file.write_text(json.dumps({"model": "strata-iq2_xs"} | (config or {})))
    port = free_port()
    command = ["engines.strata.simulator", "--engine", "strata", "--config", str(file), "--port", str(port)]
    command += [*FAST, "--sim-request-log", str(folder / "requests.jsonl"), *flags]
    with spawned(command, port, folder, {}, wait) as simulator:
        yield simulator


@contextmanager
def spawned(
    command: Sequence[str], port: int, folder: Path, env: dict[str, str], wait: bool = True
) -> Iterator[Simulator]:
    """`python -m COMMAND` in a process group of its own, which is killed at the end, orphans included."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | env,
    )
    simulator = Simulator(process, port, folder)
    try:
        if wait:
            simulator.ready()
        yield simulator
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(LIMIT)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def chat(text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"model": "any", "messages": [{"role": "user", "content": text}], **more}


class RawStream:
    """A streamed request on a bare socket: what the wire carries, and when the client leaves."""

    def __init__(self, simulator: Simulator, body: dict[str, Any], path: str = "/v1/chat/completions") -> None:
        data = json.dumps(body | {"stream": True}).encode()
        head = f"POST {path} HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n"
        self.socket = socket.create_connection(("127.0.0.1", simulator.port), timeout=LIMIT)
        self.socket.sendall(head.encode() + data)
        self.seen = b""

    def read_until(self, word: bytes, times: int = 1) -> bytes:
        while self.seen.count(word) < times:
            data = self.socket.recv(65536)
            assert data, f"the stream ended without {word!r}: {self.seen!r}"
            self.seen += data
        return self.seen

    def rest(self) -> bytes:
        """All until the server closes the connection."""
        while data := self.socket.recv(65536):
            self.seen += data
        return self.seen

    def silent(self, seconds: float) -> bool:
        """True when nothing more comes for so long."""
        self.socket.settimeout(seconds)
        try:
            data = self.socket.recv(65536)
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(LIMIT)
        self.seen += data
        return False

    def leave(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
