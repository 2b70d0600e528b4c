"""The demo's tour: clients stream without a pause while the card changes hands; what they saw is what is reported."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

from slotproxy.daemon import Daemon
from swap.ports import Fault
from swap.tickets import Ended, Progress
from swap.wish import Wish

CLIENTS = 4
BETWEEN = 1.0  # seconds of quiet service between two swaps
LIMIT = 45.0  # seconds that one request of the tour may take, waiting included; and one swap
BODY = {"model": "qwen3.8-27b", "stream": True, "max_tokens": 24, "messages": [{"role": "user", "content": "Count."}]}


@dataclass
class Swap:
    """One swap as clients saw it. `dark`: seconds from the last byte before it until requests could be taken again."""

    to: str
    expected: int
    code: int = -1
    dark: float = 0.0
    text: str = ""


@dataclass
class Answer:
    """One answer as its client saw it. `first`: when its first event came."""

    engine: str = "none"
    first: float | None = None
    problem: str = ""


@dataclass
class Report:
    """What happened. Good: no request failed, and each swap ended as it should have."""

    requests: int = 0
    failed: int = 0
    longest_wait: float = 0.0
    by_engine: dict[str, int] = field(default_factory=dict)
    swaps: list[Swap] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def count(self, answer: Answer, waited: float) -> None:
        self.requests += 1
        self.by_engine[answer.engine] = self.by_engine.get(answer.engine, 0) + 1
        self.longest_wait = max(self.longest_wait, waited)
        if answer.problem:
            self.failed += 1
            self.failures.append(f"{answer.engine}: {answer.problem}")

    @property
    def good(self) -> bool:
        return not self.failed and self.requests > 0 and all(swap.code == swap.expected for swap in self.swaps)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "good": self.good}


async def tour(daemon: Daemon, url: str, say: Callable[[str], None]) -> Report:
    """There, back, and a swap that fails; bounded in time."""
    report, clients = Report(), Clients(f"{url}/v1/chat/completions")
    async with httpx.AsyncClient(trust_env=False, timeout=LIMIT) as http, asyncio.TaskGroup() as tasks:
        for _ in range(CLIENTS):
            tasks.create_task(clients.keep_asking(http, report), name="client")
        await asyncio.sleep(BETWEEN)
        for to, expected, sabotage in (("ninfer", 0, False), ("strata", 0, False), ("ninfer", 4, True)):
            say(f"swap to {to}" + (", whose process is killed while it loads:" if sabotage else ":"))
            swap = Swap(daemon.settings.engines[to].deployed_pair.label, expected)
            report.swaps.append(swap)
            try:
                async with asyncio.timeout(LIMIT):
                    await _carry_out(swap, daemon, clients, sabotage=sabotage, say=say)
            except TimeoutError:
                swap.text = f"it has not ended in {LIMIT:g} s"
                say(f"  {swap.text}")
            await asyncio.sleep(BETWEEN)
        clients.ending = True
    _tell(report, say)
    return report


class Clients:
    """Each asks again as soon as it is answered, and looks whether the answer is whole."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.ending = False
        self.last_byte = time.monotonic()

    async def keep_asking(self, http: httpx.AsyncClient, report: Report) -> None:
        while not self.ending:
            began, answer = time.monotonic(), Answer()
            try:
                async with asyncio.timeout(LIMIT):
                    await self._stream(http, answer)
            except (httpx.HTTPError, TimeoutError) as error:
                answer.problem = answer.problem or repr(error)
            report.count(answer, waited=(answer.first or time.monotonic()) - began)
            if answer.problem:
                await asyncio.sleep(0.2)  # something is wrong: don't ask in a tight loop

    async def _stream(self, http: httpx.AsyncClient, answer: Answer) -> None:
        whole = False
        async with http.stream("POST", self._url, json=BODY) as response:
            answer.engine = response.headers.get("x-slotproxy-engine", "none")
            async for line in response.aiter_lines():
                self.last_byte = time.monotonic()
                if line.startswith("data:"):
                    answer.first = answer.first or self.last_byte
                    whole = whole or line == "data: [DONE]"
                if '"error"' in line:
                    answer.problem = answer.problem or line[:200]
        if response.status_code != 200 or not whole:
            answer.problem = answer.problem or f"HTTP {response.status_code}, {'' if whole else 'not '}whole"


async def _carry_out(
    swap: Swap, daemon: Daemon, clients: Clients, *, sabotage: bool, say: Callable[[str], None]
) -> None:
    to, _, pair = swap.to.partition(":")
    ticket = daemon.controller.order(to, pair, trial=False, cut=False, wish=Wish())
    last_byte = clients.last_byte
    async for item in ticket.follow():
        if isinstance(item, Progress):
            say(f"  {item.elapsed:5.1f} s  {item.phase} {item.text}".rstrip())
            if item.phase == "stopping":
                last_byte = clients.last_byte
            if sabotage and item.phase == "warming":
                await _kill(daemon, to)
                sabotage = False
        elif isinstance(item, Ended):
            swap.code, swap.text, swap.dark = item.code, item.text, time.monotonic() - last_byte
            say(f"  {item.elapsed:5.1f} s  {item.text}")


async def _kill(daemon: Daemon, name: str) -> None:
    """As if it had crashed."""
    with contextlib.suppress(Fault, ProcessLookupError):
        sight = await daemon.controller.hands.runtimes[name].look()
        if sight.pid is not None:
            os.kill(sight.pid, signal.SIGKILL)


def _tell(report: Report, say: Callable[[str], None]) -> None:
    answered = ", ".join(f"{engine} {count}" for engine, count in sorted(report.by_engine.items()))
    say(f"\nrequests      {report.requests}  ({answered})")
    say(f"failed        {report.failed}")
    for swap in report.swaps:
        word = "as it should" if swap.code == swap.expected else f"expected {swap.expected}"
        say(f"swap          to {swap.to}: exit {swap.code} ({word}), dark {swap.dark:.1f} s")
    say(f"longest wait  {report.longest_wait:.1f} s")
    for failure in report.failures[:5]:
        say(f"failure       {failure}")
