"""All cells of the matrix on the fakes: every step × every mishap × every variant, each played or said why not.

Cells are made, not written: the steps are those that a swap without any fault takes, and what can't happen in one is
said by the mishap's own rule.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from swap import boot, durable, inspection
from swap.adoption import MARGIN
from swap.ports import JournalEntry
from tests.faults.mishaps import MISHAPS
from tests.faults.stories import JOURNAL, RUNS, VARIANTS, Case, Mishap, Variant, Verdict, play
from tests.faults.table import NOT_APPLICABLE, Cell
from tests.faults.town import Disk, InOneThread
from tests.swap.world import write_models

THERE = ("check", "stage", "drain", "stop", "free", "inspect", "start", "warm", "record")
BACK = tuple(f"back: {step}" for step in ("stop", "put back", "free", "inspect", "start", "warm"))
BOOT = (JOURNAL, "boot: look", RUNS, *(f"boot: {step}" for step in ("stage", "free", "inspect", "start", "warm")))
STEPS = (*THERE, *BACK, *BOOT)
NOTHING = Mishap("nothing", "begins", lambda _: None)
IN_MEMORY = Path("/dev/shm")


@dataclass
class Bench:
    """Where stories are played: a folder, models that all share, and what each variant does when nothing goes wrong."""

    folder: Path
    models: Path
    _rehearsed: dict[tuple[str, str], Verdict] = field(default_factory=dict)
    _played: int = 0

    def cell(self, step: str, mishap: Mishap, variant: Variant) -> tuple[Cell, Verdict | None]:
        """One cell, and how its story went where it was played."""
        case = self.case(step, variant)
        why = mishap.cannot(case) if case is not None else "it isn't needed: nothing was replaced"
        if case is None or why:
            return Cell(step, mishap.name, variant.name, NOT_APPLICABLE, why), None
        verdict = self.play(case, mishap)
        return Cell(step, mishap.name, variant.name, verdict.result, verdict.note), verdict

    def case(self, step: str, variant: Variant) -> Case | None:
        """None: a swap of this variant takes no such step."""
        likely = {"back": "back: free", "boot": "boot: look"}.get(step.partition(": ")[0], "check")
        went = self._rehearsal(RUNS if step == RUNS else likely, variant)
        if step == "record":
            return Case(variant, step, (variant.new, variant.new))
        if step == JOURNAL:
            return Case(variant, step)
        name = "boot: look" if step == RUNS else step
        calls = frozenset(went.calls.get(name, ()))
        return Case(variant, step, tuple(went.seen[name]), calls) if name in went.seen else None

    def _rehearsal(self, step: str, variant: Variant) -> Verdict:
        place = step, variant.name
        if place not in self._rehearsed:
            self._rehearsed[place] = self.play(Case(variant, step), NOTHING)
        return self._rehearsed[place]

    def play(self, case: Case, mishap: Mishap) -> Verdict:
        self._played += 1
        folder = self.folder / str(self._played)
        folder.mkdir()
        with capture_logs(), asyncio.Runner(loop_factory=InOneThread) as runner:
            return runner.run(play(folder, self.models, case, mishap))


@contextlib.contextmanager
def bench() -> Iterator[Bench]:
    """What costs time and matters for nothing here is left out: fsync, and the kernel's list of all sockets."""
    memory = IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(durable, "_write_through", _on_this_disk(durable._write_through))
        patch.setattr(os, "statvfs", _room)
        patch.setattr(inspection, "listener", _nobody)
        patch.setattr(boot, "_let_it_arrive", _just_now)
        models = write_models(Path(folder) / "models")
        time.sleep(MARGIN + 0.1)  # what was written just now would be read anew each time, and be in doubt
        yield Bench(Path(folder), models)


def _on_this_disk(write: Callable[[Path, bytes], None]) -> Callable[[Path, bytes], None]:
    def written(path: Path, data: bytes) -> None:
        Disk.expect_room(path.parent)
        write(path, data)

    return written


def _room(folder: Path) -> SimpleNamespace:
    return SimpleNamespace(f_flag=0, f_bfree=0 if folder in Disk.full else 2**30, f_frsize=4096)


async def _just_now(entry: JournalEntry | None) -> None:
    """The wall's clock says how long it took to play this; the daemon before us has died just now."""
    if entry is not None and entry.step in ("start", "stop"):
        await asyncio.sleep(boot.ARRIVE)


async def _nobody(host: str, port: int) -> str | None:
    return None


def places(steps: tuple[str, ...] = STEPS) -> Iterator[tuple[str, Mishap, Variant]]:
    """All cells of these steps, in the table's order."""
    yield from itertools.product(steps, MISHAPS, VARIANTS)
