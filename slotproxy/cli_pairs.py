"""`slotctl pairs`: the pairs, their states, and the ledger that says so."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from slotproxy import render_pairs
from slotproxy.cli_follow import follow, watch
from slotproxy.cli_output import show, told
from slotproxy.cli_parts import Commands, add_command, add_rehash, reason, target
from slotproxy.control_client import Control, Trouble

Parser = argparse.ArgumentParser


def add_pairs(commands: Commands[Parser]) -> None:
    """`pairs` alone shows them; its actions are commands of their own below it."""
    pairs = add_command(commands, "pairs", "the pairs, their states, and the evidence")
    actions = pairs.add_subparsers(dest="action", metavar="ACTION")
    adopt = add_command(actions, "adopt", "make evidence from the engine that serves now", below=True)
    adopt.add_argument("engine", metavar="ENGINE", help="the engine to adopt")
    add_rehash(adopt)
    _add_word(actions, "attest", "your word that a pair runs as it is declared now; no evidence, and shown as such")
    _add_word(actions, "revoke", "your word that a pair shall not have the card; a trial proves it anew")
    log = add_command(actions, "log", "what was recorded, oldest first", below=True)
    log.add_argument("target", type=target, nargs="?", metavar="ENGINE[:PAIR]", help="of this one only")
    export = add_command(actions, "export", "the in-toto statement that verifies a pair, to keep with it", below=True)
    export.add_argument("target", type=target, metavar="ENGINE[:PAIR]", help="no pair: the deployed one")
    export.add_argument("--output", type=Path, metavar="FILE", help="write it there (default: to stdout)")
    add_command(actions, "check", "read the ledger anew and say whether it is whole: exit 0 or 3", below=True)
    repair = add_command(actions, "repair", "let a broken ledger go on; deletes nothing", below=True)
    _add_reason(repair)


def _add_word(actions: Commands[Parser], name: str, help: str) -> None:
    action = add_command(actions, name, help, below=True)
    action.add_argument("target", type=target, metavar="ENGINE[:PAIR]", help="no pair: the deployed one")
    _add_reason(action)


def _add_reason(action: Parser) -> None:
    action.add_argument("--reason", type=reason, required=True, metavar="TEXT", help="why; it stays in the ledger")


# ------------------------------------------------------------------------------------------------- what they do


async def pairs(control: Control, args: argparse.Namespace) -> int:
    return await ACTIONS[args.action](control, args)


async def _all(control: Control, args: argparse.Namespace) -> int:
    _, answer = await watch(control, "/pairs", {}, sys.stderr)
    del answer["done"]
    show(args, answer, render_pairs.pairs)
    return 0


async def _adopt(control: Control, args: argparse.Namespace) -> int:
    return await follow(control, args, "/pairs/adopt", {"engine": args.engine, "rehash": args.rehash})


async def _word(control: Control, args: argparse.Namespace) -> int:
    engine, pair = args.target
    order = {"engine": engine, "pair": pair, "reason": args.reason}
    return await follow(control, args, f"/pairs/{args.action}", order)


async def _log(control: Control, args: argparse.Namespace) -> int:
    engine, pair = args.target or (None, None)
    show(args, await control.ask("POST", "/pairs/log", {"engine": engine, "pair": pair}), render_pairs.log)
    return 0


async def _check(control: Control, args: argparse.Namespace) -> int:
    answer = await control.ask("GET", "/pairs/check")
    show(args, answer, render_pairs.check)
    return 0 if answer.get("whole") else 3


async def _repair(control: Control, args: argparse.Namespace) -> int:
    return told(args, await control.ask("POST", "/pairs/repair", {"reason": args.reason}))


async def _export(control: Control, args: argparse.Namespace) -> int:
    engine, pair = args.target
    if args.output is not None and args.output.exists():
        raise _in_the_way(args.output)
    _, answer = await watch(control, "/pairs/export", {"engine": engine, "pair": pair}, sys.stderr)
    del answer["done"]
    if "code" in answer:  # refused after a while
        return told(args, answer)
    if args.output is not None:
        _write(args.output, str(answer["line"]))
        answer |= {"output": str(args.output)}
    show(args, answer, render_pairs.exported)
    return 0


def _write(file: Path, line: str) -> None:
    """The line as it stands in the ledger, its end included. Never over something else."""
    try:
        output = file.open("x", encoding="ascii", newline="\n")
        try:
            with output:
                output.write(line + "\n")
        except OSError:
            file.unlink(missing_ok=True)  # half of it would be in the way of the next
            raise
    except FileExistsError:
        raise _in_the_way(file) from None
    except OSError as error:
        raise Trouble(f"{file} can't be written: {error.strerror}", "name another with --output", 3) from error


def _in_the_way(file: Path) -> Trouble:
    return Trouble(f"{file} is there already, and nothing is written over it", "name another, or move it away", 3)


ACTIONS: Final[Mapping[str | None, Callable[[Control, argparse.Namespace], Awaitable[int]]]] = {
    None: _all,
    "adopt": _adopt,
    "attest": _word,
    "revoke": _word,
    "log": _log,
    "export": _export,
    "check": _check,
    "repair": _repair,
}
