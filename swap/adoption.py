"""What is asked of the files of an engine that somebody else has started: are they still what it has read?"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from engines.spec import Engine, Pair
from swap.artifacts import look_at
from swap.findings import off_loop
from swap.hashing import links
from swap.ports import Fault, Recipe, Subject

if TYPE_CHECKING:
    from swap.checks import Checker
    from swap.known import Known
    from swap.moves import Unit
    from swap.warming import Warmed

SECOND = 1_000_000_000  # nanoseconds
LAST_LOOK = 10.0  # seconds for a last look at the files that evidence is about, while the gate is open
MARGIN = 1.0  # seconds by which files must be older than the start


async def expect_read(label: str, subject: Subject, started_at: str) -> None:
    """Raises Fault where a file isn't what the engine has read when it was started at that time."""
    mend = f"swap to another engine, then `slotctl swap to-{label} --trial` starts it with the files as they are"
    try:
        paths = [Path(file.path) for file in subject.files]
        changed = await off_loop(lambda: written_since(paths, started_at), label)
    except (OSError, ValueError) as error:
        raise Fault(f"nobody can tell whether {label} runs with these files: {error}", mend) from error
    if changed:
        when = f"after {label} was started at {started_at}, or less than {MARGIN:g} s before"
        raise Fault(f"{', '.join(changed)} changed {when}: nobody knows that this is what it has read", mend)


async def expect_its_files(checker: Checker, unit: Unit, known: Known, warmed: Warmed | None, subject: Subject) -> None:
    """Raises Fault unless its files are the ones that it has read, or where their disk takes its time."""
    try:
        async with asyncio.timeout(LAST_LOOK):
            if warmed is not None and warmed.ready_in is None:  # somebody else has started it, with what files?
                await expect_read(unit.label, subject, known.started_at)
            await checker.expect_unchanged(known.engine, known.recipe, known.pair, subject)
    except TimeoutError:
        what = f"the files of {unit.label} couldn't be looked at in {LAST_LOOK:g} s"
        raise Fault(what, "look after their disk", passing=True) from None


async def may_have_read(subject: Subject, started_at: str) -> bool:
    """For people's eyes: False where a file has changed since then."""
    with contextlib.suppress(OSError, ValueError):
        paths = [Path(file.path) for file in subject.files]
        return not await off_loop(lambda: written_since(paths, started_at, margin=0.0), subject.engine)
    return False


def written_since(paths: Iterable[Path], started_at: str, *, margin: float | None = None) -> list[str]:
    """The files that changed, or came to bear their name, after the engine was started (ISO 8601): not what it read.

    The inode's own time (ctime) counts as well, since nobody can set it back. The start is told by Docker when the
    engine has been running for a moment already, and files' times have a grain: hence `MARGIN`. Both are told by the
    clock of one host, for we read its files; a clock that was set back in between can't be seen through.
    Raises ValueError where `started_at` is no time, OSError where a file is gone.
    """
    margin = MARGIN if margin is None else margin
    started = (datetime.fromisoformat(started_at).timestamp() - margin) * SECOND
    return [str(path) for path in paths if max(_times(path)) > started]


def _times(path: Path) -> Iterator[int]:
    """Of the file, and of each symlink on the way to it: a link may be made to name another, older file.

    So may a folder that is renamed. That sets its ctime alone, and a file that is made or removed in it both times.
    """
    way = links(path)
    for state in (path.stat(), *(link.lstat() for link in way)):
        yield state.st_ctime_ns
        yield state.st_mtime_ns
    for folder in {folder for step in (path.resolve(), *way) for folder in step.parents}:
        if (state := folder.stat()).st_ctime_ns != state.st_mtime_ns:
            yield state.st_ctime_ns


def version_of(engine: Engine, pair: Pair, recipe: Recipe) -> int | None:
    """The version of the artifact that this very recipe reads."""
    return next((header.version for header in look_at(engine, pair, recipe).headers.values()), None)
