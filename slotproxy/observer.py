"""Reading along with a stream of server-sent events, to tell a whole one from a broken one.

Lines, fields and events are those of the HTML standard ("server-sent events"), with one exception: the last event of a
stream needs no empty line after it. A marker that has come is there, whatever else the engine forgot.
"""

from __future__ import annotations

import json
import re

import msgspec

from engines.spec import Api
from slotproxy.wire import DONE, PROTOCOLS

_MARK = b"\xef\xbb\xbf"  # the byte order mark: one may begin a stream, and means nothing
_SPOKEN = re.compile(rb'"(?:content|reasoning_content|reasoning|text|delta|thinking|partial_json|arguments)": ?"[^"]')
"""In an event of any protocol: a piece of the answer that isn't empty, tools' arguments included."""
_TYPE_FIRST = re.compile(rb'\s*\{\s*"type"\s*:\s*"([\w.]+)"')


class Observer:
    """Reads along, and never holds a byte back or changes one.

    `feed()` takes the bytes as they come, cut anywhere, with LF, CRLF or CR. Once `end()` was called the stream was
    whole if `complete`; `failed` tells that an error was in it, which a later end marker doesn't take back. `refusal`
    is the data of the first error, where nothing of an answer came before it: the request was refused, in-band.
    """

    LONGEST = 1024 * 1024  # bytes of a line, and of an event, that are kept: markers and errors are shorter

    def __init__(self, api: Api) -> None:
        self.complete = False
        self.failed = False
        self.events = 0
        self.error = b""  # the data of the first one
        self.unnoticed = False  # clients of this protocol didn't take it for one
        self.refusal = b""
        self._spoke = False  # something of an answer has come
        self._protocol = protocol = PROTOCOLS[api]
        self._look = self._by_kind if protocol.ends - {DONE} else self._by_data
        self._fresh = True  # the first line hasn't ended
        self._line = bytearray()  # of a line that hasn't ended
        self._after_cr = False
        self._open = False  # a line has come, but not yet the empty one that ends its event
        self._name = b""
        self._data: list[bytes] = []
        self._size = 0  # of the data, line ends included

    @property
    def at_boundary(self) -> bool:
        """Whether a new event may start right here. It says the same after `end()`."""
        return not self._open and (not self._line or (self._fresh and self._line == _MARK))

    @property
    def unsaid(self) -> bool:
        """Whether its clients don't know of any error yet."""
        return not self.failed or self.unnoticed

    def feed(self, data: bytes) -> None:
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._take(self._ended(line) if self._line or self._fresh else line)
        if rest:
            self._keep(rest)

    def end(self) -> None:
        """The stream has ended. An event that wasn't closed counts if it is whole: cut data is no marker."""
        between = self.at_boundary
        if self._line:
            self._take(self._ended(b""))
        data = b"\n".join(self._data)
        if data.strip() == DONE or _said(data):
            self._dispatch()
        self._open = not between

    def _keep(self, part: bytes) -> None:
        # At least one byte of an overlong line stays: it is what tells that we are in the middle of it.
        self._line += part[: max(0, self.LONGEST - len(self._line))]

    def _ended(self, rest: bytes) -> bytes:
        """The whole line that ends with `rest`."""
        self._keep(rest)
        line = bytes(self._line)
        self._line.clear()
        if self._fresh:
            self._fresh = False
            line = line.removeprefix(_MARK)
        return line

    def _take(self, line: bytes) -> None:
        if not line:
            self._dispatch()
            return
        self._open = True
        field, _, value = line[: self.LONGEST].partition(b":")
        if field == b"data" and self._size < self.LONGEST:
            self._data.append(value.removeprefix(b" "))
            self._size += len(value) + 1
        elif field == b"event":
            self._name = value.removeprefix(b" ")

    def _dispatch(self) -> None:
        if self._data:
            self.events += 1
            self._judge(self._name, self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
            self._data, self._size = [], 0
        self._open, self._name = False, b""

    def _judge(self, name: bytes, data: bytes) -> None:
        was_well = not self.failed
        self._look(name, data)
        if self.failed and was_well:
            self.error, self.unnoticed = data, self._protocol.anthropic and name not in self._protocol.fails
            self.refusal = b"" if self._spoke else data
        self._spoke = self._spoke or _SPOKEN.search(data) is not None

    def _by_kind(self, name: bytes, data: bytes) -> None:
        """In protocols whose events say what they are: by name, or in their `type`."""
        kind = name if name and name != b"message" else _kind(data)
        self.failed |= kind in self._protocol.fails or _has_error(data)
        self.complete |= kind in self._protocol.ends

    def _by_data(self, name: bytes, data: bytes) -> None:
        self.failed |= name in self._protocol.fails or _has_error(data)
        self.complete |= data.strip() == DONE


class _Said(msgspec.Struct):
    """What of an event's data tells how the stream goes."""

    type: msgspec.Raw = msgspec.Raw(b"")
    error: msgspec.Raw = msgspec.Raw(b"null")


_DECODE = msgspec.json.Decoder(_Said).decode


def _kind(data: bytes) -> bytes:
    """The `type` of an event that came without a name; empty: it has none."""
    if said := _said(data):
        kind = bytes(said.type)
        return kind[1:-1] if kind.startswith(b'"') else b""
    was_cut = len(data) >= Observer.LONGEST - len(b"data: ")  # it is too long to be kept
    first = _TYPE_FIRST.match(data) if was_cut else None
    return first[1] if first else b""


def _has_error(data: bytes) -> bool:
    # Inside a string the quotes are escaped, so this is a cheap way to decode hardly any event at all.
    if b'"error"' not in data:
        return False
    said = _said(data)
    return said is not None and bytes(said.error) != b"null"


def _said(data: bytes) -> _Said | None:
    """None: it is no JSON object."""
    if not data.lstrip().startswith(b"{"):
        return None
    try:
        return _DECODE(data)
    except (msgspec.DecodeError, RecursionError):
        return _said_loosely(data)


def _said_loosely(data: bytes) -> _Said | None:
    """The same of what only lenient parsers take: half of a surrogate pair, NaN, bytes that are no UTF-8."""
    try:
        said = json.loads(data.decode(errors="replace"), strict=False, parse_int=str)
    except (ValueError, RecursionError):
        return None
    kind, error = json.dumps(said.get("type")).encode(), b"null" if said.get("error") is None else b"{}"
    return _Said(msgspec.Raw(kind), msgspec.Raw(error))
