"""The configuration that an image has baked: which files it is on the host, and where it isn't what is declared.

Synchronous, they touch the disk: call them in a thread.
"""

from __future__ import annotations

import fnmatch
import json
import os
import posixpath
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from engines.spec import Baked, Engine, MiB, Pair
from swap.ports import Fault, Mount, Recipe

_LARGEST = MiB  # real ones have some hundred bytes


def baked_files(engine: Engine, recipe: Recipe, pair: Pair | None) -> tuple[Path, ...]:
    """What the engine really reads of it: the files for its model, or all where none names it. None before it is baked.

    Raises Fault where they lie in a volume, or their folder can't be read.
    """
    baked = engine.profile.baked
    if baked is None or not recipe.contained:
        return ()
    found = [*_listed(engine, recipe, pair, baked), *_mounted_alone(recipe, baked)]
    env = dict(recipe.env)
    own = [path for path in found if (said := said_in(path)) is not None and baked.ours(env, said)]
    return tuple(dict.fromkeys(own or found))


def baked_warnings(engine: Engine, recipe: Recipe, files: tuple[Path, ...]) -> tuple[str, ...]:
    """Where a baked file isn't what is declared, and what to do about it."""
    baked, env = engine.profile.baked, dict(recipe.env)
    if baked is None or not recipe.contained:
        return ()
    if env.get(baked.anew) == "1":
        always = (
            f"{baked.anew}=1 stays set: {engine.name} bakes {baked.pattern} anew at each start, so no evidence can "
            f"name what it runs; remove {baked.anew} once it is baked"
        )
        return (always,)
    return tuple(warning for path in files for warning in _warnings(engine, baked, env, path))


def _warnings(engine: Engine, baked: Baked, env: Mapping[str, str], path: Path) -> Iterator[str]:
    said = said_in(path)
    if said is None:
        yield f"{path}, which {engine.name} runs, is no JSON object: whether it is what is declared can't be told"
        return
    for one in baked.differences(env, said):
        yield (
            f"{one.variable}={one.declared} is declared, but {engine.name} runs what {path} says: {one.baked}; "
            f"a start with {baked.anew}=1 (once), or without that file, bakes it anew"
        )
    if unsaid := baked.unsaid(env, said):
        yield f"{path} says nothing of {', '.join(unsaid)}: whether {engine.name} runs what is declared can't be told"


# ------------------------------------------------------------------------------------------------- which files


def _listed(engine: Engine, recipe: Recipe, pair: Pair | None, baked: Baked) -> list[Path]:
    """In the folder, where a bind mount holds it."""
    folder, pattern = posixpath.split(baked.pattern)
    mount = _holding(recipe, folder)
    if mount is None or mount.kind == "tmpfs":
        return []  # it goes with the container, and is baked from what that one was created with
    if mount.kind != "bind":
        if pair is not None and pair.config_files:
            return []
        raise Fault(
            f"{engine.name} runs {baked.pattern}, which can't be read: it lies in the volume {mount.source}",
            f"mount {folder} from the host, or list the file in engines.{engine.name}.pairs.*.config_files",
        )
    host = Path(mount.source) / folder[len(mount.target.rstrip("/")) :].lstrip("/")
    try:
        names = sorted(entry.name for entry in os.scandir(host))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Fault(f"{host} can't be read: {error.strerror}", "make it readable to this user") from error
    return [host / name for name in names if fnmatch.fnmatchcase(name, pattern)]


def _holding(recipe: Recipe, folder: str) -> Mount | None:
    for mount in sorted(recipe.mounts, key=lambda mount: len(mount.target), reverse=True):
        target = mount.target.rstrip("/")
        if folder == target or folder.startswith(target + "/"):
            return mount
    return None


def _mounted_alone(recipe: Recipe, baked: Baked) -> list[Path]:
    """A file of it that has a bind mount of its own."""
    return [Path(m.source) for m in recipe.mounts if m.kind == "bind" and fnmatch.fnmatchcase(m.target, baked.pattern)]


def said_in(path: Path) -> Mapping[str, Any] | None:
    """What it says; None where that is no JSON object. Whether it can be read at all, its hashing says."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            text = file.read(_LARGEST + 1)
        said = json.loads(text) if len(text) <= _LARGEST else None
    except (OSError, ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None
