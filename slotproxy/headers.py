"""Which headers go through, each way."""

from __future__ import annotations

from collections.abc import Iterable

from engines.spec import COUNT_TOKENS, MESSAGES
from slotproxy import credentials
from slotproxy.protocols import EVENT_STREAM_HEADERS

Headers = list[tuple[bytes, bytes]]

_CONNECTION = (b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade")
_HOP_BY_HOP = frozenset((*_CONNECTION, b"proxy-authenticate", b"proxy-authorization"))
_OURS_TO_ENGINE = frozenset((b"host", b"content-length", b"expect", b"origin", b"x-request-id"))
_OUR_OWN = b"x-slotproxy-"  # what clients say to us
_OURS_TO_CLIENT = frozenset((b"x-request-id", b"x-slotproxy-engine", b"x-slotproxy-held-ms"))


def value_of(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes:
    """The (first) value of a header; empty where it isn't there."""
    return next((value for found, value in headers if found.lower() == name), b"")


def values_of(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    """Every value of a header, in their order."""
    return [value for found, value in headers if found.lower() == name]


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """All but the hop-by-hop ones, by definition and by being named in `Connection`. Names in lower case."""
    lowered = [(name.lower(), value) for name, value in headers]
    named = {word.strip().lower() for name, value in lowered if name == b"connection" for word in value.split(b",")}
    return [(name, value) for name, value in lowered if name not in _HOP_BY_HOP and name not in named]


def to_engine(headers: Headers, *, path: str, key: str | None, id: str, plain: bool) -> Headers:
    """What the engine is sent, but for `Host` and `Content-Length`, which come with the connection and the body.

    `plain`: the answer must not be compressed, whatever the client would take.
    """
    dropped = credentials.HEADERS | _OURS_TO_ENGINE | ({b"accept-encoding"} if plain else set())
    through = ((name, value) for name, value in end_to_end(headers) if not name.startswith(_OUR_OWN))
    kept = [(name, value) for name, value in through if name not in dropped]
    if not any(name == b"accept-encoding" for name, _ in kept):
        kept.append((b"accept-encoding", b"identity"))
    return [*kept, (b"x-request-id", id.encode()), *_credentials(path, key)]


def _credentials(path: str, key: str | None) -> Headers:
    if key is None:
        return []
    bearer = (b"authorization", b"Bearer " + key.encode())
    return [bearer, (b"x-api-key", key.encode())] if path in (MESSAGES, COUNT_TOKENS) else [bearer]


def to_client(headers: Headers, *, engine: str, held_ms: int, events: bool) -> Headers:
    """What the client is sent. A stream of events is always sent in chunks, so that an error can still be added.

    Which web pages may read an answer is for `slotproxy.cors` to say: an engine would let everybody.
    """
    dropped = _OURS_TO_CLIENT
    if events:
        dropped |= {b"content-length"} | {name for name, _ in EVENT_STREAM_HEADERS}
    elif value_of(headers, b"transfer-encoding"):
        dropped |= {b"content-length"}  # of the two the coding counts
    through = [(name, value) for name, value in end_to_end(headers) if name not in dropped]
    kept = [(name, value) for name, value in through if not name.startswith(b"access-control-")]
    own = [(b"x-slotproxy-engine", engine.encode()), (b"x-slotproxy-held-ms", b"%d" % held_ms)]
    return [*kept, *own, *(EVENT_STREAM_HEADERS if events else ())]
