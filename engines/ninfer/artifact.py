"""The `.ninfer` header, versions 1 to 3: what an artifact says of itself, read without reading a weight.

    bytes   v1, v2                              v3
    0-6     NINFER\\0                            same
    7       version                             version
    8-15    length of the JSON, u64 LE          same
    16-     JSON                                16 bytes of file id, JSON from 32
    payload at the next multiple of 4096        same

Files of a split v3 artifact after the first begin with NINPRT\\0\\3, a u64 part number and the same id.
The file may be anything that an operator's path points to: every length is checked before it is believed.
"""

from __future__ import annotations

import json
import os
import stat
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.spec import ArtifactError, ArtifactHeader, MiB

MAGIC = b"NINFER\0"
PART_MAGIC = b"NINPRT\0"
PAYLOAD_ALIGNMENT = 4096
LONGEST_DIRECTORY = 64 * MiB  # real ones have some hundred KB
JSON_START = {1: 16, 2: 16, 3: 32}
_LONGEST_NAME = 256
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class _Bad(Exception):
    """What is wrong with the file, without its name."""


def payload_start(version: int, json_length: int) -> int:
    """Where the weights begin, in bytes from the start of the file."""
    end = JSON_START[version] + json_length
    return -(-end // PAYLOAD_ALIGNMENT) * PAYLOAD_ALIGNMENT


def read_header(path: Path) -> ArtifactHeader:
    """Read what the file says of itself. Never blocks on a pipe or a device.

    Raises ArtifactError (one line: what was found, what was expected), OSError (missing, no permission).
    """
    try:
        _require_regular(path.stat().st_mode)
        # Between the look and the open the name may have come to mean a pipe: O_NONBLOCK, and a second look.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            facts = os.fstat(fd)
            _require_regular(facts.st_mode)
            return _read(fd, facts.st_size)
        finally:
            os.close(fd)
    except _Bad as bad:
        raise ArtifactError(f"{_printable(str(path))}: {bad}") from None


def _require_regular(mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise _Bad(f"{_KINDS.get(stat.S_IFMT(mode), 'a special file')}, expected a .ninfer file")


def _read(fd: int, size: int) -> ArtifactHeader:
    version = _version(os.pread(fd, 16, 0), size)
    start = JSON_START[version]
    if size < start:
        raise _Bad(f"truncated: {size} bytes, the header of version {version} has {start}")
    length = int(struct.unpack("<Q", _exactly(fd, 8, 8))[0])
    if not 0 < length <= LONGEST_DIRECTORY:
        raise _Bad(f"its directory claims {length} bytes, expected 1 to {LONGEST_DIRECTORY}")
    if start + length > size:
        raise _Bad(f"truncated: {size} bytes, its directory alone ends at {start + length}")
    directory = _parse(_exactly(fd, length, start))
    return _header(version, directory, payload_start(version, length), size)


def _exactly(fd: int, count: int, offset: int) -> bytes:
    found = b""
    while len(found) < count:
        more = os.pread(fd, count - len(found), offset + len(found))
        if not more:
            raise _Bad(f"it became shorter while it was read: {offset + len(found)} bytes")
        found += more
    return found


def _version(head: bytes, size: int) -> int:
    if head.startswith(PART_MAGIC) and len(head) == 16:
        number = int(struct.unpack("<Q", head[8:16])[0])
        raise _Bad(
            f"part {number} of a split artifact (version {head[7]}), expected its first file, which ends .ninfer"
        )
    if not head.startswith(MAGIC):
        found = f"begins with {head[:8]!r}" if head else "empty"
        raise _Bad(f"not a .ninfer file: {found}, expected {MAGIC!r}")
    if len(head) < 16:
        raise _Bad(f"truncated: {size} bytes, a header has at least 16")
    if head[7] not in JSON_START:
        raise _Bad(f"a .ninfer file of unknown version {head[7]}, expected 1, 2 or 3")
    return head[7]


def _parse(raw: bytes) -> dict[str, Any]:
    try:
        directory = json.loads(raw.decode("utf-8"))
    except RecursionError:
        raise _Bad("its directory is nested too deeply to be real") from None
    except ValueError as error:
        raise _Bad(f"its directory is not JSON: {_printable(str(error))}") from None
    if not isinstance(directory, dict):
        raise _Bad(f"its directory is a JSON {type(directory).__name__}, expected an object")
    return directory


@dataclass(frozen=True, slots=True)
class _Objects:
    """The objects of a directory, summed up."""

    count: int
    end: int  # the largest offset + bytes
    formats: str  # of the tensors, those with most bytes first


def _header(version: int, directory: dict[str, Any], payload: int, size: int) -> ArtifactHeader:
    objects = _objects(directory)
    if version == 1:
        model, quantization = _text(directory, "model_id"), objects.formats
    elif version == 2:
        identity = _mapping(directory, "identity")
        model, quantization = _text(identity, "model_id", "identity."), _text(identity, "weights_id", "identity.")
    else:
        model, quantization = _names_v3(directory, objects.formats)
    used = _first_payload(directory) if version == 3 else objects.end
    return ArtifactHeader("ninfer", version, model, quantization, objects.count, payload + used, size)


def _names_v3(directory: dict[str, Any], formats: str) -> tuple[str, str]:
    """Version 3 has no identity: the model's name is optional, the quantization is where it came from or is made of."""
    metadata = directory.get("metadata")
    named = isinstance(metadata, dict) and "name" in metadata
    model = _text(_mapping(directory, "metadata"), "name", "metadata.") if named else ""
    provenance = directory.get("provenance")
    upgraded = provenance.get("upgraded_from") if isinstance(provenance, dict) else None
    if isinstance(upgraded, dict) and "weights_id" in upgraded:
        return model, _text(upgraded, "weights_id", "provenance.upgraded_from.")
    return model, formats


def _first_payload(directory: dict[str, Any]) -> int:
    for key, kind in (("components", dict), ("bindings", dict), ("uses", list), ("files", list)):
        if not isinstance(directory.get(key), kind):
            raise _Bad(f"its directory has no {key!r} ({'object' if kind is dict else 'list'}), version 3 needs it")
    files = directory["files"]
    if not files or not isinstance(files[0], dict):
        raise _Bad("its directory's 'files' names no file")
    return _count(files[0], "payload_bytes", "files[0].")


def _objects(directory: dict[str, Any]) -> _Objects:
    objects = directory.get("objects")
    if not isinstance(objects, list):
        raise _Bad("its directory has no 'objects' (list)")
    end, weights = 0, Counter[str]()
    for index, item in enumerate(objects):
        if not isinstance(item, dict):
            raise _Bad(f"objects[{index}] is not an object")
        size = _count(item, "bytes", f"objects[{index}].")
        end = max(end, _count(item, "offset", f"objects[{index}].") + size)
        if item.get("kind") == "tensor":
            weights[_text(item, "format", f"objects[{index}].")] += size
    return _Objects(len(objects), end, "+".join(name for name, _ in weights.most_common(4)))


def _mapping(source: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = source.get(key)
    if not isinstance(value, dict):
        raise _Bad(f"its directory has no {key!r} (object)")
    return value


def _text(source: Mapping[str, Any], key: str, where: str = "") -> str:
    value = source.get(key)
    if not isinstance(value, str):
        raise _Bad(f"its directory has no '{where}{key}' (text)")
    if len(value) > _LONGEST_NAME or not value.isprintable():
        raise _Bad(f"'{where}{key}' is {_printable(value)[:60]}…, expected a short printable name")
    return value


def _count(source: Mapping[str, Any], key: str, where: str) -> int:
    value = source.get(key)
    if type(value) is not int or value < 0:
        raise _Bad(f"'{where}{key}' is {_printable(repr(value))[:60]}, expected a whole number, not negative")
    return value


def _printable(text: str) -> str:
    return text if text.isprintable() else ascii(text)
