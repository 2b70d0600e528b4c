"""Finds the fields of a JSON object while it still comes, a slice at a time: nobody else waits for a large body.

A decoder takes a body of 64 MiB in one go, and other clients' streams stand still for a tenth of a second; in a thread,
too, as it gives up no lock. But a slice of JSON, completed on both sides, is JSON. What is open where it ends is found
by a few searches, without a loop over its bytes; then the decoder checks the slice, with what was open before it in
front and what is open after it closed behind (`_checked`).

What is valid is what the decoder takes, and text with half a surrogate pair in it (RFC 8259, 8.2: there are clients
that cut text there, and engines that take it). Beyond the limits below nothing counts as a JSON object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

Body: TypeAlias = bytes | bytearray | memoryview
Fields: TypeAlias = dict[str, msgspec.Raw]

SLICE = 64 * 1024  # bytes that are looked at in one step; no name, number or white space may be longer
MOST_FIELDS = 1024  # of the object itself, those that come twice too: each takes memory and time
_FIRST = 512  # bytes of a value that are looked at first: most are small, and to look at a slice for each takes long
_WIDER = 8  # times as many, if it goes on
DEEPEST = 500  # containers in one another; engines' decoders have such limits, too

_GAP = rb"[ \t\n\r]*+"
_MARK = rb"(?:\xef\xbb\xbf)?+"  # the byte order mark, which files bring along: engines take it, the decoder doesn't
_BEGIN = re.compile(_MARK + _GAP + rb"\{" + _GAP + rb'(?=["}])')
_NAME = re.compile(rb'("(?:[^"\\]++|\\.)*+")' + _GAP + rb":" + _GAP + rb"(?=.)", re.DOTALL)
_SCALAR = re.compile(rb"[-+.0-9A-Za-z]++(?=[ \t\n\r,}])")
_COMMA = re.compile(_GAP + rb"," + _GAP + rb'(?=")')
_END = re.compile(_GAP + rb"\}")
_REST = re.compile(rb"[ \t\n\r]++")

_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")
_BRACKET = re.compile(rb"[][{}]")
_LAST_CUT = re.compile(rb".*[][{},]", re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_LONGEST_ESCAPE = len(rb"\u0000")
_decode = msgspec.json.Decoder(msgspec.Raw).decode

_OPENED, _COMMA_CAME, _VALUE_CAME, _IN_NAME, _IN_TEXT = range(5)  # where a slice may end
_AFTER = {b"[": _OPENED, b"{": _OPENED, b",": _COMMA_CAME, b"]": _VALUE_CAME, b"}": _VALUE_CAME}
_FRONT = {  # what makes JSON of what follows there, by the innermost container; the quote: it is in none
    b"[": {_OPENED: b"[", _COMMA_CAME: b"[0,", _VALUE_CAME: b"[0", _IN_TEXT: b'["'},
    b"{": {_OPENED: b"{", _COMMA_CAME: b'{"":0,', _VALUE_CAME: b'{"":0', _IN_NAME: b'{"', _IN_TEXT: b'{"":"'},
    b'"': {_IN_TEXT: b'"'},
}
_BACK = {  # and of what came before
    b"[": {_OPENED: b"]", _COMMA_CAME: b"0]", _VALUE_CAME: b"]", _IN_TEXT: b'"]'},
    b"{": {_OPENED: b"}", _COMMA_CAME: b'"":0}', _VALUE_CAME: b"}", _IN_NAME: b'":0}', _IN_TEXT: b'"}'},
    b'"': {_IN_TEXT: b'"'},
}


class NotJson(Exception):
    """It is no JSON object, whatever still comes."""


class Scan:
    """One body: `advance()` with all that has come so far, as often as it says, then `fields()` with the whole.

    Each step looks at one slice. A step that gets nowhere ends it: what it waits for would have to be in that slice.
    """

    def __init__(self) -> None:
        self._at = 0  # all before it has been looked at
        self._step: Callable[[Body], None] = self._begin
        self._bad = False
        self._found: dict[str, slice] = {}
        self._count, self._window = 0, _FIRST
        self._name, self._start, self._open = "", 0, _TEXT  # of the field that has begun

    def advance(self, raw: Body) -> bool:
        """Look at the next slice, if it has come; whether there is another. What is no JSON is told in the end."""
        if not self._bad and len(raw) - self._at >= SLICE:
            self._go_on(raw)
        return not self._bad and len(raw) - self._at >= SLICE

    def fields(self, raw: Body) -> Fields | None:
        """Views of the values in it; None: it is no JSON object."""
        if self._at == 0 and len(raw) < SLICE and (fields := _at_once(raw)) is not None:
            return fields
        while not self._bad and (self._step != self._over or self._at < len(raw)):
            self._go_on(raw)
        whole = memoryview(raw)
        return None if self._bad else {name: msgspec.Raw(whole[place]) for name, place in self._found.items()}

    def _go_on(self, raw: Body) -> None:
        try:
            self._step(raw)
        except NotJson:
            self._bad = True

    def _begin(self, raw: Body) -> None:
        self._take(_BEGIN, raw)
        self._step = self._close if bytes(raw[self._at : self._at + 1]) == b"}" else self._field

    def _field(self, raw: Body) -> None:
        self._name = _text(self._take(_NAME, raw)[1])
        self._start = self._at
        first = bytes(raw[self._at : self._at + 1])
        if first in _FRONT:
            self._open = _TEXT if first == b'"' else _Open(first, _OPENED)
            self._at += 1
            self._window = _FIRST
            self._step = self._inside
        else:
            _check(self._take(_SCALAR, raw)[0])
            self._end_field()

    def _inside(self, raw: Body) -> None:
        size, after = self._look(raw)
        self._at += size
        self._window *= _WIDER
        if after is None:
            self._end_field()
        else:
            self._open = after

    def _look(self, raw: Body) -> tuple[int, _Open | None]:
        """What gets nowhere in a small part of it may be longer."""
        while True:
            window = min(self._window, SLICE)
            try:
                with memoryview(raw) as view:
                    return _checked(self._open, bytes(view[self._at : self._at + window]))
            except NotJson:
                if window == SLICE:
                    raise
                self._window *= _WIDER

    def _end_field(self) -> None:
        self._found[self._name] = slice(self._start, self._at)
        self._count += 1
        if self._count > MOST_FIELDS:
            raise NotJson
        self._step = self._after

    def _after(self, raw: Body) -> None:
        if comma := _COMMA.match(raw, self._at, self._at + SLICE):
            self._at, self._step = comma.end(), self._field
        else:
            self._close(raw)

    def _close(self, raw: Body) -> None:
        self._take(_END, raw)
        self._step = self._over

    def _over(self, raw: Body) -> None:
        self._take(_REST, raw)

    def _take(self, what: re.Pattern[bytes], raw: Body) -> re.Match[bytes]:
        found = what.match(raw, self._at, self._at + SLICE)
        if found is None:
            raise NotJson
        self._at = found.end()
        return found


@dataclass(frozen=True, slots=True)
class _Open:
    """What is open at a place within a value: containers, outermost first, and where it is in the last of them."""

    containers: bytes
    where: int

    @property
    def in_text(self) -> bool:
        return self.where in (_IN_NAME, _IN_TEXT)

    @property
    def front(self) -> bytes:
        outer = self.containers[:-1].replace(b"{", b'{"":')
        return outer + _FRONT[self.containers[-1:] or b'"'][self.where]

    @property
    def back(self) -> bytes:
        outer = self.containers[-2::-1].translate(bytes.maketrans(b"[{", b"]}"))
        return _BACK[self.containers[-1:] or b'"'][self.where] + outer


_TEXT = _Open(b"", _IN_TEXT)


def _checked(open: _Open, given: bytes) -> tuple[int, _Open | None]:
    """How many bytes of `given` belong to the value, and what is open after them; None: it ends with them.

    Raises NotJson.
    """
    plain = _plain(given)
    parts = plain.split(b'"')
    if not open.containers:
        containers = b"" if len(parts) == 1 else None
    else:
        containers = _nested(open.containers, b"".join(parts[open.in_text :: 2]))
    if containers is None:
        size = _end(open, parts)
        _check(open.front + plain[:size])
        return size, None
    size, where = _cut(open, containers, plain, parts)
    if size == 0:
        raise NotJson
    after = _Open(containers, where)
    _check(open.front + plain[:size] + after.back)
    return size, after


def _plain(given: bytes) -> bytes:
    """As long and as valid, but every quote in it begins or ends a text, and no surrogate needs its other half."""
    if b"\\" not in given:
        return given
    plain = given.replace(rb"\\", b"..").replace(rb"\"", b"..")
    return _HALF_PAIR.sub(rb"\\u00", plain) if b"\\ud" in plain or b"\\uD" in plain else plain


def _nested(containers: bytes, outside: bytes) -> bytes | None:
    """Which containers are open after that, none of it in a text; None: the value ends in there."""
    brackets = outside.translate(None, _NO_BRACKETS)
    for _ in range(4):  # most are gone by then
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    nest = bytearray(containers)
    for bracket in brackets:
        if bracket in b"[{":
            nest.append(bracket)
        elif nest.pop() and not nest:
            return None
    if len(nest) > DEEPEST:
        raise NotJson
    return bytes(nest)


def _end(open: _Open, parts: Sequence[bytes]) -> int:
    """Where the value ends that ends in there."""
    if not open.containers:
        return len(parts[0]) + 1
    blank = b'"'.join(part if n % 2 == open.in_text else b" " * len(part) for n, part in enumerate(parts))
    depth = len(open.containers)
    for bracket in _BRACKET.finditer(blank):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth == 0:
            return bracket.end()
    raise AssertionError("the end was there a moment ago")


def _cut(open: _Open, containers: bytes, plain: bytes, parts: Sequence[bytes]) -> tuple[int, int]:
    """The last place in `plain` where a slice may end, and what it is: in a text, or after a comma or bracket."""
    size, tail = len(plain), parts[-1]
    if (len(parts) + open.in_text) % 2 == 0:
        escape = tail.rfind(b"\\", max(0, len(tail) - _LONGEST_ESCAPE))  # it may be cut in two
        return (size if escape < 0 else size - len(tail) + escape), _text_at(open, containers, parts)
    if cut := _LAST_CUT.match(tail):
        return size - len(tail) + cut.end(), _AFTER[tail[cut.end() - 1 : cut.end()]]
    return max(0, size - len(tail) - 1), _text_at(open, containers, parts[:-1])  # before the text's last quote


def _text_at(open: _Open, containers: bytes, parts: Sequence[bytes]) -> int:
    """What the text is that is the last of `parts`: a member's name, or not."""
    if len(parts) < 2:
        return open.where
    named = containers.endswith(b"{") and not parts[-2].rstrip().endswith(b":")
    return _IN_NAME if named else _IN_TEXT


def _check(value: bytes) -> None:
    try:
        _decode(value)
    except (msgspec.DecodeError, RecursionError):
        raise NotJson from None


def _text(raw: bytes) -> str:
    try:
        text: str = json.loads(raw.decode())
    except ValueError:
        raise NotJson from None
    return text


def _at_once(raw: Body) -> Fields | None:
    """The same for a small one, where the decoder takes it."""
    try:
        fields = msgspec.json.decode(raw, type=Fields)
    except (msgspec.DecodeError, RecursionError):
        return None
    return fields if len(fields) <= MOST_FIELDS else None
