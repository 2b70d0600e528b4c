"""A way to a real Docker daemon that fails on demand: what lies between is told to hang or to break, once.

way.hang("/start")            the next such request waits until `let_go()`, then is handed on
way.reset("/start")           the next such request is handed on to nobody, and the connection breaks
way.lose("/start")            the next such request is handed on and done; the answer is lost
way.cut()                     every connection breaks, event streams too
way.stop(2, done=True)        the second change from now on is handed on and done, and never answered (with `done=False`
                              it never comes there); then `stopped` is set: whoever asked can be killed at that point
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
        self.hung = asyncio.Event()
        self._go = asyncio.Event()
        self.stopped = asyncio.Event()
        self._stop_at, self._stop_done = 0, False  # how many changes from now; 0: never
        self._ended = asyncio.Event()
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def hang(self, path: str) -> None:
        self._orders.append(("hang", path))

    def reset(self, path: str, times: int = 1) -> None:
        self._orders += [("reset", path)] * times

    def lose(self, path: str) -> None:
        self._orders.append(("lose", path))

    def stop(self, change: int, *, done: bool) -> None:
        self.stopped.clear()
        self._stop_at, self._stop_done = change, done

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
            self._ended.set()
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
        if order == "stop":
            self.stopped.set()
            await self._ended.wait()
            return
        if order == "reset":
            writer.transport.abort()
            return
        if order == "hang":
            self.hung.set()
            await self._go.wait()
        self.seen.append(line)
        up_reader, up_writer = await asyncio.open_unix_connection(self._target)
        try:
            up_writer.write(head[: -len(END)] + b"\r\nConnection: close" + END + body)
            await self._answer(up_reader, writer if order in ("", "hang") else None)
        finally:
            up_writer.close()
        if order == "stop when done":
            self.stopped.set()
            await self._ended.wait()
        if order == "lose":
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter | None) -> None:
        while data := await reader.read(65536):
            if writer is not None:
                writer.write(data)
                await writer.drain()

    def _order(self, line: str) -> str:
        if self._stop_at and line.split(" ", 1)[0] in ("POST", "PUT", "DELETE"):
            self._stop_at -= 1
            if self._stop_at == 0:
                return "stop when done" if self._stop_done else "stop"
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
