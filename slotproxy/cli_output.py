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


class CannotTell(Exception):
    """What is to be said can't be written: a full disk, say."""


def put(text: str, to: TextIO | None = None) -> None:
    """A line, or a document, on stdout; it is written when this returns. Raises CannotTell, BrokenPipeError."""
    try:
        print(text, file=to or sys.stdout, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        where = "stderr" if to is sys.stderr else "stdout"
        raise CannotTell(f"{where} can't be written: {error.strerror}") from error


def show(args: argparse.Namespace, answer: Answer, lines: Lines) -> None:
    put(json.dumps(answer, indent=2) if args.json else "\n".join(lines(answer)))


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
        put(json.dumps({"error": what, "mend": mend, "code": code}, indent=2))
    complain(what, mend)
    return code


def complain(what: str, mend: str) -> None:
    put(render.clean(f"slotctl: {what}; {mend}" if mend else f"slotctl: {what}"), sys.stderr)
