"""`slotctl events`: what the daemon decided, when, and why; with --follow also what comes."""

from __future__ import annotations

import argparse
import json
from contextlib import aclosing

from slotproxy import render
from slotproxy.cli_output import Answer, put
from slotproxy.cli_parts import Commands, add_command, count
from slotproxy.control_client import Control

LAST = 50  # events that are shown where nobody says how many


def add_events(commands: Commands[argparse.ArgumentParser]) -> None:
    command = add_command(commands, "events", "what was decided, when, and why; the newest last")
    command.add_argument("--follow", action="store_true", help="go on with what comes; with --json a line each")
    command.add_argument("--last", type=count, default=LAST, metavar="N", help=f"the newest N (default: {LAST})")


async def events(control: Control, args: argparse.Namespace) -> int:
    """Each as it comes; without --follow, --json gives one document as everywhere."""
    said: list[Answer] = []
    async with aclosing(control.follow("/events", {"last": args.last, "follow": args.follow})) as lines:
        async for line in lines:
            event = line.get("event")
            if not isinstance(event, dict):
                continue
            if args.json and not args.follow:
                said.append(event)
                continue
            put(json.dumps(event) if args.json else render.event(event))
    if args.json and not args.follow:
        put(json.dumps({"events": said}, indent=2))
    return 0
