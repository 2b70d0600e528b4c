"""`slotproxy demo`: the whole house with a simulated card and simulated engines; everything else is the real code.

This process is the daemon. The engines are child processes in sessions of their own: they outlive it, as containers
do, and `slotproxy serve --config DIR/slotproxy.yml`, or another demo in DIR, adopts them. Only Ctrl-C cleans up, and
the end of a tour.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from engines.spec import Engine
from slotproxy import config, tour
from slotproxy.claims import CannotServe, claim_port, control_socket, listen_at, state_folder
from slotproxy.config import Settings
from slotproxy.daemon import Daemon, build
from slotproxy.demo_files import HOST, LOG, Quarters, write_house
from slotproxy.ending import Ending, Stopping, stopped
from slotproxy.event_log import event_log
from slotproxy.logs import log_to
from slotproxy.presence import unless
from slotproxy.refusal import Refusal
from swap.adoption import MARGIN
from swap.ports import Fault
from swap.process import ChildProcess
from swap.threads import MODELS
from swap.tickets import Ended
from swap.wish import Wish

TRIALS = ("ninfer:v2", "strata:current")  # the first evidence; Strata serves in the end
OTHERWISE = "give another --port"
ENDS = (signal.SIGINT, signal.SIGTERM)
DISK_LIMIT = 30.0  # seconds for a look at the model files
GRACE = 5.0  # seconds that an engine has to end by itself when the demo is over


@dataclass
class Demo:
    """What was asked for, and how it is going."""

    port: int
    as_json: bool
    with_tour: bool
    folder: Path = Path()
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    ending: bool = False  # a signal has come
    interrupted: bool = False  # it was Ctrl-C
    problem: str = ""

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def say(self, text: str) -> None:
        print(text, file=sys.stderr if self.as_json else sys.stdout, flush=True)

    def tell(self, fact: dict[str, Any]) -> None:
        if self.as_json:
            print(json.dumps(fact), flush=True)


def main(args: argparse.Namespace) -> int:
    """The exit code: 0, or 1 when the tour saw what no client should have seen. Raises CannotServe, ConfigError."""
    demo = Demo(args.port, args.json, args.tour)
    _listen_to_signals(demo)
    with asyncio.run(claim_port(HOST, args.port, OTHERWISE)) as port, Quarters(args.state) as quarters:
        demo.folder, demo.port = quarters.folder, port.getsockname()[1]
        with state_folder(demo.folder / "state"):
            settings = config.load(write_house(demo.folder, demo.port))
            with (demo.folder / LOG).open("a") as log:
                log_to(log)
                code = asyncio.run(_live(demo, settings, port))
                quarters.over = _end(demo, settings)
    for number in ENDS:
        signal.signal(number, signal.SIG_IGN)  # it is over already
    if demo.problem:
        raise CannotServe(demo.problem)
    return code


async def _live(demo: Demo, settings: Settings, port: socket.socket) -> int:
    if demo.ending:
        demo.stop.set()
    with control_socket(settings.control) as control:
        daemon, code = build(settings, Ending(demo.stop)), 0
        async with (
            event_log(lambda: daemon.in_force.settings, daemon.desk.state),
            daemon.running(control),
        ):
            try:
                await _prepare(demo, daemon)
                await listen_at(port, OTHERWISE)
                code = await _serve(demo, daemon, port)
            except CannotServe as error:
                demo.problem = str(error)
            except Stopping:
                code = int(demo.with_tour)  # a tour that is cut short has shown nothing
        if daemon.broken:
            demo.problem = f"a part of slotproxy broke; see {demo.folder / LOG}"
        return code


async def _prepare(demo: Demo, daemon: Daemon) -> None:
    """First evidence by real trials, unless there is some already; then Strata serves. Raises CannotServe, Stopping."""
    await unless(daemon.controller.settled(), stopped(demo.stop))
    wait = await MODELS.run(partial(_too_new, daemon), f"the disk of {demo.folder}", DISK_LIMIT)
    await unless(asyncio.sleep(wait), stopped(demo.stop))
    for label in TRIALS:
        engine, _, pair = label.partition(":")
        verdict = await unless(daemon.desk.checker.judge(engine, pair, trial=False), stopped(demo.stop))
        if verdict.verified is not None:
            continue
        if _serving(daemon) == label:  # a killed demo has left it: to serve already is no trial
            await _adopt(demo, daemon, engine)
        else:
            demo.say(f"trial of {label} …")
            await _swap(demo, daemon, label, trial=True)
    if _serving(daemon) != TRIALS[-1]:
        await _swap(demo, daemon, TRIALS[-1], trial=False)


def _too_new(daemon: Daemon) -> float:
    """Seconds until the files are old enough for `adopt`: the next demo may find an engine that this one has left."""
    pairs = [pair for engine in daemon.settings.engines.values() for pair in engine.pairs.values()]
    newest = max(path.stat().st_ctime for pair in pairs for path in pair.artifacts)
    return max(0.0, newest + MARGIN - time.time())


async def _adopt(demo: Demo, daemon: Daemon, engine: str) -> None:
    """Raises CannotServe, Stopping."""
    demo.say(f"{engine} serves already …")
    try:
        await unless(daemon.desk.evidence.adopt(engine), stopped(demo.stop))
    except (Refusal, Fault) as no:
        raise CannotServe(f"the demo could not adopt {engine}: {no}; see {demo.folder / LOG}") from no


def _serving(daemon: Daemon) -> str:
    serving = daemon.controller.state.serving
    return serving.label if serving else ""


async def _swap(demo: Demo, daemon: Daemon, label: str, *, trial: bool) -> None:
    """Raises CannotServe, Stopping."""
    engine, _, pair = label.partition(":")
    ticket = daemon.controller.order(engine, pair, trial=trial, cut=False, wish=Wish())

    async def end() -> Ended:
        while not isinstance(item := await ticket.news.get(), Ended):
            pass
        return item

    ended = await unless(end(), stopped(demo.stop))
    if ended.code:
        raise CannotServe(f"the demo could not start {label}: {ended.text}; see {demo.folder / LOG}")


async def _serve(demo: Demo, daemon: Daemon, port: socket.socket) -> int:
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(daemon.serve_clients(port), name="clients")
        if not demo.with_tour:
            await _invite(demo, daemon)
            await serving
            return 0
        try:
            report = await unless(tour.tour(daemon, demo.url, demo.say), stopped(demo.stop))
        except Stopping:
            return 1
        finally:
            demo.stop.set()
        demo.tell(report.as_json())
        return 0 if report.good else 1


async def _invite(demo: Demo, daemon: Daemon) -> None:
    never_ran = (await daemon.desk.checker.judge("ninfer", "v3", trial=False)).verified is None
    refused = "`swap to-ninfer:v3` will be refused, for that pair never ran here; with --trial it is run."
    commands = _commands(demo)
    lines = [
        f"\nslotproxy serves at {demo.url}: strata has the simulated card. Try, in another terminal:\n",
        *(f"  {command}" for command in commands),
        *(["", refused] if never_ran else [""]),
        f"All files are in {demo.folder}. Ctrl-C ends it all and leaves nothing behind.",
    ]
    demo.say("\n".join(lines))
    facts = {"port": demo.port, "url": demo.url, "pid": os.getpid(), "state": str(demo.folder), "commands": commands}
    demo.tell({**facts, "control": str(demo.folder / "control.sock"), "config": str(demo.folder / "slotproxy.yml")})


def _commands(demo: Demo) -> list[str]:
    """Three to try; they work as they stand, pasted into a shell."""
    body = '{"model": "qwen3.8-27b", "stream": true, "messages": [{"role": "user", "content": "hello"}]}'
    slotctl = f"{_program('slotctl')} --control {shlex.quote(str(demo.folder / 'control.sock'))}"
    return [
        f"curl -N {demo.url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'",
        f"{slotctl} swap to-ninfer",
        f"{slotctl} status",
    ]


def _program(name: str) -> str:
    """Our own, by its name alone where that is what a shell would find."""
    own = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    return name if found and Path(found).resolve() == own.resolve() else shlex.quote(str(own))


def _goes_on(demo: Demo) -> str:
    return f"{_program('slotproxy')} serve --config {shlex.quote(str(demo.folder / 'slotproxy.yml'))}"


# ------------------------------------------------------------------------------------------------- the end


def _end(demo: Demo, settings: Settings) -> bool:
    """True when nothing of it is wanted any more, and no engine is left."""
    if not demo.problem and not demo.interrupted and (demo.ending or not demo.with_tour):
        demo.say(f"The engines run on. Go on with: {_goes_on(demo)}")
        return False
    demo.say("stopping the engines …")
    all_stopped = asyncio.run(_stop_engines(demo, settings))
    return all_stopped and not demo.problem


async def _stop_engines(demo: Demo, settings: Settings) -> bool:
    """As the next daemon would find them: nobody of this one is left who might start one. True: none runs any more."""
    stops = [_stopped(demo, engine, ChildProcess(engine, settings.state)) for engine in settings.engines.values()]
    return all(await asyncio.gather(*stops))


async def _stopped(demo: Demo, engine: Engine, runtime: ChildProcess) -> bool:
    try:
        sight = await runtime.look()
        if sight.running:
            await runtime.stop(sight.id, GRACE)
    except Fault as fault:
        demo.say(f"{engine.name} could not be stopped: {fault}")
        return False
    return True


def _listen_to_signals(demo: Demo) -> None:
    """SIGINT ends it and cleans up; SIGTERM ends only the daemon, as it would in service. Once is enough for both."""

    def told(number: int, _: FrameType | None) -> None:
        demo.ending = True
        demo.interrupted = demo.interrupted or number == signal.SIGINT
        with contextlib.suppress(RuntimeError):  # no loop runs just now; the next one looks first
            asyncio.get_running_loop().call_soon_threadsafe(demo.stop.set)

    for number in ENDS:
        signal.signal(number, told)
