"""What a large body does to the streams beside it, and how much memory it takes.

    python -m tests.bench.large [SIZE …]     bodies of 12MiB and 64MiB; the proxy, its engine and its clients are
                                             processes of their own on real sockets

Four streams bring an event each 5 ms. Their gaps are measured alone, and while bodies of one kind come one after
another; the same once more without a proxy in between (`no proxy`), which is what this machine does by itself.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from engines.spec import CHAT, MiB
from slotproxy.units import format_size, parse_size
from tests.bench.bodies import KINDS, body
from tests.bench.house import House, Reading
from tests.bench.upstream import upstream

STREAMS = 4
PAUSE_MS = 5
ROUNDS = 4  # bodies of each kind
ALONE = 4.0  # seconds
SETTLE = 0.3  # seconds until streams flow evenly
HEAD = f"""\
gaps of {STREAMS} streams with an event each {PAUSE_MS} ms, in ms, and against those alone; memory at most, in bytes
a byte of the body; the longest that the loop didn't turn, and that it computed in one turn, in ms; seconds a body

                           p50    p99    max     p99    max     mem   block    busy     s"""
_LIMIT = 120.0  # seconds for one body


@dataclass(frozen=True, slots=True)
class Gaps:
    """Milliseconds."""

    p50: float
    p99: float
    most: float

    @classmethod
    def of(cls, gaps: list[float]) -> Gaps:
        gaps = sorted(1000 * gap for gap in gaps) or [0.0]
        return cls(gaps[len(gaps) // 2], gaps[len(gaps) * 99 // 100], gaps[-1])

    def __str__(self) -> str:
        return f"{self.p50:6.1f} {self.p99:6.1f} {self.most:6.1f}"

    def against(self, other: Gaps) -> str:
        return f"{self.p99 / other.p99:6.2f} {self.most / other.most:6.2f}"


class Stream(asyncio.Protocol):
    """A client of one stream: it notes when something came."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.came: list[float] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        raw = json.dumps({"model": "plain", "stream": True}).encode()
        path = f"{CHAT}?events=1000000&pause_ms={PAUSE_MS}"
        transport.write(request(path, len(raw)) + raw)

    def data_received(self, data: bytes) -> None:
        self.came.append(time.monotonic())

    def close(self) -> None:
        self._transport.abort()

    def gaps(self, since: float, until: float) -> Iterator[float]:
        """Those that ended in that time."""
        pairs = zip(self.came, self.came[1:], strict=False)
        return (now - before for before, now in pairs if since <= now <= until)


def request(path: str, length: int) -> bytes:
    return b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (path.encode(), length)


def send(port: int, raw: bytes) -> float:
    """Post it, and wait for the answer; how long that took, in seconds. To be run in a thread."""
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), _LIMIT) as client:
        client.sendall(request(CHAT, len(raw)))
        client.sendall(raw)
        answer = client.recv(4096)
    assert answer.startswith(b"HTTP/1.1 200"), answer
    return time.monotonic() - began


async def beside(port: int, work: Callable[[], Awaitable[None]]) -> Gaps:
    """The streams' gaps while `work` is done."""
    loop = asyncio.get_running_loop()
    streams = [(await loop.create_connection(lambda: Stream(port), "127.0.0.1", port))[1] for _ in range(STREAMS)]
    try:
        await asyncio.sleep(SETTLE)
        began = time.monotonic()
        await work()
        ended = time.monotonic()
        return Gaps.of([gap for stream in streams for gap in stream.gaps(began, ended)])
    finally:
        for stream in streams:
            stream.close()


async def alone() -> None:
    await asyncio.sleep(ALONE)


@dataclass
class Comparison:
    """Streams of this machine by themselves: through the proxy, and `direct`."""

    house: House
    port: int  # of the engine
    quiet: Gaps
    direct: Gaps

    async def without_proxy(self, size: int) -> None:
        gaps, _ = await self._gaps(self.port, body("image", size))
        print(f"{format_size(size) + ' no proxy':24}{gaps}  {gaps.against(self.direct)}")

    async def of(self, size: int, kind: str) -> None:
        await self.house.mark()
        gaps, took = await self._gaps(self.house.port, body(kind, size))
        cost = _cost(await self.house.read(), size)
        print(f"{format_size(size) + ' ' + kind:24}{gaps}  {gaps.against(self.quiet)}   {cost} {took:5.2f}")

    async def _gaps(self, port: int, raw: bytes) -> tuple[Gaps, float]:
        """And how long one body took, in seconds."""
        took = []

        async def work() -> None:
            for _ in range(ROUNDS):
                took.append(await asyncio.to_thread(send, port, raw))  # noqa: PERF401  (one after another)

        return await beside(port, work), min(took)


def _cost(read: Reading, size: int) -> str:
    per_byte = (read.peak - read.before) / size
    return f"{per_byte:5.2f} {read.block * 1000:7.1f} {read.busy * 1000:7.1f}"


async def compare(sizes: list[int]) -> None:
    async with upstream() as port, House.at(f"http://127.0.0.1:{port}") as house:
        quiet, direct = await beside(house.port, alone), await beside(port, alone)
        print(HEAD)
        print(f"{'alone, no proxy':24}{direct}")
        print(f"{'alone':24}{quiet}")
        comparison = Comparison(house, port, quiet, direct)
        for size in sizes:
            await comparison.without_proxy(size)
            for kind in KINDS:
                await comparison.of(size, kind)


def main(words: list[str]) -> int:
    asyncio.run(compare([parse_size(word) for word in words] or [12 * MiB, 64 * MiB]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
