"""One swap with one fault in one step: the story is played, and judged from outside.

The way there is that of the table's step; the way back begins where the new engine never gets ready; a boot where the
daemon was killed when nothing was up (or, for its look, while the old one ran).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from swap.moves import Code
from swap.ports import Fault
from swap.state import Refusing, gate
from swap.tickets import Ended
from tests.faults.clients import Got
from tests.faults.outside import LOADING, TimedRuntime, expect_alive
from tests.faults.table import BROKEN, DARK, NEW, OLD, OTHER
from tests.faults.town import Town

RUNS = "boot: look at what runs"
JOURNAL = "boot: read the journal"
REST = 12.0  # seconds in which nothing happens any more: somebody has looked at each engine
Seen = dict[str, list[str | None]]  # by step: what is up as it begins, and as it ends
LONGEST = 3000.0  # seconds until all has come to rest
IMAGES = {"ninfer:v2": "ninfer:local", "ninfer:v3": "ninfer:v3", "strata:current": "strata:1"}


@dataclass(frozen=True, slots=True)
class Variant:
    """`there`: the pair that the new one's container was last made as; it has to be staged."""

    name: str
    old: str
    new: str
    trial: bool = False
    there: str | None = None

    def set_up(self, town: Town) -> None:
        """The old one runs."""
        engine, _, pair = self.old.partition(":")
        if self.there is not None:
            other, _, made = self.there.partition(":")
            town.runtimes[other].create(town.runtimes[other].recipes[made])
        town.runtimes[engine].run(town.runtimes[engine].recipes[pair])
        town.default = None


VARIANTS = (
    Variant("two engines", "strata:current", "ninfer:v2", there="ninfer:v3"),
    Variant("two pairs of one engine", "ninfer:v2", "ninfer:v3"),
    Variant("a trial", "strata:current", "ninfer:v3", trial=True),
)


@dataclass(frozen=True, slots=True)
class Case:
    """Which step of which swap. `up`: what is up as it begins and as it ends, where nothing goes wrong."""

    variant: Variant
    step: str
    up: tuple[str | None, ...] = ()
    calls: frozenset[str] = frozenset()  # what it asks of a runtime then

    @property
    def kind(self) -> str:
        """The step without whether it is on the way back or at a boot."""
        return self.step.rpartition(": ")[2]

    @property
    def there(self) -> bool:
        return self.step == self.kind


@dataclass
class Scene:
    """What a mishap acts on. `struck`: it has happened; `over` is set when what it broke is whole again."""

    town: Town
    case: Case
    struck: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)
    seen: Seen = field(default_factory=dict)

    @property
    def variant(self) -> Variant:
        return self.case.variant

    @property
    def step(self) -> str:
        return self.case.step

    @property
    def kind(self) -> str:
        return self.case.kind

    @property
    def old(self) -> TimedRuntime:
        return self.town.timed[self.variant.old.partition(":")[0]]

    @property
    def new(self) -> TimedRuntime:
        return self.town.timed[self.variant.new.partition(":")[0]]

    @property
    def runtime(self) -> TimedRuntime:
        """Of the engine that the step is about."""
        return self.old if self.case.there == (self.kind in ("stop", "drain")) else self.new

    def heal(self) -> None:
        town = self.town
        town.docker.mend()
        town.docker.full = False
        town.disk.empty()
        town.disk.slow = None
        town.nvml.silent = town.nvml.lies = False
        town.nvml.unknown = town.book.full = None
        town.nvml.foreign.clear()
        town.answers.never.clear()
        town.answers.hangs = town.answers.stale = False
        town.clients.more = 0.0
        for runtime in town.timed.values():
            runtime.exits_on_start = None
            runtime.loading = LOADING
            runtime.tricks.clear()
        self.over.set()


Strike = Callable[[Scene], object]


def _always(case: Case) -> str:
    return ""


@dataclass(frozen=True)
class Mishap:
    """`when`: as the step "begins", in "mid" of its call, as it "ends". `lasts`: seconds until all is whole again.

    `cannot` says why it can't happen in this step, or nothing.
    """

    name: str
    when: str
    strike: Strike
    cannot: Callable[[Case], str] = _always
    lasts: float = 20.0


@dataclass(frozen=True, slots=True)
class Verdict:
    result: str
    note: str
    story: tuple[str, ...]
    seen: Seen
    calls: Mapping[str, set[str]]


async def play(folder: Path, models: Path, case: Case, mishap: Mishap) -> Verdict:
    """How it ends. Nothing of it is left."""
    async with asyncio.TaskGroup() as tasks:
        town = Town(folder, models, tasks)
        try:
            return await _Play(Scene(town, case), mishap).run()
        finally:
            town.close()


class _Play:
    def __init__(self, scene: Scene, mishap: Mishap) -> None:
        self.scene, self.mishap, self.town = scene, mishap, scene.town
        self.broken: list[str] = []
        self.ids: dict[str, tuple[str, str]] = {}

    async def run(self) -> Verdict:
        town, variant = self.town, self.scene.variant
        variant.set_up(town)
        proven = ("strata:current", variant.old) if variant.trial else ("strata:current", variant.new, variant.old)
        await town.verify(*dict.fromkeys(proven))
        verified = town.proven
        town.boot()
        await town.controller.settled()
        enough = asyncio.Event()
        town.tasks.create_task(town.clients.come(enough))
        await asyncio.sleep(1.0)
        self._arm()
        ended = await self._order(variant.new, trial=variant.trial)
        result, note = await self._outcome(ended)
        enough.set()
        await self._clients_end()
        self._judge(verified, result)
        await self._ordinary_swaps(result)
        town.stop()
        broken = [*self.broken, *town.eyes.broken, *town.clients.broken]
        if broken:
            result, note = BROKEN, "; ".join(dict.fromkeys(broken))
        return Verdict(result, note, tuple(town.happened), self.scene.seen, town.eyes.calls)

    # ------------------------------------------------------------------------------------------ the fault

    def _arm(self) -> None:
        town, step = self.town, self.scene.step
        self.ids = {name: (one.sight.id, one.sight.started_at) for name, one in town.timed.items()}
        town.tap = self._tap
        if step.startswith("back:"):
            town.answers.never.add(IMAGES[self.scene.variant.new])
        if step == "record":
            self._arm_record()

    def _arm_record(self) -> None:
        if self.mishap.when == "ends":
            self.town.book.after = self._strike
        else:
            self.town.book.before = self._strike

    async def _tap(self, step: str, moment: str) -> None:
        up = self.town.up_label
        seen = self.scene.seen.setdefault(step, [])
        if len(seen) < 2:
            seen.append(up)
        if not self.scene.struck and self.town.lives == self._life:
            if self._base(step, moment):
                self.town.kill()
            else:
                self._meet(step, moment)
        expect_alive()

    @property
    def _life(self) -> int:
        return self.town.lives if not self.scene.step.startswith("boot:") else min(self.town.lives, 2)

    def _base(self, step: str, moment: str) -> bool:
        """Is it here that the daemon is killed whose next start the cell is about?"""
        if not self.scene.step.startswith("boot:") or self.town.lives != 1:
            return False
        if self.scene.step == JOURNAL:
            self.town.disk.reads = self._strike
        return (step, moment) == (("drain", "begins") if self.scene.step == RUNS else ("inspect", "ends"))

    def _meet(self, step: str, moment: str) -> None:
        wanted = "boot: look" if self.scene.step == RUNS else self.scene.step
        if step != wanted or (step.startswith("boot:") and self.town.lives != 2):
            return
        if self.mishap.when == "mid" and moment == "begins":
            self._arm_middle()
        elif self.mishap.when == moment:
            self._strike()

    def _arm_middle(self) -> None:
        scene, kind = self.scene, self.scene.kind
        calls = {"check": "declared", "stage": "stage", "put back": "put_back", "stop": "stop", "start": "start"}
        calls |= {"inspect": "look", "look": "recover", "look at what runs": "recover"}
        if kind in calls:
            scene.runtime.mids[calls[kind]] = self._strike
        elif kind == "free":
            self.town.nvml.mid = self._strike
        elif kind == "warm":
            self.town.answers.mid = self._strike
        else:
            asyncio.get_running_loop().call_later(0.5, self._strike)

    def _strike(self) -> None:
        if self.scene.struck:
            return
        self.scene.struck = True
        self.mishap.strike(self.scene)
        asyncio.get_running_loop().call_later(self.mishap.lasts, self.scene.heal)

    # ------------------------------------------------------------------------------------------ the order

    async def _order(self, label: str, *, trial: bool) -> Ended | None:
        return await self.town.end_of(self.town.order(label, trial=trial))

    async def _outcome(self, ended: Ended | None) -> tuple[str, str]:
        """Who serves when all has come to rest, and what the order was told."""
        if ended is not None:
            self._expect_truth(ended)
        if not await self._struck():
            self._see("the fault never happened")
        await self._rest()
        note = "no answer" if ended is None else f"exit {ended.code}"
        serves = self._serves()
        if serves is None:
            return DARK, note
        return {self.scene.variant.new: NEW, self.scene.variant.old: OLD}.get(serves, OTHER), note

    async def _struck(self) -> bool:
        try:
            async with asyncio.timeout(LONGEST):
                await self.scene.over.wait()
        except TimeoutError:
            return False
        return True

    def _expect_truth(self, ended: Ended) -> None:
        """What the exit code says, compared with what is there in this moment."""
        town, variant = self.town, self.scene.variant
        up, open_to = town.up_label, town.eyes.gate()
        just_died = any(_now() - one.died < 1.0 for one in town.timed.values() if one.died)
        if ended.code == Code.SERVES and up != variant.new and not (just_died and variant.new in town.opened):
            self._see(f"told 0 (the new one serves), and {up} is up")
        if ended.code == Code.REFUSED and self.ids != {
            name: (one.sight.id, one.sight.started_at) for name, one in town.timed.items()
        }:
            self._see("told 3 (nothing was changed), and something was")
        if ended.code in (Code.REFUSED, Code.RESTORED) and up != variant.old and not just_died:
            self._see(f"told {ended.code} (the old one serves), and {up} is up")
        if ended.code == Code.DARK and open_to is not None:
            self._see(f"told 5 (dark), and the gate is open to {open_to}")
        if not ended.text.strip():
            self._see("told nothing")

    # ------------------------------------------------------------------------------------------ the end

    async def _rest(self) -> None:
        """Until something serves, or a person is needed, and that stays so."""
        ends, since = _now() + LONGEST, _now()
        while _now() < since + REST:
            if _now() > ends:
                self._see(f"it comes to no rest: {self.town.controller.state}")
                return
            if not self._settled():
                since = _now()
            await asyncio.sleep(1.0)

    def _settled(self) -> bool:
        life = self.town.life
        if life is None or life.controller.under_way is not None:
            return False
        state = life.controller.state
        return state.person or (state.serving is not None and state.doing is None)

    def _serves(self) -> str | None:
        """By the gate and by what is up; None: nobody, and the reason is told."""
        life, town = self.town.life, self.town
        assert life is not None
        view = life.gate.view()
        if view.state == "open" and view.engine is not None:
            if not town.timed[view.engine].ready or town.up != {view.engine}:
                self._see(f"the gate is open to {view.engine}, and {sorted(town.up)} is up")
            return town.label_of(view.engine)
        told = gate(life.controller.state)
        if view.state != "refusing" or not isinstance(told, Refusing) or not told.why or view.reason != told.why:
            self._see(f"nobody serves, and the gate says {view.state}: {view.reason!r}")
        return None

    async def _clients_end(self) -> None:
        """Whoever still waits is answered soon, by who serves or with a reason."""
        ends = _now() + LONGEST
        while len(self.town.clients.got) < self.town.clients.begun:
            if _now() > ends:
                left = self.town.clients.begun - len(self.town.clients.got)
                self._see(f"{left} clients were never answered")
                return
            await asyncio.sleep(1.0)

    def _judge(self, verified: set[str], result: str) -> None:
        """What must be true of every story, beside what the eyes saw at each moment."""
        town, counts = self.town, self.town.clients.counts
        if more := town.proven - verified - town.opened:
            self._see(f"evidence of {', '.join(more)}, which never served")
        if counts[Got.LOST] and town.lives == 1:
            self._see("clients lost their connection")
        if counts[Got.LEFT] and "clients" not in self.mishap.name:
            self._see("clients were thrown out")
        if counts[Got.CUT] and "SIGTERM" not in self.mishap.name:
            self._see("clients were cut, and nobody asked for that")
        if counts[Got.REFUSED] and result != DARK and "SIGTERM" not in self.mishap.name:
            self._see("clients were refused, and no person was needed")
        if counts[Got.BUSY]:
            self._see("clients were told 429")
        if self.scene.step == JOURNAL and town.controller.state.serving is None:
            return  # nothing has been written since
        try:
            entry = town.journal.read()
        except Fault as fault:
            self._see(f"the journal: {fault}")
            return
        serving = town.controller.state.serving
        if entry is not None and serving is not None and entry.serving != serving.label:
            self._see(f"the journal says that {entry.serving} serves, and {serving.label} does")

    async def _ordinary_swaps(self, result: str) -> None:
        """To the other one, and back; from the dark to the old one first."""
        self.town.tap = None
        new, old = (self.scene.variant.new, self.scene.variant.trial), (self.scene.variant.old, False)
        for label, trial in (old, new) if result == NEW else (new, old) if result == OLD else (old, new, old):
            ended = await self._order(label, trial=trial and label not in self.town.proven)
            if ended is None or ended.code != 0 or self.town.up_label != label:
                self._see(f"a following swap to {label}: {ended.text if ended else 'no answer'}")
                return

    def _see(self, what: str) -> None:
        self.broken.append(what)


def _now() -> float:
    return asyncio.get_running_loop().time()
