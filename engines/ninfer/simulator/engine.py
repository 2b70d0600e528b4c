"""The part of the simulated engine that owns the card: who is next, prefill, decode, and what goes wrong there."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from engines.ninfer.simulator.options import Knobs, Launch
from engines.ninfer.simulator.prefix import TOKEN, Prefixes

_STEP = 0.05  # seconds between two looks at the client while the engine waits for something
_TEXT = "one card moves and the clients stay, naïve 車 and 🚚 too; nobody notices"


def words(count: int) -> list[str]:
    """The first `count` tokens of every answer, reasoning included."""
    vocabulary = _TEXT.split()
    return [vocabulary[index % len(vocabulary)] + " " for index in range(count)]


def count_tokens(text: str) -> int:
    return max(1, (len(text) + TOKEN - 1) // TOKEN)


class Refused(Exception):
    """A request that the engine doesn't run. `overloaded`, `timeout`, `unavailable` or `failed`."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class ClientGone(Exception):
    """The client's connection is closed: the engine gives the request up."""


class Cut(Exception):
    """The server is stopping and doesn't wait for streams."""


class Client(Protocol):
    def check_stop(self) -> None:
        """Raises Cut if the server is stopping and this is a stream."""

    def check_gone(self) -> None:
        """Raises Cut, ClientGone."""

    def tend(self) -> None:
        """Raises Cut, ClientGone; keeps a silent stream alive."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request, as far as the card is concerned."""

    prompt: str
    tokens: int
    thoughts: int

    @property
    def prompt_tokens(self) -> int:
        return count_tokens(self.prompt)


@dataclass(slots=True)
class Timing:
    """Seconds that a job has taken so far. `cached`: tokens of the prompt that the engine had computed before."""

    prefill: float = 0.0
    decode: float = 0.0
    tokens: int = 0
    cached: int = 0


class Engine:
    """Runs `max_concurrency` jobs at a time, first come, first served; a bounded number waits, for a bounded time."""

    def __init__(self, launch: Launch, knobs: Knobs) -> None:
        self._knobs = knobs
        self._places = launch.max_concurrency
        self._room = launch.max_concurrency + launch.max_pending_requests
        limit = knobs.pending_timeout_s
        self._patience = launch.pending_timeout_ms / 1000 if limit is None else limit
        self._turn = threading.Condition()
        self._line: deque[Job] = deque()  # those that run come first
        self._prefixes = Prefixes(knobs.prefixes)
        self._seen = 0
        self._failure = ""  # until this process ends

    @property
    def failed(self) -> bool:
        """An engine-wide failure has happened: only a new process helps."""
        limit = self._knobs.fail_after_requests
        return self._failure == "unavailable" or (limit is not None and self._seen >= limit)

    def enter(self, job: Job) -> None:
        """Join the line; `leave` must follow. Raises Refused."""
        with self._turn:
            self._take_failure()
            if self.failed:
                raise Refused("unavailable")
            if self._failure:
                raise Refused("lost")
            self._seen += 1
            if len(self._line) >= self._room:
                raise Refused("overloaded")
            self._line.append(job)

    def _take_failure(self) -> None:
        file = self._knobs.failure_file
        if file is not None and file.exists():
            self._failure = file.read_text().strip()
            file.unlink()

    def leave(self, job: Job) -> None:
        with self._turn:
            self._line = deque(other for other in self._line if other is not job)
            self._turn.notify_all()

    def wait_turn(self, job: Job, client: Client) -> None:
        """Raises Refused (waited too long), ClientGone, Cut."""
        deadline = time.monotonic() + self._patience
        while not self._is_next(job):
            if time.monotonic() >= deadline:
                raise Refused("timeout")
            client.tend()

    def _is_next(self, job: Job) -> bool:
        """Wait a moment for the turn; the line stays free to others while the client is looked after."""
        with self._turn:
            return self._turn.wait_for(lambda: any(job is one for one in list(self._line)[: self._places]), _STEP)

    def run(self, job: Job, client: Client, timing: Timing) -> Iterator[str]:
        """Prefill, then a token at a time. Raises Refused (failed in the middle), ClientGone, Cut.

        In a prefill nobody looks whether the client is still there: the card is busy to its end.
        """
        timing.cached = self._prefixes.cached(job.prompt)
        timing.prefill = (job.prompt_tokens - timing.cached) / self._knobs.prefill_tps
        _pause(timing.prefill, client.check_stop)
        self._prefixes.keep(job.prompt)
        said = []
        try:
            for text in words(job.tokens):
                self._misfortune(timing.tokens, client)
                _pause(self._knobs.decode_ms / 1000, client.tend)
                timing.decode += self._knobs.decode_ms / 1000
                timing.tokens += 1
                said.append(text)
                yield text
        finally:
            self._prefixes.keep(f"{job.prompt} {''.join(said[job.thoughts :])}", instead=job.prompt)

    def _misfortune(self, tokens: int, client: Client) -> None:
        if tokens == self._knobs.crash_after_tokens:
            os._exit(134)
        if tokens == self._knobs.error_after_tokens:
            raise Refused("failed")
        while tokens == self._knobs.hang_after_tokens:
            time.sleep(_STEP)
            client.check_gone()


def _pause(seconds: float, look: Callable[[], None]) -> None:
    deadline = time.monotonic() + seconds
    look()
    while (rest := deadline - time.monotonic()) > 0:
        time.sleep(min(rest, _STEP))
        if rest > _STEP:
            look()
