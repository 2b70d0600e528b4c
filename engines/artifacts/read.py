"""What an artifact says of itself, read by a child process: no file, however hostile, can hurt the daemon.

The child limits its own memory and time (`engines.artifacts.child`); what it costs is a tenth of a second.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from engines.artifacts.opening import printable
from engines.spec import ArtifactError, ArtifactHeader, CannotRead, Part

READ_LIMIT = 20.0  # seconds; then the disk hangs
_KILLED_LIMIT = 1.0  # seconds that a killed child may take to be gone; one that waits for a dead disk takes longer
_ROOT = Path(__file__).parents[2]  # where the child finds `engines`


def read_header(kind: str, path: Path) -> ArtifactHeader:
    """`kind`: ninfer, gguf or any. Blocks for READ_LIMIT at most: call it in a thread.

    Raises ArtifactError (one line: what was found, what was expected; CannotRead: that can't be told just now),
    OSError (missing, no permission).
    """
    out = _ask(kind, path)
    try:
        return _answered(path, json.loads(out))
    except (ValueError, TypeError, KeyError) as error:  # it was replaced on disk, under the daemon that runs
        raise _cannot(path, "its reader is of another version than this process, which wants a restart") from error


def _answered(path: Path, answer: Mapping[str, Any]) -> ArtifactHeader:
    if "errno" in answer:
        raise OSError(answer["errno"], answer["strerror"], str(path))
    if "header" not in answer:
        raise _bad(path, str(answer["bad"]))
    said = answer["header"]
    return ArtifactHeader(
        **said | {"components": tuple(said["components"]), "parts": tuple(Part(**part) for part in said["parts"])}
    )


read_ninfer = partial(read_header, "ninfer")
read_gguf = partial(read_header, "gguf")
read_any = partial(read_header, "any")


def _ask(kind: str, path: Path) -> bytes:
    # -P and the path: `engines` is this one, whatever folder the daemon was started in.
    command = [sys.executable, "-P", "-m", "engines.artifacts.child", kind, str(path)]
    try:
        child = subprocess.Popen(  # in its own session: Ctrl-C is for the daemon
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            start_new_session=True,
        )
    except OSError as error:
        raise _cannot(path, f"no process can be started for it: {error.strerror}") from error
    try:
        out, said = child.communicate(timeout=READ_LIMIT)
    except subprocess.TimeoutExpired:
        _end(child)
        raise _cannot(path, f"nothing came in {READ_LIMIT:g} s") from None
    if child.returncode == -signal.SIGKILL:
        raise _cannot(path, "its reader was killed")
    if child.returncode > 0:  # what is wrong with a file it tells and ends with 0
        raise _cannot(path, _why(child.returncode, said))
    if child.returncode != 0:
        raise _bad(path, f"it can't be read: {_why(child.returncode, said)}")
    return out


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    try:
        child.communicate(timeout=_KILLED_LIMIT)
    except subprocess.TimeoutExpired:
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()


def _why(code: int, said: bytes) -> str:
    if code == -signal.SIGXCPU:
        return "what it says of itself takes too long to read, no real one does"
    if code < 0:
        return f"its reader was ended by {signal.Signals(-code).name}"
    last = said.decode(errors="replace").strip().rpartition("\n")[2]
    return f"its reader broke: {printable(last)[:200]}"


def _cannot(path: Path, why: str) -> CannotRead:
    return CannotRead(f"{printable(str(path))}: it can't be read: {why}")


def _bad(path: Path, what: str) -> ArtifactError:
    return ArtifactError(f"{printable(str(path))}: {what}")
