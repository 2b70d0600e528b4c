"""slotctl: one verb a command. It asks the daemon over its control socket; check-config and artifact work without.

The exit code says what is true now (`slotproxy.cli_args.EXIT_CODES`). With --json one JSON document goes to stdout,
and what people want to read goes to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TextIO

from slotproxy import config, render, render_drift, render_plan
from slotproxy.cli_args import DETACHED, UNTOLD, parse_args
from slotproxy.cli_artifact import artifact
from slotproxy.cli_doctor import doctor
from slotproxy.cli_events import events
from slotproxy.cli_follow import follow, watch
from slotproxy.cli_output import CannotTell, complain, fail, put, show, told
from slotproxy.cli_pairs import pairs
from slotproxy.cli_slots import slots
from slotproxy.control_client import Control, Trouble
from swap.ports import Fault

DETACHED_WORDS: Final = {
    "swap": "detached; the swap goes on; look with: slotctl status (give it up with: slotctl swap --abort)",
    "artifact": "stopped; it only read",
    "events": "stopped; it only read",
    "hold": "detached; the hold stays set; look with: slotctl status (end it with: slotctl release)",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. Wrong usage raises SystemExit(2), as argparse does."""
    args = parse_args(argv)
    try:
        return _run(args)
    except BrokenPipeError:
        _forget(sys.stdout)
        return DETACHED
    except CannotTell as error:
        _forget(sys.stdout)
        try:
            complain(str(error), "what was ordered goes on; look with: slotctl status")
        except CannotTell:  # it is on the same disk
            _forget(sys.stderr)
        return UNTOLD


def _run(args: argparse.Namespace) -> int:
    try:
        alone = ALONE.get(args.command)
        return alone(args) if alone is not None else asyncio.run(_with_daemon(args))
    except Trouble as trouble:
        return fail(args, trouble.what, trouble.mend, trouble.code)
    except config.ConfigError as error:
        return fail(args, str(error), "", 2)
    except KeyboardInterrupt:
        return fail(args, DETACHED_WORDS.get(args.command, "detached; look with: slotctl status"), "", DETACHED)


def _forget(stream: TextIO) -> None:
    """The interpreter flushes it once more when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


async def _with_daemon(args: argparse.Namespace) -> int:
    async with Control(_socket(args)) as control:
        return await COMMANDS[args.command](control, args)


def _socket(args: argparse.Namespace) -> Path:
    """--control, else $SLOTPROXY_CONTROL, else what the configuration says, else the usual place."""
    named = args.control or os.environ.get("SLOTPROXY_CONTROL")
    if named:
        return Path(named)
    file = config.config_path(args.config)
    try:
        return config.control_of(file)
    except config.ConfigError as error:
        if file != config.DEFAULT_PATH:
            raise
        if _seen(file):  # the daemon may well run on what it read before somebody broke the file
            complain(str(error), f"trying {config.DEFAULT_CONTROL}")
        return config.DEFAULT_CONTROL


def _seen(file: Path) -> bool:
    """A folder that is closed to us shows nothing: whoever isn't meant to read the file needn't hear of it."""
    try:
        return file.exists()
    except OSError:
        return False


# ------------------------------------------------------------------------------------------------- commands


async def status(control: Control, args: argparse.Namespace) -> int:
    show(args, await control.ask("GET", "/status"), render.status)
    return 0


async def plan(control: Control, args: argparse.Namespace) -> int:
    engine, pair = args.target
    order = {"engine": engine, "pair": pair, "trial": args.trial, "rehash": args.rehash}
    _, answer = await watch(control, "/plan", order, sys.stderr)
    del answer["done"]
    if "code" in answer:  # refused after a while
        return told(args, answer)
    show(args, answer, render_plan.plan)
    return 0 if answer.get("allowed") else 3


async def drift(control: Control, args: argparse.Namespace) -> int:
    engine, pair = args.target or (None, None)
    _, answer = await watch(control, "/drift", {"engine": engine, "pair": pair}, sys.stderr)
    del answer["done"]
    if "code" in answer:  # refused after a while
        return told(args, answer)
    show(args, answer, render_drift.drift)
    return 3 if answer.get("differs") else 0


async def swap(control: Control, args: argparse.Namespace) -> int:
    if args.abort:
        return told(args, await control.ask("POST", "/abort", {}))
    engine, pair = args.target
    order = {
        "engine": engine,
        "pair": pair,
        "trial": args.trial,
        "cut": args.cut,
        "stage": not args.no_stage,
        "drain": args.drain,
        "tokens": args.tokens,
        "rehash": args.rehash,
        "and_back": args.and_back,
    }
    return await follow(control, args, "/swap", order)


async def stage(control: Control, args: argparse.Namespace) -> int:
    engine, pair = args.target
    return await follow(control, args, "/stage", {"engine": engine, "pair": pair}, render.staged)


async def correct(control: Control, args: argparse.Namespace) -> int:
    return told(args, await control.ask("POST", "/correct", {"engine": args.engine}))


async def gpu(control: Control, args: argparse.Namespace) -> int:
    answer = await control.ask("GET", "/gpu")
    if answer.get("error"):
        raise Trouble(str(answer["error"]), str(answer.get("mend") or ""), 3)
    show(args, answer, render.gpu)
    return 0


async def hold(control: Control, args: argparse.Namespace) -> int:
    return await follow(control, args, "/hold", {"seconds": args.limit})


async def release(control: Control, args: argparse.Namespace) -> int:
    return told(args, await control.ask("POST", "/release", {}))


async def reload(control: Control, args: argparse.Namespace) -> int:
    return told(args, await control.ask("POST", "/reload", {}), render.reloaded)


def check_config(args: argparse.Namespace) -> int:
    """Needs no daemon."""
    if args.schema:
        put(json.dumps(config.schema(), indent=2))
        return 0
    from swap.policy import relaxed  # noqa: PLC0415  (the other commands start faster without it)

    settings = config.load(config.config_path(args.file or args.config))
    unsure = _card_unsure(settings)
    policy = [words for engine in settings.engines.values() if (words := relaxed(engine))]
    warnings = [] if settings.tls is None else settings.tls.warnings()
    pairs = [pair.label for engine in settings.engines.values() for pair in engine.pairs.values()]
    answer = {
        "file": str(settings.path),
        "ok": True,
        "listen": f"{settings.host}:{settings.port}",
        "pairs": pairs,
        "slots": list(settings.slots),
        "policy": policy,
        "unsure": unsure,
        "warnings": warnings,
    }
    good = f"{settings.path}: good; pairs {', '.join(pairs)}; slots {', '.join(settings.slots)}"
    show(args, answer, lambda _: [good, *policy, *warnings, *filter(None, [unsure])])
    return 0


def _card_unsure(settings: config.Settings) -> str:
    """Hold the sizes against the card where it can be asked; else say why not. Raises ConfigError: one can't fit."""
    if settings.card.gpu is None:
        return ""
    from swap.nvml import NvmlCard  # noqa: PLC0415  (the other commands have no use for the driver)

    try:
        memory = asyncio.run(NvmlCard(settings.card.gpu).memory())
    except Fault as fault:
        return f"whether the sizes fit the card can't be told: {fault}"
    for problem in config.check_fits(settings, memory.total, memory.reserved):
        raise config.ConfigError(f"{settings.path}: {problem}")
    return ""


ALONE: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {"check-config": check_config, "artifact": artifact}
COMMANDS: Final[Mapping[str, Callable[[Control, argparse.Namespace], Awaitable[int]]]] = {
    "status": status,
    "plan": plan,
    "drift": drift,
    "swap": swap,
    "stage": stage,
    "correct": correct,
    "pairs": pairs,
    "slots": slots,
    "gpu": gpu,
    "doctor": doctor,
    "hold": hold,
    "release": release,
    "reload": reload,
    "events": events,
}
