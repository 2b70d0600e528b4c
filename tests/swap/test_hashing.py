"""Hashing: the right digest of the right bytes, once, and nothing that isn't a file at rest."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from engines.spec import GiB
from swap import hashing, reading
from swap.hashing import Hasher, identity
from swap.ports import Fault, FileDigest
from swap.reading import Reading
from tests.swap.world import until

LIMIT = 30.0  # seconds that anything here may take on a busy machine
CONTENT = bytes(range(256)) * 20_000  # five chunks


def at_rest(path: Path, content: bytes = CONTENT) -> Path:
    """A file that was written some ticks ago, so that its times can be trusted."""
    path.write_bytes(content)
    time.sleep(0.1)
    return path


def forge(cache: Path, honest: str, other: str) -> None:
    """It remembers another digest."""
    cache.write_text(cache.read_text().replace(honest, other))


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    return tmp_path / "state" / "hashes.json"


@pytest.fixture
def hasher(cache: Path) -> Hasher:
    return Hasher(cache)


async def test_a_digest_is_the_files_sha256_and_size(hasher: Hasher, tmp_path: Path) -> None:
    path = at_rest(tmp_path / "a")
    wanted = FileDigest(str(path), len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    assert await hasher.digest(path) == wanted
    empty = at_rest(tmp_path / "empty", b"")
    assert (await hasher.digest(empty)).sha256 == hashlib.sha256().hexdigest()


async def test_a_file_is_read_once_also_over_a_restart(hasher: Hasher, cache: Path, tmp_path: Path) -> None:
    path = at_rest(tmp_path / "a")
    first = await hasher.digest(path)
    assert await hasher.digest(path) == first
    assert hasher.bytes_read == len(CONTENT)
    reborn = Hasher(cache)
    assert await reborn.digest(path) == first
    assert reborn.bytes_read == 0
    assert mode(cache) == 0o600


async def test_two_who_ask_at_once_share_one_reading(hasher: Hasher, tmp_path: Path) -> None:
    path = at_rest(tmp_path / "a")
    link = tmp_path / "link"
    link.symlink_to(path)
    digests = await asyncio.gather(hasher.digest(path), hasher.digest(path), hasher.digest(link))
    assert len({digest.sha256 for digest in digests}) == 1
    assert hasher.bytes_read == len(CONTENT)


async def test_many_files_at_once_are_all_remembered(hasher: Hasher, cache: Path, tmp_path: Path) -> None:
    paths = [tmp_path / str(n) for n in range(8)]
    for n, path in enumerate(paths):
        path.write_bytes(bytes([n]))
    await asyncio.sleep(0.1)
    await asyncio.gather(*(hasher.digest(path) for path in paths))
    reborn = Hasher(cache)
    for n, path in enumerate(paths):
        assert (await reborn.digest(path)).sha256 == hashlib.sha256(bytes([n])).hexdigest()
    assert reborn.bytes_read == 0


async def test_other_bytes_of_the_same_size_and_mtime_are_seen(hasher: Hasher, tmp_path: Path) -> None:
    path = at_rest(tmp_path / "a")
    first = await hasher.digest(path)
    times = path.stat()
    at_rest(path, CONTENT[::-1])
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # the ctime can't be set back
    assert (await hasher.digest(path)).sha256 == hashlib.sha256(CONTENT[::-1]).hexdigest() != first.sha256


async def test_a_file_written_a_moment_ago_is_read_again(
    hasher: Hasher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two writes within a tick of the kernel's clock leave the same times: they prove nothing yet."""
    path = at_rest(tmp_path / "a")
    monkeypatch.setattr(hashing, "STAMP_GRAIN_NS", 3_600_000_000_000)  # a tick of an hour
    await hasher.digest(path)
    await hasher.digest(path)
    assert hasher.bytes_read == 2 * len(CONTENT)


async def test_a_symlink_that_moves_is_followed(hasher: Hasher, tmp_path: Path) -> None:
    old, new, link = at_rest(tmp_path / "old"), at_rest(tmp_path / "new", b"new"), tmp_path / "link"
    link.symlink_to(old)
    first = await hasher.digest(link)
    link.unlink()
    link.symlink_to(new)
    assert (await hasher.digest(link)).sha256 == hashlib.sha256(b"new").hexdigest() != first.sha256


async def test_unchanged_tells_without_reading(hasher: Hasher, tmp_path: Path) -> None:
    path = at_rest(tmp_path / "a")
    digest = await hasher.digest(path)
    assert await hasher.unchanged(digest)
    path.touch()
    assert not await hasher.unchanged(digest)
    path.unlink()
    assert not await hasher.unchanged(digest)
    assert hasher.bytes_read == len(CONTENT)


@pytest.mark.parametrize("change", ["append", "replace", "truncate"])
async def test_a_file_that_changes_while_it_is_read_is_a_fault(
    hasher: Hasher, tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = at_rest(tmp_path / "a")
    sha256 = hashlib.sha256

    def change_it() -> hashlib._Hash:
        if change == "append":
            with path.open("ab") as file:
                file.write(b"x")
        elif change == "truncate":
            os.truncate(path, 10)
        else:
            at_rest(tmp_path / "b").replace(path)
        return sha256()

    monkeypatch.setattr(hashlib, "sha256", change_it)
    with pytest.raises(Fault, match=r"a changed while it was read"):
        await hasher.digest(path)
    monkeypatch.undo()
    assert (await hasher.digest(path)).size == path.stat().st_size


async def test_what_isnt_a_file_is_refused_by_name_and_never_hangs(hasher: Hasher, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    cases = {
        tmp_path / "fifo": "is not a regular file",
        Path("/dev/zero"): "is not a regular file",
        tmp_path: "is a directory",
        tmp_path / "missing": "does not exist",
        tmp_path / "dangling": "does not exist",
        tmp_path / "loop": "can't be read",
    }
    for path, words in cases.items():
        async with asyncio.timeout(LIMIT):
            with pytest.raises(Fault) as caught:
                await hasher.digest(path)
        assert words in caught.value.what
        assert str(path) in caught.value.what
        assert caught.value.mend


async def test_a_fifo_put_in_the_files_place_never_hangs(tmp_path: Path) -> None:
    path = at_rest(tmp_path / "a")
    before = await asyncio.to_thread(identity, path)
    path.unlink()
    os.mkfifo(path)
    async with asyncio.timeout(LIMIT):
        with pytest.raises(Fault, match="not a regular file"):
            await asyncio.to_thread(hashing._sha256, path, before, hashing._Reading())


async def test_the_loop_runs_on_and_progress_is_told(
    hasher: Hasher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = at_rest(tmp_path / "a")
    monkeypatch.setattr(hashing, "CHUNK", 4096)
    monkeypatch.setattr(hashing, "TICK", 0.001)
    monkeypatch.setattr(reading, "FIRST", 0.0)
    monkeypatch.setattr(reading, "EVERY", 0.0)
    monkeypatch.setattr(reading, "GiB", 1000 * 1000)
    seen: list[str] = []
    await hasher.digest(path, Reading(seen.append))
    assert seen == sorted(seen)
    assert seen[-1] == f"hashing {path}: 5.1 of 5.1 GiB"


async def test_words_of_progress_are_few_and_a_short_reading_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("swap.reading.time.monotonic", lambda: clock[0])
    said: list[str] = []
    how = Reading(said.append)
    for tenth in range(100):
        clock[0] = tenth / 10
        how.progress(Path("/srv/a"), tenth * GiB // 10, 10 * GiB)
    assert said == [f"hashing /srv/a: {second}.0 of 10.0 GiB" for second in (1, 3, 5, 7, 9)]


# ------------------------------------------------------------------------------------------------- read again


async def test_what_is_remembered_is_read_again_when_that_is_wanted(hasher: Hasher, tmp_path: Path) -> None:
    path = at_rest(tmp_path / "a")
    first = await hasher.digest(path)
    how = Reading(anew=True)
    assert await hasher.digest(path, how) == first
    assert hasher.bytes_read == 2 * len(CONTENT)
    assert how.alarms == []


async def test_bytes_that_changed_though_their_times_didnt_raise_an_alarm_and_count(
    cache: Path, tmp_path: Path
) -> None:
    """As on a disk that rots: the memory is wrong in place of the disk."""
    path = at_rest(tmp_path / "a")
    await Hasher(cache).digest(path)
    honest = hashlib.sha256(CONTENT).hexdigest()
    forge(cache, honest, "00" * 32)
    hasher = Hasher(cache)
    believed = await hasher.digest(path)
    assert believed.sha256 == "00" * 32
    said: list[str] = []
    how = Reading(said.append, anew=True)
    with capture_logs() as logs:
        assert (await hasher.digest(path, how)).sha256 == honest
    (alarm,) = how.alarms
    assert alarm.startswith(f"{path}'s bytes changed though its times didn't")
    assert said[-1] == alarm
    assert [log["log_level"] for log in logs] == ["error"]
    assert not await hasher.unchanged(believed)
    assert (await hasher.digest(path)).sha256 == honest


# ------------------------------------------------------------------------------------------------- who goes first


async def test_while_clients_wait_a_side_question_pauses_and_what_is_on_the_way_goes_on(
    hasher: Hasher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "CHUNK", 4096)
    monkeypatch.setattr(hashing, "TICK", 0.01)
    aside, needed = at_rest(tmp_path / "aside"), at_rest(tmp_path / "needed")
    waiting = [True]
    hasher.pause = lambda: waiting[0]
    said: list[str] = []
    async with asyncio.TaskGroup() as tasks:
        question = tasks.create_task(hasher.digest(aside, Reading(said.append, aside=True)))
        await until(lambda: "waiting: clients wait for the card" in said)
        assert (await hasher.digest(needed)).size == len(CONTENT)
        await asyncio.sleep(0.1)
        assert not question.done()
        assert hasher._now[next(iter(hasher._now))].done < len(CONTENT)
        waiting[0] = False
    assert question.result().sha256 == hashlib.sha256(CONTENT).hexdigest()


async def test_a_pause_ends_where_the_same_file_is_needed_on_the_way(
    hasher: Hasher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "CHUNK", 4096)
    monkeypatch.setattr(hashing, "TICK", 0.01)
    path, other = at_rest(tmp_path / "a"), at_rest(tmp_path / "b")
    hasher.pause = lambda: True
    said: list[str] = []
    async with asyncio.timeout(LIMIT), asyncio.TaskGroup() as tasks:
        question = tasks.create_task(hasher.digest(path, Reading(said.append, aside=True)))
        await until(lambda: said)
        behind = tasks.create_task(hasher.digest(other, Reading(aside=True)))
        await asyncio.sleep(0.05)
        assert (await hasher.digest(other)).size == len(CONTENT)  # who waits behind holds nothing
        assert await hasher.digest(path) == await question
        assert (await behind).path == str(other)  # it is remembered now
    assert hasher.bytes_read == 2 * len(CONTENT)


async def test_who_gives_up_while_it_pauses_leaves_no_thread_behind(
    hasher: Hasher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "CHUNK", 4096)
    path = at_rest(tmp_path / "a")
    hasher.pause = lambda: True
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await hasher.digest(path, Reading(aside=True))
    async with asyncio.timeout(LIMIT):
        assert (await hasher.digest(path)).size == len(CONTENT)
        await asyncio.get_running_loop().shutdown_default_executor()


async def test_who_waits_for_anothers_reading_hears_how_far_it_is(
    hasher: Hasher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "TICK", 0.01)
    monkeypatch.setattr(reading, "FIRST", 0.0)
    monkeypatch.setattr(reading, "EVERY", 0.0)
    path = at_rest(tmp_path / "a")
    let_go = threading.Event()
    real = hashing._sha256

    def slow(path: Path, before: hashing.Identity, reading: hashing._Reading) -> str:
        let_go.wait(LIMIT)
        return real(path, before, reading)

    monkeypatch.setattr(hashing, "_sha256", slow)
    said: list[str] = []
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(hasher.digest(path))
        await asyncio.sleep(0.05)
        tasks.create_task(hasher.digest(path, Reading(said.append)))
        await until(lambda: said)
        let_go.set()
    assert said[0].startswith(f"hashing {path}: ")
    assert hasher.bytes_read == len(CONTENT)


async def test_a_disk_that_stalls_is_a_fault_and_the_next_file_is_still_hashed(
    hasher: Hasher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, fine = at_rest(tmp_path / "stuck"), at_rest(tmp_path / "fine")
    real = hashing._sha256

    def stalls(path: Path, before: hashing.Identity, reading: hashing._Reading) -> str:
        if path == stuck:
            reading.stop.wait(LIMIT)
            raise OSError(5, "Input/output error")
        return real(path, before, reading)

    monkeypatch.setattr(hashing, "_sha256", stalls)
    monkeypatch.setattr(hashing, "STALL_LIMIT", 0.3)
    monkeypatch.setattr(hashing, "TICK", 0.05)
    with pytest.raises(Fault, match="stuck stalls"):
        await hasher.digest(stuck)
    monkeypatch.setattr(hashing, "STALL_LIMIT", LIMIT)
    assert (await hasher.digest(fine)).size == len(CONTENT)


async def test_who_gives_up_ends_the_reading_and_the_next_one_reads_it_whole(
    hasher: Hasher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = at_rest(tmp_path / "a")
    readings: list[hashing._Reading] = []
    real = hashing._sha256

    def waits_first(path: Path, before: hashing.Identity, reading: hashing._Reading) -> str:
        readings.append(reading)
        if len(readings) == 1:
            reading.stop.wait(LIMIT)
        return real(path, before, reading)

    monkeypatch.setattr(hashing, "_sha256", waits_first)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await hasher.digest(path)
    assert readings[0].stop.is_set()
    assert (await hasher.digest(path)).sha256 == hashlib.sha256(CONTENT).hexdigest()


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b'{"1:2": {"sha256": 3}}', b"\xff"])
async def test_a_damaged_memory_costs_time_and_nothing_else(cache: Path, tmp_path: Path, damage: bytes) -> None:
    path = at_rest(tmp_path / "a")
    at_rest(cache, damage)
    hasher = Hasher(cache)
    assert (await hasher.digest(path)).sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert hasher.bytes_read == len(CONTENT)


async def test_where_nothing_can_be_remembered_digests_are_still_right(tmp_path: Path) -> None:
    path = at_rest(tmp_path / "a")
    assert (await Hasher(path / "hashes.json").digest(path)).sha256 == hashlib.sha256(CONTENT).hexdigest()
