"""The proxy in a process of its own, for benches: the real client port on a real socket, told what to do on stdin.

    python -m tests.bench.house ENGINE_URL

Says its port as a line of JSON. Then each line on stdin is an order, answered by a line of JSON: `mark` begins a
measurement, `read` tells it (`Reading`), `close` and `open` are the gate's. It ends with stdin.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import json
import os
import re
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from engines.spec import MiB
from slotproxy.config import Limits, SlotSettings
from slotproxy.files import raise_limit
from slotproxy.outcomes import Outcome
from tests.slotproxy.rig import RUN, Proxy, engine, proxied

PLACES = 64
LIMITS = Limits(max_body=256 * MiB, max_waiting=20_000, max_waiting_bytes=4096 * MiB, first_ping=2.0, ping_every=2.0)
SLOTS = {"anonymous": SlotSettings("anonymous", max_waiting=20_000, max_hold=600.0, defaults={"temperature": 0.5})}
MODELS = {"mapped": {"strata": "the-name-that-the-engine-has-for-it"}, "plain": {"strata": "plain"}}
_TICK = 0.001  # seconds
_LIMIT = 120.0  # seconds that an order may take


@dataclass(frozen=True, slots=True)
class Reading:
    """What happened since the mark. Bytes, seconds."""

    before: int  # its memory at the mark
    peak: int
    now: int
    block: float  # the longest that the event loop didn't turn
    busy: float  # the most that it computed meanwhile: what of the block isn't other programs' work
    cpu: float
    waiting: int
    waiting_bytes: int
    served: int  # since it began


@dataclass
class Watch:
    """The event loop's longest block and the process's memory."""

    block: float = 0.0
    busy: float = 0.0
    _before: int = 0
    _cpu: float = field(default_factory=time.process_time)

    async def run(self) -> None:
        while True:
            began, computed = time.monotonic(), time.thread_time()
            await asyncio.sleep(_TICK)
            self.block = max(self.block, time.monotonic() - began - _TICK)
            self.busy = max(self.busy, time.thread_time() - computed)

    async def mark(self) -> None:
        _forget_peak()
        await asyncio.sleep(10 * _TICK)  # what that took doesn't count
        self._before, self.block, self.busy, self._cpu = memory("VmRSS"), 0.0, 0.0, time.process_time()

    def read(self, proxy: Proxy) -> Reading:
        cpu = time.process_time() - self._cpu
        view, served = proxy.gate.view(), proxy.outcomes.counts[Outcome.SERVED]
        now, peak = memory("VmRSS"), memory("VmHWM")
        return Reading(self._before, peak, now, self.block, self.busy, cpu, view.waiting, view.waiting_bytes, served)


def _forget_peak() -> None:
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")


def memory(kind: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at most."""
    found = re.search(rf"{kind}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


class House:
    """The proxy, as the bench sees it."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self._process = process
        self.pid, self.port = process.pid, port

    @classmethod
    @contextlib.asynccontextmanager
    async def at(cls, url: str, *words: str) -> AsyncIterator[House]:
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-m", "tests.bench.house", url, *words)
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        try:
            house = cls(process, 0)
            house.port = (await house._line())["port"]
            yield house
        finally:
            assert process.stdin
            process.stdin.close()
            try:
                async with asyncio.timeout(_LIMIT):
                    await process.wait()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()

    async def mark(self) -> None:
        await self.tell("mark")

    async def read(self) -> Reading:
        return Reading(**await self.tell("read"))

    async def tell(self, order: str) -> Any:
        assert self._process.stdin
        self._process.stdin.write(order.encode() + b"\n")
        return await self._line()

    async def _line(self) -> Any:
        assert self._process.stdout
        async with asyncio.timeout(_LIMIT):
            return json.loads(await self._process.stdout.readline())


async def _serve(url: str, places: int) -> None:
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    here, watch = engine(url, concurrency=places), Watch()
    async with (
        proxied(here, models=MODELS, slots=SLOTS, limits=LIMITS) as proxy,
        asyncio.TaskGroup() as tasks,
    ):
        watching = tasks.create_task(watch.run())
        _say({"port": proxy.port})
        async for order in orders:
            _say(await _obey(order.decode().strip(), watch, proxy, places))
        watching.cancel()


async def _obey(order: str, watch: Watch, proxy: Proxy, places: int) -> dict[str, object]:
    match order:
        case "mark":
            await watch.mark()
        case "read":
            return dataclasses.asdict(watch.read(proxy))
        case "close":
            proxy.gate.close()
        case "open":
            proxy.gate.open("strata", places, RUN)
    return {}


def _say(fact: dict[str, object]) -> None:
    print(json.dumps(fact), flush=True)


if __name__ == "__main__":
    raise_limit()
    with Path(os.devnull).open("w") as nowhere:
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(nowhere))
        asyncio.run(_serve(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else PLACES))
