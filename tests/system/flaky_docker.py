"""A way to a real Docker daemon that fails on demand: what lies between is told to hang or to break, once.

way.hang("/start")            the next such request waits until `let_go()`, then is handed on
way.reset("/start")           the next such request is handed on to nobody, and the connection breaks
way.lose("/start")            the next such request is handed on and done; the answer is lost
way.cut()                     every connection breaks, event streams too
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

END = b"\r\n\r\n"


class FlakyWay:
    """`address` leads to the daemon at `target` (a unix socket). `seen` are the request lines that were handed on."""

    def __init__(self, target: Path, own: Path) -> None:
        self.address = f"unix://{own}"
        self.seen: list[str] = []
        self._target, self._own = target, own
        self._orders: list[tuple[str, str]] = []
        self._go = asyncio.Event()
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def hang(self, path: str) -> None:
        self._orders.append(("hang", path))

    def reset(self, path: str, times: int = 1) -> None:
        self._orders += [("reset", path)] * times

    def lose(self, path: str) -> None:
        self._orders.append(("lose", path))

    def let_go(self) -> None:
        self._go.set()

    def cut(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    def count(self, path: str) -> int:
        return sum(path in line for line in self.seen)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        server = await asyncio.start_unix_server(self._connected, self._own)
        try:
            yield
        finally:
            self._go.set()
            server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(writer)
        self._tasks.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._one_request(reader, writer)
        finally:
            self._tasks.discard(task)
            self._open.discard(writer)
            writer.close()

    async def _one_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request a connection: the daemon is told to close after it."""
        head = await reader.readuntil(END)
        line, body = head.split(b"\r\n", 1)[0].decode(), await reader.readexactly(_length(head))
        order = self._order(line)
        if order == "reset":
            writer.transport.abort()
            return
        if order == "hang":
            await self._go.wait()
        self.seen.append(line)
        up_reader, up_writer = await asyncio.open_unix_connection(self._target)
        try:
            up_writer.write(head[: -len(END)] + b"\r\nConnection: close" + END + body)
            await self._answer(up_reader, None if order == "lose" else writer)
        finally:
            up_writer.close()
        if order == "lose":
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter | None) -> None:
        while data := await reader.read(65536):
            if writer is not None:
                writer.write(data)
                await writer.drain()

    def _order(self, line: str) -> str:
        for order in self._orders:
            if order[1] in line:
                self._orders.remove(order)
                return order[0]
        return ""


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            return int(line.split(b":")[1])
    return 0
