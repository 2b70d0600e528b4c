"""Large bodies as clients send them, and some as nobody should."""

from __future__ import annotations

import base64
import os

KINDS = ("image", "image unchanged", "escapes", "text", "numbers", "objects")
_BLOCK = 3 * 64 * 1024  # bytes: whole groups of base64


def body(kind: str, size: int) -> bytes:
    """About `size` bytes. `unchanged`: nothing in it has to be changed on its way."""
    image = base64.b64encode(os.urandom(_BLOCK))
    match kind:
        case "image":
            return _message(b"mapped", _string(image, size))
        case "image unchanged":
            return _message(b'plain","temperature":0.7,"x":"', _string(image, size))
        case "escapes":
            return _message(b"mapped", _string(rb"\n\"x", size))
        case "text":
            line = 'for name in names:\\n    print(\\"größe: %d\\", name)  # eine Zeile wie viele andere\\n'
            return _message(b"mapped", _string(line.encode(), size))
        case "numbers":
            return _message(b"mapped", _list(b"1", size))
        case "objects":
            return _message(b"mapped", _list(b'{"role":"user","content":"hi"}', size))
    raise ValueError(kind)


def _message(model: bytes, content: bytes) -> bytes:
    part = b'{"type":"image_url","image_url":{"url":%b}}' % content
    return b'{"model":"%b","messages":[{"role":"user","content":[%b]}],"max_tokens":5}' % (model, part)


def _string(part: bytes, size: int) -> bytes:
    return b'"' + part * (size // len(part)) + b'"'


def _list(part: bytes, size: int) -> bytes:
    return b"[" + b",".join([part] * (size // (len(part) + 1))) + b"]"
