"""What a client is told by whom no request was read: too late, no HTTP, or one connection too many."""

from __future__ import annotations

import http
import re
import uuid
from collections.abc import Callable
from typing import TypeAlias

from slotproxy.headers import Headers
from slotproxy.protocols import ApiError, error_body, id_headers, spoken

_ID = re.compile(rb"\r\nx-request-id:[ \t]*([A-Za-z0-9._:-]{1,128})[ \t]*(?:\r\n|\Z)", re.IGNORECASE)
_TARGET = re.compile(rb"[^ ]* (?:https?://[^/ ]*)?(/[^ ?]*)", re.IGNORECASE)
_ANTHROPIC = re.compile(rb"\r\nanthropic-version:", re.IGNORECASE)
_ORIGIN = re.compile(rb"\r\norigin:[ \t]*([!-~]{1,300})[ \t]*\r\n", re.IGNORECASE)
_ALLOW = b"GET, HEAD, POST, OPTIONS"


ForPages: TypeAlias = Callable[[bytes], Headers]
"""What a page of this origin is told, so that it may read the answer."""


def answer(error: ApiError, head: bytes = b"", id: str = "", pages: ForPages = lambda _: []) -> bytes:
    """A whole answer, after which the connection is closed.

    `head`: what came of the request, for its id, its protocol and its origin; `id`: where that is known otherwise.
    """
    origin = _ORIGIN.search(head)
    api = spoken(*_said(head))
    body = error_body(api, error)
    fields = [
        *error.headers(),
        *([(b"allow", _ALLOW)] if error.status == 405 else []),
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        *id_headers(api, id or _id(head)),
        *pages(origin[1] if origin else b""),
        (b"connection", b"close"),
    ]
    line = b"HTTP/1.1 %d %b\r\n" % (error.status, http.HTTPStatus(error.status).phrase.encode())
    return line + b"".join(b"%b: %b\r\n" % field for field in fields) + b"\r\n" + body


def _said(head: bytes) -> tuple[str, list[tuple[bytes, bytes]]]:
    target = _TARGET.match(head)
    versions = [(b"anthropic-version", b"")] if _ANTHROPIC.search(head) else []
    return target[1].decode("ascii", "replace") if target else "/", versions


def _id(head: bytes) -> str:
    found = _ID.search(head)
    return found[1].decode() if found else uuid.uuid4().hex
