"""What runs without a container, on disk: the record stands in for the container that isn't there.

One folder per engine: `current.json`, `previous.json` (what the last stage replaced), `ID.log` and `ID.log.1` (the
output of this run and of the one before), `hashes.json`. Its owner's alone: environments hold secrets.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from swap.durable import Guard, anywhere, read_file, replace_file
from swap.ports import Change, Recipe, RuntimeEvent, Unreachable
from swap.proc import Mark

LOG_TAIL = 64 * 1024  # bytes


@dataclass(frozen=True, slots=True)
class Run:
    """One start of it. `leader` is the process that was started, the leader of a session of its own."""

    leader: Mark
    started_at: str  # UTC, ISO 8601


@dataclass(frozen=True, slots=True)
class Record:
    """One staged engine and its last run.

    `ended`: the leader has died. `gone`: nobody of its session lives any more. `exit_code`: the leader's, 128 + signal;
    None also where somebody else was its parent. `told`: its run was told to stop.
    """

    recipe: Recipe
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    run: Run | None = None
    ended: bool = False
    gone: bool = False
    exit_code: int | None = None
    told: bool = False

    @property
    def running(self) -> bool:
        return self.run is not None and not self.gone


def changes(before: Record | None, now: Record | None) -> tuple[RuntimeEvent, ...]:
    """What happened between two looks. Nobody but us starts a run, so one that was over when first seen is no news."""
    died: tuple[RuntimeEvent, ...] = ()
    same = before is not None and now is not None and before.run == now.run
    if before is not None and before.run is not None and not before.ended:
        if now is None or not same:
            died = (RuntimeEvent(Change.DIED, before.id),)
        elif now.ended:
            died = (RuntimeEvent(Change.DIED, now.id, now.exit_code),)
    if now is None or now.run is None or now.ended or same:
        return died
    return (*died, RuntimeEvent(Change.STARTED, now.id))


class Records:
    """The folder. Synchronous; what it writes is durable when it returns. OSErrors pass through."""

    def __init__(self, folder: Path, guard: Guard = anywhere) -> None:
        self.folder, self._guard = folder, guard
        self._current, self._previous = folder / "current.json", folder / "previous.json"

    def current(self) -> Record | None:
        """What is staged now. Raises Unreachable when the file is damaged."""
        return _read(self._current)

    def previous(self) -> Record | None:
        """What the last stage replaced."""
        return _read(self._previous)

    def write(self, record: Record) -> None:
        self._make_folder()
        replace_file(self._current, msgspec.json.encode(record))

    def replace(self, old: Record | None, new: Record) -> None:
        """Make `new` the current one; `old` is kept first, so that a crash in between loses neither."""
        self._make_folder()
        if old is None:
            self._previous.unlink(missing_ok=True)
        else:
            replace_file(self._previous, msgspec.json.encode(old))
        self.write(new)
        self._forget_logs({record.id for record in (old, new) if record is not None})

    def _make_folder(self) -> None:
        """But never the state folder: where that is gone, more is gone."""
        self._guard()
        for folder in (self.folder.parent, self.folder):
            folder.mkdir(exist_ok=True, mode=0o700)

    def begin_log(self, id: str) -> Path:
        """An empty log for a new run; the run before keeps its own until the next."""
        log = self.folder / f"{id}.log"
        if log.exists():
            log.replace(log.with_name(f"{log.name}.1"))
        return log

    def log_tail(self, id: str) -> str:
        """The last 64 KiB of the last run's output."""
        try:
            with (self.folder / f"{id}.log").open("rb") as log:
                log.seek(max(0, log.seek(0, 2) - LOG_TAIL))
                return log.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def _forget_logs(self, keep: set[str]) -> None:
        for log in self.folder.glob("*.log*"):
            if log.name.split(".")[0] not in keep:
                log.unlink(missing_ok=True)


def _read(path: Path) -> Record | None:
    try:
        return msgspec.json.decode(read_file(path), type=Record)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unreachable(f"{path} can't be read: {error.strerror}", "make it readable to this user") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        mend = "see with `ps` that its engine doesn't run, then move the file away; the next swap stages it anew"
        raise Unreachable(f"{path} is damaged: {error}", mend) from error
