"""What is seen of an answer in passing, where it isn't a stream of events that can be read as it is."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import httpx

from engines.failing import is_error
from slotproxy.headers import value_of

_KEPT = 16 * 1024  # bytes of an answer that are looked at for an error: no engine's is longer
_PIECE = 64 * 1024  # bytes that are unpacked at once, however much is packed in them
_EITHER = 47  # zlib's word for: gzip or zlib, whichever it is


class Glance:
    """One answer: is it an error, and if its connection's end was its only end, can that have been it?

    `kept`: how it begins.
    """

    def __init__(self, response: httpx.Response) -> None:
        self.kept = bytearray()
        headers = response.headers.raw
        media = value_of(headers, b"content-type").partition(b";")[0].strip().lower()
        plain = value_of(headers, b"content-encoding").lower() in (b"", b"identity")
        framed = value_of(headers, b"content-length") or value_of(headers, b"transfer-encoding")
        self._status = response.status_code
        self._json = media == b"application/json" and plain
        self._unframed = not framed and response.request.method != "HEAD"
        self._last = b""
        self._size = 0

    def feed(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if len(self.kept) < _KEPT:
            self.kept += chunk[: _KEPT - len(self.kept)]
        if self._unframed and self._json:
            self._last = chunk.rstrip()[-1:] or self._last

    @property
    def refused(self) -> bool:
        """Whether a whole answer with a status of success is an error all the same."""
        return self._json and self._status == 200 and self._size <= _KEPT and is_error(bytes(self.kept))

    @property
    def cut(self) -> bool:
        """Whether it broke off for certain: JSON that only its connection's end could end, and that isn't over."""
        return self._unframed and self._json and self._size > 0 and self._last not in (b"}", b"]")


class Unpacked:
    """A compressed stream, read along. `readable()` tells which codings can be."""

    def __init__(self) -> None:
        self._unpack = zlib.decompressobj(_EITHER)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What was packed in it. Raises zlib.error: it can't be read, for good."""
        while data:
            yield self._unpack.decompress(data, _PIECE)
            data = self._unpack.unconsumed_tail
            if self._unpack.eof:
                data, self._unpack = self._unpack.unused_data, zlib.decompressobj(_EITHER)


def readable(coding: bytes) -> bool:
    return coding in (b"gzip", b"x-gzip", b"deflate")
