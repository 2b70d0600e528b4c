"""Following an order of slotctl's to its end: each phase as it passes, and the last line, which is the truth."""

from __future__ import annotations

import argparse
from contextlib import aclosing
from typing import TextIO

from slotproxy import render
from slotproxy.cli_output import Answer, Lines, for_people, put, told
from slotproxy.control_client import Control


async def follow(
    control: Control, args: argparse.Namespace, path: str, order: Answer, lines: Lines = render.words
) -> int:
    """Show each phase as it passes; the last line's code is the exit code."""
    phases, last = await watch(control, path, order, for_people(args))
    return told(args, last | {"phases": phases}, lines)


async def watch(control: Control, path: str, order: Answer, people: TextIO) -> tuple[list[Answer], Answer]:
    """The phases, which `people` see as they pass, and the last line."""
    phases: list[Answer] = []
    last: Answer = {}
    async with aclosing(control.follow(path, order)) as lines:
        async for line in lines:
            if line.get("done"):
                last = line
            else:
                phases.append(line)
                put(render.phase(line), people)
    return phases, last
