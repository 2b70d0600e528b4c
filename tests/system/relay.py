"""A TCP relay between clients and the proxy that keeps what it saw: what an SDK does behind our back shows here."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

LIMIT = 60.0  # seconds of silence after which a connection is given up


@dataclass
class Connection:
    """Every byte of one connection: `sent` by the client, `received` by it."""

    sent: bytearray = field(default_factory=bytearray)
    received: bytearray = field(default_factory=bytearray)

    @property
    def requests(self) -> int:
        return self.sent.count(b" HTTP/1.1\r\n")

    @property
    def whole_stream(self) -> bool:
        """One answer that has come to its end marker (most SDKs leave there, without waiting for the last chunk)."""
        return self.received.count(b"HTTP/1.1 ") == 1 and self.received.count(b"data: [DONE]\n\n") == 1


class Relay:
    """Listens at `url` as long as the block runs, and passes everything on to `port`."""

    def __init__(self, port: int) -> None:
        self.connections: list[Connection] = []
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._threads = [threading.Thread(target=self._accept, name="relay")]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was closed: the end
            while True:
                client, _ = self._listener.accept()
                seen = Connection()
                self.connections.append(seen)
                thread = threading.Thread(target=self._pass_on, args=(client, seen), name="relay connection")
                self._threads.append(thread)
                thread.start()

    def _pass_on(self, client: socket.socket, seen: Connection) -> None:
        """Until either side closes; then both are closed."""
        with contextlib.suppress(OSError), client, socket.create_connection(("127.0.0.1", self._to)) as server:
            while ready := select.select([client, server], [], [], LIMIT)[0]:
                for end in ready:
                    data = end.recv(65536)
                    if not data:
                        return
                    (seen.sent if end is client else seen.received).extend(data)
                    (server if end is client else client).sendall(data)

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes up who waits in accept()
        self._listener.close()
        for thread in self._threads:
            thread.join(LIMIT)
