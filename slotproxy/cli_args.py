"""slotctl's command line: commands, options, and a --help that lists them all."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Final

from slotproxy import __version__
from slotproxy.units import parse_duration

DETACHED: Final = 7
EXIT_CODES: Final[Mapping[int, str]] = {
    0: "that very pair serves (also when it already did); of other commands: done",
    2: "bad usage, or a configuration that can't be used",
    3: "refused: nothing was changed",
    4: "it failed or was given up; the engine that was serving serves again",
    5: "dark: nothing serves; the message says why and what to do",
    6: "the daemon can't be reached, or was lost in the middle",
    DETACHED: "Ctrl-C: slotctl stopped watching; what was ordered goes on, slotctl status shows it",
}
Subcommands = argparse._SubParsersAction  # argparse gives its type no public name

Target = tuple[str, str | None]


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Wrong usage raises SystemExit(2), as argparse does."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.command == "swap":
        _check_swap(parser, args)
    if args.command == "pairs" and (args.action is None) != (args.engine is None):
        parser.error("pairs adopt takes an engine: slotctl pairs adopt ENGINE")
    return args


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="slotctl",
        description="Moves the card from one engine to another, and says what is true.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"slotctl {__version__}")
    _add_common(parser, None)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_looks(commands)
    _add_orders(commands)
    _add_check_config(commands)
    parser.epilog = _epilog(commands)
    return parser


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


def _add_looks(commands: Subcommands[argparse.ArgumentParser]) -> None:
    _command(commands, "status", "what serves, what waits, what is under way")
    plan = _command(commands, "plan", "what a swap would run, and whether it would be allowed; changes nothing")
    _add_target(plan)
    plan.add_argument("--trial", action="store_true", help="as for a pair that isn't verified")
    pairs = _command(commands, "pairs", "the pairs and their evidence; adopt makes evidence of what serves now")
    pairs.add_argument("action", nargs="?", choices=["adopt"], help="make evidence from the engine that serves now")
    pairs.add_argument("engine", nargs="?", metavar="ENGINE", help="the engine to adopt")
    _command(commands, "gpu", "the card: its memory, and who holds it")


def _add_orders(commands: Subcommands[argparse.ArgumentParser]) -> None:
    swap = _command(commands, "swap", "give the card to a pair; returns when it serves")
    _add_target(swap, nargs="?")
    swap.add_argument("--trial", action="store_true", help="to a pair that isn't verified: its success is the evidence")
    swap.add_argument("--cut", action="store_true", help="end what is still in flight at the drain's deadline")
    swap.add_argument("--no-stage", action="store_true", help="refuse, if the container isn't what the pair declares")
    swap.add_argument("--drain", type=duration, metavar="DURATION", help="how long to wait for requests in flight")
    swap.add_argument("--abort", action="store_true", help="give up the swap under way (no TARGET)")
    stage = _command(commands, "stage", "make a stopped container what its pair declares; takes no VRAM")
    stage.add_argument("target", type=target, metavar="ENGINE[:PAIR]", help="no pair: the deployed one")
    hold = _command(commands, "hold", "let no request through; returns when none is in flight")
    hold.add_argument("--for", dest="limit", type=duration, metavar="DURATION", help="release by itself after so long")
    _command(commands, "release", "end a hold")


def _add_check_config(commands: Subcommands[argparse.ArgumentParser]) -> None:
    check = _command(commands, "check-config", "check the configuration; needs no daemon")
    check.add_argument("file", nargs="?", metavar="FILE", help="the file (default: as --config)")
    check.add_argument("--schema", action="store_true", help="print the JSON Schema of the file, for editors")


def _command(commands: Subcommands[argparse.ArgumentParser], name: str, help: str) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=help, description=help, allow_abbrev=False)
    command.add_argument("--json", action="store_true", help="one JSON document on stdout")
    _add_common(command, argparse.SUPPRESS)
    return command


def _add_common(parser: argparse.ArgumentParser, default: str | None) -> None:
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


def _add_target(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    parser.add_argument(
        "target", type=target, nargs=nargs, metavar="TARGET", help="to-ENGINE[:PAIR]; no pair: the deployed one"
    )


def _check_swap(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    others = args.trial or args.cut or args.no_stage or args.drain is not None
    if args.abort and (args.target or others):
        parser.error("swap --abort stands alone: it gives up whatever swap is under way")
    if not args.abort and not args.target:
        parser.error("swap takes a TARGET, such as to-ninfer or to-ninfer:v3")


def _epilog(commands: Subcommands[argparse.ArgumentParser]) -> str:
    """Every command with all its options, less those that all have; and what the exit codes mean."""
    usages = [" ".join(command.format_usage().removeprefix("usage: ").split()) for command in commands.choices.values()]
    own = [usage.replace("[-h] ", "").replace("[--control SOCKET] [--config FILE]", "") for usage in usages]
    codes = [f"  {code}  {truth}" for code, truth in EXIT_CODES.items()]
    return "\n".join(["usage:", *(f"  {' '.join(usage.split())}" for usage in own), "", "exit codes:", *codes])
