"""Headers are read once for each state of an artifact's files: reading one starts a process."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from engines.artifacts.sample_gguf import write_gguf
from engines.ninfer.profile import PROFILE as NINFER
from engines.ninfer.sample import write_artifact
from engines.spec import ArtifactHeader, CannotRead, Profile
from swap.headers import header_of, parts_of
from swap.ports import Fault

OLD = 1_000_000_000  # a time long before the test


class Reader:
    """Counts how often a file is really read."""

    def __init__(self) -> None:
        assert NINFER.read_artifact is not None
        self.count, self._read = 0, NINFER.read_artifact

    def __call__(self, path: Path) -> ArtifactHeader:
        self.count += 1
        return self._read(path)


@pytest.fixture
def reader() -> Reader:
    return Reader()


@pytest.fixture
def profile(reader: Reader) -> Profile:
    return replace(NINFER, read_artifact=reader)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A split artifact, written long ago."""
    monkeypatch.setattr("swap.headers.STAMP_GRAIN_NS", -1)
    write_artifact(tmp_path / "a.ninfer", 3, parts=1)
    return tmp_path / "a.ninfer"


def test_a_file_that_stays_as_it_is_is_read_once(profile: Profile, reader: Reader, path: Path) -> None:
    first = header_of(profile, path)
    assert first is not None
    assert parts_of(path, first) == (path.with_name("a.ninfer.part-0001"),)
    assert header_of(profile, path) is first
    assert reader.count == 1


@pytest.mark.parametrize("name", ["a.ninfer", "a.ninfer.part-0001"])
def test_a_file_or_part_that_changed_is_read_again(profile: Profile, reader: Reader, path: Path, name: str) -> None:
    header_of(profile, path)
    os.utime(path.with_name(name), ns=(OLD, OLD))
    header_of(profile, path)
    assert reader.count == 2


def test_a_part_that_went_away_shows(profile: Profile, reader: Reader, path: Path) -> None:
    header_of(profile, path)
    path.with_name("a.ninfer.part-0001").unlink()
    header = header_of(profile, path)
    assert header is not None
    assert "does not exist" in header.fault


def test_a_file_that_isnt_whole_is_read_each_time(profile: Profile, reader: Reader, path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)
    for _ in range(2):
        header_of(profile, path)
    assert reader.count == 2


def test_a_file_that_was_written_just_now_is_read_again(
    profile: Profile, reader: Reader, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two writes within one tick of the clock leave the same times."""
    monkeypatch.setattr("swap.headers.STAMP_GRAIN_NS", 10**18)
    for _ in range(2):
        header_of(profile, path)
    assert reader.count == 2


def test_a_part_that_was_replaced_while_it_was_read_is_read_again(profile: Profile, reader: Reader, path: Path) -> None:
    def replaced(path: Path) -> ArtifactHeader:
        header = reader(path)
        part = path.with_name("a.ninfer.part-0001")
        part.write_bytes(part.read_bytes()[:-1])
        return header

    header_of(replace(profile, read_artifact=replaced), path)
    header = header_of(profile, path)
    assert header is not None
    assert "part-0001 isn't whole" in header.fault


def test_each_engine_reads_its_own_way(profile: Profile, path: Path) -> None:
    write_gguf(path)
    with pytest.raises(Fault, match=r"not a \.ninfer file"):
        header_of(profile, path)
    assert header_of(replace(NINFER, name="openai", read_artifact=None), path) is None


def test_what_cant_be_read_names_the_path(profile: Profile, path: Path) -> None:
    path.unlink()
    with pytest.raises(Fault, match=f"{path} does not exist"):
        header_of(profile, path)


def test_what_cant_be_read_just_now_may_be_mended_by_time(profile: Profile, path: Path) -> None:
    def hangs(path: Path) -> ArtifactHeader:
        raise CannotRead(f"{path}: it can't be read: nothing came in 20 s")

    with pytest.raises(Fault, match="nothing came in 20 s; look after its disk") as fault:
        header_of(replace(profile, read_artifact=hangs), path)
    assert fault.value.passing
