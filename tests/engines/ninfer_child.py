"""NInfer's simulator as a child process of a test."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from engines.ninfer.sample import write_artifact

ROOT = Path(__file__).parents[2]
MODEL = "qwen3.8-27b"
PATIENCE = 20.0  # seconds; generous, for a slow machine


@dataclass
class Child:
    """A running simulator. `port` is free when it starts; nothing waits for it to be ready but `wait_ready`."""

    process: subprocess.Popen[bytes]
    port: int
    output: Path
    requests: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def text(self) -> str:
        return self.output.read_text()

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE, trust_env=False)

    def wait_output(self, text: str) -> None:
        eventually(lambda: text in self.text, lambda: f"no {text!r} in its output:\n{self.text}")

    def wait_ready(self) -> None:
        self.wait_output("listening on http://")

    def wait_exit(self) -> int:
        return self.process.wait(PATIENCE)

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait_exit()

    def log(self, event: str = "received") -> list[dict[str, Any]]:
        """What the simulator wrote into its request log."""
        lines = self.requests.read_text().splitlines() if self.requests.exists() else []
        return [line for line in map(json.loads, lines) if line["event"] == event]

    def wait_log(self, event: str, count: int) -> list[dict[str, Any]]:
        eventually(lambda: len(self.log(event)) >= count, lambda: f"{self.requests.read_text()}")
        return self.log(event)


def eventually(true: Callable[[], bool], why: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, why()
        time.sleep(0.01)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def child(
    folder: Path, flags: Sequence[str] = (), *, version: int = 2, ready: bool = True, **knobs: object
) -> Iterator[Child]:
    """Start a simulator on a small artifact; knobs become NINFER_SIM_* variables. It is killed at the end."""
    artifact = folder / f"v{version}.ninfer"
    write_artifact(artifact, version)
    port, output, requests = free_port(), folder / f"output-{time.monotonic_ns()}", folder / "requests.jsonl"
    settings = {"load_s": 0, "request_log": requests, **knobs}
    command = [sys.executable, "-m", "engines.ninfer.simulator", str(artifact), "--port", str(port), *flags]
    environment = {f"NINFER_SIM_{name.upper()}": str(value) for name, value in settings.items()}
    with output.open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=file)
    running = Child(process, port, output, requests)
    try:
        if ready:
            running.wait_ready()
        yield running
    finally:
        process.kill()
        process.wait(PATIENCE)


def ask(content: str = "hi", **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **more}
