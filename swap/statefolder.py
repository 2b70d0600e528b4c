"""The state folder: is it still the one that this daemon has locked, and can it be written?

What serves goes on without it, and so does a restart of what was serving. A swap doesn't: what couldn't be written
down would be lost in a crash. So a swap's check tries it by a real write, and whoever runs beside looks now and then:
people hear of it before they swap, and when it is over.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import structlog

from swap.decisions import Decisions, Kind
from swap.durable import replace_file
from swap.ports import Fault
from swap.threads import STATE

ROOM = 64 * 1024  # bytes that a swap may write: journal, a creation, a line of the ledger; its head comes on top
LIMIT = 5.0  # seconds that the disk may take
LOOK_EVERY = 30.0  # seconds between looks while nothing is wrong
TRY_EVERY = 5.0  # seconds between tries to write while something is
PROBE = "probe"
_DIGITS = re.compile(r"\d+")

Stamp = tuple[int, int]  # device and inode


class StateFolder:
    """`trouble` is what is wrong with it, as found last; empty: nothing.

    When that is over, `reopen` is called in the thread that found it out, then `came_back` on the event loop.
    """

    def __init__(self, path: Path, decisions: Decisions, came_back: Callable[[], None] = lambda: None) -> None:
        """Touches the disk. The folder must be ours: from now on it is the one that is there now."""
        self.path, self.trouble, self.came_back = path, "", came_back
        self.reopen: Callable[[], object] = lambda: None
        self.decisions = decisions
        self._folder, self._lock = _stamp(path), _stamp(path / "daemon.lock")
        self._turn = asyncio.Lock()

    async def expect_writable(self) -> None:
        """Raises Fault, with what is wrong, unless what a swap may write can be written now."""
        await self._find_out(write=True)

    async def watch(self) -> None:
        """Until cancelled. Nothing is written while nothing is wrong."""
        while True:
            try:
                await self._find_out(write=False)
            except Fault:  # it is told already
                await asyncio.sleep(TRY_EVERY)
                continue
            except Exception:  # a bug of ours costs this look, not the daemon
                structlog.get_logger("slotproxy.swap").exception("looking at the state folder broke")
            await asyncio.sleep(LOOK_EVERY)

    async def _find_out(self, *, write: bool) -> None:
        """What is wrong is over when a write succeeds, however it was found."""
        async with self._turn:  # whoever holds it has a bound
            work = self._write if write or self.trouble else self._look
            try:
                await STATE.run(work, f"the disk of the state folder {self.path}", LIMIT)
            except Fault as fault:
                self._tell(str(fault))
                raise
            self._tell("")

    def _tell(self, trouble: str) -> None:
        """Each thing once: what hangs says another number of seconds each time."""
        before, self.trouble = self.trouble, trouble
        if trouble and _DIGITS.sub("", trouble) != _DIGITS.sub("", before):
            self.decisions.add(Kind.DISK, "swaps are refused, what serves goes on", why=trouble)
        elif before and not trouble:
            self.decisions.add(Kind.DISK, f"the state folder {self.path} can be written again")
            self.came_back()

    # ------------------------------------------------------------------------------------------ in a thread

    def _look(self) -> None:
        """What can be seen without a write. Raises Fault."""
        self._expect_ours()
        try:
            disk = os.statvfs(self.path)
        except OSError as error:
            raise self._unwritable(error.strerror) from error
        if disk.f_flag & os.ST_RDONLY:
            raise self._unwritable("Read-only file system")
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise self._unwritable("Permission denied")
        if disk.f_bfree * disk.f_frsize < ROOM:
            raise self._unwritable("No space left on device")

    def _write(self) -> None:
        """As much as a swap may write, replaced and synced as it does. Raises Fault."""
        self._expect_ours()
        probe = self.path / PROBE
        try:
            replace_file(probe, bytes(ROOM + self._head()))
            probe.unlink()
            if self.trouble:
                self.reopen()
        except OSError as error:
            raise self._unwritable(error.strerror) from error

    def _head(self) -> int:
        try:
            return (self.path / "ledger.head").stat().st_size
        except OSError:
            return 0

    def guard(self) -> None:
        """For whoever writes there, in a thread. Raises OSError where what is there isn't ours."""
        try:
            self._expect_ours()
        except Fault as fault:
            raise OSError(errno.ESTALE, fault.what) from fault

    def _expect_ours(self) -> None:
        """Else another daemon may have what is there now, and what was recorded isn't in it."""
        now, back = _stamp(self.path), "put it back as it was, or restart slotproxy"
        if now is None:
            raise Fault(f"the state folder {self.path} is gone", f"{back} with a new one: then nothing is verified")
        if now != self._folder:
            raise Fault(f"another folder is at {self.path} than the state folder that slotproxy has locked", back)
        if _stamp(self.path / "daemon.lock") != self._lock:
            raise Fault(f"{self.path}/daemon.lock isn't the one that slotproxy has locked", "restart slotproxy")

    def _unwritable(self, why: str | None) -> Fault:
        what = f"the state folder {self.path} can't be written: {why or 'an error of its disk'}"
        return Fault(what, "make room or make it writable: nothing is changed without a journal", passing=True)


def _stamp(path: Path) -> Stamp | None:
    """None where nothing is there, as far as we may see."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
