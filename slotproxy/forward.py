"""One request to one engine, bytes unharmed both ways.

Every request has a connection of its own: of a kept one nobody can tell, when it breaks, whether the engine has seen
the request (and eight idle ones keep NInfer from accepting a ninth). A request is sent once. Only one that the engine
can't have seen (`NeverSeen`) may be sent again: the connection was never made, or that run of it had ended before.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import httpx
import msgspec

from engines.failing import IN_BAND, named
from engines.spec import Api, Engine
from slotproxy.glance import Glance, readable
from slotproxy.headers import Headers, to_client, to_engine, value_of
from slotproxy.outcomes import End, Outcome, Record
from slotproxy.payload import Piece
from slotproxy.protocols import ApiError
from slotproxy.reply import Reply
from slotproxy.wire import PROTOCOLS
from swap.connections import OwnConnections
from swap.ends import Moment

_CONNECT_LIMIT = 10.0  # seconds
_LINGER = 2.0  # seconds that an engine has, after its end marker, to end the answer itself
_SLICE = 256 * 1024  # bytes of a body that are written at once: a write copies, and others wait meanwhile
_NOTHING_CAME = "without sending a response"  # in httpx's words; else something came that is no HTTP
_HARMLESS = ("Server disconnected", "peer closed connection")  # the same of what quotes nothing
_TOLD = 64 * 1024  # bytes of an engine's error that are read, when it has to be told in-band


class NeverSeen(Exception):
    """The engine can't have seen the request. The text says why."""


@dataclass(frozen=True, slots=True)
class Call:
    """What an engine is to be asked. `headers` are the client's, `query` has no question mark, `model` is the engine's
    name for what the client asked for (empty: it didn't say).
    """

    api: Api
    method: str
    path: str
    query: bytes
    headers: Headers
    body: Sequence[Piece]
    model: str = ""

    @property
    def length(self) -> int:
        return sum(memoryview(piece).nbytes for piece in self.body)


def engine_client() -> httpx.AsyncClient:
    """The HTTP client that all requests to engines share: no kept connections, no limit but the gate's."""
    return httpx.AsyncClient(
        transport=OwnConnections(_system_trust()),
        trust_env=False,  # no proxy and no .netrc between us and an engine
        timeout=None,  # each wait has a bound of its own below
    )


@functools.cache
def _system_trust() -> ssl.SSLContext:
    """The certificates that this machine trusts, an operator's own authority included. Read once: it takes a while."""
    return ssl.create_default_context()


class Exchange:
    """One call and its answer: `open()`, then `relay()`, and `close()` in any case."""

    def __init__(self, client: httpx.AsyncClient, engine: Engine, call: Call, reply: Reply, record: Record) -> None:
        self.engine = engine
        self.call = call
        self.sent = Moment()
        self._asked = False  # the engine may have seen the request
        self._ended = False  # it has ended its answer
        self._closed = False  # it has closed the connection, or not even made it
        self._client = client
        self._reply = reply
        self._record = record
        self._response: httpx.Response | None = None
        self._stream = False  # what it answers is a stream of events
        self._chunks: AsyncIterator[bytes] = _nothing()
        self._first: bytes | None = None
        self._glance: Glance | None = None  # at an answer that isn't a stream of events

    async def open(self) -> None:
        """Ask, and wait until the engine answers; to a client that is kept waiting by pings, until the first byte.

        Raises NeverSeen, or ApiError when there is no answer.
        """
        request = self._request()
        self.sent, self._asked = Moment(), True
        try:
            async with asyncio.timeout(self._idle_limit):
                self._response = await self._client.send(request, stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            self._asked, self._closed = False, isinstance(error, httpx.ConnectError)
            raise NeverSeen(str(error) or "timed out") from None
        except TimeoutError:
            raise self._failed(504, "timed_out", f"sent nothing for {self._idle_limit:g} s") from None
        except httpx.TransportError as error:
            self._closed = not isinstance(error, httpx.RemoteProtocolError) or _NOTHING_CAME in str(error)
            raise self._failed(502, "no_answer", f"closed the connection without an answer ({_words(error)})") from None
        self._chunks = self._response.aiter_raw()
        if self._reply.started:
            self._first = await self._next()

    async def relay(self) -> End:
        """Hand the answer on as it comes. Raises ApiError when it doesn't come to its end, ClientGone.

        The client's answer is not ended here: first the engine's place is free, then comes the last chunk.
        """
        await self._start()
        chunk = self._first or await self._next()
        while chunk is not None:
            if self._glance is not None:
                self._glance.feed(chunk)
            await self._reply.write(chunk)
            chunk = await self._next()
        self._ended = True
        return self._judge()

    async def close(self) -> None:
        """Close the engine's connection, if it is still open."""
        if self._response is not None:
            await self._response.aclose()

    @property
    def whole(self) -> bool:
        """Whether the end marker has come: whatever a connection does now, the client has a whole answer."""
        observer = self._reply.observer
        return observer is not None and observer.complete and not observer.failed

    @property
    def answered(self) -> bool:
        """Whether the engine has given a whole answer for which it had to work."""
        api = self.call.api
        whole = self.whole if PROTOCOLS[api].ends and self._reply.observer is not None else self._ended
        refused = self._glance is not None and self._glance.refused
        return whole and not refused and self._status == 200 and api not in (Api.COUNT_TOKENS, Api.OTHER)

    @property
    def complaint(self) -> str:
        """Which error of the engine may mean that it is broken, as its profile has it; empty: none.

        Never its own words: it may be quoting the client, and this goes to the log, the event log and `notify:`.
        """
        observer, kept = self._reply.observer, self._kept
        if self._status >= 500 and self.engine.profile.broken(self._status, kept):
            return named(self._status, kept)
        refusal = observer.refusal if observer is not None and self._status == 200 else b""
        refusal = kept if self._glance is not None and self._glance.refused else refusal
        if refusal and self.engine.profile.broken(IN_BAND, refusal):
            return named(IN_BAND, refusal)
        return ""

    @property
    def unanswered(self) -> bool:
        """Whether the connection was refused, or closed without a byte of an answer."""
        return self._closed

    @property
    def at_work(self) -> bool:
        """Whether the engine may still be busy with this request."""
        return self._asked and not self._ended and not self._marked

    @property
    def _idle_limit(self) -> float:
        return self.engine.profile.stream_idle_limit

    def _request(self) -> httpx.Request:
        call = self.call
        headers = to_engine(
            call.headers,
            path=call.path,
            key=self.engine.api_key,
            id=self._record.id,
            plain=self._reply.started,  # the client was told already that what comes isn't compressed
        )
        framing = [(b"content-length", b"%d" % call.length)] if call.length or call.method == "POST" else []
        url = httpx.URL(self.engine.url + call.path, query=call.query or None)
        return httpx.Request(
            call.method,
            url,
            headers=headers + framing,
            content=_slices(call.body) if call.length else None,
            extensions={"timeout": {"connect": _CONNECT_LIMIT}},
        )

    async def _start(self) -> None:
        """Status and headers to the client; if it has had them already, only an answer that fits them goes on."""
        response = self._response
        assert response is not None
        coding = value_of(response.headers.raw, b"content-encoding").strip().lower()
        packed = coding not in (b"", b"identity")
        media = value_of(response.headers.raw, b"content-type").partition(b";")[0].strip().lower()
        self._stream = response.status_code == 200 and media == b"text/event-stream"
        events = self._stream and (not packed or readable(coding))
        self._glance = None if events else Glance(response)
        if self._reply.started:
            if not events or packed:
                raise await self._told(response)
        elif 200 <= response.status_code <= 599:
            record = self._record
            headers = to_client(response.headers.raw, engine=record.engine, held_ms=record.held_ms(), events=events)
            await self._reply.start(response.status_code, headers, events=events, packed=events and packed)
        else:
            raise self._failed(502, "bad_answer", f"answered with the status {response.status_code}")

    async def _next(self) -> bytes | None:
        """The next bytes as they come; None: the answer has ended. Raises ApiError when it was cut short."""
        limit = _LINGER if self._marked else self._idle_limit
        try:
            async with asyncio.timeout(limit):
                return await anext(self._chunks)
        except StopAsyncIteration:
            return None
        except TimeoutError:
            if self._marked:
                return None
            raise self._broken(504, "stalled", f"sent nothing for {limit:g} s") from None
        except httpx.TransportError as error:
            if self._marked:
                return None
            raise self._broken(502, "cut_short", f"broke off in the middle of its answer ({_words(error)})") from None

    @property
    def _marked(self) -> bool:
        return self._reply.observer is not None and self._reply.observer.complete

    def _judge(self) -> End:
        """The engine has ended its answer. Raises ApiError when that isn't the end of it."""
        observer = self._reply.observer
        if observer is not None:
            observer.end()
            if observer.failed:
                end = End(Outcome.FAILED, "in-band", named(IN_BAND, observer.error))
                if observer.unnoticed and not observer.complete:
                    what = f"{self.engine.name} ended its answer with an error"
                    raise ApiError(502, what, "engine_error", outcome=Outcome.FAILED, logged=end)
                return end
            if PROTOCOLS[self.call.api].ends and not observer.complete:
                raise self._broken(502, "cut_short", "ended the stream before its end marker")
        glance = self._glance
        if glance is not None and glance.cut:
            raise self._broken(502, "cut_short", "closed the connection in the middle of its answer")
        if glance is not None and glance.refused:
            return End(Outcome.FAILED, "in-band", named(IN_BAND, self._kept))
        if self._status >= 500 or self._status in (408, 429):
            return self._by_status
        return End(Outcome.SERVED, "unread" if self._stream and observer is None else "")

    async def _told(self, response: httpx.Response) -> ApiError:
        """The engine's answer as an error that can be said in-band."""
        body = self._first or b""
        while len(body) < _TOLD and (chunk := await self._next()) is not None:
            body += chunk
        if self._glance is not None:
            self._glance.feed(body)
        if response.status_code == 200:
            media = response.headers.get("content-type", "nothing")
            what = f"{self.engine.name} answered with {media} where an uncompressed stream was asked for"
            logged = End(Outcome.FAILED, "bad_answer", "no uncompressed stream of events")
            return ApiError(502, what, "bad_answer", outcome=Outcome.FAILED, logged=logged)
        message, code = _said(body)
        message = f"{self.engine.name} answered {response.status_code}: {message}"
        return ApiError(response.status_code, message, code, outcome=Outcome.FAILED, logged=self._by_status)

    @property
    def _by_status(self) -> End:
        return End(Outcome.FAILED, "status", named(self._status, self._kept))

    @property
    def _status(self) -> int:
        """The engine's own; 0: none came."""
        return 0 if self._response is None else self._response.status_code

    @property
    def _kept(self) -> bytes:
        """How an answer begins that isn't a stream of events."""
        return bytes(self._glance.kept) if self._glance is not None else b""

    def _failed(self, status: int, code: str, what: str) -> ApiError:
        return ApiError(status, f"{self.engine.name} {what}", code, outcome=Outcome.FAILED)

    def _broken(self, status: int, code: str, what: str) -> ApiError:
        message = f"{self.engine.name} {what}; what came so far is not a whole answer"
        return ApiError(status, message, code, outcome=Outcome.TRUNCATED)


def _words(error: httpx.TransportError) -> str:
    """What is to blame, without a byte of what came or went: parsers quote it."""
    if isinstance(error, httpx.ProtocolError) and not str(error).startswith(_HARMLESS):
        return "what came is no HTTP" if isinstance(error, httpx.RemoteProtocolError) else "it can't be sent as HTTP"
    return str(error) or type(error).__name__


class _Error(msgspec.Struct):
    message: str = ""
    code: str | int | None = None


class _Envelope(msgspec.Struct):
    error: _Error


def _said(body: bytes) -> tuple[str, str]:
    """Message and code of an engine's error, in either protocol's envelope; else what it said."""
    try:
        error = msgspec.json.decode(body, type=_Envelope).error
    except (msgspec.DecodeError, RecursionError):
        return body[:500].decode(errors="replace").strip(), "engine_error"
    return error.message, str(error.code or "engine_error")


async def _slices(body: Sequence[Piece]) -> AsyncIterator[bytes]:
    """The same bytes in slices of one size: neither a huge write nor one for every key."""
    filled = bytearray()
    for piece in body:
        view = memoryview(piece)
        while view:
            room = _SLICE - len(filled)
            filled += view[:room]
            view = view[room:]
            if len(filled) == _SLICE:
                yield bytes(filled)
                filled.clear()
    if filled:
        yield bytes(filled)


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""
