"""What each protocol says on the wire: errors, keep-alives, and how a stream ends.

A stream is complete only with its protocol's end marker: chat and completions end with `data: [DONE]`, responses with
an event `response.completed`, `response.failed` or `response.incomplete`, messages with `message_stop`. The end of the
connection proves nothing: a server that dies under HTTP/1.0 leaves a clean end behind, and one that forgets a queued
stream sends 200 and nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from engines.spec import MESSAGES, Api
from slotproxy.outcomes import End, Outcome
from slotproxy.wire import PROTOCOLS

EVENT_STREAM_HEADERS = ((b"x-accel-buffering", b"no"), (b"cache-control", b"no-cache"))
"""What keeps proxies on the way from holding events back."""

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


def id_headers(api: Api, id: str) -> list[tuple[bytes, bytes]]:
    """The request's id, in every header that this protocol's clients look for it."""
    names = [b"x-request-id", *([b"request-id"] if PROTOCOLS[api].anthropic else [])]
    return [(name, id.encode()) for name in names]


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
    envelope, protocol = _envelope(api, error), PROTOCOLS[api]
    if protocol.sequenced:
        # Typed clients read the fields of the event itself, others look for `error` in whatever arrives.
        flat = {"code": error.code, "message": error.message, "param": None, "sequence_number": sequence}
        envelope = {"type": "error", **flat, **envelope}
    name = b"event: %b\n" % protocol.error_name if protocol.error_name else b""
    return name + b"data: " + _JSON.encode(envelope) + b"\n\n"


def keep_alive(api: Api) -> bytes:
    """What may be sent at any time between two events, and means nothing."""
    return PROTOCOLS[api].keep_alive


def _envelope(api: Api, error: ApiError) -> dict[str, object]:
    if PROTOCOLS[api].anthropic:
        kind = _ANTHROPIC_TYPES.get(error.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": error.message}}
    kind = _openai_type(error.status)
    return {"error": {"message": error.message, "type": kind, "param": None, "code": error.code}}


def _openai_type(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"
