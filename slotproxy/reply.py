"""The client's side of one request: what it has been sent, and how the answer may still end.

Before anything was sent an error is a status and a JSON body. After that it is an event in the stream, where the answer
is one, and then the connection ends without the final chunk: a client must never take a broken answer for a whole one.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Callable, Iterable

from starlette.types import Message, Receive, Scope, Send

from engines.spec import Api
from slotproxy.glance import Unpacked
from slotproxy.observer import Observer
from slotproxy.outcomes import Record
from slotproxy.presence import ClientGone, gone
from slotproxy.protocols import EVENT_STREAM_HEADERS, ApiError, error_body, error_event, id_headers, keep_alive

Headers = list[tuple[bytes, bytes]]
REFUSED = "slotproxy.refused"  # there: the error with which the server has turned a client away in mid-request
ABORT = "slotproxy.abort"
"""Where `slotproxy.server` puts the function that ends a connection, in the scope's `state`. It is told whether nothing
in the answer says that it is broken.
"""

_LAST_WORDS = 1.0  # seconds that the client has to take the last event of a broken stream


class Reply:
    """`write_limit`: seconds after which a client that takes no byte counts as gone."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, *, api: Api, record: Record, write_limit: float
    ) -> None:
        self.started = False
        self.observer: Observer | None = None  # reads along, once the answer is known to be a stream of events
        self._unpacked: Unpacked | None = None
        self._api = api
        self._record = record
        self._receive = receive
        self._send_message = send
        self._write_limit = write_limit
        self._abort: Callable[[bool], None] | None = scope.get("state", {}).get(ABORT)

    async def start(self, status: int, headers: Headers, *, events: bool, packed: bool = False) -> None:
        """Status and headers. `events`: the body is a stream of events that we can read, and add to unless `packed`."""
        self.started = True
        self.observer = Observer(self._api) if events else None
        self._unpacked = Unpacked() if packed else None
        self._record.status = status
        own = dict(id_headers(self._api, self._record.id))
        headers = [(name, value) for name, value in headers if name not in own] + list(own.items())
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def keep_alive(self) -> None:
        """Tell a client that waits for a stream that we are still there: this begins the stream."""
        if not self.started:
            await self.start(200, [(b"content-type", b"text/event-stream"), *EVENT_STREAM_HEADERS], events=True)
        await self.write(keep_alive(self._api))

    async def write(self, data: bytes) -> None:
        """Raises ClientGone when the client doesn't take it within the limit."""
        if self.observer is not None and self._unpacked is None:
            self.observer.feed(data)
        elif self.observer is not None:
            self._unpack(self.observer, data)
        self._record.sent += len(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    def _unpack(self, observer: Observer, data: bytes) -> None:
        assert self._unpacked is not None
        try:
            for piece in self._unpacked.feed(data):
                observer.feed(piece)
        except zlib.error:
            self.observer = None  # HTTP's framing has to do

    async def end(self) -> None:
        """The answer is whole."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def fail(self, error: ApiError) -> None:
        """Say what went wrong in whatever way is still open, and end. Never raises, takes a second or two at most."""
        try:
            if not self.started:
                await self.send_json(error.status, error_body(self._api, error), error.headers())
                return
            if self.observer is not None and self._unpacked is None and self.observer.unsaid:
                await self._last_event(self.observer, error)
        except ClientGone:
            pass
        await self.abort()

    async def send_json(self, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """A whole answer of our own."""
        length = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await self.start(status, [*length, *headers], events=False)
        await self.write(body)
        await self.end()

    async def abort(self) -> None:
        """End the connection without the final chunk, or in the middle of the announced length."""
        if self._abort is None:
            return  # a server that isn't ours: it closes the connection when it sees that the answer isn't complete
        self._abort(self.observer is None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * _LAST_WORDS):
                await gone(self._receive)

    async def _last_event(self, observer: Observer, error: ApiError) -> None:
        start = b"" if observer.at_boundary else b"\n\n"  # ends a line or an event that was cut in the middle
        event = start + error_event(self._api, error, observer.events)
        self._record.sent += len(event)
        await self._send({"type": "http.response.body", "body": event, "more_body": True}, limit=_LAST_WORDS)

    async def _send(self, message: Message, *, limit: float | None = None) -> None:
        try:
            async with asyncio.timeout(limit or self._write_limit):
                await self._send_message(message)
        except TimeoutError:
            raise ClientGone("not_reading") from None
