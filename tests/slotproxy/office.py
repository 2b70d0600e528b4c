"""The operator's desk over the world in memory: gate, controller, checker and ledger are real, what they move isn't."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from engines.spec import Engine
from slotproxy.config import CardSettings, Settings, SlotSettings
from slotproxy.daemon import clients_wait
from slotproxy.desk import Desk, Json
from slotproxy.evidence_desk import EvidenceDesk
from slotproxy.gate import SlotGate
from slotproxy.in_force import InForce
from slotproxy.places import Place
from slotproxy.reload import Reload
from swap.controller import Controller
from swap.decisions import Decisions
from swap.ledger import FileLedger
from swap.ports import Runtime
from swap.statefolder import StateFolder
from tests.swap.fakes import FakeLedger, FakeRuntime
from tests.swap.world import World, until

if TYPE_CHECKING:
    from swap.dockerd import Docker

SLOT = SlotSettings("someone")


class Shelf:
    """Where a reload finds the runtimes that it needs: the test puts them there, by engine."""

    def __init__(self) -> None:
        self.docker: Docker | None = None
        self.runtimes: dict[str, FakeRuntime] = {}
        self.told: list[Engine] = []  # that their entries changed

    def make(self, engine: Engine) -> Runtime:
        return self.runtimes[engine.name]

    def configured(self, runtime: Runtime, engine: Engine) -> None:
        self.told.append(engine)


class Office(World):
    """`desk` is what is asked, `slots` the gate that requests wait at."""

    def rebuild(self) -> None:
        (self.folder / "state").mkdir(exist_ok=True)
        folder = StateFolder(self.folder / "state", Decisions())
        evidence = FileLedger(folder.path / "ledger.jsonl", folder.guard)
        self.slots = SlotGate(max_waiting=100, max_waiting_bytes=1000)
        self.gate, self.ledger = self.slots, evidence  # type: ignore[assignment]  # here they are the real ones
        super().rebuild()
        self.checker._hasher.pause = lambda: clients_wait(self.controller, self.slots)
        self.hands.in_flight = lambda: self.slots.view().in_flight
        settings = Settings(
            path=self.folder / "slotproxy.yml",
            host="127.0.0.1",
            port=0,
            control=self.folder / "control.sock",
            state=self.folder / "state",
            card=CardSettings(gpu="0"),
            engines=self.engines,
            default=self.default,
            models={},
            slots={SLOT.name: SLOT},
        )
        self.checker.state, folder.came_back = folder, self.controller.write_again
        self.hands.decisions = folder.decisions
        self.journal._guard = self.checker._hasher.guard = folder.guard
        held, self.shelf = InForce(settings), Shelf()
        about = EvidenceDesk(held, self.controller, self.checker, evidence, self.card, self.slots, self.readiness)
        self.desk = Desk(
            held, self.controller, self.checker, evidence, self.card, self.slots, about, folder, maker=self.shelf
        )
        self.reload = Reload(held, self.controller, self.checker, self.slots, self.card, self.shelf)

    async def verify(self, *labels: str) -> None:
        """The real ledger touches the disk."""
        remembered = FakeLedger()
        real, self.ledger = self.ledger, remembered
        await super().verify(*labels)
        self.ledger = real
        for evidence in remembered.evidence():
            await asyncio.to_thread(real.record, evidence)

    @asynccontextmanager
    async def serving(self, label: str = "strata:current", **more: tuple[str, ...]) -> AsyncIterator[Controller]:
        engine, _, pair = label.partition(":")
        self.runtimes[engine].run(self.runtimes[engine].recipes[pair])
        async with self.running(**more) as controller:
            await until(lambda: self.slots.view().engine == engine)
            yield controller

    async def request(self) -> Place:
        """A client's request, let in."""
        place = await self.slots.enter(SLOT, size=10)
        assert isinstance(place, Place), place
        return place

    async def swapped(
        self, engine: str, pair: str | None = None, *, trial: bool = False, rehash: bool = False
    ) -> list[Json]:
        """All that a swap tells, ticks left out."""
        return [item async for item in self.desk.swap(engine, pair, trial=trial, rehash=rehash) if "tick" not in item]
