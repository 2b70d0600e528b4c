"""What a waiting client costs: memory and computing, then how fast they are answered, and what is left of it.

python -m tests.bench.waiting [N …]      so many clients (1000) at once, with a closed gate; plain ones, and streams
                                         that get a ping each two seconds; the proxy is a process of its own
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from engines.spec import CHAT
from tests.bench.house import House, Reading
from tests.bench.large import request
from tests.bench.upstream import upstream

WATCHED = 6.0  # seconds that they wait: three pings
ROUNDS = 3  # what the first one takes stays: the allocator's reserve, and what is imported late
_LIMIT = 120.0  # seconds
HEAD = """\
{n} clients wait. KiB a client; ms of computing to come, to wait a second, and to be answered, a client; KiB left
                        KiB   come  wait answered  left"""


class Client:
    """One that asks and waits for its answer."""

    def __init__(self, port: int, raw: bytes) -> None:
        self._port, self._raw = port, raw

    async def come(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writer.write(self._raw)

    async def answered(self) -> None:
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        await self._reader.readuntil(b"\r\n0\r\n\r\n" if b"chunked" in head else b"}}]}")

    def leave(self) -> None:
        self._writer.close()


def asking(stream: bool) -> bytes:
    raw = json.dumps({"model": "mapped", "messages": [{"role": "user", "content": "hello"}], "stream": stream}).encode()
    return request(CHAT + ("?events=1" if stream else ""), len(raw)) + raw


async def one_round(house: House, clients: list[Client]) -> str:
    await house.tell("close")
    await house.mark()
    for client in clients:
        await client.come()
    came = await until_waiting(house, len(clients))
    await asyncio.sleep(WATCHED)
    waited = await house.read()
    await house.tell("open")
    async with asyncio.timeout(_LIMIT):
        await asyncio.gather(*(client.answered() for client in clients))
    answered = await house.read()
    for client in clients:
        client.leave()
    await asyncio.sleep(1.0)
    left = await house.read()
    n = len(clients)
    each = (waited.now - waited.before) / n / 1024
    turns = [came.cpu, (waited.cpu - came.cpu) / WATCHED, answered.cpu - waited.cpu]
    come, wait, answer = (1000 * seconds / n for seconds in turns)
    return f"{each:7.1f} {come:6.2f} {wait:5.2f} {answer:8.2f} {(left.now - left.before) / n / 1024:5.1f}"


async def until_waiting(house: House, n: int) -> Reading:
    deadline = time.monotonic() + _LIMIT
    while (reading := await house.read()).waiting < n:
        assert time.monotonic() < deadline, f"only {reading.waiting} wait"
        await asyncio.sleep(0.2)
    return reading


async def measure(n: int) -> None:
    print(HEAD.format(n=n))
    async with upstream() as port, House.at(f"http://127.0.0.1:{port}", "1") as house:
        for stream in (False, True):
            for _ in range(ROUNDS):
                clients = [Client(house.port, asking(stream)) for _ in range(n)]
                print(f"{'streams' if stream else 'plain':20}{await one_round(house, clients)}")


def main(words: list[str]) -> int:
    for n in [int(word) for word in words] or [1000]:
        asyncio.run(measure(n))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
