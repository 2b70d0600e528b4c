"""What a hostile client says: requests that are nearly good, changed here and there, cut anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

from engines.spec import CHAT, MESSAGES
from tests.slotproxy.rig import chunk

INNER = b"POST %b HTTP/1.1\r\nhost: inner\r\ncontent-length: 2\r\n\r\n{}" % CHAT.encode()
"""A request in a request."""

ENDS = ("half-close", "close", "reset", "wait")

_METHODS = (b"POST", b"POST", b"POST", b"GET", b"PUT", b"OPTIONS", b"post", b"CONNECT", b"TRACE", b"PO\tST", b"")
_TARGETS = (
    *([CHAT.encode()] * 6),
    *(
        MESSAGES.encode(),
        b"/v1/models",
        b"/health",
        b"/slots",
        b"/unload",
        b"*",
        b"proxy:80",
        b"",
        b"/",
        b"/v1/models/x",
    ),
    *(
        b"http://other" + CHAT.encode(),
        b"/v1/../slots",
        b"/v1/%63hat%2Fcompletions",
        b"/slots%00",
        b"//" + CHAT.encode(),
    ),
    *(
        CHAT.encode() + b"?a=b",
        CHAT.encode() + b"#x",
        CHAT.encode() + b"?#",
        CHAT.encode() + b";x",
        b"/\xff",
        b"http://[",
    ),
)
_VERSIONS = (
    *([b"HTTP/1.1"] * 8),
    b"HTTP/1.0",
    b"HTTP/1.2",
    b"HTTP/2.0",
    b"HTTP/0.9",
    b"http/1.1",
    b"HTTP/1.1 ",
    b"HTTP/11",
    b"",
)
_HOSTS = (*([b"host: proxy\r\n"] * 8), b"", b"host: a\r\nhost: b\r\n", b"Host:\r\n", b"host: [\r\n", b"host: x/y@z\r\n")
_FIELDS = (
    *(
        b"connection: close\r\n",
        b"connection: keep-alive, x\r\n",
        b"connection: content-length\r\n",
        b"expect: 100-continue\r\n",
    ),
    *(b"expect: x\r\n", b"upgrade: websocket\r\nconnection: upgrade\r\n", b"upgrade: h2c\r\nconnection: upgrade\r\n"),
    *(
        b"x-request-id: one\r\n",
        b"x-request-id: \xff\r\n",
        b"accept-encoding: gzip\r\n",
        b"x: " + b"y" * 3000 + b"\r\n",
    ),
    *(b"content-length: 0\r\n", b"content-length: 5\r\n", b"content-length: +5\r\n", b"content-length: 5, 5\r\n"),
    *(b"transfer-encoding: chunked\r\n", b"transfer-encoding: identity\r\n", b"Transfer-Encoding : chunked\r\n"),
    *(
        b"transfer-encoding:\r\n chunked\r\n",
        b"transfer-encoding: \x0bchunked\r\n",
        b" x: y\r\n",
        b"x\r\n",
        b": y\r\n",
        b"x: y\n",
    ),
    *(
        b"x: a\x00b\r\n",
        b"x: a\rb\r\n",
        b"te: trailers\r\n",
        b"trailer: x\r\n",
        b"origin: http://x\r\n",
        b"origin: http://[\r\n",
        b"origin: null\r\n",
        b"anthropic-version: 1\r\n",
    ),
)
_BODIES = (
    b"{}",
    b'{"model": "m"}',
    b'{"stream": true}',
    INNER,
    b"",
    b"x" * 5000,
    b"[1, 2",
    b"\r\n\r\n",
    b"0\r\n\r\n",
    b"\xff\x00",
)
_PIECES = (
    *(
        b"\r",
        b"\n",
        b"\r\n",
        b"\r\n\r\n",
        b"\x00",
        b" ",
        b"\t",
        b":",
        b";",
        b",",
        b"0",
        b"-",
        b"+",
        b"0x",
        b"\xff",
        b"HTTP/1.1",
    ),
    *(
        b"0\r\n\r\n",
        b"5\r\n",
        b"ffffffffffffffff\r\n",
        INNER,
        b"Transfer-Encoding: chunked\r\n",
        b"Content-Length: 5\r\n",
    ),
)


@dataclass(frozen=True, slots=True)
class Talk:
    """One connection: `packets`, a moment apart, and how it ends."""

    packets: tuple[bytes, ...]
    end: str


def _plain(body: bytes) -> tuple[bytes, bytes]:
    return b"content-length: %d\r\n" % len(body), body


def _chunks(body: bytes) -> tuple[bytes, bytes]:
    parts = b"".join(chunk(body[start : start + 7]) for start in range(0, min(len(body), 70), 7))
    return b"transfer-encoding: chunked\r\n", parts + b"0\r\n\r\n"


def _both(body: bytes) -> tuple[bytes, bytes]:
    framing, coded = _chunks(body)
    return framing + b"content-length: %d\r\n" % len(coded), coded


def _wrong(body: bytes) -> tuple[bytes, bytes]:
    return b"content-length: %d\r\n" % max(0, len(body) - 3), body


def _extended(body: bytes) -> tuple[bytes, bytes]:
    return b"transfer-encoding: chunked\r\n", b"%x;a=b\r\n%b\r\n" % (
        len(body) or 1,
        body or b"x",
    ) + b"00\r\nx: y\r\n\r\n"


def _bare(body: bytes) -> tuple[bytes, bytes]:
    return b"", body


Framing = Callable[[bytes], tuple[bytes, bytes]]
_FRAMINGS: tuple[Framing, ...] = (_plain, _plain, _plain, _chunks, _chunks, _both, _wrong, _extended, _bare)


@st.composite
def _requests(draw: st.DrawFn) -> bytes:
    line = b" ".join(draw(st.sampled_from(each)) for each in (_METHODS, _TARGETS, _VERSIONS))
    fields = b"".join(draw(st.lists(st.sampled_from(_FIELDS), max_size=2)))
    framing, body = draw(st.sampled_from(_FRAMINGS))(draw(st.sampled_from(_BODIES)))
    return line + b"\r\n" + draw(st.sampled_from(_HOSTS)) + fields + framing + b"\r\n" + body


_GOOD = st.sampled_from(_BODIES).map(
    lambda body: b"POST %b HTTP/1.1\r\nhost: x\r\n" % CHAT.encode() + b"\r\n".join(_plain(body))
)


@st.composite
def talks(draw: st.DrawFn) -> Talk:
    raw = b"".join(draw(st.lists(_GOOD | _requests(), min_size=1, max_size=4)))
    for _ in range(draw(st.integers(0, 3))):
        at, gone = draw(st.integers(0, len(raw))), draw(st.sampled_from((0, 0, 1, 2, 20)))
        raw = raw[:at] + draw(st.sampled_from(_PIECES) | st.binary(max_size=4)) + raw[at + gone :]
    cuts = sorted(draw(st.lists(st.integers(0, len(raw)), max_size=4)))
    packets = tuple(raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True))
    return Talk(packets, draw(st.sampled_from(ENDS)))
