"""uvicorn, set up so that a broken answer can be told from a whole one."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import h11
import uvicorn
from h11._state import MIGHT_SWITCH_PROTOCOL
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from slotproxy.files import for_clients
from slotproxy.protocols import ApiError
from slotproxy.reply import ABORT, REFUSED
from slotproxy.secured import READ, Handshake, Secure
from slotproxy.strict import Strict, why
from slotproxy.unread import answer

_FLUSH = 1.0  # seconds that a client has to take what was sent before its connection is ended
_STUCK = 75.0  # seconds that a client may take no byte of what is sent; a request's own limit is shorter
_HEAD = 60.0  # seconds from a request's first byte to the end of its headers
_TOLD = 20  # connections past the limit that are told so at once; more are just closed
_BATCH = 8  # connections that are accepted at once, before the limit is looked at
_QUEUE = 2048  # connections that the kernel keeps until they are accepted
_KEEP_ALIVE = 75  # seconds; clients drop idle connections after 5 to 60 s, and must be the first to do so
_AHEAD = 64 * 1024  # bytes of further requests that are read while one is answered, so as to see its client leave


class Connection(H11Protocol):
    """An HTTP/1.1 connection that the application can end in the middle of an answer.

    ASGI has no word for that: an application that just returns is logged as a fault of ours, and the connection of a
    client that reads nothing stays open for ever. Where too many connections are open, it is turned away, and so is
    what isn't HTTP, in our own words. Whatever the client does or leaves undone, it ends: while it is silent, between
    the first byte and the end of a head, and while it reads nothing. (Bodies and answers have limits of their own.)
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.conn: Strict = Strict()
        self._deaf = False  # what still comes isn't looked at
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        _send_at_once(transport)
        transport.max_size = READ  # type: ignore[attr-defined]  # asyncio's own, of a plain socket
        self.app_state = {**self.app_state, ABORT: self._abort}
        past = len(self.connections) - for_clients()
        if past > _TOLD:
            transport.abort()
        elif past > 0:
            self._turn_away(_full())
        else:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        for name in list(self._timers):
            self._stop(name)

    def data_received(self, data: bytes) -> None:
        if not self._deaf and self.conn.their_state not in (h11.MUST_CLOSE, h11.CLOSED):
            super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if self._deaf:
            return
        state = self.conn.their_state
        if state in (h11.DONE, MIGHT_SWITCH_PROTOCOL) and self.conn.ahead < _AHEAD:
            self.flow.resume_reading()
        if state is h11.IDLE and (self.conn.ahead or self.timeout_keep_alive_task is None):
            self._unset_keepalive_if_required()
            self._after("head", _HEAD, self._too_slow)
        else:
            self._stop("head")

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  (uvicorn's words, in place of which there are ours)
        """What came isn't HTTP; uvicorn calls this as it handles the error."""
        self._refuse(why(sys.exception()))

    def on_response_complete(self) -> None:
        unread = self.conn.their_state is h11.SEND_BODY
        super().on_response_complete()
        if unread:
            self._abort()  # it was waited for long enough, see `slotproxy.linger`
        elif self.transport.is_closing():
            self._after("end", _STUCK, self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._after("end", _FLUSH, self.transport.abort)

    def shutdown(self) -> None:
        """The server ends. Where the end of this connection has begun already, nothing is left to be said."""
        if not self._deaf:
            super().shutdown()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._after("stuck", _STUCK, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop("stuck")

    def _too_slow(self) -> None:
        self._refuse(ApiError(408, f"the request's headers took longer than {_HEAD:g} s", "header_timeout"))

    def _refuse(self, error: ApiError) -> None:
        """Answer in place of the application, unless it has begun to."""
        cycle: RequestResponseCycle | None = self.cycle
        known = ""
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # for the application its client has left
            cycle.scope["state"][REFUSED] = error
            if cycle.response_started:
                self._abort()
                self._deaf = True
                return
            known = cycle.scope["state"].get("id", "")
        self._turn_away(answer(error, self.conn.head, known, getattr(self.app, "for_pages", lambda _: [])))

    def _turn_away(self, words: bytes) -> None:
        """Say why, and leave the client a moment to read it: closed on unread bytes, the answer would be lost."""
        self._deaf = True
        self._stop("head")
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        self.transport.write(words)
        self._after("end", _FLUSH, self.transport.abort)
        if self.transport.can_write_eof():
            with contextlib.suppress(OSError):  # it has left meanwhile
                self.transport.write_eof()

    def _abort(self, silent: bool = False) -> None:
        """`silent`: nothing in the answer says that it is broken. A client of HTTP/1.0, which waits for no last chunk,
        can tell it by a reset alone.
        """
        if self._deaf:
            return  # the end has begun already, and the client may still read
        if isinstance(self.transport, Secure):
            self.transport.cut()
        else:
            if silent and self.conn.their_http_version == b"1.0":
                _reset_at_its_end(self.transport)
            self.transport.close()
        self._after("end", _FLUSH, self.transport.abort)

    def _after(self, name: str, seconds: float, do: Callable[[], None]) -> None:
        if name not in self._timers:
            self._timers[name] = self.loop.call_later(seconds, do)

    def _stop(self, name: str) -> None:
        if timer := self._timers.pop(name, None):
            timer.cancel()


def _reset_at_its_end(transport: asyncio.Transport) -> None:
    sock: socket.socket = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _full() -> bytes:
    message = "too many connections are open here; close some, or try again"
    return answer(ApiError(503, message, "too_many_connections", 5.0))


def _mistaken() -> bytes:
    return answer(ApiError(400, "this port speaks HTTPS: use https://", "https_only"))


def _door(context: Context) -> Any:
    """What uvicorn makes for each connection, in place of a class of protocols."""

    def meet(**given: Any) -> asyncio.Protocol:
        secure, connection = context(), partial(Connection, **given)
        if secure is None:
            return connection()
        open_now, most = given["server_state"].connections, for_clients() + _TOLD
        return Handshake(secure, connection, open_now, most=most, mistaken=_mistaken)

    return meet


def _send_at_once(transport: asyncio.Transport) -> None:
    """Else an event waits for the acknowledgement of the one before it, 40 ms. asyncio itself cares for sockets only
    that were made with their protocol's number.
    """
    own = transport.get_extra_info("socket")
    if own is not None and own.family in (socket.AF_INET, socket.AF_INET6):
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


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


Context = Callable[[], ssl.SSLContext | None]
"""The certificate that a new connection is shown; None: it speaks plain HTTP."""


def config(app: ASGIApp, context: Context = lambda: None, **more: Any) -> uvicorn.Config:
    """How the client port is served. `more` goes to uvicorn (`host` and `port`, or `fd`).

    h11 because it keeps an answer's framing exactly, and none of uvicorn's own headers, which an engine may send too.
    Who a reverse proxy says that the client is, we neither believe nor need.
    """
    return uvicorn.Config(
        app,
        http=_door(context),
        ws="none",
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        date_header=False,
        access_log=False,
        log_config=None,
        log_level="error",  # what clients send wrong is told to them, not to the log
        timeout_keep_alive=_KEEP_ALIVE,
        backlog=_BATCH,
        **more,
    )
