"""An engine for benches, in a process of its own and cheap enough not to be what is measured.

    python -m tests.bench.upstream

Says its port as a line of JSON, and ends with stdin. A body is thrown away as it comes. The query says what is
answered: `events=N&pause_ms=MS` a stream, nothing a short JSON answer; `after_ms=MS` waits before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, urlsplit

from tests.slotproxy.rig import DONE, SSE, chunk, delta

EVENT = chunk(delta("token "))
ANSWER = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"hi"}}]}'
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER)
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_LIMIT = 30.0  # seconds


class Answerer(asyncio.BufferedProtocol):
    """One connection with one request."""

    def __init__(self) -> None:
        self._buffer = bytearray(1024 * 1024)
        self._head = bytearray()
        self._left: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer:
            self._timer.cancel()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._left is None:
            self._head += self._buffer[:nbytes]
            head, found, rest = self._head.partition(b"\r\n\r\n")
            if not found:
                return
            length = _LENGTH.search(head)
            self._left = (int(length[1]) if length else 0) - len(rest)
            self._head = head
        else:
            self._left -= nbytes
        if self._left <= 0:
            self._begin()

    def _begin(self) -> None:
        query = parse_qs(urlsplit(self._head.split(b" ", 2)[1].decode()).query)
        said = {name: float(values[0]) for name, values in query.items()}
        self._events, self._pause = int(said.get("events", 0)), said.get("pause_ms", 0.0) / 1000
        answer = self._stream if self._events else self._plain
        self._timer = self._loop.call_later(said.get("after_ms", 0.0) / 1000, answer)

    def _plain(self) -> None:
        self._transport.write(PLAIN)

    def _stream(self) -> None:
        self._transport.write(SSE)
        if self._pause:
            self._due = self._loop.time()
            self._tick()
        else:
            for _ in range(self._events):
                self._transport.write(EVENT)
            self._end()

    def _tick(self) -> None:
        """By the clock, so that a late event doesn't make all others late."""
        self._transport.write(EVENT)
        self._events -= 1
        self._due += self._pause
        self._timer = self._loop.call_at(self._due, self._tick if self._events else self._end)

    def _end(self) -> None:
        self._transport.write(chunk(DONE) + b"0\r\n\r\n")


@contextlib.asynccontextmanager
async def upstream() -> AsyncIterator[int]:
    """Its port."""
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "tests.bench.upstream")
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdin
    assert process.stdout
    try:
        async with asyncio.timeout(_LIMIT):
            port = json.loads(await process.stdout.readline())["port"]
        yield port
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(_LIMIT):
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _serve() -> None:
    orders = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    server = await loop.create_server(Answerer, "127.0.0.1", 0, backlog=2048)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await orders.read()


if __name__ == "__main__":
    asyncio.run(_serve())
