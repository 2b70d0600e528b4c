"""uvicorn, set up so that a broken answer can be told from a whole one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from engines.spec import Api
from slotproxy.files import for_clients
from slotproxy.protocols import ApiError, error_body
from slotproxy.reply import ABORT

_FLUSH = 1.0  # seconds that a client has to take what was sent before its connection is ended
_TOLD = 20  # connections past the limit that are told so at once; more are just closed
_BATCH = 8  # connections that are accepted at once, before the limit is looked at
_QUEUE = 2048  # connections that the kernel keeps until they are accepted
_KEEP_ALIVE = 75  # seconds; clients drop idle connections after 5 to 60 s, and must be the first to do so


class Connection(H11Protocol):
    """An HTTP/1.1 connection that the application can end in the middle of an answer.

    ASGI has no word for that: an application that just returns is logged as a fault of ours, and the connection of a
    client that reads nothing stays open for ever. Where too many connections are open, it is turned away.
    """

    _turned_away = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, ABORT: self._abort}
        past = len(self.connections) - for_clients()
        if past > _TOLD:
            transport.abort()
        elif past > 0:
            self._turn_away()

    def data_received(self, data: bytes) -> None:
        if not self._turned_away:
            super().data_received(data)

    def _turn_away(self) -> None:
        """Say why, and leave the client a moment to read it: closed on unread bytes, the answer would be lost."""
        self._turned_away = True
        self.transport.write(_full())
        self.transport.write_eof()
        self.loop.call_later(_FLUSH, self.transport.abort)

    def _abort(self) -> None:
        self.transport.close()
        self.loop.call_later(_FLUSH, self.transport.abort)


def _full() -> bytes:
    error = ApiError(503, "too many connections are open here; close some, or try again", "too_many_connections", 5.0)
    body = error_body(Api.OTHER, error)
    more = (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), (b"connection", b"close")
    lines = [b"%b: %b\r\n" % header for header in (*error.headers(), *more)]
    return b"HTTP/1.1 503 Service Unavailable\r\n%b\r\n%b" % (b"".join(lines), body)


class Server(uvicorn.Server):
    """uvicorn that accepts a few connections at once, however many wait, and leaves signals to others.

    `up` is called once it accepts them.
    """

    def __init__(self, config: uvicorn.Config, up: Callable[[], None] = lambda: None) -> None:
        super().__init__(config)
        self._up = up

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(_QUEUE)  # asyncio takes the length of the queue and of the batch for the same thing
        if self.started:
            self._up()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def config(app: ASGIApp, **more: Any) -> uvicorn.Config:
    """How the client port is served. `more` goes to uvicorn (`host` and `port`, or `fd`).

    h11 because it keeps an answer's framing exactly, and none of uvicorn's own headers, which an engine may send too.
    """
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        server_header=False,
        date_header=False,
        access_log=False,
        log_config=None,
        log_level="error",  # what clients send wrong is told to them, not to the log
        timeout_keep_alive=_KEEP_ALIVE,
        backlog=_BATCH,
        **more,
    )
