"""slotproxy: `serve` the configured house, or run the `demo` of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from slotproxy import __version__

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """0: ended as asked. 1: can't start, or a part broke. 2: bad usage or configuration."""
    args = parser().parse_args(argv)
    try:
        return _run(args)
    except KeyboardInterrupt:  # so early that nothing listened for it, and nothing was begun
        return INTERRUPTED


def _run(args: argparse.Namespace) -> int:
    """What it needs is loaded here, so that Ctrl-C meanwhile makes no traceback, and --help is quick."""
    from slotproxy.claims import CannotServe  # noqa: PLC0415
    from slotproxy.config_yaml import ConfigError  # noqa: PLC0415
    from slotproxy.files import raise_limit  # noqa: PLC0415

    raise_limit()
    try:
        return _demo(args) if args.command == "demo" else _serve(args)
    except ConfigError as error:
        return _fail(str(error), 2)
    except CannotServe as error:
        return _fail(str(error), 1)


def _serve(args: argparse.Namespace) -> int:
    import asyncio  # noqa: PLC0415
    import faulthandler  # noqa: PLC0415
    import signal  # noqa: PLC0415

    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it reloads, once we can; so early it would end us
    from slotproxy import config, daemon, logs  # noqa: PLC0415

    settings = config.load(config.config_path(args.config))
    logs.log_to(sys.stderr)
    faulthandler.enable()  # systemd's watchdog aborts who hangs: each thread says where it stands
    return asyncio.run(daemon.serve(settings))


def _demo(args: argparse.Namespace) -> int:
    from slotproxy import demo  # noqa: PLC0415

    return demo.main(args)


def _fail(what: str, code: int) -> int:
    print(f"slotproxy: {what}", file=sys.stderr)
    return code


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="slotproxy", description=__doc__)
    top.add_argument("--version", action="version", version=f"slotproxy {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serving = commands.add_parser("serve", help="the daemon: one port in front of the engines of one card")
    serving.add_argument("--config", metavar="FILE", help="default: $SLOTPROXY_CONFIG, /etc/slotproxy/slotproxy.yml")
    trying = commands.add_parser("demo", help="everything on this machine with a simulated card and engines")
    trying.add_argument("--port", type=_port, default=8080, metavar="N", help="where clients connect (default 8080)")
    trying.add_argument("--state", type=Path, metavar="DIR", help="keep all files here (default: a temporary folder)")
    trying.add_argument("--tour", action="store_true", help="run clients through swaps, say what happened, and end")
    trying.add_argument("--json", action="store_true", help="print what happened as JSON on stdout")
    return top


def _port(written: str) -> int:
    if not written.isdecimal() or int(written) > 65535:
        raise argparse.ArgumentTypeError(f"{written!r} is no port; write one from 1 to 65535, or 0 for any free one")
    return int(written)


if __name__ == "__main__":
    sys.exit(main())
