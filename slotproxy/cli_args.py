"""slotctl's command line: commands, options, and a --help that lists them all."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from slotproxy import __version__
from slotproxy.cli_events import add_events
from slotproxy.cli_pairs import add_pairs
from slotproxy.cli_parts import Commands, add_command, add_common, add_rehash, count, duration, target
from slotproxy.cli_slots import add_slots

UNTOLD: Final = 1
DETACHED: Final = 7
EXIT_CODES: Final[Mapping[int, str]] = {
    0: "that very pair serves (also when it already did); of other commands: done",
    UNTOLD: "what it found can't be written where its output goes; what was ordered goes on",
    2: "bad usage, or a configuration that can't be used",
    3: "refused: nothing was changed; of drift: something differs; of doctor, pairs check: something needs a person; "
    "of artifact: it isn't whole, or no artifact",
    4: "it failed or was given up; the engine that was serving serves again",
    5: "dark: nothing serves; the message says why and what to do",
    6: "the daemon can't be reached, or was lost in the middle",
    DETACHED: "Ctrl-C, or nobody reads its output any more: slotctl stopped watching; what was ordered goes on, "
    "slotctl status shows it",
}


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Wrong usage raises SystemExit(2), as argparse does."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.command == "swap":
        _check_swap(parser, args)
    return args


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="slotctl",
        description="Moves the card from one engine to another, and says what is true.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"slotctl {__version__}")
    add_common(parser, None)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_looks(commands)
    _add_orders(commands)
    _add_alone(commands)
    parser.epilog = _epilog(commands)
    return parser


def _add_looks(commands: Commands[argparse.ArgumentParser]) -> None:
    add_command(commands, "status", "what serves, what waits, what is under way")
    plan = add_command(commands, "plan", "what a swap would run, and whether it would be allowed; changes nothing")
    _add_target(plan)
    plan.add_argument("--trial", action="store_true", help="as for a pair that isn't verified")
    add_rehash(plan)
    drift = add_command(commands, "drift", "where declared, created, running and verified differ")
    drift.add_argument("target", type=target, nargs="?", metavar="ENGINE[:PAIR]", help="no engine: all of them")
    add_pairs(commands)
    add_slots(commands)
    add_command(commands, "gpu", "the card: its memory, and who holds it")
    add_command(commands, "doctor", "look at everything, and say what needs somebody; changes nothing")
    add_events(commands)


def _add_orders(commands: Commands[argparse.ArgumentParser]) -> None:
    swap = add_command(commands, "swap", "give the card to a pair; returns when it serves")
    _add_target(swap, nargs="?")
    swap.add_argument("--trial", action="store_true", help="to a pair that isn't verified: its success is the evidence")
    swap.add_argument("--tokens", type=count, metavar="N", help="how many tokens the trial's completion asks for")
    swap.add_argument("--and-back", action="store_true", help="after the trial, what served before gets the card again")
    swap.add_argument("--cut", action="store_true", help="end what is still in flight at the drain's deadline")
    swap.add_argument("--no-stage", action="store_true", help="refuse, if the container isn't what the pair declares")
    swap.add_argument("--drain", type=duration, metavar="DURATION", help="how long to wait for requests in flight")
    add_rehash(swap)
    swap.add_argument("--abort", action="store_true", help="give up the swap under way (no TARGET)")
    stage = add_command(commands, "stage", "make a stopped container what its pair declares; takes no VRAM")
    stage.add_argument("target", type=target, metavar="ENGINE[:PAIR]", help="no pair: the deployed one")
    correct = add_command(commands, "correct", "take away restart policies that would bring an engine back by itself")
    correct.add_argument("engine", nargs="?", metavar="ENGINE", help="no engine: all of them")
    hold = add_command(commands, "hold", "let no request through; returns when none is in flight")
    hold.add_argument("--for", dest="limit", type=duration, metavar="DURATION", help="release by itself after so long")
    add_command(commands, "release", "end a hold")
    add_command(commands, "reload", "take the configuration's file over, whole or not at all; touches no engine")


def _add_alone(commands: Commands[argparse.ArgumentParser]) -> None:
    artifact = add_command(commands, "artifact", "what a model file says of itself, and whether it is whole; no daemon")
    artifact.add_argument("--hash", action="store_true", help="its sha256 too, and that of its parts")
    artifact.add_argument("file", metavar="FILE", help="a .ninfer or a GGUF file; of a split one the first")
    check = add_command(commands, "check-config", "check the configuration; needs no daemon")
    check.add_argument("file", nargs="?", metavar="FILE", help="the file (default: as --config)")
    check.add_argument("--schema", action="store_true", help="print the JSON Schema of the file, for editors")


def _add_target(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    parser.add_argument(
        "target", type=target, nargs=nargs, metavar="TARGET", help="to-ENGINE[:PAIR]; no pair: the deployed one"
    )


def _check_swap(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    others = args.trial or args.and_back or args.cut or args.no_stage or args.rehash
    others = others or args.drain is not None or args.tokens is not None
    if args.abort and (args.target or others):
        parser.error("swap --abort stands alone: it gives up whatever swap is under way")
    if not args.abort and not args.target:
        parser.error("swap takes a TARGET, such as to-ninfer or to-ninfer:v3")
    if args.tokens is not None and not args.trial:
        parser.error("--tokens is a trial's: give --trial with it")
    if args.and_back and not args.trial:
        parser.error("--and-back hands the card back after a trial: swap --trial --and-back TARGET")


def _epilog(commands: Commands[argparse.ArgumentParser]) -> str:
    """Every command with all its options, less those that all have; and what the exit codes mean."""
    own = [f"  {_usage(command)}" for command in _all_of(commands)]
    codes = [f"  {code}  {truth}" for code, truth in EXIT_CODES.items()]
    return "\n".join(["usage:", *own, "", "exit codes:", *codes])


def _all_of(commands: Commands[argparse.ArgumentParser]) -> Iterator[argparse.ArgumentParser]:
    """Each command, and after it those below it."""
    for command in commands.choices.values():
        yield command
        for action in command._actions:
            if isinstance(action, Commands):
                yield from _all_of(action)


def _usage(command: argparse.ArgumentParser) -> str:
    usage = " ".join(command.format_usage().removeprefix("usage: ").split())
    for common in ("[-h] ", "[--control SOCKET] [--config FILE]", "ACTION ..."):
        usage = usage.replace(common, "")
    return " ".join(usage.split())
