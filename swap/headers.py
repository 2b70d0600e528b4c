"""The headers of artifacts, remembered while their files stay in one state: reading one starts a process.

Synchronous, they touch the disk: call them in a thread.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from engines.spec import ArtifactError, ArtifactHeader, CannotRead, Profile
from swap.hashing import STAMP_GRAIN_NS, Identity, identity
from swap.ports import Fault

_MOST_REMEMBERED = 256


class _Remembered(NamedTuple):
    header: ArtifactHeader
    states: tuple[Identity, ...]  # of the file, and of each of its parts


_remembered: dict[tuple[str, Path], _Remembered] = {}  # by profile and path; what is lost is read again


def header_of(profile: Profile, path: Path) -> ArtifactHeader | None:
    """What the artifact says of itself; None where the engine's artifacts say nothing that can be read.

    Raises Fault naming the path: missing, unreadable, not an artifact.
    """
    state = identity(path)
    if profile.read_artifact is None:
        return None
    known = _remembered.get((profile.name, path))
    if known is not None and known.states == (state, *_states(path, known.header)):
        return known.header
    began = time.time_ns()
    header = _read(profile, path)
    states = (state, *_states(path, header))
    if header.whole and identity(path) == state and all(_settled(one, began) for one in states):
        if len(_remembered) >= _MOST_REMEMBERED:
            _remembered.clear()
        _remembered[profile.name, path] = _Remembered(header, states)
    return header


def parts_of(path: Path, header: ArtifactHeader | None) -> tuple[Path, ...]:
    """The files of a split artifact after the first, beside it."""
    return tuple(path.with_name(part.name) for part in header.parts) if header is not None else ()


def _states(path: Path, header: ArtifactHeader) -> tuple[Identity, ...]:
    """Of the parts; fewer where one is missing."""
    states = []
    for part in parts_of(path, header):
        try:
            states.append(identity(part))
        except Fault:
            break
    return tuple(states)


def _settled(state: Identity, began: int) -> bool:
    """Not written since the reading began, nor just before: a later write could leave the same times."""
    return not began - STAMP_GRAIN_NS <= max(state.mtime_ns, state.ctime_ns) <= time.time_ns() + STAMP_GRAIN_NS


def _read(profile: Profile, path: Path) -> ArtifactHeader:
    assert profile.read_artifact is not None
    try:
        return profile.read_artifact(path)
    except CannotRead as error:
        raise Fault(str(error), "look after its disk and the machine's load", passing=True) from error
    except ArtifactError as error:
        raise Fault(str(error), f"name a file that {profile.name} can read") from error
    except OSError as error:
        raise Fault(f"{path} can't be read: {error.strerror}", "make it readable to this user") from error
