"""The sha256 of large files: off the event loop, once for each state of a file, and never of one that changes.

A state of a file is its `Identity`: device, inode, size, mtime and ctime, and that of each symlink on the way to it: a
link that was moved and moved back has led elsewhere meanwhile. What was hashed is remembered by the first in a small
file on disk, so that 24 GB are read once and not before every swap. A damaged memory costs time, nothing else.

While clients wait for a card that is being moved, only what is on the way to it is read: a swap's check, the look at
start. A reading for a side question (a plan, the pairs) pauses meanwhile, unless somebody on that way wants the same
file. There is one of those at a time, so that they hold one thread at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import stat
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from swap.durable import Guard, anywhere, read_file, replace_file
from swap.ports import Fault, FileDigest
from swap.reading import Reading
from swap.threads import MODELS, STATE, Call

CHUNK = 1024 * 1024
TICK = 0.2  # seconds between two reports of progress
MOST_LINKS = 40  # as Linux itself
STALL_LIMIT = 60.0  # seconds without a byte after which the disk is given up
MEMORY_LIMIT = 10.0  # seconds to read or write what is remembered
STAMP_GRAIN_NS = 50_000_000  # two writes within one clock tick of the kernel may leave the same times


class Identity(NamedTuple):
    """One state of one file: while none of these five has changed, its content hasn't."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


def identity(path: Path) -> Identity:
    """The file's state now, symlinks followed. Raises Fault naming the path: missing, unreadable, not a file."""
    try:
        found = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from error
    return _identity_of(path, found)


def links(path: Path) -> tuple[Path, ...]:
    """Every symlink on the way to the file, also those that others lead to; as many as the kernel would follow."""
    found: list[Path] = []
    here, left = Path("/"), [*reversed(path.absolute().parts[1:])]
    while left and len(found) < MOST_LINKS:
        step = here / left.pop()
        try:
            target = step.readlink()
        except OSError:  # none, or nothing at all: whoever reads the file says so
            here = step.parent.parent if step.name == ".." else step
            continue
        found.append(step)
        here = Path("/") if target.is_absolute() else here
        left += reversed(target.parts[target.is_absolute() :])
    return tuple(found)


def _seen(path: Path, state: Identity) -> str:
    """All that tells whether the same file has been there all the time."""
    return repr([tuple(state), *(_identity(link.lstat()) for link in links(path))])


def _identity(found: os.stat_result) -> Identity:
    return Identity(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _identity_of(path: Path, found: os.stat_result) -> Identity:
    if stat.S_ISDIR(found.st_mode):
        raise Fault(f"{path} is a directory, not a file", "name the file in it that the engine reads")
    if not stat.S_ISREG(found.st_mode):
        raise Fault(f"{path} is not a regular file", "name a regular file")
    return _identity(found)


def _unreadable(path: Path, error: OSError) -> Fault:
    if isinstance(error, FileNotFoundError):
        # Its disk may be mounted late.
        return Fault(f"{path} does not exist", "correct the path, or put the file there", passing=True)
    return Fault(f"{path} can't be read: {error.strerror}", "make it readable to this user")


def _changing(path: Path) -> Fault:
    return Fault(f"{path} changed while it was read", "wait until it is written whole", passing=True)


def _rotten(path: Path) -> str:
    return (
        f"{path}'s bytes changed though its times didn't: its disk, or somebody behind the file system's back, has "
        "changed it; compare it with where it came from"
    )


def _stalled(path: Path) -> Fault:
    return Fault(f"{path} stalls: nothing came in {STALL_LIMIT:g} s", "look after its disk", passing=True)


async def _state(path: Path) -> tuple[Identity, str]:
    """What it is now, and all that was seen on the way there."""
    return await MODELS.run(partial(_look_at, path), _disk(path), STALL_LIMIT)


def _disk(path: Path) -> str:
    return f"the disk of {path}"


def _look_at(path: Path) -> tuple[Identity, str]:
    state = identity(path)
    try:
        return state, _seen(path, state)
    except OSError as error:  # a link that is moved just now
        raise _changing(path) from error


class _Remembered(msgspec.Struct, frozen=True):
    """What was read of one inode. `read_at_ns`: the wall clock when the reading began."""

    identity: Identity
    sha256: str
    read_at_ns: int

    @property
    def sure(self) -> bool:
        """False for a file written just before it was read: a later write could have left the same times."""
        stamped = max(self.identity.mtime_ns, self.identity.ctime_ns)
        return abs(self.read_at_ns - stamped) > STAMP_GRAIN_NS


@dataclass
class _Reading:
    """A file being read in a thread: `done` bytes so far; `stop` asks the thread to end, `go` unset to pause."""

    done: int = 0
    stop: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.go.set()

    def end(self) -> None:
        self.stop.set()
        self.go.set()


class Hasher:
    """Digests of files. One for the whole daemon: callers who want the same file share one reading.

    `bytes_read` is how much was read since the start. `pause`: do clients wait for a card that is being moved?
    """

    def __init__(self, cache_path: Path, pause: Callable[[], bool] = lambda: False, guard: Guard = anywhere) -> None:
        self._cache_path, self.guard = cache_path, guard
        self._known: dict[str, _Remembered] | None = None  # by device and inode; None: not loaded yet
        self._turns: dict[str, asyncio.Lock] = {}  # by device and inode: whoever comes second finds it remembered
        self._now: dict[str, _Reading] = {}  # by device and inode
        self._wanted: Counter[str] = Counter()  # by device and inode: how many ask who aren't put aside
        self._aside = asyncio.Lock()
        self._saving = asyncio.Lock()
        self.pause = pause
        self.bytes_read = 0

    async def digest(self, path: Path, how: Reading | None = None) -> FileDigest:
        """The file's size and sha256. Raises Fault naming the path: missing, not a file, changing, stalled."""
        how = how or Reading()
        state, seen = await _state(path)
        remembered = None if how.anew else await self._recall(state)
        if remembered is None or not remembered.sure:
            async with self._in_turn(path, state, how):
                remembered = await self._read_or_recall(path, state, how)
        return FileDigest(str(path), state.size, remembered.sha256, seen)

    @contextlib.asynccontextmanager
    async def _in_turn(self, path: Path, state: Identity, how: Reading) -> AsyncIterator[None]:
        """Nobody else reads this file, and nobody else is aside."""
        place = _place(state)
        self._wanted[place] += not how.aside
        try:
            async with self._aside if how.aside else contextlib.nullcontext():
                turn = self._turns.setdefault(place, asyncio.Lock())
                while not await _acquired(turn):
                    how.progress(path, self._now[place].done if place in self._now else 0, state.size)
                try:
                    yield
                finally:
                    turn.release()
        finally:
            self._wanted[place] -= not how.aside

    async def _read_or_recall(self, path: Path, state: Identity, how: Reading) -> _Remembered:
        remembered = await self._recall(state)
        sure = remembered is not None and remembered.sure
        if remembered is not None and sure and not how.anew:
            return remembered
        found = await self._read(path, state, how)
        if remembered is not None and sure and remembered.sha256 != found.sha256:
            how.alarm(_rotten(path))
        return found

    async def unchanged(self, digest: FileDigest) -> bool:
        """Whether the file is still in the very state that was hashed to this digest. Reads no content.

        The same bytes in another file, or by another link, aren't: nobody knows what was read in between.
        """
        try:
            now, seen = await _state(Path(digest.path))
        except Fault:
            return False
        remembered = await self._recall(now)
        return seen == digest.seen and remembered is not None and remembered.sha256 == digest.sha256

    # ------------------------------------------------------------------------------------------ the memory

    async def _recall(self, state: Identity) -> _Remembered | None:
        remembered = (await self._memory()).get(_place(state))
        return remembered if remembered is not None and remembered.identity == state else None

    async def _remember(self, remembered: _Remembered) -> None:
        known = await self._memory()
        known[_place(remembered.identity)] = remembered
        async with self._saving:
            with contextlib.suppress(Fault):  # then it is hashed again next time
                await STATE.run(partial(self._save, dict(known)), _disk(self._cache_path), MEMORY_LIMIT)

    def _save(self, known: dict[str, _Remembered]) -> None:
        """In a thread."""
        with contextlib.suppress(OSError):  # the digest is right all the same; it will be hashed again next time
            self.guard()
            replace_file(self._cache_path, msgspec.json.encode(known) + b"\n")

    async def _memory(self) -> dict[str, _Remembered]:
        async with self._saving:
            if self._known is None:
                try:
                    self._known = await STATE.run(
                        partial(_load, self._cache_path), _disk(self._cache_path), MEMORY_LIMIT
                    )
                except Fault:
                    return {}  # asked again next time
            return self._known

    # ------------------------------------------------------------------------------------------ reading

    async def _read(self, path: Path, before: Identity, how: Reading) -> _Remembered:
        started, place = time.time_ns(), _place(before)
        reading = self._now[place] = _Reading()
        self._steer(place, reading, how)
        try:
            call = MODELS.begin(partial(_sha256, path, before, reading), _disk(path))
            await self._watch(call, path, before, reading, how)
            remembered = _Remembered(before, call.answer.result(), started)
        finally:
            reading.end()
            del self._now[place]
            self.bytes_read += reading.done
        await self._remember(remembered)
        return remembered

    async def _watch(self, call: Call[str], path: Path, before: Identity, reading: _Reading, how: Reading) -> None:
        """Wait for the thread, as long as bytes come, or it has been told to pause."""
        loop = asyncio.get_running_loop()
        last, last_at, work = 0, loop.time(), call.answer
        while not work.done():
            await asyncio.wait([work], timeout=TICK)
            if self._steer(_place(before), reading, how) or reading.done != last:
                last, last_at = reading.done, loop.time()
            elif not work.done() and loop.time() - last_at > STALL_LIMIT:
                call.give_up()
                raise _stalled(path)
            how.progress(path, reading.done, before.size)

    def _steer(self, place: str, reading: _Reading, how: Reading) -> bool:
        """Let the thread go on, or not just now; whether it pauses."""
        if how.aside and not self._wanted[place] and self.pause():
            reading.go.clear()
            how.waits()
            return True
        reading.go.set()
        return False


async def _acquired(turn: asyncio.Lock) -> bool:
    """False after a moment: time for a word."""
    try:
        async with asyncio.timeout(TICK):
            return await turn.acquire()
    except TimeoutError:
        return False


def _place(state: Identity) -> str:
    return f"{state.device}:{state.inode}"


def _sha256(path: Path, before: Identity, reading: _Reading) -> str:
    """In a thread. O_NONBLOCK: a fifo put there a moment ago must not block us."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb", buffering=0) as file:
            if _identity_of(path, os.fstat(fd)) != before:
                raise _changing(path)
            digest, buffer = hashlib.sha256(), memoryview(bytearray(CHUNK))
            while not reading.stop.is_set() and (size := file.readinto(buffer)):
                digest.update(buffer[:size])
                reading.done += size
                reading.go.wait()
            if identity(path) != before:
                raise _changing(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    return digest.hexdigest()


def _load(path: Path) -> dict[str, _Remembered]:
    try:
        return msgspec.json.decode(read_file(path), type=dict[str, _Remembered])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}  # then everything is hashed again
