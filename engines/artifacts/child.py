"""The child process that reads one artifact's header: `python -m engines.artifacts.child KIND PATH`.

KIND is `ninfer`, `gguf`, or `any` (told by the first bytes). It takes no more memory and time than it is allowed,
whatever the file is, and answers with one line of JSON:

    {"header": {…}}   {"bad": "what is wrong with the file"}   {"errno": 2, "strerror": "No such file or directory"}
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engines.artifacts import gguf
from engines.artifacts.opening import BadFile, begins, opened
from engines.ninfer import artifact as ninfer
from engines.spec import ArtifactHeader, MiB

LARGEST_DATA = 80 * MiB  # with the interpreter's own code less than 100 MiB stay resident
CPU_LIMIT = 15  # seconds

Answer = dict[str, Any]


def main(kind: str, path: str) -> int:
    _limit_itself()
    print(json.dumps(_answer(kind, Path(path))))
    return 0


def _limit_itself() -> None:
    for what, most in (
        (resource.RLIMIT_DATA, LARGEST_DATA),
        (resource.RLIMIT_CPU, CPU_LIMIT),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(what)
        limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (limit, limit))


def _answer(kind: str, path: Path) -> Answer:
    try:
        return {"header": asdict(READERS[kind](path))}
    except BadFile as bad:
        return {"bad": str(bad)}
    except OSError as error:
        return {"errno": error.errno, "strerror": error.strerror}
    except MemoryError:
        pass  # answered below, when what was read is gone
    return {"bad": f"reading what it says of itself takes more than {LARGEST_DATA // MiB} MiB, no real one does"}


def _read_any(path: Path) -> ArtifactHeader:
    with opened(path, "an artifact") as file:
        head = file.head(8)
    if head.startswith((ninfer.MAGIC, ninfer.PART_MAGIC)):
        return ninfer.read(path)
    if head.startswith(gguf.MAGIC):
        return gguf.read(path)
    raise BadFile(f"no artifact: {begins(head)}, expected a .ninfer or a GGUF file")


READERS: Mapping[str, Callable[[Path], ArtifactHeader]] = {"ninfer": ninfer.read, "gguf": gguf.read, "any": _read_any}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
