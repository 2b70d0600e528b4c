"""What is decided of a request before it waits for anything but its own bytes."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote

import httpx
from starlette.types import Receive, Scope

from slotproxy.headers import Headers, value_of
from slotproxy.presence import ClientGone
from slotproxy.protocols import ApiError
from slotproxy.scan import Scan

_AUTHORITY = re.compile(rb"^https?://[^/]*", re.IGNORECASE)
_RETRY_LATER = 5.0  # seconds
STOPPING = "slotproxy is stopping; try again in a moment"
_SANE_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


def request_id(headers: Headers) -> str:
    """The client's `X-Request-Id`, if it is one that may stand in a log; else a new one."""
    given = value_of(headers, b"x-request-id")
    return given.decode() if _SANE_ID.fullmatch(given) else new_id()


def new_id() -> str:
    return uuid.uuid4().hex


def origin_form(scope: Scope) -> Scope:
    """The same request; of an absolute target (`GET http://host/path`), as a proxy is sent, only the path is kept."""
    if scope["path"].startswith("/"):
        return scope
    path = _AUTHORITY.sub(b"", scope["raw_path"]) or b"/"
    return {**scope, "raw_path": path, "path": unquote(path.decode("ascii"))}


def bad_target(scope: Scope) -> ApiError | None:
    """Why (400) no engine could be asked for this target: a `#` in it, or far too long a query. None: it's good."""
    try:
        httpx.URL(path="/", query=scope["query_string"])
    except httpx.InvalidURL as error:
        return ApiError(400, f"the request's target can't be used, a `#` in it must be %23: {error}", "bad_target")
    if b"#" in scope.get("raw_path", b""):
        return ApiError(400, "the request's target can't be used, a `#` in it must be %23", "bad_target")
    return None


@dataclass(slots=True)
class Room:
    """Where all bodies are that had no place at an engine yet, those still coming included. Bytes.

    The gate counts the waiting ones by itself, against the same limit. As they are in here, too, it finds too many only
    where requests come back to it from an engine that couldn't be reached.
    """

    limit: int
    taken: int = 0
    closed: bool = False  # nobody's body is waited for any more
    _coming: set[asyncio.Timeout] = field(default_factory=set)

    @asynccontextmanager
    async def patience(self, seconds: float) -> AsyncIterator[None]:
        """Raises TimeoutError after so long, and at once when the room is closed."""
        async with asyncio.timeout(0 if self.closed else seconds) as bound:
            self._coming.add(bound)
            try:
                yield
            finally:
                self._coming.discard(bound)

    def close(self) -> None:
        """Whoever is still sending is answered now: nothing that comes can be served any more."""
        self.closed = True
        for bound in self._coming:
            if not bound.expired():
                bound.reschedule(asyncio.get_running_loop().time())


class Held:
    """What one request has of the room."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self._bytes = 0

    def take(self, more: int) -> None:
        """Raises ApiError (429) where there is no room."""
        if self.room.taken + more > self.room.limit:
            message = f"bodies that wait, or are still coming, would hold more than {self.room.limit} bytes"
            raise ApiError(429, message, "too_many_requests", _RETRY_LATER)
        self.room.taken += more
        self._bytes += more

    def give_back(self) -> None:
        self.room.taken -= self._bytes
        self._bytes = 0


async def read_body(
    receive: Receive,
    headers: Headers,
    held: Held,
    *,
    limit: int,
    patience: float,
    within: float,
    scan: Scan | None = None,
) -> bytearray:
    """The whole body. Raises ApiError: 413 past `limit` bytes (at once, where that is announced), 429, 408; ClientGone.

    `patience`: seconds between two pieces of it, and `within` for all of it. `scan` looks at what has come so far,
    and others have their turn in between. What still comes of a refused one, `slotproxy.linger` reads.
    """
    declared = value_of(headers, b"content-length")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    body = bytearray()  # grows in place: joining 64 MiB at the end would stall everyone else
    try:
        async with held.room.patience(within):
            await _fill(body, scan, receive, held, limit=limit, patience=patience)
    except BaseException as error:
        body.clear()  # the error keeps it, and who is refused may take a while to leave
        held.give_back()
        if isinstance(error, TimeoutError) and held.room.closed:
            raise ApiError(503, STOPPING, "unavailable", _RETRY_LATER) from None
        if isinstance(error, TimeoutError):
            raise ApiError(408, f"the request's body took longer than {within:g} s", "body_timeout") from None
        raise
    return body


async def _fill(
    body: bytearray, scan: Scan | None, receive: Receive, held: Held, *, limit: int, patience: float
) -> None:
    more = True
    while more:
        part, more = await _piece(receive, patience)
        if len(body) + len(part) > limit:
            raise _too_large(limit)
        held.take(len(part))
        body += part
        while scan and scan.advance(body):  # noqa: ASYNC110  (others have their turn between two slices)
            await asyncio.sleep(0)


async def _piece(receive: Receive, patience: float) -> tuple[bytes, bool]:
    try:
        async with asyncio.timeout(patience):
            message = await receive()
    except TimeoutError:
        raise ApiError(408, f"nothing came of the request's body for {patience:g} s", "body_timeout") from None
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message.get("body", b""), message.get("more_body", False)


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the request's body is larger than the {limit} bytes that are accepted", "body_too_large")
