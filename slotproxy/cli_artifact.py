"""`slotctl artifact FILE`: what an artifact says of itself, and whether it is whole. Needs no daemon.

Exit 0: it is whole. 3: it isn't, or it is no artifact.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.artifacts.read import read_any
from engines.spec import ArtifactError, ArtifactHeader, CannotRead
from slotproxy import render
from slotproxy.cli_output import fail, show
from slotproxy.units import format_size
from swap.hashing import Hasher
from swap.headers import parts_of
from swap.ports import Fault
from swap.reading import Reading

REFUSED = 3
_MEND = "copy or download it again"


def artifact(args: argparse.Namespace) -> int:
    path = Path(args.file)
    try:
        header = read_any(path)
        hashes = asyncio.run(_hashes(path, header)) if args.hash else {}
    except CannotRead as error:
        return fail(args, str(error), "look after its disk and the machine's load", REFUSED)
    except ArtifactError as error:
        return fail(args, str(error), "name a .ninfer or a GGUF file", REFUSED)
    except OSError as error:
        return fail(args, f"{path} can't be read: {error.strerror}", "correct the path, or its permissions", REFUSED)
    except Fault as fault:
        return fail(args, fault.what, fault.mend, REFUSED)
    show(args, _answer(path, header, hashes), _lines)
    return 0 if header.whole else REFUSED


def _answer(path: Path, header: ArtifactHeader, hashes: Mapping[Path, str]) -> dict[str, Any]:
    return {
        "file": str(path),
        "format": header.format,
        "version": header.version,
        "model": header.model,
        "architecture": header.architecture or None,
        "quantization": header.quantization,
        "objects": header.objects,
        "components": list(header.components),
        "size": header.size,
        "expected_size": header.expected_size,
        "whole": header.whole,
        "fault": header.fault or None,
        "sha256": hashes.get(path),
        "parts": [
            {
                "file": str(file),
                "size": part.size,
                "expected_size": part.expected_size,
                "fault": part.fault or None,
                "sha256": hashes.get(file),
            }
            for part, file in zip(header.parts, parts_of(path, header), strict=True)
        ],
    }


# ------------------------------------------------------------------------------------------------- the sha256


async def _hashes(path: Path, header: ArtifactHeader) -> dict[Path, str]:
    """Of the file and its parts; of those that are there. Raises Fault: changing, stalled."""
    there = [path, *(file for part, file in zip(header.parts, parts_of(path, header), strict=True) if part.size)]
    with tempfile.TemporaryDirectory() as folder:
        hasher, how = Hasher(Path(folder) / "hashes.json"), Reading(say=_say)
        try:
            return {file: (await hasher.digest(file, how)).sha256 for file in there}
        finally:
            _say("")


def _say(words: str) -> None:
    """How far it is: one line of the terminal, which the next words replace."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{render.clean(words)}", end="", file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------------------------- for people


def _lines(answer: Mapping[str, Any]) -> list[str]:
    gguf = answer["format"] == "gguf"
    rows = {
        "format": f"{'GGUF' if gguf else '.ninfer'}, version {answer['version']}",
        "model": answer["model"],
        "architecture": answer["architecture"],
        "quantization": answer["quantization"],
        "tensors" if gguf else "objects": f"{answer['objects']}",
        "components": ", ".join(answer["components"]),
        "size": _size(answer["size"]),
        "sha256": answer["sha256"],
    }
    said = [(label, words) for label, words in rows.items() if words]
    said += [("part", f"{Path(part['file']).name}  {_part(part)}") for part in answer["parts"]]
    said.append(("whole", _whole(answer)))
    width = max(len(label) for label, _ in said) + 2
    return [f"{label:<{width}}{render.clean(words)}" for label, words in said]


def _part(part: Mapping[str, Any]) -> str:
    words = part["fault"] or _size(part["size"])
    return f"{words}  {part['sha256']}" if part["sha256"] else words


def _size(size: int) -> str:
    return f"{size:,} bytes ({format_size(size)})"


def _whole(answer: Mapping[str, Any]) -> str:
    if answer["whole"]:
        return "yes"
    missing = answer["expected_size"] - answer["size"]
    lost = f", {_size(missing)} are missing" if missing > 0 else ""
    return f"no: {answer['fault']}{lost}; {_MEND}"
