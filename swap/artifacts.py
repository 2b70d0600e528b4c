"""The files that a pair really uses: found through the command line and the mounts, compared with what the pair names.

Synchronous, they touch the disk: call them in a thread. Faults are collected and returned where several can be.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from engines.spec import ArtifactHeader, Engine, Pair
from swap.baked import baked_files, baked_warnings, said_in
from swap.headers import header_of, parts_of
from swap.ports import Fault, Recipe, artifact_paths

MOST_STEPS = 1000  # folders and links on the way to a file; the kernel follows 40 links


@dataclass(frozen=True, slots=True)
class Contents:
    """What a look at the artifacts showed. `headers` by host path, of those that say something of themselves."""

    headers: Mapping[Path, ArtifactHeader]
    faults: tuple[Fault, ...]
    warnings: tuple[str, ...] = ()


def used_files(engine: Engine, recipe: Recipe) -> dict[str, Path | None]:
    """The artifacts on the command line, as the engine sees them → on the host; None: no bind mount holds it."""
    return _on_host(recipe, engine.profile.artifacts(recipe.argv, dict(recipe.env)))


def _on_host(recipe: Recipe, inside: Iterable[str]) -> dict[str, Path | None]:
    whole = [posixpath.normpath(posixpath.join(recipe.working_dir or "/", path)) for path in inside]
    return artifact_paths(recipe, tuple(whole))


def files_of(engine: Engine, recipe: Recipe, pair: Pair | None) -> tuple[Path, ...]:
    """All files that evidence names, once each, in order: each artifact of the command line with its parts, the pair's
    others, and configuration: what the pair lists, and what the image has baked.

    Raises Fault naming what can't be read, or that no bind mount holds.
    """
    used = _mounted(engine, recipe, pair)
    found: list[Path] = []
    for path in used or (pair.artifacts[:1] if pair is not None else ()):
        found += [path, *parts_of(path, header_of(engine.profile, path))]
    if pair is not None:
        for path in (path for path in pair.artifacts if path not in found):
            found += [path, *_further_parts(engine, path)]
        found += pair.config_files
    said = [*_configuration(engine, recipe), *baked_files(engine, recipe, pair)]
    return _once([*found, *said, *_named_in(engine, recipe, said)])


def _further_parts(engine: Engine, path: Path) -> tuple[Path, ...]:
    """Those of an artifact that only the pair names: any file, perhaps itself a part."""
    try:
        return parts_of(path, header_of(engine.profile, path))
    except Fault as fault:
        if fault.passing:
            raise
        return ()


def named_files(engine: Engine, recipe: Recipe, pair: Pair | None) -> tuple[Path, ...]:
    """Those of them that are found without reading any. Raises Fault where no bind mount holds one."""
    more = (*pair.artifacts, *pair.config_files) if pair is not None else ()
    return _once([*_mounted(engine, recipe, pair), *more, *_configuration(engine, recipe)])


def _mounted(engine: Engine, recipe: Recipe, pair: Pair | None) -> list[Path]:
    """The artifacts on the command line. Raises Fault naming one that no bind mount holds."""
    found = []
    for inside, path in used_files(engine, recipe).items():
        if path is not None:
            _expect_same_file(engine, recipe, inside, path)
            found.append(path)
        elif not _in_image(recipe, pair, inside):
            raise _unmounted(engine, inside)
    return found


def _configuration(engine: Engine, recipe: Recipe) -> list[Path]:
    """The configuration files on the command line; those of the image are known with it."""
    found = []
    for inside, path in _on_host(recipe, engine.profile.configuration(recipe.argv, dict(recipe.env))).items():
        if path is not None:
            _expect_same_file(engine, recipe, inside, path)
            found.append(path)
        elif _covered(recipe, inside):
            raise _unmounted(engine, inside)
    return found


def _named_in(engine: Engine, recipe: Recipe, files: Iterable[Path]) -> list[Path]:
    """The models that configuration names, and their parts; of those that are there."""
    named = [name for file in files for name in engine.profile.models_in(said_in(file) or {})]
    there = [path for path in _on_host(recipe, named).values() if path is not None and path.is_file()]
    return [one for path in there for one in (path, *parts_of(path, header_of(engine.profile, path)))]


def _expect_same_file(engine: Engine, recipe: Recipe, inside: str, path: Path) -> None:
    """Raises Fault where a link leads the engine, in its container, elsewhere than us: an absolute one, mostly."""
    if not recipe.contained or not os.access(path, os.F_OK):  # what isn't there, whoever reads it says
        return
    seen, here = _by_its_links(recipe, inside), _real(path)
    if seen is None or _real(seen) != here:
        raise Fault(
            f"{engine.name} is to read {inside}, which a link leads elsewhere in its container than here ({here})",
            "make the link relative, within what is mounted, or name the file itself",
        )


def _by_its_links(recipe: Recipe, inside: str) -> Path | None:
    """Where this path ends on the host, links on the way followed as in the container; None: in no bind mount."""
    targets = {mount.target.rstrip("/") for mount in recipe.mounts}  # what is mounted there was followed by Docker
    here, left = "/", [*reversed(inside.split("/"))]
    for _ in range(MOST_STEPS):
        if not left:
            return artifact_paths(recipe, (here,))[here]
        step = posixpath.normpath(posixpath.join(here, left.pop()))
        host = artifact_paths(recipe, (step,))[step]
        if host is None or step in targets or not host.is_symlink():
            here = step
            continue
        link = str(host.readlink())
        here = "/" if link.startswith("/") else here
        left += reversed(link.split("/"))
    return None


def _once(paths: Iterable[Path]) -> tuple[Path, ...]:
    found: dict[str, Path] = {}
    for path in paths:
        found.setdefault(_real(path), path)
    return tuple(found.values())


def look_at(engine: Engine, pair: Pair, declared: Recipe) -> Contents:
    """Are the declared artifacts the pair's, there and whole? Is what the image has baked what is declared?"""
    used = used_files(engine, declared)
    faults = list(_mismatches(engine, pair, declared, used))
    headers: dict[Path, ArtifactHeader] = {}
    for path in [path for path in used.values() if path is not None] or pair.artifacts[:1]:
        try:
            header = header_of(engine.profile, path)
            if header is not None:
                headers[path] = _whole(path, header)
        except Fault as fault:
            faults.append(fault)
    try:
        warnings = baked_warnings(engine, declared, baked_files(engine, declared, pair))
    except Fault as fault:
        faults.append(fault)
        warnings = ()
    return Contents(headers, tuple(faults), warnings)


def _whole(path: Path, header: ArtifactHeader) -> ArtifactHeader:
    if not header.whole:
        raise Fault(f"{path} isn't whole: {header.fault}", "copy or download it again")
    return header


def _mismatches(engine: Engine, pair: Pair, declared: Recipe, used: Mapping[str, Path | None]) -> Iterator[Fault]:
    for inside, path in used.items():
        if path is None and not _in_image(declared, pair, inside):
            yield _unmounted(engine, inside)
        elif path is not None:
            try:
                _expect_same_file(engine, declared, inside, path)
            except Fault as fault:
                yield fault
    real = {_real(path): f"{path} ({inside})" for inside, path in used.items() if path is not None}
    named = {_real(path): str(path) for path in pair.artifacts}
    unused = [named[path] for path in named if path not in real]
    others = [real[path] for path in real if path not in named]
    # Parts of a split artifact and draft models need not stand on both sides; the pair's first artifact must.
    if real and unused and (others or _real(pair.artifacts[0]) not in real):
        given = (others or [*real.values()])[0]
        yield Fault(
            f"{pair.label} names the artifact {unused[0]}, but {source_of(engine)} gives {given}", mend_of(pair)
        )
    if not used and declared.contained:
        yield from _unreachable(engine, pair, declared)


def _in_image(recipe: Recipe, pair: Pair | None, inside: str) -> bool:
    """No mount at all covers it and the pair names no file: it is part of the image, whose id says what it is."""
    return recipe.contained and not _covered(recipe, inside) and not (pair is not None and pair.artifacts)


def _covered(recipe: Recipe, inside: str) -> bool:
    targets = [mount.target.rstrip("/") for mount in recipe.mounts]
    return any(inside == target or inside.startswith(target + "/") for target in targets)


def _unreachable(engine: Engine, pair: Pair, declared: Recipe) -> Iterator[Fault]:
    """The command line names no artifact: then the container must be able to see it at least."""
    sources = [Path(_real(Path(mount.source))) for mount in declared.mounts if mount.kind == "bind"]
    if any(mount.kind == "volume" for mount in declared.mounts):
        return  # it may lie in a volume, which has no path that we know
    for path in pair.artifacts:
        if not any(Path(_real(path)).is_relative_to(source) for source in sources):
            yield Fault(
                f"{pair.label} names the artifact {path}, which {source_of(engine)} doesn't mount", mend_of(pair)
            )


def source_of(engine: Engine) -> str:
    return str(engine.compose.file) if engine.compose else "what is declared"


def mend_of(pair: Pair) -> str:
    return f"correct engines.{pair.engine}.pairs.{pair.name}, or the compose file and what the pair's `env` gives it"


def _unmounted(engine: Engine, inside: str) -> Fault:
    return Fault(
        f"{engine.name} is to read {inside}, which no bind mount of {source_of(engine)} holds",
        "mount its folder from the host, so that it can be checked",
    )


def _real(path: Path) -> str:
    """Never raises: what a loop of symlinks means, the look at the file itself says."""
    return os.path.realpath(path)
