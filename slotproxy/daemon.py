"""Builds it all once, and its life as phases: bind, control, settle, serve clients, stop.

Engines outlive the daemon: whatever ends it, they are left running and are adopted by the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import structlog
import uvicorn

from engines.spec import Engine
from slotproxy.app import build_app
from slotproxy.config import Settings, check_fits
from slotproxy.control import SocketTaken, build_control, open_socket, remove_socket
from slotproxy.desk import Desk
from slotproxy.forward import engine_client
from slotproxy.gate import SlotGate
from slotproxy.outcomes import Outcomes
from slotproxy.server import config as client_config
from swap.address import listener
from swap.checks import Checker
from swap.container import DockerContainer
from swap.controller import Controller
from swap.dockerd import Docker
from swap.hands import BACKOFF, Hands, Times
from swap.hashing import Hasher
from swap.journal import FileJournal
from swap.ledger import FileLedger
from swap.nvml import NvmlCard
from swap.ports import Card, Fault, Runtime
from swap.process import ChildProcess
from swap.readiness import Readiness
from swap.simulated import SimulatedCard

LAST_WORDS = 3.0  # seconds of the stop limit that are kept for requests to end in-band
BACKLOG = 2048


class CannotServe(Exception):
    """The daemon can't start: one line that says why and what to do."""


@dataclass
class Daemon:
    """All parts, built and wired. `run()` lives until `stop` is set."""

    settings: Settings
    controller: Controller
    desk: Desk
    gate: SlotGate
    outcomes: Outcomes
    docker: Docker | None
    readiness: Readiness
    stop: asyncio.Event

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Controller and control API; clients aren't served yet. Raises CannotServe."""
        with _one_daemon(self.settings.state), _control_socket(self.settings.control) as control:
            server = uvicorn.Server(_quiet(uvicorn.Config(build_control(self.desk), log_config=None, lifespan="off")))
            async with asyncio.TaskGroup() as tasks:
                swaps = tasks.create_task(self.controller.run(), name="controller")
                serving = tasks.create_task(_serve(server, control), name="control API")
                try:
                    yield
                finally:
                    server.should_exit = server.force_exit = True
                    swaps.cancel()
                    await asyncio.wait([serving], timeout=5.0)
                    serving.cancel()
                    await self.readiness.close()
                    if self.docker is not None:
                        await self.docker.close()

    async def serve_clients(self, listening: socket.socket) -> None:
        """The client port, until `stop` is set; then requests end, within the stop limit."""
        async with engine_client() as client:
            app = build_app(self.settings, self.gate, client, outcomes=self.outcomes)
            server = uvicorn.Server(client_config(app))
            async with asyncio.TaskGroup() as tasks:
                serving = tasks.create_task(_serve(server, listening), name="client port")
                await self.stop.wait()
                await self._end_requests()
                server.should_exit = True
                await asyncio.wait([serving], timeout=LAST_WORDS)
                server.force_exit = True
                serving.cancel()

    async def _end_requests(self) -> None:
        """Who waits is told at once; what is in flight may finish, and is ended in-band when time is up."""
        self.gate.end("slotproxy is stopping; try again in a moment")
        if not await self.gate.drained(max(0.0, self.settings.stop_limit - 2 * LAST_WORDS)):
            self.gate.cut()
            await self.gate.drained(LAST_WORDS)


def build(settings: Settings) -> Daemon:
    """Every part, once. Raises CannotServe."""
    settings.state.mkdir(parents=True, exist_ok=True, mode=0o700)
    contained = any(engine.container for engine in settings.engines.values())
    docker = Docker(settings.docker) if contained else None
    runtimes = {name: _runtime(engine, docker, settings) for name, engine in settings.engines.items()}
    card = _card(settings)
    try:
        ledger = FileLedger(settings.state / "ledger.jsonl")
    except Fault as fault:
        raise CannotServe(str(fault)) from fault
    gate = SlotGate(max_waiting=settings.limits.max_waiting, max_waiting_bytes=settings.limits.max_waiting_bytes)
    readiness = Readiness()
    checker = Checker(
        engines=settings.engines,
        runtimes=runtimes,
        card=card,
        ledger=ledger,
        hasher=Hasher(settings.state / "hashes.json"),
        headroom=settings.card.headroom,
        baseline=settings.card.baseline,
    )
    hands = Hands(
        engines=settings.engines,
        runtimes=runtimes,
        card=card,
        checker=checker,
        gate=gate,
        journal=FileJournal(settings.state / "journal.json"),
        readiness=readiness,
        headroom=settings.card.headroom,
        default=settings.default,
        say=lambda _: None,
        in_flight=lambda: gate.view().in_flight,
        times=Times(settings.drain, settings.freeing, BACKOFF),
    )
    controller = Controller(settings.engines, hands, ledger, gate)
    desk = Desk(settings, controller, checker, ledger, card, gate, readiness)
    return Daemon(settings, controller, desk, gate, Outcomes(), docker, readiness, asyncio.Event())


def _runtime(engine: Engine, docker: Docker | None, settings: Settings) -> Runtime:
    if engine.container is None:
        return ChildProcess(engine, settings.state)
    assert docker is not None
    return DockerContainer(engine, docker, settings.state)


def _card(settings: Settings) -> Card:
    card = settings.card
    if card.simulated is not None:
        assert card.folder is not None
        return SimulatedCard(card.folder, card.simulated)
    assert card.gpu is not None
    return NvmlCard(card.gpu)


async def serve(settings: Settings) -> None:
    """`slotproxy serve`: until SIGTERM or SIGINT. Raises CannotServe."""
    daemon = build(settings)
    with await listen(settings.host, settings.port) as listening, _signals(daemon.stop):
        async with daemon.running():
            log = structlog.get_logger("slotproxy")
            log.info("serving", listen=f"{settings.host}:{settings.port}", control=str(settings.control))
            await _warn_of_size(daemon, log)
            await daemon.serve_clients(listening)


async def _warn_of_size(daemon: Daemon, log: structlog.stdlib.BoundLogger) -> None:
    """What can never fit this card is said at once; a card that can't be asked is no reason not to serve."""
    try:
        memory = await daemon.desk.card.memory()
    except Fault as fault:
        log.warning("the card can't be asked; swaps are refused until it can", why=str(fault))
        return
    for problem in check_fits(daemon.settings, memory.total, memory.reserved):
        log.warning(problem)


async def listen(host: str, port: int) -> socket.socket:
    """A listening socket, or CannotServe naming who has the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        who = await _holder(host, port)
        mend = f"{who} has it; stop that, or give another `listen:`" if who else "give another `listen:`"
        raise CannotServe(f"can't listen at {host}:{port}: {error.strerror}; {mend}") from error
    return listening


async def _holder(host: str, port: int) -> str:
    with contextlib.suppress(Fault, ValueError):
        return str(await listener(host, port) or "")
    return ""


async def _serve(server: uvicorn.Server, listening: socket.socket) -> None:
    """uvicorn without its signal handlers: signals are the daemon's own affair."""
    with contextlib.suppress(asyncio.CancelledError):
        await server._serve([listening])


def _quiet(config: uvicorn.Config) -> uvicorn.Config:
    config.access_log = False
    config.timeout_graceful_shutdown = 1
    return config


@contextlib.contextmanager
def _one_daemon(state: Path) -> Iterator[None]:
    """Two daemons on one state folder would both move the card. The lock goes with the process, however it ends."""
    file: TextIO
    with (state / "daemon.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CannotServe(
                f"{state}: another slotproxy works in this state folder; stop it, or give another `state:`"
            ) from error
        yield


@contextlib.contextmanager
def _control_socket(path: Path) -> Iterator[socket.socket]:
    try:
        listening = open_socket(path)
    except SocketTaken as taken:
        raise CannotServe(str(taken)) from taken
    except OSError as error:
        raise CannotServe(f"control: can't listen at {path}: {error.strerror}; give another `control:`") from error
    try:
        with listening:
            yield listening
    finally:
        remove_socket(path)


@contextlib.contextmanager
def _signals(stop: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def log_to(stream: TextIO = sys.stderr) -> None:
    """One line of JSON an event; journald adds what it wants."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(ensure_ascii=False),
        ],
        logger_factory=structlog.PrintLoggerFactory(stream),
    )
