"""`slotctl pairs`: the pairs, their states, and the ledger that says so."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from slotproxy import render_pairs
from slotproxy.cli_follow import follow, watch
from slotproxy.cli_output import show
from slotproxy.cli_parts import Commands, add_command, add_rehash
from slotproxy.control_client import Control


def add_pairs(commands: Commands[argparse.ArgumentParser]) -> None:
    """`pairs` alone shows them; its actions are commands of their own below it."""
    pairs = add_command(commands, "pairs", "the pairs, their states, and the evidence")
    actions = pairs.add_subparsers(dest="action", metavar="ACTION")
    adopt = add_command(actions, "adopt", "make evidence from the engine that serves now", below=True)
    adopt.add_argument("engine", metavar="ENGINE", help="the engine to adopt")
    add_rehash(adopt)


async def pairs(control: Control, args: argparse.Namespace) -> int:
    return await ACTIONS[args.action](control, args)


async def _all(control: Control, args: argparse.Namespace) -> int:
    _, answer = await watch(control, "/pairs", {}, sys.stderr)
    del answer["done"]
    show(args, answer, render_pairs.pairs)
    return 0


async def _adopt(control: Control, args: argparse.Namespace) -> int:
    return await follow(control, args, "/pairs/adopt", {"engine": args.engine, "rehash": args.rehash})


ACTIONS: Final[Mapping[str | None, Callable[[Control, argparse.Namespace], Awaitable[int]]]] = {
    None: _all,
    "adopt": _adopt,
}
