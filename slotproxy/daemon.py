"""Builds it all once, and its life as phases: claim, control, settle, serve clients, stop.

Engines outlive the daemon: whatever ends it, they are left running and are adopted by the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
import uvicorn

from slotproxy.app import build_app
from slotproxy.claims import claim_port, control_socket, listen_at, state_folder
from slotproxy.config import Settings, check_fits
from slotproxy.control import build_control
from slotproxy.desk import Desk
from slotproxy.ending import at_most, leave_after
from slotproxy.evidence_desk import EvidenceDesk
from slotproxy.forward import engine_client
from slotproxy.gate import SlotGate
from slotproxy.outcomes import Outcomes
from slotproxy.server import Server
from slotproxy.server import config as client_config
from slotproxy.systemd import Systemd, in_a_line
from swap.checks import Checker
from swap.controller import Controller
from swap.hands import BACKOFF, Hands, Times
from swap.hashing import Hasher
from swap.journal import FileJournal
from swap.kept import keep_proven
from swap.ledger import FileLedger
from swap.nvml import NvmlCard
from swap.ports import Card, Fault, Runtime
from swap.process import ChildProcess
from swap.readiness import Readiness
from swap.simulated import SimulatedCard
from swap.state import moving

if TYPE_CHECKING:
    from swap.dockerd import Docker

LAST_WORDS = 3.0  # seconds, at most, for each thing that is done at the end: cut requests, close connections
HANGING = 2.0  # seconds that a thread in a call that hangs (NVML, Docker, a disk) may hold up our end


@dataclass
class Daemon:
    """All parts, built and wired. It lives until `stop` is set; then it ends within `settings.stop_limit`."""

    settings: Settings
    controller: Controller
    desk: Desk
    gate: SlotGate
    outcomes: Outcomes
    docker: Docker | None
    readiness: Readiness
    stop: asyncio.Event
    broken: bool = False  # a part of it has failed, and took the whole along

    @contextlib.asynccontextmanager
    async def running(self, control: socket.socket) -> AsyncIterator[None]:
        """Controller and control API, until the block ends. Clients aren't let in by this."""
        server = Server(_control_config(self.desk, self.stop))
        with contextlib.ExitStack() as end:
            async with asyncio.TaskGroup() as tasks:
                card = tasks.create_task(self._part("the controller", self._move_the_card()), name="controller")
                serving = tasks.create_task(self._part("the control API", server.serve([control])), name="control API")
                try:
                    yield
                finally:
                    self.stop.set()
                    end.enter_context(at_most(2 * self._last_words))
                    server.should_exit = True
                    await asyncio.wait([card, serving], timeout=self._last_words)
                    card.cancel()
                    serving.cancel()
                    await self.readiness.close()
                    if self.docker is not None:
                        await self.docker.close()

    async def serve_clients(self, listening: socket.socket, up: Callable[[], None] = lambda: None) -> None:
        """The client port, until `stop` is set; then requests end. `up` is called once it accepts connections."""
        with contextlib.ExitStack() as end:
            async with engine_client() as client, asyncio.TaskGroup() as tasks:
                app = build_app(self.settings, self.gate, client, outcomes=self.outcomes)
                server = Server(client_config(app), up)
                serving = tasks.create_task(self._part("the client port", server.serve([listening])), name="clients")
                await self.stop.wait()
                end.enter_context(at_most(self.settings.stop_limit))
                await self._end_requests()
                server.should_exit = True
                await asyncio.wait([serving], timeout=self._last_words)
                serving.cancel()

    async def _end_requests(self) -> None:
        """Who waits is told at once; what is in flight may finish, and is ended in-band when time is up."""
        self.gate.end("slotproxy is stopping; try again in a moment")
        if not await self.gate.drained(self.settings.stop_limit - 4 * self._last_words):
            self.gate.cut()
            await self.gate.drained(self._last_words)

    async def _move_the_card(self) -> None:
        """The controller, until we are told to stop: from then on the card stays where it is, also in mid-swap."""
        async with asyncio.TaskGroup() as tasks:
            working = tasks.create_task(self.controller.run(), name="card")
            await self.stop.wait()
            working.cancel()

    async def _part(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """A part that ends before it was told to takes the daemon along: half a daemon is worse than none."""
        log = structlog.get_logger("slotproxy")
        try:
            await work
            if self.stop.is_set():
                return
            log.error("a part has ended by itself; slotproxy ends, engines run on", part=name)
        except Exception:
            log.exception("a part broke; slotproxy ends, engines run on", part=name)
        self.broken = True
        self.stop.set()

    @property
    def _last_words(self) -> float:
        return min(LAST_WORDS, self.settings.stop_limit / 6)


def build(settings: Settings, stop: asyncio.Event) -> Daemon:
    """Every part, once. The state folder must be ours: what a crash cut off there is set aside now."""
    runtimes, docker = _runtimes(settings)
    card = _card(settings)
    ledger = FileLedger(settings.state / "ledger.jsonl")
    gate = SlotGate(max_waiting=settings.limits.max_waiting, max_waiting_bytes=settings.limits.max_waiting_bytes)
    readiness = Readiness()
    hasher = Hasher(settings.state / "hashes.json")
    checker = Checker(
        engines=settings.engines,
        runtimes=runtimes,
        card=card,
        ledger=ledger,
        hasher=hasher,
        headroom=settings.card.headroom,
        baseline=settings.card.baseline,
        strict=settings.card.on_change == "refuse",
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
        baseline=settings.card.baseline,
    )
    controller = Controller(settings.engines, hands, ledger, gate)
    hasher.pause = lambda: clients_wait(controller, gate)
    evidence = EvidenceDesk(settings, controller, checker, ledger, card, gate, readiness)
    desk = Desk(settings, controller, checker, ledger, card, gate, evidence, docker)
    return Daemon(settings, controller, desk, gate, Outcomes(), docker, readiness, stop)


def clients_wait(controller: Controller, gate: SlotGate) -> bool:
    """For a card that is on its way: what isn't needed for that reads no files meanwhile.

    In the dark, between two tries, it may: whoever wants to mend it needs a plan.
    """
    return gate.waits_for_the_card and moving(controller.state)


def _runtimes(settings: Settings) -> tuple[dict[str, Runtime], Docker | None]:
    runtimes: dict[str, Runtime] = {
        name: ChildProcess(engine, settings.state)
        for name, engine in settings.engines.items()
        if engine.container is None
    }
    contained = {name: engine for name, engine in settings.engines.items() if engine.container is not None}
    if not contained:
        return runtimes, None
    from swap.container import DockerContainer  # noqa: PLC0415 - loading the SDK takes as long as all the rest
    from swap.dockerd import Docker  # noqa: PLC0415

    docker = Docker(settings.docker)
    made = {name: DockerContainer(engine, docker, settings.state) for name, engine in contained.items()}
    return {name: (runtimes | made)[name] for name in settings.engines}, docker


def _card(settings: Settings) -> Card:
    card = settings.card
    if card.simulated is not None:
        assert card.folder is not None
        return SimulatedCard(card.folder, card.simulated)
    assert card.gpu is not None
    return NvmlCard(card.gpu)


async def serve(settings: Settings) -> int:
    """`slotproxy serve`: until SIGTERM or SIGINT. The exit code: 1 when a part of it broke. Raises CannotServe."""
    stop, otherwise, systemd = asyncio.Event(), "give another `listen:`", Systemd()
    with (
        _signals(stop),
        await claim_port(settings.host, settings.port, otherwise) as listening,
        state_folder(settings.state),
        control_socket(settings.control) as control,
    ):
        await listen_at(listening, otherwise)
        daemon = build(settings, stop)
        log = structlog.get_logger("slotproxy")
        async with daemon.running(control), asyncio.TaskGroup() as tasks:
            log.info("slotproxy is up", listen=address_of(listening), control=str(settings.control), pid=os.getpid())
            runtimes, evidence = daemon.controller.hands.runtimes, daemon.desk.ledger.evidence()
            aside = [
                tasks.create_task(_warn_of_size(daemon, log), name="size"),
                tasks.create_task(keep_proven(runtimes, evidence), name="keep images"),
            ]
            tasks.create_task(systemd.accompany(lambda: in_a_line(daemon.desk), stop), name="systemd")
            await daemon.serve_clients(listening, up=systemd.ready)
            for task in aside:
                task.cancel()
    log.info("slotproxy has ended; engines run on")
    leave_after(HANGING, int(daemon.broken))
    return int(daemon.broken)


def address_of(listening: socket.socket) -> str:
    """HOST:PORT, also where the kernel chose the port."""
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _warn_of_size(daemon: Daemon, log: structlog.stdlib.BoundLogger) -> None:
    """What can never fit this card is said at once; a card that can't be asked is no reason not to serve."""
    try:
        memory = await daemon.desk.card.memory()
    except Fault as fault:
        log.warning("the card can't be asked; swaps are refused until it can", why=str(fault))
        return
    for problem in check_fits(daemon.settings, memory.total, memory.reserved):
        log.warning(problem)


def _control_config(desk: Desk, stop: asyncio.Event) -> uvicorn.Config:
    return uvicorn.Config(
        build_control(desk, stop),
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="error",
        timeout_graceful_shutdown=1,
    )


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
            signal.signal(number, signal.SIG_IGN)  # all that is left to do is bounded, and ends by itself
