"""What each protocol says on the wire: errors, keep-alives, and how a stream ends.

A stream is complete only with its protocol's end marker: chat and completions end with `data: [DONE]`, responses with
an event `response.completed`, `response.failed` or `response.incomplete`, messages with `message_stop`. The end of the
connection proves nothing: a server that dies under HTTP/1.0 leaves a clean end behind, and one that forgets a queued
stream sends 200 and nothing.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import msgspec

from engines.spec import MESSAGES, Api
from slotproxy.outcomes import End, Outcome

MARKED = frozenset({Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES})
"""Protocols whose streams have an end marker."""

EVENT_STREAM_HEADERS = ((b"x-accel-buffering", b"no"), (b"cache-control", b"no-cache"))
"""What keeps proxies on the way from holding events back."""

_ANTHROPIC = frozenset({Api.MESSAGES, Api.COUNT_TOKENS})
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_JSON = msgspec.json.Encoder()


def spoken(path: str, headers: list[tuple[bytes, bytes]]) -> Api:
    """The protocol of a request that no client path names: what an error to it should look like."""
    anthropic = path.startswith(MESSAGES) or any(name == b"anthropic-version" for name, _ in headers)
    return Api.MESSAGES if anthropic else Api.OTHER


@dataclass(eq=False)
class ApiError(Exception):
    """A request that ends with an error of ours. `message` says what happened, why, and what to do.

    `logged`: what the log says of it, where message or code are an engine's own words: those may quote a prompt.
    """

    status: int
    message: str
    code: str
    retry_after: float | None = None  # seconds
    outcome: Outcome = Outcome.REFUSED
    logged: End | None = None

    @property
    def end(self) -> End:
        return self.logged or End(self.outcome, self.code, self.message)

    def __str__(self) -> str:
        return self.message

    def headers(self) -> list[tuple[bytes, bytes]]:
        if self.retry_after is None:
            return []
        return [(b"retry-after", b"%d" % max(1, math.ceil(self.retry_after)))]


def error_body(api: Api, error: ApiError) -> bytes:
    """The error as the JSON body that clients of this protocol parse."""
    return _JSON.encode(_envelope(api, error))


def error_event(api: Api, error: ApiError, sequence: int = 0) -> bytes:
    """The error as one event of a stream. `sequence`: how many events the stream had before it."""
    envelope = _envelope(api, error)
    if api is Api.RESPONSES:
        # Typed clients read the fields of the event itself, others look for `error` in whatever arrives.
        flat = {"code": error.code, "message": error.message, "param": None, "sequence_number": sequence}
        envelope = {"type": "error", **flat, **envelope}
    name = b"event: error\n" if api is Api.RESPONSES or api in _ANTHROPIC else b""
    return name + b"data: " + _JSON.encode(envelope) + b"\n\n"


def keep_alive(api: Api) -> bytes:
    """What may be sent at any time between two events, and means nothing."""
    return b'event: ping\ndata: {"type": "ping"}\n\n' if api in _ANTHROPIC else b": keep-alive\n\n"


def _envelope(api: Api, error: ApiError) -> dict[str, object]:
    if api in _ANTHROPIC:
        kind = _ANTHROPIC_TYPES.get(error.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": error.message}}
    kind = _openai_type(error.status)
    return {"error": {"message": error.message, "type": kind, "param": None, "code": error.code}}


def _openai_type(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"


_SPOKEN = re.compile(rb'"(?:content|reasoning_content|reasoning|text|delta|thinking|partial_json|arguments)": ?"[^"]')
"""In an event of any protocol: a piece of the answer that isn't empty, tools' arguments included."""


class Observer:
    """Reads along with a stream of server-sent events, and never holds a byte back or changes one.

    `feed()` takes the bytes as they come, cut anywhere, with LF, CRLF or CR. Once `end()` was called the stream was
    whole if `complete`; `failed` tells that an error was in it, which a later end marker doesn't take back. `refusal`
    is the data of the first error, where nothing of an answer came before it: the request was refused, in-band.
    """

    LONGEST = 1024 * 1024  # bytes of an event that are kept; no error and no marker of a known engine is longer
    _LINE_END = re.compile(rb"\r\n|\r|\n")

    def __init__(self, api: Api) -> None:
        self.complete = False
        self.failed = False
        self.events = 0
        self.error = b""  # the data of the first one
        self.refusal = b""
        self._spoke = False  # something of an answer has come
        self._api = api
        self._line = bytearray()
        self._after_cr = False
        self._open = False  # lines of an event have come, but not the empty line that ends it
        self._name = b""
        self._data: list[bytes] = []
        self._size = 0

    @property
    def at_boundary(self) -> bool:
        """Whether a new event may start right here."""
        return not self._line and not self._open

    def feed(self, data: bytes) -> None:
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
            self._after_cr = False
        if not data:
            return
        self._after_cr = data.endswith(b"\r")
        *lines, rest = self._LINE_END.split(data)
        for line in lines:
            self._keep(line)
            self._take(bytes(self._line))
            self._line.clear()
        self._keep(rest)

    def end(self) -> None:
        """The stream has ended: an event without its last line end counts, as it does for clients."""
        if self._line:
            self._take(bytes(self._line))
            self._line.clear()
        self._dispatch()

    def _keep(self, part: bytes) -> None:
        # At least one byte of an overlong line stays: it is what tells that we are in the middle of it.
        self._line += part[: max(0, self.LONGEST - len(self._line))]

    def _take(self, line: bytes) -> None:
        if not line:
            self._dispatch()
            return
        self._open = True
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            self._name = value
        elif field == b"data" and self._size < self.LONGEST:
            self._data.append(value)
            self._size += len(value)

    def _dispatch(self) -> None:
        if self._data:
            self.events += 1
            self._judge(self._name, b"\n".join(self._data))
        self._open, self._name, self._data, self._size = False, b"", [], 0

    def _judge(self, name: bytes, data: bytes) -> None:
        was_well = not self.failed
        self._look(name, data)
        if self.failed and was_well:
            self.error = data
            self.refusal = b"" if self._spoke else data
        self._spoke = self._spoke or _SPOKEN.search(data) is not None

    def _look(self, name: bytes, data: bytes) -> None:
        match self._api:
            case Api.RESPONSES:
                kind = name or _kind(data)
                self.failed |= kind in (b"error", b"response.failed")
                self.complete |= kind in (b"response.completed", b"response.failed", b"response.incomplete")
            case Api.MESSAGES:
                kind = name or _kind(data)
                self.failed |= kind == b"error"
                self.complete |= kind == b"message_stop"
            case _:
                self.failed |= name == b"error" or _has_error(data)
                self.complete |= data.strip() == b"[DONE]"


def _kind(data: bytes) -> bytes:
    """The `type` of an event that came without a name."""
    kind = bytes(_top_level(data).get("type", b""))
    return kind.strip(b'"')


def _has_error(data: bytes) -> bool:
    # Inside a string the quotes are escaped, so this is a cheap way to decode hardly any event at all.
    if b'"error"' not in data:
        return False
    error = _top_level(data).get("error")
    return error is not None and bytes(error) != b"null"


def _top_level(data: bytes) -> dict[str, msgspec.Raw]:
    try:
        return msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        return {}
