"""What h11 reads of a client, held to the letter where readers of HTTP are known to disagree.

A request that two readers cut in different places is how one client's request gets into another's (smuggling), so what
is ambiguous is refused: bare LF or CR, folded and odd header lines, control characters, a length beside a coding. A
head is refused as soon as it is known to be too large or no head at all, and the framing of a body may not be much
longer than the body.
"""

from __future__ import annotations

import re
import sys
from typing import TypeAlias

import h11
from h11._receivebuffer import ReceiveBuffer

from slotproxy.protocols import ApiError

MOST_HEAD = 64 * 1024  # bytes of request line and headers
MOST_LINE = 16 * 1024  # bytes of the request line
MOST_FIELDS = 100  # header lines
MOST_EXCESS = 16 * 1024  # bytes of chunks' framing beyond what even chunks of one byte need
_OF_A_CHUNK = 16  # bytes of framing that each chunk may have

_LINE = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+ [\x21-\x7e]+ HTTP/([0-9])\.[0-9]")
_ODD = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|(?<!\r)\n|\r(?!\n|\Z)|\n[ \t]")
_TLS = b"\x16\x03"  # how a TLS client begins

Event: TypeAlias = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]


class Unacceptable(h11.RemoteProtocolError):
    """HTTP that isn't read, and why, for the client."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message, error.status)
        self.error = error


def why(error: BaseException | None) -> ApiError:
    """What to tell the client whose bytes raised this."""
    if isinstance(error, Unacceptable):
        return error.error
    status = getattr(error, "error_status_hint", 400)
    return ApiError(status, f"the request can't be read as HTTP/1.1: {str(error)[:200]}", "bad_http")


class Strict(h11.Connection):
    """The server's side of a connection."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, sys.maxsize)  # the limits are ours
        self._receive_buffer: _Lines = _Lines()
        self._excess = 0

    @property
    def head(self) -> bytes:
        """What has come of the request's head, if none was read since; else the last that was read."""
        waiting = self._receive_buffer.waiting
        return bytes(waiting[:MOST_HEAD] if self.their_state is h11.IDLE and waiting else self._receive_buffer.last)

    @property
    def ahead(self) -> int:
        """Bytes that have come and aren't read yet."""
        return len(self._receive_buffer)

    def next_event(self) -> Event:
        """As h11's. Raises Unacceptable, too."""
        if self.their_state is h11.IDLE:
            self._receive_buffer.skip_empty_lines()
            _check_head(self._receive_buffer.waiting)
        elif self.their_state is h11.SEND_BODY:
            return self._body()
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._excess = 0
            _check(event)
        return event

    def _body(self) -> Event:
        before = len(self._receive_buffer)
        event = super().next_event()
        self._excess += before - len(self._receive_buffer)
        if isinstance(event, h11.Data):
            self._excess = max(0, self._excess - 3 * len(event.data) - _OF_A_CHUNK)
        unread = len(self._receive_buffer) if event is h11.NEED_DATA else 0
        if self._excess + unread > MOST_EXCESS:
            raise Unacceptable(ApiError(400, "the body's chunks are mostly framing; send larger ones", "bad_http"))
        return event


class _Lines(ReceiveBuffer):
    """h11's buffer of what came, in which a line ends with CRLF and with nothing else."""

    last = bytearray()  # the lines that were read last

    @property
    def waiting(self) -> bytearray:
        return self._data

    def skip_empty_lines(self) -> None:
        """Some clients end a body with a line end that isn't of it."""
        while self._data[:2] == b"\r\n":
            self._extract(2)

    def maybe_extract_lines(self) -> list[bytearray] | None:
        if self._data[:2] == b"\r\n":
            self._extract(2)
            return []
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            return None
        self.last = self._extract(end + 4)
        del self.last[-4:]
        return self.last.split(b"\r\n")


def _check_head(came: bytearray) -> None:
    """Raises Unacceptable as soon as it is clear that no good head begins with what came."""
    end = came.find(b"\r\n\r\n", 0, MOST_HEAD + 4)
    size = len(came) if end < 0 else end
    line = came.find(b"\r\n", 0, MOST_LINE + 2)
    if came.startswith(_TLS):
        raise Unacceptable(ApiError(400, "this port speaks HTTP without TLS: use http://", "bad_http"))
    if odd := _odd(came, min(size, MOST_HEAD)):
        raise Unacceptable(odd)
    if line < 0 and size > MOST_LINE:
        raise Unacceptable(ApiError(414, f"the request line is longer than {MOST_LINE} bytes", "target_too_long"))
    if size > MOST_HEAD:
        raise Unacceptable(
            ApiError(431, f"the headers are larger than {MOST_HEAD} bytes together", "headers_too_large")
        )
    if came.count(b"\r\n", 0, size) > MOST_FIELDS:
        raise Unacceptable(ApiError(431, f"there are more than {MOST_FIELDS} header lines", "headers_too_large"))
    if line >= 0:
        _check_line(bytes(came[:line]))


def _odd(came: bytearray, end: int) -> ApiError | None:
    """What readers of HTTP don't agree on, in lines that were not all read yet."""
    found = _ODD.search(came, 0, end)
    if found is None:
        return None
    what = f"{found[0]!r} at byte {found.start()}"
    message = f"lines of HTTP end with CRLF, aren't folded, and hold no control characters; there is {what}"
    return ApiError(400, message, "bad_http")


def _check_line(line: bytes) -> None:
    match = _LINE.fullmatch(line)
    if match is None:
        raise Unacceptable(ApiError(400, "the request doesn't begin with `METHOD TARGET HTTP/1.1`", "bad_http"))
    if match[1] != b"1":
        raise Unacceptable(ApiError(505, "HTTP/1.1 and HTTP/1.0 are spoken here, no other version", "bad_http_version"))


def _check(request: h11.Request) -> None:
    fields = dict(request.headers)
    coded, old = b"transfer-encoding" in fields, request.http_version == b"1.0"
    if not old and b"host" not in fields:  # h11 asks for it in 1.1 alone
        raise Unacceptable(ApiError(400, "there is no Host header; HTTP/1.1 has one", "bad_http"))
    if coded and (old or b"content-length" in fields):
        what = "a body's length is told once: by Content-Length, or by Transfer-Encoding in HTTP/1.1"
        raise Unacceptable(ApiError(400, what, "bad_http"))
    if not old and fields.get(b"expect", b"100-continue").lower() != b"100-continue":
        raise Unacceptable(ApiError(417, "nothing can be expected here but 100-continue", "expectation_failed"))
    if request.method in (b"CONNECT", b"TRACE"):
        what = f"there is no {request.method.decode()} here: this is no proxy to other hosts"
        raise Unacceptable(ApiError(405, what, "method_not_allowed"))
