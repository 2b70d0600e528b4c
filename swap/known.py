"""What the controller knows of each unit beyond its name: recipe, container, verdict.

The machine moves names (`swap.moves.Unit`); here is what they mean. A unit's `key` is a fingerprint of all that makes
its pair, cheap enough to take while an engine serves: the recipe's pair fields and the *state* of each file (device,
inode, size, mtime, ctime), not its sha256. The same name after an edit is thus another unit.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from engines.spec import Engine, Pair
from swap.artifacts import files_of, named_files
from swap.findings import off_loop
from swap.hashing import identity
from swap.moves import Unit
from swap.ports import Fault, Recipe, Sight, Subject
from swap.standing import Standing


@dataclass(slots=True)
class Known:
    """One unit. `id` and `started_at` name the very container that was seen as it; `stage`: it may be recreated."""

    engine: Engine
    pair: Pair | None
    recipe: Recipe
    id: str = ""
    started_at: str = ""
    stage: bool = False
    subject: Subject | None = None
    standing: Standing | None = None  # what is recorded of the subject
    artifact_version: int | None = None

    @property
    def verified(self) -> bool | None:
        """None: nobody has looked yet, or it can't be told."""
        return None if self.standing is None else self.standing.served is not None

    def saw(self, sight: Sight) -> None:
        self.id, self.started_at = sight.id, sight.started_at

    def same_run(self, sight: Sight) -> bool:
        """Still that very container, in that very run?"""
        return sight.running and (sight.id, sight.started_at) == (self.id, self.started_at)


def run_of(unit: Unit, known: Known) -> str:
    """The name of the run that was seen of it, as the gate and those who were let through it know it."""
    return f"{unit.key} {known.id} {known.started_at}"


async def unit_of(engine: Engine, pair: Pair | None, recipe: Recipe) -> Unit:
    """The unit that this recipe makes. Files that can't be read count by their absence. Raises Fault: it hangs."""
    key = await off_loop(partial(_fingerprint, engine, pair, recipe), pair.label if pair else engine.name)
    return Unit(engine.name, pair.name if pair else "", key)


def _fingerprint(engine: Engine, pair: Pair | None, recipe: Recipe) -> str:
    what = (
        recipe.image_content or recipe.image_id,
        recipe.entrypoint,
        recipe.command,
        tuple(sorted(recipe.env)),
        recipe.working_dir,
        recipe.user,
        tuple(sorted((m.source, m.target, m.read_only, m.kind) for m in recipe.mounts)),
        tuple(sorted(recipe.devices)),
        _files(engine, pair, recipe),
    )
    return hashlib.sha256(repr(what).encode()).hexdigest()[:16]


def _files(engine: Engine, pair: Pair | None, recipe: Recipe) -> tuple[object, ...]:
    return tuple(_state_of(path) for path in _paths(engine, pair, recipe))


def _paths(engine: Engine, pair: Pair | None, recipe: Recipe) -> tuple[Path, ...]:
    """Which parts an artifact has can only be told where its header can be read."""
    with contextlib.suppress(Fault):
        return files_of(engine, recipe, pair)
    with contextlib.suppress(Fault):
        return named_files(engine, recipe, pair)
    return ()


def _state_of(path: Path) -> object:
    try:
        return tuple(identity(path))
    except Fault:
        return str(path)
