"""Artifacts are read by a child process: whatever the file is, it ends in one line, in bounded memory and time."""

from __future__ import annotations

import itertools
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engines.artifacts import read
from engines.artifacts.opening import BadFile, opened
from engines.artifacts.read import read_any, read_gguf, read_ninfer
from engines.artifacts.sample_gguf import write_gguf
from engines.ninfer.artifact import LONGEST_DIRECTORY
from engines.ninfer.sample import write_artifact
from engines.spec import ArtifactError, CannotRead, MiB

MOST_MEMORY = 100 * MiB
MEASURED = """
import resource, sys
from pathlib import Path
from engines.artifacts.read import read_any
try:
    print(read_any(Path(sys.argv[1])).format)
except Exception as error:
    print(type(error).__name__, error)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""


def refusal(path: Path, reader: Callable[[Path], object] = read_any) -> str:
    with pytest.raises(ArtifactError) as caught:
        reader(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert len(text.splitlines()) == 1
    return text


def ninfer(path: Path, version: int, directory: bytes, length: int | None = None) -> Path:
    head = b"NINFER\0" + bytes([version]) + struct.pack("<Q", len(directory) if length is None else length)
    path.write_bytes(head + (b"i" * 16 if version == 3 else b"") + directory)
    return path


def gguf(path: Path, tensors: int, keys: int, rest: bytes = b"") -> Path:
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + rest)
    return path


def key(name: str, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + value


def test_what_the_child_reads_is_what_the_header_says(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_artifact(path, 3, model="m", objects=7, parts=2)
    header = read_ninfer(path)
    assert (header.version, header.model, header.objects, header.components) == (3, "m", 7, ("text",))
    assert [part.name for part in header.parts] == ["a.part-0001", "a.part-0002"]
    assert header.whole


def test_the_format_is_told_by_the_first_bytes_and_not_by_the_name(tmp_path: Path) -> None:
    write_artifact(tmp_path / "a.gguf", 2)
    write_gguf(tmp_path / "b.ninfer")
    assert read_any(tmp_path / "a.gguf").format == "ninfer"
    assert read_any(tmp_path / "b.ninfer").format == "gguf"
    assert "not a GGUF file: begins with b'NINFER" in refusal(tmp_path / "a.gguf", read_gguf)
    assert "not a .ninfer file: begins with b'GGUF" in refusal(tmp_path / "b.ninfer", read_ninfer)
    (tmp_path / "c.ninfer").write_bytes(b"PK\3\4")
    assert "expected a .ninfer or a GGUF file" in refusal(tmp_path / "c.ninfer")


def test_a_name_with_any_bytes_in_it_is_read_and_printed_in_one_line(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\n.ninfer"))
    write_artifact(path, 2)
    assert read_any(path).whole
    path.write_bytes(b"")
    with pytest.raises(ArtifactError) as caught:
        read_any(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.mkdir(), "a directory, expected an artifact"),
        (os.mkfifo, "a pipe, expected an artifact"),
        (lambda path: path.symlink_to("/dev/zero"), "a device, expected an artifact"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
        (lambda path: path.symlink_to("/proc/self/mem"), ""),
    ],
)
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, make: Callable[[Path], object], words: str) -> None:
    make(tmp_path / "a")
    with pytest.raises((ArtifactError, OSError)) as caught:
        read_any(tmp_path / "a")
    assert words in str(caught.value)
    assert str(tmp_path / "a") in str(caught.value)


@pytest.mark.timeout(30)
def test_a_file_that_becomes_a_pipe_between_the_look_and_the_open_blocks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, really_open = tmp_path / "a", os.open
    write_artifact(path, 2)

    def swapped(file: Path, flags: int) -> int:
        file.unlink()
        os.mkfifo(file)
        return really_open(file, flags)

    monkeypatch.setattr(os, "open", swapped)
    with pytest.raises(BadFile, match="a pipe, expected something"), opened(path, "something"):
        pass


def test_a_missing_or_unreadable_file_is_the_operating_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        read_any(tmp_path / "a")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        read_any(tmp_path / "file" / "a")


def measured(path: Path) -> tuple[str, int]:
    """What reading it ends with, and the most memory that the reader had."""
    done = subprocess.run([sys.executable, "-c", MEASURED, str(path)], capture_output=True, text=True, check=True)
    said, peak = done.stdout.splitlines()
    return said, int(peak)


def huge(filler: bytes, size: int = LONGEST_DIRECTORY - 200) -> bytes:
    """JSON of version 2 that is right but for one list of that many bytes."""
    good = {"identity": {"model_id": "m", "weights_id": "w"}, "objects": []}
    return json.dumps(good).encode()[:-1] + b', "x": [0' + (b"," + filler) * (size // (1 + len(filler))) + b"]}"


def strings(count: int, rest: bytes = b"") -> bytes:
    return key("a", 9, struct.pack("<IQ", 8, count) + rest)


def zeros(path: Path, size: int) -> None:
    path.touch()
    os.truncate(path, size)


def name_of(size: int) -> bytes:
    return key("general.name", 8, struct.pack("<Q", size) + b"n" * size)


WIDE = b'"' + "😀".encode() * 999 + b'"'
HOSTILE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "200 MiB of JSON": (f"expected 1 to {LONGEST_DIRECTORY}", lambda p: ninfer(p, 2, huge(b"[]", 200 * MiB))),
    "much JSON, tiny nested arrays": ("takes more than 80 MiB", lambda p: ninfer(p, 2, huge(b"[[],[]]"))),
    "much JSON, tiny objects": ("takes more than 80 MiB", lambda p: ninfer(p, 2, huge(b'{"":{}}'))),
    "much JSON, wide characters": (
        "takes more than 80 MiB",
        lambda p: ninfer(p, 2, huge(b'"' + "😀".encode() * 999 + b'"')),
    ),
    "much JSON, one string": ("ninfer", lambda p: ninfer(p, 2, huge(b'"' + b"x" * (LONGEST_DIRECTORY - 300) + b'"'))),
    "nested as deep as can be": ("nested too deeply", lambda p: ninfer(p, 2, b"[" * LONGEST_DIRECTORY)),
    "2^63 bytes of JSON": (f"claims {2**63} bytes", lambda p: ninfer(p, 3, b"{}", 2**63)),
    "2^63 tensors": (f"claims {2**63} tensors", lambda p: gguf(p, 2**63, 0)),
    "2^63 keys": (f"claims 0 tensors and {2**63} keys", lambda p: gguf(p, 0, 2**63)),
    "a string of 2^63 bytes": ("truncated", lambda p: gguf(p, 0, 1, key("a", 8, struct.pack("<Q", 2**63)))),
    "an array of 2^63 strings": ("which no model has", lambda p: gguf(p, 0, 1, strings(2**63))),
    "an array of 2^63 numbers": ("truncated", lambda p: gguf(p, 0, 1, key("a", 9, struct.pack("<IQ", 10, 2**63)))),
    "arrays in arrays": ("nested too deeply", lambda p: gguf(p, 0, 1, key("a", 9, struct.pack("<IQ", 9, 1) * 9999))),
    "a name of 64 MiB": ("gguf", lambda p: gguf(p, 0, 1, name_of(64 * MiB))),
    "millions of empty strings": ("gguf", lambda p: gguf(p, 0, 1, strings(2**22, bytes(8 * 2**22)))),
    "a terabyte of holes": (
        "longer than",
        lambda p: os.truncate(gguf(p, 0, 1, key("a", 9, struct.pack("<IQ", 10, 2**33))), 2**40),
    ),
    "a gigabyte of zeros": ("no artifact", lambda p: zeros(p, 2**30)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_hostile_file_takes_more_than_100_mib_or_hangs(tmp_path: Path, name: str) -> None:
    words, make = HOSTILE[name]
    make(tmp_path / "hostile")
    said, peak = measured(tmp_path / "hostile")
    assert words in said
    assert peak < MOST_MEMORY


@pytest.mark.parametrize("kind", ["v2", "v3", "gguf"])
def test_cut_anywhere_it_is_refused_or_not_whole(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    if kind == "gguf":
        write_gguf(path)
    else:
        write_artifact(path, int(kind[1]), objects=2, payload=bytes(100))
    content = path.read_bytes()
    near = range(64)
    spread = range(64, len(content), max(1, len(content) // 12))
    for cut in itertools.chain(near[::3], spread, [len(content) - 1]):
        path.write_bytes(content[:cut])
        try:
            assert not read_any(path).whole, cut
        except ArtifactError as error:
            assert len(str(error).splitlines()) == 1  # noqa: PT017


def test_a_child_that_hangs_is_ended_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_artifact(tmp_path / "a", 2)
    hanging = tmp_path / "python"
    hanging.write_text("#!/bin/sh\nexec sleep 60\n")
    hanging.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(hanging))
    monkeypatch.setattr(read, "READ_LIMIT", 0.2)
    with pytest.raises(CannotRead, match=r"a: it can't be read: nothing came in 0\.2 s"):
        read_any(tmp_path / "a")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("kill -KILL $$", "its reader was killed"),
        (None, "no process can be started for it"),
        ("""echo '{"header": {"new": 1}}'""", "of another version than this process, which wants a restart"),
        ("echo hello", "of another version than this process"),
        ("echo Traceback >&2; echo Broken: it >&2; exit 1", "its reader broke: Broken: it"),
    ],
)
def test_a_child_that_is_killed_replaced_or_cant_be_started_says_nothing_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, words: str
) -> None:
    write_artifact(tmp_path / "a", 2)
    killed = tmp_path / "python"
    if script is not None:
        killed.write_text(f"#!/bin/sh\n{script}\n")
        killed.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(killed))
    with pytest.raises(CannotRead, match=words):
        read_any(tmp_path / "a")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("kill -XCPU $$", "takes too long to read"),
        ("kill -SEGV $$", "ended by SIGSEGV"),
    ],
)
def test_a_child_that_dies_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    write_artifact(tmp_path / "a", 2)
    dying = tmp_path / "python"
    dying.write_text(f"#!/bin/sh\n{script}\n")
    dying.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(dying))
    assert words in refusal(tmp_path / "a")


def test_the_child_finds_its_code_in_whatever_folder_the_daemon_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_artifact(tmp_path / "a", 2)
    (tmp_path / "engines").mkdir()
    (tmp_path / "engines" / "__init__.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    assert read_any(tmp_path / "a").whole
