"""`slotctl slots`: who waits, since when, and why; and the word that ends one request."""

from __future__ import annotations

import argparse

from slotproxy import render_slots
from slotproxy.cli_output import show, told
from slotproxy.cli_parts import Commands, add_command
from slotproxy.control_client import Control

Parser = argparse.ArgumentParser


def add_slots(commands: Commands[Parser]) -> None:
    slots = add_command(commands, "slots", "who waits, since when, and why; what is at the engine")
    actions = slots.add_subparsers(dest="action", metavar="ACTION")
    cancel = add_command(actions, "cancel", "end one request, wherever it is; its client is told", below=True)
    cancel.add_argument("id", metavar="ID", help="its id, or enough of its beginning")


async def slots(control: Control, args: argparse.Namespace) -> int:
    if args.action == "cancel":
        return told(args, await control.ask("POST", "/slots/cancel", {"id": args.id}))
    show(args, await control.ask("GET", "/slots"), render_slots.slots)
    return 0
