"""`slotproxy demo`: the whole house with a simulated card and simulated engines; everything else is the real code.

This process is the daemon. The engines are child processes in sessions of their own: they outlive it, as containers
do, and `slotproxy serve --config DIR/slotproxy.yml` adopts them. Only Ctrl-C cleans up.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slotproxy import config, tour
from slotproxy.daemon import CannotServe, Daemon, build, listen, log_to
from slotproxy.demo_files import write_house
from swap.controller import Ended
from swap.hands import Wish
from swap.ports import Fault

FIRST_TRIALS = ("ninfer:v2", "strata:current")  # in this order: Strata serves in the end
LOG = "slotproxy.log"


@dataclass
class Demo:
    """What was asked for, and whether Ctrl-C ended it."""

    folder: Path
    port: int
    as_json: bool
    interrupted: bool = field(default=False)

    def say(self, text: str) -> None:
        print(text, file=sys.stderr if self.as_json else sys.stdout, flush=True)

    def tell(self, fact: dict[str, Any]) -> None:
        if self.as_json:
            print(json.dumps(fact), flush=True)


def main(args: argparse.Namespace) -> int:
    """The demo's exit code: 0, or 1 when the tour saw something that a client should not have seen."""
    if args.state is None:
        with tempfile.TemporaryDirectory(prefix="slotproxy-demo-") as folder:
            return _run(Demo(Path(folder), args.port, args.json), args.tour)
    args.state.mkdir(parents=True, exist_ok=True)
    demo = Demo(args.state.resolve(), args.port, args.json)
    code = _run(demo, args.tour)
    if demo.interrupted or args.tour:
        _remove(demo.folder)
    return code


def _run(demo: Demo, with_tour: bool) -> int:
    path = write_house(demo.folder, demo.port)
    settings = config.load(path)
    with (demo.folder / LOG).open("a") as log:
        log_to(log)
        return asyncio.run(_live(demo, build(settings), with_tour))


async def _live(demo: Demo, daemon: Daemon, with_tour: bool) -> int:
    settings = daemon.settings
    with await listen(settings.host, settings.port) as reserved, _ctrl_c(demo, daemon), contextlib.ExitStack() as late:
        reserved.close()  # free, and tried before anything is started; clients are let in when Strata serves
        async with daemon.running():
            try:
                await _first_evidence(demo, daemon)
                late.enter_context(listening := await listen(settings.host, settings.port))
                return await _serve(demo, daemon, listening, with_tour)
            finally:
                if demo.interrupted or with_tour:
                    await _stop_engines(demo, daemon)


async def _serve(demo: Demo, daemon: Daemon, listening: socket.socket, with_tour: bool) -> int:
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(daemon.serve_clients(listening), name="clients")
        if with_tour:
            report = await tour.tour(daemon, demo.say)
            demo.tell(report.as_json())
            daemon.stop.set()
            return 0 if report.good else 1
        _invite(demo, daemon)
        await serving
    return 0


async def _first_evidence(demo: Demo, daemon: Daemon) -> None:
    """Real trials: nothing gets the card that hasn't proven that it runs, not even here."""
    await daemon.controller.settled()
    for label in FIRST_TRIALS:
        if daemon.stop.is_set():
            return
        engine, _, pair = label.partition(":")
        demo.say(f"trial of {label} …")
        ticket = daemon.controller.order(engine, pair, trial=True, cut=False, wish=Wish())
        async for item in ticket.follow():
            if isinstance(item, Ended) and item.code:
                raise CannotServe(f"the demo's first trial of {label} failed: {item.text}; see {demo.folder / LOG}")


def _invite(demo: Demo, daemon: Daemon) -> None:
    settings = daemon.settings
    slotctl = shutil.which("slotctl") or str(Path(sys.executable).with_name("slotctl"))
    control = f"{slotctl} --control {settings.control}"
    body = '{"model": "qwen3.8-27b", "stream": true, "messages": [{"role": "user", "content": "hello"}]}'
    url = f"http://{settings.host}:{settings.port}"
    demo.say(
        f"\nslotproxy serves at {url} (strata has the simulated card). Try, in another terminal:\n\n"
        f"  curl -N {url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'\n"
        f"  {control} swap to-ninfer\n"
        f"  {control} plan to-ninfer:v3\n\n"
        f"All files are in {demo.folder}. Ctrl-C ends it and leaves nothing behind."
    )
    demo.tell({"port": settings.port, "url": url, "state": str(demo.folder), "control": str(settings.control)})


async def _stop_engines(demo: Demo, daemon: Daemon) -> None:
    demo.say("stopping the engines …")
    for name, runtime in daemon.controller.hands.runtimes.items():
        try:
            sight = await runtime.look()
            if sight.running:
                await runtime.stop(sight.id, 5.0)
        except Fault as fault:
            demo.say(f"{name} could not be stopped: {fault}")


@contextlib.contextmanager
def _ctrl_c(demo: Demo, daemon: Daemon) -> Iterator[None]:
    """SIGINT ends it and cleans up; SIGTERM ends only the daemon, as it would in service."""
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        demo.interrupted = True
        daemon.stop.set()

    loop.add_signal_handler(signal.SIGINT, interrupt)
    loop.add_signal_handler(signal.SIGTERM, daemon.stop.set)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)


def _remove(folder: Path) -> None:
    """What the demo has put there, and the folder where that was all."""
    for name in ("slotproxy.yml", "control.sock", LOG):
        (folder / name).unlink(missing_ok=True)
    for name in ("models", "state", "card", "strata"):
        shutil.rmtree(folder / name, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.rmdir()
