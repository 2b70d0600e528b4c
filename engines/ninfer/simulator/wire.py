"""HTTP/1.1 as the engine's library speaks it: kept-alive connections that each occupy a worker, chunked streams."""

from __future__ import annotations

import contextlib
import queue
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from engines.ninfer.simulator.shapes import NAME, dump

KEEP_ALIVE = 5.0  # seconds that an idle connection is kept
REQUESTS_A_CONNECTION = 100
BACKLOG = 5  # the kernel completes one more: six connections fit while nobody accepts
_TIMEOUT = 5.0  # seconds for one read or write
_LONGEST_HEAD = 64 * 1024
_REASONS = {529: "Site is overloaded", **{status.value: status.phrase for status in HTTPStatus}}


class Closed(Exception):
    """The other side has left, or has stopped reading."""


class BadMessage(Exception):
    """Not HTTP, or too large: answered with this status, then closed."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    version: str
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    @property
    def keeps_alive(self) -> bool:
        wish = self.headers.get("connection", "").lower()
        return "close" not in wish and (self.version == "HTTP/1.1" or "keep-alive" in wish)


class Connection:
    """One client's socket. Every read and write has a bound; raises Closed when the client has left."""

    def __init__(self, sock: socket.socket, body_limit: int) -> None:
        self._sock = sock
        self._limit = body_limit
        self._buffer = b""
        self._left = REQUESTS_A_CONNECTION
        self._chunked = False
        self.open = True

    # ------------------------------------------------------------------------------------------- reading

    def wait_request(self, stopping: threading.Event) -> bool:
        """Whether a request begins to arrive before the connection has been idle too long."""
        deadline = time.monotonic() + KEEP_ALIVE
        while not self._buffer and not stopping.is_set():
            ready, _, _ = select.select([self._sock], [], [], 0.05)
            if ready:
                return not self.gone
            if time.monotonic() > deadline:
                return False
        return not stopping.is_set()

    def read_request(self) -> Request:
        """Raises Closed, BadMessage."""
        head = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        words = head[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            raise BadMessage(400)
        pairs = (line.partition(":") for line in head[1:])
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        if headers.get("expect", "").lower() == "100-continue":
            self._send(b"HTTP/1.1 100 Continue\r\n\r\n")
        request = Request(words[0], words[1].partition("?")[0], words[2], headers, self._body(headers))
        self._left -= 1
        self._chunked = request.version == "HTTP/1.1"
        self.open = request.keeps_alive and self._left > 0
        return request

    def _body(self, headers: Mapping[str, str]) -> bytes:
        if "chunked" in headers.get("transfer-encoding", "").lower():
            return self._chunks()
        length = headers.get("content-length", "0")
        if not length.isdecimal():
            raise BadMessage(400)
        return self._exactly(int(length))

    def _chunks(self) -> bytes:
        body = b""
        while True:
            try:
                size = int(self._until(b"\r\n").partition(b";")[0], 16)
            except ValueError:
                raise BadMessage(400) from None
            if size == 0:
                while self._until(b"\r\n"):
                    pass
                return body
            body += self._exactly(size)
            self._exactly(2)
            if len(body) > self._limit:
                raise BadMessage(413)

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            if len(self._buffer) > _LONGEST_HEAD:
                raise BadMessage(431)
            self._buffer += self._receive()
        found, _, self._buffer = self._buffer.partition(mark)
        return found

    def _exactly(self, count: int) -> bytes:
        if count > self._limit:
            raise BadMessage(413)
        parts, have = [self._buffer], len(self._buffer)
        while have < count:
            parts.append(self._receive())
            have += len(parts[-1])
        whole = b"".join(parts)
        self._buffer = whole[count:]
        return whole[:count]

    def _receive(self) -> bytes:
        try:
            data = self._sock.recv(65536)
        except OSError:
            raise Closed from None
        if not data:
            raise Closed
        return data

    @property
    def gone(self) -> bool:
        """Whether the client has closed its side, half of it included."""
        try:
            ready, _, _ = select.select([self._sock], [], [], 0)
            return bool(ready) and self._sock.recv(1, socket.MSG_PEEK) == b""
        except OSError:
            return True

    # ------------------------------------------------------------------------------------------- writing

    def send_json(self, status: int, value: Any) -> None:
        body = dump(value)
        self._head(status, {"Content-Type": "application/json", "Content-Length": str(len(body))}, body)

    def start_stream(self) -> None:
        framing = {"Transfer-Encoding": "chunked"} if self._chunked else {}
        self.open = self.open and self._chunked
        hints = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        self._head(200, {**hints, **framing})

    def send_piece(self, data: bytes) -> None:
        self._send(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)

    def end_stream(self) -> None:
        self._send(b"0\r\n\r\n" if self._chunked else b"")

    def close(self) -> None:
        self.open = False
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _head(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        kept = {"Keep-Alive": f"timeout={KEEP_ALIVE:.0f}, max={REQUESTS_A_CONNECTION}"}
        lines = {"Server": NAME, **(kept if self.open else {"Connection": "close"}), **headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._send(f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}\r\n{head}\r\n".encode() + body)

    def _send(self, data: bytes) -> None:
        try:
            self._sock.sendall(data)
        except OSError:  # also a client that has read nothing for too long
            raise Closed from None


class Server:
    """Accepts only when told to; a fixed number of workers, each with one connection until that is closed."""

    def __init__(self, host: str, port: int) -> None:
        """Binds and listens: from now on the kernel completes connections. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        self.stopping = threading.Event()
        self._waiting: queue.SimpleQueue[socket.socket | None] = queue.SimpleQueue()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def serve(self, workers: int, body_limit: int, handle: Callable[[Request, Connection], None]) -> None:
        """Accept until `stopping` is set; returns when the requests that are still answered then have ended."""
        threads = [
            threading.Thread(target=self._work, args=(body_limit, handle), name=f"worker-{number}", daemon=True)
            for number in range(workers)
        ]
        for thread in threads:
            thread.start()
        while not self.stopping.is_set():
            if select.select([self._listener], [], [], 0.05)[0]:
                self._accept()
        self._listener.close()
        for _ in threads:
            self._waiting.put(None)
        for thread in threads:
            thread.join()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:  # the client has given up already
            return
        sock.settimeout(_TIMEOUT)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._waiting.put(sock)

    def _work(self, body_limit: int, handle: Callable[[Request, Connection], None]) -> None:
        while (sock := self._waiting.get()) is not None:
            connection = Connection(sock, body_limit)
            try:
                while connection.open and connection.wait_request(self.stopping):
                    handle(connection.read_request(), connection)
            except Closed:
                pass
            except BadMessage as bad:
                connection.open = False
                with contextlib.suppress(Closed):
                    connection.send_json(bad.status, {"error": {"message": "bad HTTP message", "code": bad.status}})
            finally:
                connection.close()
