"""A reader of HTTP/1.1 that takes nothing odd: what a client's bytes mean, read independently of the code under test.

It stops at the first thing that isn't to the letter, as slotproxy must: whatever comes after that is nobody's request.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_LINE = re.compile(rb"(" + TOKEN + rb") ([\x21-\x7e]+) HTTP/1\.([0-9])")
_FIELD = re.compile(
    rb"(" + TOKEN + rb"):[ \t]*([\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?[ \t]*"
)
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,20})(?:;[\t\x20-\x7e\x80-\xff]*)?[ \t]*")
_LENGTH = re.compile(rb"[0-9]{1,20}")


class Odd(Exception):
    """What no strict reader would take."""


@dataclass(frozen=True, slots=True)
class Read:
    """A whole request."""

    method: bytes
    target: bytes
    fields: tuple[tuple[bytes, bytes], ...]
    body: bytes

    @property
    def path(self) -> bytes:
        """As the target means it: of an absolute one what follows the host, without the query, decoded."""
        found = re.fullmatch(rb"(?:(?i:https?)://[^/?]*)?([^?]*)(?:\?.*)?", self.target)
        return unquote_to_bytes(found[1] if found else self.target)

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.fields if key == name]


def read(raw: bytes) -> Iterator[Read]:
    """The whole requests in these bytes, until one closes the connection, is cut short, or is odd."""
    while raw:
        try:
            request, closes, raw = _one(raw)
        except (Odd, ValueError):
            return
        yield request
        if closes:
            return


def _one(raw: bytes) -> tuple[Read, bool, bytes]:
    while raw.startswith(b"\r\n"):
        raw = raw[2:]
    head, end, rest = raw.partition(b"\r\n\r\n")
    line, *lines = head.split(b"\r\n")
    match, fields = _LINE.fullmatch(line), tuple(_field(each) for each in lines)
    if not end or match is None:
        raise Odd
    old = match[3] == b"0"
    body, rest = _body(fields, rest, old=old)
    request = Read(match[1], match[2], fields, body)
    if len(request.all(b"host")) > 1 or not (old or request.all(b"host")):
        raise Odd
    expected = [value.lower() for value in request.all(b"expect")]
    if request.method in (b"CONNECT", b"TRACE") or not (old or set(expected) <= {b"100-continue"}):
        raise Odd
    words = {word.strip().lower() for value in request.all(b"connection") for word in value.split(b",")}
    return request, old or b"close" in words, rest


def _field(line: bytes) -> tuple[bytes, bytes]:
    match = _FIELD.fullmatch(line)
    if match is None:
        raise Odd
    return match[1].lower(), match[2] or b""


def _body(fields: tuple[tuple[bytes, bytes], ...], rest: bytes, *, old: bool) -> tuple[bytes, bytes]:
    codings = [value.lower() for name, value in fields if name == b"transfer-encoding"]
    lengths = {each.strip() for name, value in fields if name == b"content-length" for each in value.split(b",")}
    if codings:
        if codings != [b"chunked"] or lengths or old:
            raise Odd
        return _chunked(rest)
    if not lengths:
        return b"", rest
    if len(lengths) != 1 or not _LENGTH.fullmatch(length := lengths.pop()) or int(length) > len(rest):
        raise Odd
    return rest[: int(length)], rest[int(length) :]


def _chunked(rest: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        line, end, rest = rest.partition(b"\r\n")
        match = _SIZE.fullmatch(line)
        if not end or match is None:
            raise Odd
        size = int(match[1], 16)
        if not size:
            break
        body, footer, rest = body + rest[:size], rest[size : size + 2], rest[size + 2 :]
        if footer != b"\r\n":
            raise Odd
    while True:
        line, end, rest = rest.partition(b"\r\n")
        if not end:
            raise Odd
        if not line:
            return body, rest
        _field(line)
