"""`slotctl artifact`: what a file says of itself in aligned lines or JSON, without a daemon."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engines.artifacts.sample_gguf import write_gguf
from engines.ninfer.sample import write_artifact
from slotproxy.cli import main
from slotproxy.units import format_size

SLOTCTL = Path(sys.executable).parent / "slotctl"
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A whole artifact of version 3 with two parts."""
    write_artifact(tmp_path / "model.ninfer", 3, model="qwen3.8-27b", objects=1190, parts=2)
    return tmp_path / "model.ninfer"


def answered(capture: Capture, *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["artifact", "--json", *words])
    found: dict[str, Any] = json.loads(capture.readouterr().out)
    return code, found


def test_a_whole_artifact_is_shown_in_aligned_lines(path: Path, capsys: Capture) -> None:
    assert main(["artifact", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "format        .ninfer, version 3",
        "model         qwen3.8-27b",
        "quantization  nvfp4",
        "objects       1190",
        "components    text",
        f"size          {path.stat().st_size:,} bytes ({format_size(path.stat().st_size)})",
        "part          model.ninfer.part-0001  8,192 bytes (8KiB)",
        "part          model.ninfer.part-0002  8,192 bytes (8KiB)",
        "whole         yes",
    ]


@pytest.mark.parametrize("version", [1, 2])
def test_older_versions_are_shown_too(tmp_path: Path, capsys: Capture, version: int) -> None:
    write_artifact(tmp_path / "a", version)
    code, answer = answered(capsys, str(tmp_path / "a"))
    assert (code, answer["format"], answer["version"], answer["whole"]) == (0, "ninfer", version, True)


def test_a_gguf_is_shown_with_its_architecture_whatever_its_name(tmp_path: Path, capsys: Capture) -> None:
    write_gguf(tmp_path / "model.ninfer", architecture="qwen3moe", tensors=3)
    assert main(["artifact", str(tmp_path / "model.ninfer")]) == 0
    shown = capsys.readouterr().out
    for words in ("GGUF, version 3", "architecture  qwen3moe", "quantization  Q8_0", "tensors       3"):
        assert words in shown


def test_a_truncated_file_is_refused_and_says_how_much_is_missing(path: Path, capsys: Capture) -> None:
    os.truncate(path, path.stat().st_size - 1234)
    assert main(["artifact", str(path)]) == 3
    assert "1,234 bytes (1.21KiB) are missing" in capsys.readouterr().out.splitlines()[-1]
    code, answer = answered(capsys, str(path))
    assert (code, answer["whole"], answer["expected_size"] - answer["size"]) == (3, False, 1234)


def test_a_missing_part_is_refused_and_named(path: Path, capsys: Capture) -> None:
    path.with_name("model.ninfer.part-0002").unlink()
    assert main(["artifact", str(path), "--hash"]) == 3
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith("whole         no: its part model.ninfer.part-0002 isn't whole: it does not exist")


def test_hash_adds_the_sha256_of_the_file_and_of_each_part(path: Path, capsys: Capture) -> None:
    def sha256(file: Path) -> str:
        return hashlib.sha256(file.read_bytes()).hexdigest()

    parts = [path.with_name(f"model.ninfer.part-000{number}") for number in (1, 2)]
    code, answer = answered(capsys, "--hash", str(path))
    assert (code, answer["sha256"]) == (0, sha256(path))
    assert [(part["file"], part["sha256"]) for part in answer["parts"]] == [(str(p), sha256(p)) for p in parts]
    assert main(["artifact", "--hash", str(path)]) == 0
    shown = capsys.readouterr()
    assert all(sha256(file) in shown.out for file in (path, *parts))
    assert shown.err == ""  # it is no terminal


def test_how_far_the_hashing_is_goes_to_a_terminal_only(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    done = subprocess.run(
        [SLOTCTL, "artifact", "--hash", path], stdout=subprocess.PIPE, stderr=theirs, check=True, timeout=60
    )
    os.close(theirs)
    assert b"sha256" in done.stdout
    assert b"\x1b" not in done.stdout
    assert os.read(ours, 100) == b"\r\x1b[K"  # nothing of it is left
    os.close(ours)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing", "can't be read: No such file or directory"),
        ("directory", "a directory, expected an artifact"),
        ("pipe", "a pipe, expected an artifact"),
        ("loop", "can't be read: Too many levels of symbolic links"),
        ("text", "no artifact: begins with b'some tex'"),
        ("part", "part 1 of a split artifact"),
    ],
)
def test_what_is_no_artifact_is_refused_in_one_line(path: Path, capsys: Capture, name: str, words: str) -> None:
    file = path.parent / name
    make(file, name)
    assert main(["artifact", str(file)]) == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert words in said.err
    assert str(file) in said.err
    code, answer = answered(capsys, str(file))
    assert (code, answer["code"]) == (3, 3)
    assert words in answer["error"]


def make(file: Path, name: str) -> None:
    match name:
        case "directory":
            file.mkdir()
        case "pipe":
            os.mkfifo(file)
        case "loop":
            file.symlink_to(file)
        case "text":
            file.write_text("some text")
        case "part":
            file.write_bytes((file.parent / "model.ninfer.part-0001").read_bytes())


def test_a_name_from_the_file_cant_move_the_cursor(tmp_path: Path, capsys: Capture) -> None:
    write_gguf(tmp_path / "a", name="x\x1b[2Jy", architecture="a\nb")
    assert main(["artifact", str(tmp_path / "a")]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_without_a_file_it_is_bad_usage(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["artifact"])
    assert ended.value.code == 2
