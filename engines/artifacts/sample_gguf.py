"""Small GGUF files with real headers, for the demo and the tests: right in every field but the weights."""

from __future__ import annotations

import struct
from pathlib import Path

VERSION = 3
_ALIGNMENT = 32
_F32, _BYTES = 0, 4


def write_gguf(
    path: Path,
    *,
    architecture: str = "qwen3",
    name: str = "qwen3.8-flash-next",
    file_type: int = 7,
    tensors: int = 2,
    elements: int = 256,
    split: tuple[int, int] | None = None,
) -> None:
    """Write a model of `tensors` tensors; `split` is (number from 0, of how many). Replaces what is there."""
    keys = _text("general.architecture", architecture) + _text("general.name", name)
    keys += _number("general.file_type", 4, "I", file_type)
    count = 3
    if split is not None:
        keys += _number("split.no", 2, "H", split[0]) + _number("split.count", 2, "H", split[1])
        count += 2
    head = b"GGUF" + struct.pack("<IQQ", VERSION, tensors, count) + keys
    size = elements * _BYTES
    for index in range(tensors):
        head += _string(f"blk.{index}.weight") + struct.pack("<IQIQ", 1, elements, _F32, index * size)
    start = -(-len(head) // _ALIGNMENT) * _ALIGNMENT
    path.write_bytes(head.ljust(start, b"\0") + bytes(tensors * size))


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _text(key: str, text: str) -> bytes:
    return _string(key) + struct.pack("<I", 8) + _string(text)


def _number(key: str, kind: int, code: str, value: int) -> bytes:
    return _string(key) + struct.pack(f"<I{code}", kind, value)
