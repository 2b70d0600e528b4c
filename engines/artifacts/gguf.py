"""The GGUF header, versions 2 and 3: what a model file says of itself, read without its vocabulary or its weights.

The `gguf` library reads the same, but decodes every string of the vocabulary: 519 MiB and 6 s for 150,000 tokens and
as many merges. This one skips arrays. The tests hold it against the library.

    0-3    GGUF              8-15   number of tensors
    4-7    version           16-23  number of keys, then keys and values, then the tensors' names, shapes and offsets
    weights at the next multiple of `general.alignment` (32)

A split model's files are NAME-00001-of-0000N.gguf, each a GGUF with `split.no` and `split.count`.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from engines.artifacts.gguf_types import FILE_TYPES, TENSOR_TYPES, TensorType
from engines.artifacts.opening import LONGEST_NAME, BadFile, OpenFile, begins, fault_of, opened, printable
from engines.spec import ArtifactHeader, MiB, Part

MAGIC = b"GGUF"
EXPECTED = "a GGUF file"
LONGEST_METADATA = 128 * MiB  # real ones have some ten MiB
MOST_STRINGS = 2**22  # in arrays; real vocabularies have some hundred thousand
MOST_KEYS = 2**16
MOST_TENSORS = 2**18
MOST_PARTS = 1000
_CHUNK = MiB
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_DEEPEST = 4  # arrays in arrays
_WANTED_TEXT = ("general.architecture", "general.name")
_WANTED_NUMBERS = ("general.file_type", "general.alignment", "split.no", "split.count", "split.tensors.count")
_SPLIT_NAME = re.compile(r"(?P<prefix>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


@dataclass
class _Cursor:
    """Reads on from one place in the file, in chunks. Never behind the end, never more than LONGEST_METADATA."""

    file: OpenFile
    order: str  # "<" or ">"
    at: int
    strings: int = 0  # seen in arrays
    _chunk: bytes = b""
    _chunk_at: int = 0

    def take(self, count: int) -> bytes:
        self.expect(count)
        start = self.at - self._chunk_at
        if not 0 <= start <= len(self._chunk) - count:
            length = min(max(count, _CHUNK), self.file.size - self.at)
            self._chunk, self._chunk_at, start = bytes(self.file.read(length, self.at)), self.at, 0
        self.at += count
        return self._chunk[start : start + count]

    def skip(self, count: int) -> None:
        self.expect(count)
        self.at += count

    def expect(self, count: int) -> None:
        if self.at + count > self.file.size:
            raise BadFile(f"truncated: {self.file.size} bytes, its metadata alone ends past {self.at + count}")
        if self.at + count > LONGEST_METADATA:
            raise BadFile(f"its metadata is longer than {LONGEST_METADATA} bytes")

    def number(self, code: str) -> int:
        (value,) = struct.unpack(self.order + code, self.take(struct.calcsize(code)))
        return int(value)

    def text(self) -> str:
        """At most LONGEST_NAME characters of it, the rest cut off; what can't be printed is escaped."""
        length = self.number("Q")
        self.expect(length)
        raw = self.take(min(length, 4 * LONGEST_NAME))
        self.skip(length - len(raw))
        return printable(raw.decode("utf-8", "replace"))[:LONGEST_NAME]


@dataclass
class _Said:
    """What one file says of itself. `end` is the size that it must have at least."""

    version: int
    size: int
    text: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    tensors: int = 0
    formats: Counter[str] = field(default_factory=Counter)  # bytes by the name of a tensor type
    end: int = 0

    @property
    def parts(self) -> int:
        return self.numbers.get("split.count", 0)


def read(path: Path) -> ArtifactHeader:
    """Raises BadFile, OSError."""
    said = _read(path)
    number = said.numbers.get("split.no", 0)
    if said.parts > 1 and number:
        raise BadFile(f"part {number + 1} of {said.parts} of a split GGUF, expected its first file")
    parts = tuple(_parts(path, said)) if said.parts > 1 else ()
    return ArtifactHeader(
        "gguf",
        said.version,
        model=said.text.get("general.name", ""),
        quantization=_quantization(said),
        objects=said.numbers.get("split.tensors.count", said.tensors),
        expected_size=said.end,
        size=said.size,
        architecture=said.text.get("general.architecture", ""),
        parts=parts,
    )


def _quantization(said: _Said) -> str:
    named = FILE_TYPES.get(said.numbers.get("general.file_type", -1))
    return named or "+".join(name for name, _ in said.formats.most_common(4))


# ------------------------------------------------------------------------------------------------- one file


def _read(path: Path) -> _Said:
    with opened(path, EXPECTED) as file:
        order, version = _version(file)
        cursor, said = _Cursor(file, order, 8), _Said(version, file.size)
        tensors, keys = cursor.number("Q"), cursor.number("Q")
        if tensors > MOST_TENSORS or keys > MOST_KEYS:
            raise BadFile(f"it claims {tensors} tensors and {keys} keys, which no model has")
        for _ in range(keys):
            _read_key(cursor, said)
        ends = [_read_tensor(cursor, said) for _ in range(tensors)]
        said.tensors, said.end = tensors, cursor.at
        if ends:
            said.end = _aligned(cursor.at, said.numbers.get("general.alignment", 32)) + max(ends)
        return said


def _version(file: OpenFile) -> tuple[str, int]:
    head = file.head(24)
    if not head.startswith(MAGIC):
        raise BadFile(f"not a GGUF file: {begins(head)}, expected {MAGIC!r}")
    if len(head) < 24:
        raise BadFile(f"truncated: {file.size} bytes, a header has at least 24")
    for order in "<>":
        version = int(struct.unpack(order + "I", head[4:8])[0])
        if version in (2, 3):
            return order, version
    raise BadFile(f"a GGUF file of unknown version {int.from_bytes(head[4:8], 'little')}, expected 2 or 3")


def _read_key(cursor: _Cursor, said: _Said) -> None:
    name = cursor.text()
    kind = cursor.number("I")
    if name in _WANTED_TEXT and kind == _STRING:
        said.text[name] = cursor.text()
    elif name in _WANTED_NUMBERS and kind in _NUMBERS and _NUMBERS[kind] not in "fd?":
        said.numbers[name] = cursor.number(_NUMBERS[kind])
    elif name in _WANTED_TEXT + _WANTED_NUMBERS:
        raise BadFile(f"its {name} is of type {kind}, expected {'text' if name in _WANTED_TEXT else 'a whole number'}")
    else:
        _skip_value(cursor, name, kind, depth=0)


def _skip_value(cursor: _Cursor, name: str, kind: int, depth: int) -> None:
    if kind in _NUMBERS:
        cursor.skip(struct.calcsize(_NUMBERS[kind]))
    elif kind == _STRING:
        cursor.skip(cursor.number("Q"))
    elif kind == _ARRAY and depth < _DEEPEST:
        _skip_array(cursor, name, depth)
    else:
        why = "nested too deeply to be real" if kind == _ARRAY else f"of unknown type {kind}"
        raise BadFile(f"the value of its key {name[:60]} is {why}")


def _skip_array(cursor: _Cursor, name: str, depth: int) -> None:
    kind, count = cursor.number("I"), cursor.number("Q")
    if kind in _NUMBERS:
        cursor.skip(count * struct.calcsize(_NUMBERS[kind]))
        return
    cursor.strings += count
    if cursor.strings > MOST_STRINGS:
        raise BadFile(f"its key {name[:60]} claims {count} items, which no model has")
    for _ in range(count):
        _skip_value(cursor, name, kind, depth + 1)


def _read_tensor(cursor: _Cursor, said: _Said) -> int:
    """Where it ends, from where the weights begin."""
    name = cursor.text()
    dimensions = cursor.number("I")
    if dimensions > 8:
        raise BadFile(f"its tensor {name[:60]} claims {dimensions} dimensions")
    shape = [cursor.number("Q") for _ in range(dimensions)]
    number, offset = cursor.number("I"), cursor.number("Q")
    kind = TENSOR_TYPES.get(number, TensorType(f"type {number}", 1, 0))  # of an unknown one only the start is known
    elements = 1
    for length in shape:
        elements *= length
    size = -(-elements // kind.block) * kind.bytes
    if offset + size > 2**62:
        raise BadFile(f"its tensor {name[:60]} claims to end at {offset + size if size < 2**70 else 'no real place'}")
    said.formats[kind.name] += size
    return offset + size


def _aligned(offset: int, alignment: int) -> int:
    if not 0 < alignment <= MiB:
        raise BadFile(f"its general.alignment is {alignment}")
    return -(-offset // alignment) * alignment


# ------------------------------------------------------------------------------------------------- a split model


def _parts(path: Path, first: _Said) -> Iterator[Part]:
    """The files after the first, each looked at. Their names follow from the first one's."""
    name = _SPLIT_NAME.fullmatch(path.name)
    if first.parts > MOST_PARTS:
        raise BadFile(f"it claims {first.parts} parts")
    if name is None or (int(name["no"]), int(name["count"])) != (1, first.parts):
        raise BadFile(
            f"the first of {first.parts} files of a split GGUF must be named …-00001-of-{first.parts:05}.gguf, "
            "or the others can't be found"
        )
    for number in range(2, first.parts + 1):
        yield _part(path.with_name(f"{name['prefix']}-{number:05}-of-{first.parts:05}.gguf"), number, first)


def _part(path: Path, number: int, first: _Said) -> Part:
    try:
        said = _read(path)
    except BadFile as bad:
        return Part(path.name, 0, 0, str(bad))
    except OSError as error:
        return Part(path.name, 0, 0, fault_of(error))
    fault = ""
    place = (said.numbers.get("split.no", 0) + 1, said.parts)
    if place != (number, first.parts):
        fault = f"it is part {place[0]} of {place[1]}, expected part {number} of {first.parts}"
    elif said.size < said.end:
        fault = f"truncated: {said.size} bytes of {said.end}"
    first.formats.update(said.formats)
    return Part(path.name, said.size, said.end, fault)
