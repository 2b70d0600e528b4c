"""Builds it all once, and its life as phases: claim, control, settle, serve clients, stop.

Engines outlive the daemon: whatever ends it, they are left running and are adopted by the next one, unless `on_stop`
says that a SIGTERM is meant for them, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import structlog
import uvicorn

from slotproxy.app import build_app
from slotproxy.claims import CannotServe, claim_port, control_socket, expect_private, listen_at, state_folder
from slotproxy.config import Settings, check_fits
from slotproxy.config_slots import keyless
from slotproxy.control import build_control
from slotproxy.desk import Desk
from slotproxy.ending import Ending, leave_after
from slotproxy.event_log import event_log
from slotproxy.evidence_desk import EvidenceDesk
from slotproxy.forward import engine_client
from slotproxy.gate import SlotGate
from slotproxy.in_force import InForce
from slotproxy.outcomes import Outcomes
from slotproxy.reload import Reload
from slotproxy.runtimes import Runtimes
from slotproxy.server import Server
from slotproxy.server import config as client_config
from slotproxy.supervision import supervise
from slotproxy.systemd import Systemd, handed_over, in_a_line
from swap import restart_policy
from swap.checks import Checker
from swap.controller import Controller
from swap.decisions import Decisions, Kind
from swap.hands import BACKOFF, Hands, Times
from swap.hashing import Hasher
from swap.health import Health
from swap.journal import FileJournal
from swap.kept import keep_proven
from swap.leaving import leave
from swap.ledger import FileLedger
from swap.nvml import NvmlCard
from swap.ports import Card, Fault
from swap.readiness import Readiness
from swap.refit import engine_of
from swap.shutdown import Stopped, stop_engines
from swap.simulated import SimulatedCard
from swap.state import moving
from swap.statefolder import StateFolder
from swap.threads import STATE

T = TypeVar("T")

START_LIMIT = 30.0  # seconds that the state folder's disk may take at start


@dataclass
class Daemon:
    """All parts, built and wired. It lives until `ending.stop` is set; then it ends within `settings.stop_limit`."""

    in_force: InForce
    controller: Controller
    desk: Desk
    gate: SlotGate
    outcomes: Outcomes
    readiness: Readiness
    ending: Ending
    health: Health
    reload: Reload
    broken: bool = False  # a part of it has failed, and took the whole along

    @property
    def settings(self) -> Settings:
        return self.in_force.settings

    @contextlib.asynccontextmanager
    async def running(self, control: socket.socket) -> AsyncIterator[None]:
        """Controller and control API, until the block ends. Clients aren't let in by this."""
        ending, server = self.ending, Server(_control_config(self.desk, self.reload, self.ending))
        try:
            async with asyncio.TaskGroup() as tasks:
                card = tasks.create_task(self._part("the controller", self._move_the_card()), name="controller")
                serving = tasks.create_task(self._part("the control API", server.serve([control])), name="control API")
                try:
                    yield
                finally:
                    ending.begin(self.settings.stop_limit)
                    await asyncio.wait([card], timeout=ending.last_words)
                    card.cancel()
                    await self._part_with_engines()
                    server.should_exit = True
                    await asyncio.wait([serving], timeout=ending.last_words)
                    serving.cancel()
                    await self.readiness.close()
                    if self.desk.docker is not None:
                        await self.desk.docker.close()
        finally:
            ending.over()

    async def serve_clients(self, listening: socket.socket, up: Callable[[], None] = lambda: None) -> None:
        """The client port, until the end begins; then requests end. `up` is called once it accepts connections."""
        async with engine_client() as client, asyncio.TaskGroup() as tasks:
            engine = partial(engine_of, self.controller)
            app = build_app(
                self.in_force,
                self.gate,
                client,
                outcomes=self.outcomes,
                supervision=self.health,
                engine=engine,
                visits=self.desk.visits,
            )
            self.reload.told.append(app.configure)
            server = Server(client_config(app, self.in_force.certificate), up)
            serving = tasks.create_task(self._part("the client port", server.serve([listening])), name="clients")
            await self.ending.stop.wait()
            self.ending.begin(self.settings.stop_limit)
            app.end()
            await self._end_requests()
            server.should_exit = True
            await asyncio.wait([serving], timeout=self.ending.last_words)
            serving.cancel()

    async def _end_requests(self) -> None:
        """What is in flight may finish, and is ended in-band when time is up."""
        time = self.ending.left(keep=4) * (0.5 if self.stops_engines else 1.0)
        if not await self.ending.wait(self.gate.drained(time), time):
            self.gate.cut()
            await self.gate.drained(self.ending.last_words)

    async def _move_the_card(self) -> None:
        """The controller, until we are told to stop: then the card stays with whoever has it, also in mid-swap."""
        try:
            async with asyncio.TaskGroup() as tasks:
                working = tasks.create_task(self.controller.run(), name="card")
                looking = tasks.create_task(self.health.run(), name="health")
                watching = tasks.create_task(self.desk.state.watch(), name="state folder")
                await self.ending.stop.wait()
                looking.cancel()
                self.ending.begin(self.settings.stop_limit)
                await self.ending.wait(leave(self.controller), self.ending.left(keep=4))
                working.cancel()
                watching.cancel()
        finally:
            self.ending.card_left.set()

    @property
    def stops_engines(self) -> bool:
        """A fault of our own is no reason to stop anybody."""
        return self.settings.on_stop == "stop" and not self.broken

    async def _part_with_engines(self) -> None:
        """They run on, or are stopped as configured; what isn't gone in time is said, and found by the next start."""
        if not self.stops_engines:
            return
        runtimes, within, done = self.controller.hands.runtimes, self.ending.left(keep=3), Stopped()
        await self.ending.wait(stop_engines(self.controller.engines, runtimes, within, done), within)
        for engine in done.stopped:
            self._decided(Kind.STOPPED, f"{engine} is stopped", "`on_stop: stop`, and slotproxy is stopping")
        for engine, why in done.left.items():
            self._decided(Kind.PERSON, f"{engine} isn't gone, and may run on", why)

    def _decided(self, kind: Kind, text: str, why: str) -> None:
        self.controller.hands.decisions.add(kind, text, why=why)

    async def _part(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """A part that ends before it was told to takes the daemon along: half a daemon is worse than none."""
        log = structlog.get_logger("slotproxy")
        try:
            await work
            if self.ending.stop.is_set():
                return
            log.error("a part has ended by itself", part=name)
            why = "it has ended by itself"
        except Exception as error:
            log.exception("a part broke", part=name)
            why = repr(error)
        self._decided(Kind.FAILED, f"{name} broke; slotproxy ends, engines run on", why)
        self.broken = True
        self.ending.stop.set()


def build(settings: Settings, ending: Ending) -> Daemon:
    """Every part, once. The state folder must be ours: what a crash cut off there is set aside now."""
    decisions = Decisions()
    state = StateFolder(settings.state, decisions)
    in_force, maker = InForce(settings), Runtimes(settings.state, settings.docker, state.guard)
    engines = dict(settings.engines)  # all hold this very one, and a reload changes it in place
    runtimes = {name: maker.make(engine) for name, engine in engines.items()}
    card = _card(settings)
    ledger = FileLedger(settings.state / "ledger.jsonl", state.guard)
    limits = settings.limits
    gate = SlotGate(
        max_waiting=limits.max_waiting,
        max_waiting_bytes=limits.max_waiting_bytes,
        warm_turns=limits.warm_turns,
        warm_wait=limits.warm_wait,
        prefixes={name: engine.prefixes for name, engine in engines.items()},
    )
    readiness = Readiness()
    hasher = Hasher(settings.state / "hashes.json", guard=state.guard)
    checker = Checker(
        engines=engines,
        runtimes=runtimes,
        card=card,
        ledger=ledger,
        hasher=hasher,
        headroom=settings.card.headroom,
        baseline=settings.card.baseline,
        strict=settings.card.on_change == "refuse",
        state=state,
    )
    hands = Hands(
        engines=engines,
        runtimes=runtimes,
        card=card,
        checker=checker,
        gate=gate,
        journal=FileJournal(settings.state / "journal.json", state.guard),
        readiness=readiness,
        headroom=settings.card.headroom,
        default=settings.default,
        say=lambda _: None,
        in_flight=lambda: gate.view().in_flight,
        times=Times(settings.drain, settings.freeing, BACKOFF),
        baseline=settings.card.baseline,
        decisions=decisions,
    )
    controller = Controller(engines, hands, ledger, gate)
    hasher.pause = lambda: clients_wait(controller, gate)
    state.reopen, state.came_back = ledger.reread, controller.write_again
    evidence = EvidenceDesk(in_force, controller, checker, ledger, card, gate, readiness)
    desk = Desk(in_force, controller, checker, ledger, card, gate, evidence, state, maker=maker)
    reload = Reload(in_force, controller, checker, gate, card, maker)
    health = supervise(controller, gate)
    return Daemon(in_force, controller, desk, gate, desk.outcomes, readiness, ending, health, reload)


def clients_wait(controller: Controller, gate: SlotGate) -> bool:
    """For a card that is on its way: what isn't needed for that reads no files meanwhile.

    In the dark, between two tries, it may: whoever wants to mend it needs a plan.
    """
    return gate.waits_for_the_card and moving(controller.state)


def _card(settings: Settings) -> Card:
    card = settings.card
    if card.simulated is not None:
        assert card.folder is not None
        return SimulatedCard(card.folder, card.simulated)
    assert card.gpu is not None
    return NvmlCard(card.gpu)


async def serve(settings: Settings) -> int:
    """`slotproxy serve`: until SIGTERM or SIGINT. The exit code: 1 when a part of it broke. Raises CannotServe."""
    ending, otherwise, systemd, changed = Ending(), "give another `listen:`", Systemd(), asyncio.Event()
    async with contextlib.AsyncExitStack() as held:
        held.enter_context(_signals(ending, changed))
        given = handed_over(settings.host, settings.port)
        listening = held.enter_context(given or await claim_port(settings.host, settings.port, otherwise))
        if keyless(settings.slots):
            expect_private(listening, settings.host)
        await _on_disk(lambda: held.enter_context(state_folder(settings.state)), settings)
        control = held.enter_context(control_socket(settings.control))
        await listen_at(listening, otherwise)
        daemon = await _on_disk(lambda: build(settings, ending), settings)
        daemon.reload.around = systemd.reloading
        log = structlog.get_logger("slotproxy")
        async with (
            event_log(lambda: daemon.in_force.settings, daemon.desk.state),
            daemon.running(control),
            asyncio.TaskGroup() as tasks,
        ):
            if settings.tls is not None and (trouble := settings.tls.trouble()):
                log.warning(trouble)
            log.info("slotproxy is up", listen=address_of(listening), control=str(settings.control), pid=os.getpid())
            runtimes, evidence = daemon.controller.hands.runtimes, daemon.desk.ledger.evidence()
            aside = [
                tasks.create_task(_warn_of_size(daemon, log), name="size"),
                tasks.create_task(keep_proven(runtimes, evidence), name="keep images"),
                tasks.create_task(_warn_of_policies(daemon), name="restart policies"),
                tasks.create_task(daemon.reload.on(changed), name="reload"),
            ]
            tasks.create_task(systemd.accompany(lambda: in_a_line(daemon.desk), ending.stop), name="systemd")
            await daemon.serve_clients(listening, up=systemd.ready)
            for task in aside:
                task.cancel()
        log.info("slotproxy has ended" if daemon.stops_engines else "slotproxy has ended; engines run on")
        leave_after(ending.last_words, int(daemon.broken))  # a thread in a call that hangs (NVML, Docker, a disk)
    return int(daemon.broken)


async def _on_disk(work: Callable[[], T], settings: Settings) -> T:
    """What must be had of the state folder before anything else. Raises CannotServe where its disk hangs, say."""
    try:
        return await STATE.run(work, f"the disk of the state folder {settings.state}", START_LIMIT)
    except Fault as fault:
        raise CannotServe(str(fault)) from fault


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


async def _warn_of_policies(daemon: Daemon) -> None:
    """Once it is decided who serves: what Docker would start by itself, the next time that it starts."""
    await daemon.controller.settled()
    hands = daemon.controller.hands
    await restart_policy.warn(hands.engines, hands.runtimes, hands.decisions)


def _control_config(desk: Desk, reload: Reload, ending: Ending) -> uvicorn.Config:
    return uvicorn.Config(
        build_control(desk, reload, ending),
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="error",
        timeout_graceful_shutdown=1,
    )


@contextlib.contextmanager
def _signals(ending: Ending, changed: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, changed.set)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.signalled)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)  # all that is left to do is bounded, and ends by itself
