"""What the command lines of all of slotctl's commands are made of."""

from __future__ import annotations

import argparse

from slotproxy.reason import wrong_reason
from slotproxy.units import parse_duration

MOST_TOKENS = 10_000  # of a trial's completion
Commands = argparse._SubParsersAction  # argparse gives its type no public name

Target = tuple[str, str | None]


def add_command(
    commands: Commands[argparse.ArgumentParser], name: str, help: str, *, below: bool = False
) -> argparse.ArgumentParser:
    """A command with the options that all have. `below` another: what stands before it holds where it says nothing."""
    command = commands.add_parser(name, help=help, description=help, allow_abbrev=False)
    unset = argparse.SUPPRESS if below else False
    command.add_argument("--json", action="store_true", default=unset, help="one JSON document on stdout")
    add_common(command, argparse.SUPPRESS)
    return command


def add_common(parser: argparse.ArgumentParser, default: str | None) -> None:
    """Before or after the command; after it, an option that isn't given leaves the one before it alone."""
    parser.add_argument(
        "--control",
        metavar="SOCKET",
        default=default,
        help="the daemon's socket (default: $SLOTPROXY_CONTROL, else the configuration's)",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        default=default,
        help="the configuration (default: $SLOTPROXY_CONFIG, else /etc/slotproxy/slotproxy.yml)",
    )


def add_rehash(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rehash", action="store_true", help="read every byte of its files again")


def target(written: str) -> Target:
    """`to-ENGINE[:PAIR]` or `ENGINE[:PAIR]`; no pair means the deployed one."""
    engine, colon, pair = written.removeprefix("to-").partition(":")
    if not engine or (colon and not pair):
        raise argparse.ArgumentTypeError(f"{written!r}: write to-ENGINE or to-ENGINE:PAIR, such as to-ninfer:v2")
    return engine, pair or None


def duration(written: str) -> float:
    try:
        return parse_duration(written)
    except ValueError as refusal:
        raise argparse.ArgumentTypeError(str(refusal)) from None


def count(written: str) -> int:
    if not written.isdecimal() or not 0 < int(written) <= MOST_TOKENS:
        raise argparse.ArgumentTypeError(f"{written!r}: give a number from 1 to {MOST_TOKENS}")
    return int(written)


def reason(written: str) -> str:
    """One line that says why, for whoever reads the ledger later."""
    if problem := wrong_reason(written):
        raise argparse.ArgumentTypeError(problem)
    return written.strip()
