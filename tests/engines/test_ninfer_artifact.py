"""The `.ninfer` reader: real headers are read, and every other file is refused with one line that says why."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engines.ninfer.artifact import LONGEST_DIRECTORY, read_header
from engines.ninfer.sample import write_artifact
from engines.spec import ArtifactError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.ninfer"


def refusal(path: Path) -> str:
    with pytest.raises(ArtifactError) as caught:
        read_header(path)
    text = str(caught.value)
    assert "\n" not in text
    assert str(path) in text
    return text


def raw(path: Path, version: int, directory: bytes, *, length: int | None = None) -> None:
    head = b"NINFER\0" + bytes([version]) + struct.pack("<Q", len(directory) if length is None else length)
    path.write_bytes(head + (b"i" * 16 if version == 3 else b"") + directory)


def good(version: int, path: Path) -> dict[str, Any]:
    """The directory of a real sample."""
    write_artifact(path, version)
    content = path.read_bytes()
    start = 32 if version == 3 else 16
    found: dict[str, Any] = json.loads(content[start : start + struct.unpack("<Q", content[8:16])[0]])
    return found


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_header_of_each_version_says_what_the_artifact_is(path: Path, version: int) -> None:
    write_artifact(path, version, model="m-1", quantization="fp8", objects=1190, payload=bytes(10_000))
    header = read_header(path)
    assert (header.format, header.version, header.model, header.quantization) == ("ninfer", version, "m-1", "fp8")
    assert header.objects == 1190
    assert header.size == path.stat().st_size
    assert header.whole


@pytest.mark.parametrize("version", [1, 2, 3])
def test_one_byte_cut_off_the_end_shows(path: Path, version: int) -> None:
    write_artifact(path, version)
    whole = path.stat().st_size
    os.truncate(path, whole - 1)
    header = read_header(path)
    assert not header.whole
    assert header.expected_size == whole


def test_the_sizes_are_those_of_the_layout(path: Path) -> None:
    objects = [{"name": "a", "kind": "tensor", "format": "nvfp4", "offset": 8192, "bytes": 100}]
    raw(path, 2, json.dumps({"identity": {"model_id": "m", "weights_id": "w"}, "objects": objects}).encode())
    assert read_header(path).expected_size == 4096 + 8192 + 100


def test_a_directory_that_ends_on_a_page_is_followed_by_the_payload_at_once(path: Path) -> None:
    text = json.dumps({"model_id": "m", "objects": []}).encode()
    raw(path, 1, text.ljust(4096 - 16))
    assert read_header(path).expected_size == 4096


def test_a_split_v3_artifact_is_measured_by_its_first_file(path: Path) -> None:
    directory = good(3, path)
    directory["files"] = [{"path": None, "payload_bytes": 5}, {"path": "x.part-0001", "payload_bytes": 10**12}]
    raw(path, 3, json.dumps(directory).encode())
    assert read_header(path).expected_size == 4096 + 5


def test_v3_without_metadata_or_provenance_is_named_by_its_tensors_formats(path: Path) -> None:
    directory = good(3, path)
    del directory["metadata"], directory["provenance"]
    directory["objects"][0]["format"] = "bf16"
    raw(path, 3, json.dumps(directory).encode())
    header = read_header(path)
    assert (header.model, header.quantization) == ("", "nvfp4+bf16")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "not a .ninfer file: empty"),
        (b"NINF", "not a .ninfer file"),
        (b"<html>\n<body>", r"not a .ninfer file: begins with b'<html>"),
        (b"GGUF" + bytes(60), "begins with b'GGUF"),
        (b"NINFER\0", "truncated: 7 bytes"),
        (b"NINFER\0\2" + bytes(7), "truncated: 15 bytes"),
        (b"NINFER\0\3" + struct.pack("<Q", 2), "truncated: 16 bytes, the header of version 3 has 32"),
        (b"NINFER\0\4" + bytes(60), "unknown version 4, expected 1, 2 or 3"),
        (b"NINFER\0\0" + bytes(60), "unknown version 0"),
        (b"NINPRT\0\3" + struct.pack("<Q", 7) + bytes(16), "part 7 of a split artifact"),
        (b"NINFER\0\2" + struct.pack("<Q", 0), "claims 0 bytes"),
        (b"NINFER\0\2" + struct.pack("<Q", 2**63), f"claims {2**63} bytes"),
        (b"NINFER\0\2" + struct.pack("<Q", LONGEST_DIRECTORY + 1), f"expected 1 to {LONGEST_DIRECTORY}"),
        (b"NINFER\0\2" + struct.pack("<Q", 5000) + b"{", "its directory alone ends at 5016"),
    ],
)
def test_what_is_no_whole_header_is_refused(path: Path, content: bytes, expected: str) -> None:
    path.write_bytes(content)
    assert re.search(re.escape(expected) if "b'" not in expected else expected, refusal(path))


@pytest.mark.parametrize(
    ("directory", "expected"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        (b"{}\0\0", "not JSON"),
        (b"[1]", "a JSON list, expected an object"),
        (b"null", "a JSON NoneType"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a":' * 200_000, "nested too deeply"),
        (b"{}", "no 'objects'"),
        (b'{"objects": {}}', "no 'objects' (list)"),
        (b'{"objects": [7]}', "objects[0] is not an object"),
        (b'{"objects": []}', "no 'identity' (object)"),
        (b'{"identity": {"model_id": "m"}, "objects": []}', "no 'identity.weights_id'"),
        (b'{"identity": {"model_id": 3, "weights_id": "w"}, "objects": []}', "no 'identity.model_id'"),
        (b'{"identity": {"model_id": "a\\nb", "weights_id": "w"}, "objects": []}', "printable"),
        (b'{"objects": [{"offset": -1, "bytes": 1}]}', "'objects[0].offset' is -1"),
        (b'{"objects": [{"offset": 0, "bytes": -5}]}', "'objects[0].bytes' is -5"),
        (b'{"objects": [{"offset": 0, "bytes": 1.5}]}', "'objects[0].bytes' is 1.5"),
        (b'{"objects": [{"offset": 0, "bytes": true}]}', "'objects[0].bytes' is True"),
        (b'{"objects": [{"bytes": 1}]}', "'objects[0].offset' is None"),
        (b'{"objects": [{"offset": 0, "bytes": 1, "kind": "tensor"}]}', "no 'objects[0].format'"),
    ],
)
def test_a_directory_that_lies_is_refused(path: Path, directory: bytes, expected: str) -> None:
    raw(path, 2, directory)
    assert expected in refusal(path)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda d: d.pop("components"), "no 'components'"),
        (lambda d: d.pop("bindings"), "no 'bindings'"),
        (lambda d: d.pop("uses"), "no 'uses'"),
        (lambda d: d.pop("files"), "no 'files'"),
        (lambda d: d.update(files=[]), "names no file"),
        (lambda d: d.update(files=[{}]), "'files[0].payload_bytes' is None"),
        (lambda d: d.update(files=[{"payload_bytes": -1}]), "'files[0].payload_bytes' is -1"),
        (lambda d: d.update(metadata={"name": 7}), "no 'metadata.name'"),
        (lambda d: d.update(provenance={"upgraded_from": {"weights_id": []}}), "weights_id"),
    ],
)
def test_a_v3_directory_needs_its_keys(path: Path, change: Callable[[dict[str, Any]], object], expected: str) -> None:
    directory = good(3, path)
    change(directory)
    raw(path, 3, json.dumps(directory).encode())
    assert expected in refusal(path)


def test_a_v2_header_before_a_v3_directory_is_refused(path: Path) -> None:
    raw(path, 2, json.dumps(good(3, path)).encode())
    assert "no 'identity'" in refusal(path)


@pytest.mark.timeout(10)
def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    assert "a directory, expected a .ninfer file" in refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "a pipe, expected" in refusal(tmp_path / "pipe")
    assert "a device, expected" in refusal(Path("/dev/zero"))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        assert "a socket, expected" in refusal(tmp_path / "socket")


def test_a_missing_file_is_the_operating_systems_error(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_header(path)


def test_the_weights_are_not_read(path: Path) -> None:
    write_artifact(path, 2)
    os.truncate(path, 24 * 1024**3)  # sparse: reading it would take far too long
    header = read_header(path)
    assert header.whole
    assert header.size == 24 * 1024**3


# ------------------------------------------------------------------------------------------------- parts


@pytest.fixture
def parts(path: Path) -> list[Path]:
    """The further files of a split artifact."""
    write_artifact(path, 3, parts=2)
    return [path.with_name(f"{path.name}.part-000{number}") for number in (1, 2)]


def test_each_part_of_a_split_artifact_is_looked_at(path: Path, parts: list[Path]) -> None:
    header = read_header(path)
    assert [(part.name, part.size, part.expected_size, part.fault) for part in header.parts] == [
        (part.name, 8192, 8192, "") for part in parts
    ]
    assert header.whole


def pipe(part: Path) -> None:
    part.unlink()
    os.mkfifo(part)


def other_id(part: Path) -> None:
    content = bytearray(part.read_bytes())
    content[20] ^= 1
    part.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda part: part.unlink(), "it does not exist"),
        (lambda part: os.truncate(part, 8191), "truncated: 8191 bytes of 8192"),
        (lambda part: os.truncate(part, 20), "truncated: 20 bytes, a part's header has 32"),
        (lambda part: part.write_bytes(b"x" * 8192), "no part of a .ninfer file of version 3: begins with b'xxxx"),
        (lambda part: write_artifact(part, 3), "no part of a .ninfer file of version 3"),
        (lambda part: part.with_name(part.name[:-1] + "2").replace(part), "it is part 2, expected part 1"),
        (other_id, "it belongs to another artifact"),
        (lambda part: (part.unlink(), part.mkdir()), "a directory, expected part 1"),
        (pipe, "a pipe, expected part 1"),
    ],
)
def test_a_missing_or_wrong_part_makes_it_not_whole_and_is_named(
    path: Path, parts: list[Path], damage: Callable[[Path], object], words: str
) -> None:
    damage(parts[0])
    header = read_header(path)
    assert not header.whole
    assert header.fault.startswith(f"its part {parts[0].name} isn't whole: ")
    assert words in header.fault


@pytest.mark.parametrize("name", ["/etc/passwd", "../a", "..", "", 7, "a\nb", "x" * 300])
def test_a_part_elsewhere_is_refused(path: Path, name: object) -> None:
    directory = good(3, path)
    directory["files"].append({"path": name, "payload_bytes": 1})
    raw(path, 3, json.dumps(directory).encode())
    assert "files[1].path" in refusal(path)


def test_more_parts_than_any_artifact_has_are_refused(path: Path) -> None:
    directory = good(3, path)
    directory["files"] += [{"path": f"p{n}", "payload_bytes": 1} for n in range(1000)]
    raw(path, 3, json.dumps(directory).encode())
    assert "it claims 1001 files" in refusal(path)


def test_the_components_of_version_3_are_named(path: Path) -> None:
    directory = good(3, path)
    directory["components"]["vision"] = {}
    raw(path, 3, json.dumps(directory).encode())
    assert read_header(path).components == ("text", "vision")
