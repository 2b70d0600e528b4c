"""The server's side of the engine process: load, unload, one generation after the other, the end."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Generator
from dataclasses import asdict
from typing import IO, Any

from engines.strata.simulator.asking import Ask
from engines.strata.simulator.knobs import Knobs

QUIT_LIMIT = 40.0  # seconds for an engine that was told to quit; a stuck one is killed then
Report = dict[str, Any]


class EngineGone(Exception):
    """There is no engine, or it died: the message goes to the client."""


class Supervisor:
    """Owns the engine process. `unloaded` is on purpose and mended by the next request; a death is not mended.

    The caller lets one request in at a time (`load`, `unload`, `generate`); `loaded` and `quit` may come any time.
    """

    def __init__(self, knobs: Knobs) -> None:
        self.knobs = knobs
        self.process: subprocess.Popen[str] | None = None
        self.reports: queue.SimpleQueue[Report | None] = queue.SimpleQueue()  # None: the process ended
        self.ready = False
        self.vram = 0
        self.requests = 0
        self.stopping = False  # set when the server is told to stop: nobody else gets a turn
        self._writing = threading.Lock()

    @property
    def loaded(self) -> bool:
        return self.ready and self.process is not None and self.process.poll() is None

    def load(self) -> None:
        """Start an engine process and wait, without limit, until it has loaded. Raises EngineGone."""
        self.reports = queue.SimpleQueue()
        command = [sys.executable, "-m", "engines.strata.simulator.engine", json.dumps(asdict(self.knobs))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        assert self.process.stdout is not None
        threading.Thread(target=_read, args=(self.process.stdout, self.reports), name="reports", daemon=True).start()
        report = self.reports.get()
        if report is None:
            code, self.process = self.process.wait(), None
            raise EngineGone(f"the engine process ended with {code} while it loaded")
        self.vram, self.ready = int(report["vram"]), True

    def generate(self, ask: Ask, seed: int, every: float) -> Generator[Report | None, None, None]:
        """The reports of one generation, None at least every `every` seconds of silence. Raises EngineGone.

        Close it early and the engine is told to cancel; closing returns when the engine has really stopped.
        """
        if self.ready and not self.loaded:
            raise EngineGone("the engine process is dead; restart the server")
        if not self.loaded:
            self.load()
        self.requests += 1
        n = self.requests
        lengths = {"prompt": ask.prompt_tokens, "thinking": ask.thinking, "answer": ask.answer, "limit": ask.limit}
        self._order(op="generate", order={"n": n, "seed": seed, "arguments": list(ask.arguments), **lengths})
        ended = False
        try:
            while not ended:
                report = self._next(every)
                ended = report is not None and "end" in report
                yield report
        finally:
            if not ended and self.loaded:
                self._cancel(n)

    def unload(self) -> None:
        """End the engine process and give its VRAM back; the next `generate` loads it again."""
        self._end()
        self.ready, self.process, self.vram = False, None, 0

    def quit(self) -> int:
        """End the engine for good: what runs ends as if cut by its limit. Returns the process's exit code."""
        return self._end()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def _end(self) -> int:
        if self.process is None:
            return 0
        self._order(op="quit")
        try:
            return self.process.wait(QUIT_LIMIT)
        except subprocess.TimeoutExpired:
            self.kill()
            return -9

    def _next(self, limit: float | None) -> Report | None:
        try:
            report = self.reports.get(timeout=limit)
        except queue.Empty:
            return None
        if report is None:
            self.reports.put(None)  # whoever asks next finds it out, too
            raise EngineGone("the engine process died")
        return report

    def _cancel(self, n: int) -> None:
        self._order(op="cancel", n=n)
        report = self.reports.get()
        while report is not None and "end" not in report:
            report = self.reports.get()

    def _order(self, **words: Any) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        with self._writing, contextlib.suppress(BrokenPipeError):  # it has just died: its reports end, too
            self.process.stdin.write(json.dumps(words) + "\n")


def _read(output: IO[str], reports: queue.SimpleQueue[Report | None]) -> None:
    for line in output:
        reports.put(json.loads(line))
    reports.put(None)
