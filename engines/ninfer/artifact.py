"""The `.ninfer` header, versions 1 to 3: what an artifact says of itself, read without reading a weight.

    bytes   v1, v2                              v3
    0-6     NINFER\\0                            same
    7       version                             version
    8-15    length of the JSON, u64 LE          same
    16-     JSON                                16 bytes of file id, JSON from 32
    payload at the next multiple of 4096        same

Files of a split v3 artifact after the first begin with NINPRT\\0\\3, a u64 part number and the same id; their payload
begins at 4096. The file may be anything: every length is checked before it is believed, and what the JSON unfolds to
is bounded where it is read for strangers' files (`engines.artifacts.child`).
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engines.artifacts.opening import LONGEST_NAME, BadFile, OpenFile, begins, fault_of, opened, printable
from engines.spec import ArtifactError, ArtifactHeader, MiB, Part

MAGIC = b"NINFER\0"
PART_MAGIC = b"NINPRT\0"
PAYLOAD_ALIGNMENT = 4096
LONGEST_DIRECTORY = 16 * MiB  # real ones have some hundred KB
MOST_PARTS = 1000
MOST_COMPONENTS = 100
JSON_START = {1: 16, 2: 16, 3: 32}
EXPECTED = "a .ninfer file"
_MOST_BYTES = 2**62


def payload_start(version: int, json_length: int) -> int:
    """Where the weights begin, in bytes from the start of the file."""
    end = JSON_START[version] + json_length
    return -(-end // PAYLOAD_ALIGNMENT) * PAYLOAD_ALIGNMENT


def read_header(path: Path) -> ArtifactHeader:
    """Read what the file says of itself, here in this process: see `engines.artifacts.read` for files of strangers.

    Raises ArtifactError (one line: what was found, what was expected), OSError (missing, no permission).
    """
    try:
        return read(path)
    except BadFile as bad:
        raise ArtifactError(f"{printable(str(path))}: {bad}") from None


def read(path: Path) -> ArtifactHeader:
    """Raises BadFile, OSError."""
    with opened(path, EXPECTED) as file:
        version = _version(file)
        start = JSON_START[version]
        if file.size < start:
            raise BadFile(f"truncated: {file.size} bytes, the header of version {version} has {start}")
        length = int(struct.unpack("<Q", file.read(8, 8))[0])
        if not 0 < length <= LONGEST_DIRECTORY:
            raise BadFile(f"its directory claims {length} bytes, expected 1 to {LONGEST_DIRECTORY}")
        if start + length > file.size:
            raise BadFile(f"truncated: {file.size} bytes, its directory alone ends at {start + length}")
        directory = _parse(file.read(length, start))
        file_id = file.head(32)[16:]
    header = _header(version, directory, payload_start(version, length), file.size)
    if version < 3:
        return header
    components = tuple(_component(name) for name in [*directory["components"]][:MOST_COMPONENTS])
    return replace(header, components=components, parts=tuple(_parts(path, directory["files"], file_id)))


def _version(file: OpenFile) -> int:
    head = file.head(16)
    if head.startswith(PART_MAGIC) and len(head) == 16:
        number = int(struct.unpack("<Q", head[8:16])[0])
        raise BadFile(
            f"part {number} of a split artifact (version {head[7]}), expected its first file, which ends .ninfer"
        )
    if not head.startswith(MAGIC):
        raise BadFile(f"not a .ninfer file: {begins(head)}, expected {MAGIC!r}")
    if len(head) < 16:
        raise BadFile(f"truncated: {file.size} bytes, a header has at least 16")
    if head[7] not in JSON_START:
        raise BadFile(f"a .ninfer file of unknown version {head[7]}, expected 1, 2 or 3")
    return head[7]


def _parse(raw: bytearray) -> dict[str, Any]:
    try:
        directory = json.loads(raw.decode("utf-8"))
    except RecursionError:
        raise BadFile("its directory is nested too deeply to be real") from None
    except ValueError as error:
        raise BadFile(f"its directory is not JSON: {printable(str(error))}") from None
    if not isinstance(directory, dict):
        raise BadFile(f"its directory is a JSON {type(directory).__name__}, expected an object")
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


def _component(name: str) -> str:
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise BadFile(f"it names a component {printable(name)[:60]}, expected a short printable name")
    return name


def _first_payload(directory: dict[str, Any]) -> int:
    for key, kind in (("components", dict), ("bindings", dict), ("uses", list), ("files", list)):
        if not isinstance(directory.get(key), kind):
            raise BadFile(f"its directory has no {key!r} ({'object' if kind is dict else 'list'}), version 3 needs it")
    files = directory["files"]
    if not files or not isinstance(files[0], dict):
        raise BadFile("its directory's 'files' names no file")
    return _count(files[0], "payload_bytes", "files[0].")


def _objects(directory: dict[str, Any]) -> _Objects:
    objects = directory.get("objects")
    if not isinstance(objects, list):
        raise BadFile("its directory has no 'objects' (list)")
    end, weights = 0, Counter[str]()
    for index, item in enumerate(objects):
        if not isinstance(item, dict):
            raise BadFile(f"objects[{index}] is not an object")
        size = _count(item, "bytes", f"objects[{index}].")
        end = max(end, _count(item, "offset", f"objects[{index}].") + size)
        if item.get("kind") == "tensor":
            weights[_text(item, "format", f"objects[{index}].")] += size
    return _Objects(len(objects), end, "+".join(name for name, _ in weights.most_common(4)))


def _mapping(source: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = source.get(key)
    if not isinstance(value, dict):
        raise BadFile(f"its directory has no {key!r} (object)")
    return value


def _text(source: Mapping[str, Any], key: str, where: str = "") -> str:
    value = source.get(key)
    if not isinstance(value, str):
        raise BadFile(f"its directory has no '{where}{key}' (text)")
    if len(value) > LONGEST_NAME or not value.isprintable():
        raise BadFile(f"'{where}{key}' is {printable(value)[:60]}…, expected a short printable name")
    return value


def _count(source: Mapping[str, Any], key: str, where: str) -> int:
    value = source.get(key)
    if type(value) is not int or not 0 <= value <= _MOST_BYTES:
        raise BadFile(f"'{where}{key}' is {printable(repr(value))[:60]}, expected a whole number, not negative")
    return value


# ------------------------------------------------------------------------------------------------- a split artifact


def _parts(path: Path, files: Sequence[Any], file_id: bytes) -> Iterator[Part]:
    """The files after the first, each looked at."""
    if len(files) > MOST_PARTS:
        raise BadFile(f"it claims {len(files)} files")
    for number, file in enumerate(files[1:], start=1):
        if not isinstance(file, dict):
            raise BadFile(f"files[{number}] is not an object")
        name = _text(file, "path", f"files[{number}].")
        if name in ("", ".", "..") or "/" in name:
            raise BadFile(f"'files[{number}].path' is {name[:60]!r}, expected the name of a file beside it")
        size = PAYLOAD_ALIGNMENT + _count(file, "payload_bytes", f"files[{number}].")
        yield _part(path.with_name(name), number, size, file_id)


def _part(path: Path, number: int, expected: int, file_id: bytes) -> Part:
    size = 0
    try:
        with opened(path, f"part {number}") as file:
            size = file.size
            fault = _part_fault(file.head(32), number, file_id)
    except BadFile as bad:
        fault = str(bad)
    except OSError as error:
        fault = fault_of(error)
    if not fault and size < expected:
        fault = f"truncated: {size} bytes of {expected}"
    return Part(path.name, size, expected, fault)


def _part_fault(head: bytes, number: int, file_id: bytes) -> str:
    wanted = PART_MAGIC + b"\3"
    if not head.startswith(wanted):
        return f"no part of a .ninfer file of version 3: {begins(head)}, expected {wanted!r}"
    if len(head) < 32:
        return f"truncated: {len(head)} bytes, a part's header has 32"
    is_number = int(struct.unpack("<Q", head[8:16])[0])
    if is_number != number:
        return f"it is part {is_number}, expected part {number}"
    if head[16:32] != file_id:
        return "it belongs to another artifact: its file id isn't that of the first file"
    return ""
