"""What slotctl prints, and where: with --json one document on stdout, and what people want to read on stderr."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any, TextIO

from slotproxy import render

Answer = dict[str, Any]
Lines = Callable[[Answer], list[str]]


def for_people(args: argparse.Namespace) -> TextIO:
    return sys.stderr if args.json else sys.stdout


def show(args: argparse.Namespace, answer: Answer, lines: Lines) -> None:
    print(json.dumps(answer, indent=2) if args.json else "\n".join(lines(answer)), flush=True)


def told(args: argparse.Namespace, answer: Answer, lines: Lines = render.words) -> int:
    """An order's answer: its words, and its code as the exit code."""
    code = int(answer.get("code") or 0)
    if args.json or not code:
        show(args, answer, lines)
    if code:
        complain(str(answer.get("text") or ""), str(answer.get("mend") or ""))
    return code


def fail(args: argparse.Namespace, what: str, mend: str, code: int) -> int:
    if args.json:
        print(json.dumps({"error": what, "mend": mend, "code": code}, indent=2), flush=True)
    complain(what, mend)
    return code


def complain(what: str, mend: str) -> None:
    print(render.clean(f"slotctl: {what}; {mend}" if mend else f"slotctl: {what}"), file=sys.stderr, flush=True)
