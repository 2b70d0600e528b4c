"""The first user's box in memory, wired as the daemon wires it: real controller, hands, checker, hasher and journal.

Fakes are only what lies outside: the two runtimes, the card they share, the gate, evidence, and the engines' answers.
`story` is what happened, in order. What changes a container is told with the step that the journal says at that very
moment: `ninfer start [start]`. `world.when(line, do)` intervenes as the line is told, before it is carried out.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from engines.artifacts.sample_gguf import write_gguf
from engines.ninfer.profile import PROFILE as NINFER
from engines.ninfer.sample import write_artifact
from engines.spec import ComposeService, Engine, GiB, Pair
from engines.strata.profile import PROFILE as STRATA
from swap.checks import Checker
from swap.controller import Controller
from swap.hands import Hands, Times, Told
from swap.hashing import Hasher
from swap.journal import FileJournal
from swap.moves import Awaited, Failed, Unit
from swap.ports import Evidence, Fault, Gate, JournalEntry, Memory, Mount, Outcome, Recipe, Unreachable
from swap.readiness import Answered, Readiness
from swap.tickets import Ended, Progress, Ticket
from swap.wish import Wish
from tests.swap.fakes import REAL, FakeCard, FakeGate, FakeLedger, FakeRuntime, recipe_for

GONE = Unreachable("Docker doesn't answer", "start it", passing=True)
PATIENCE = 900.0  # seconds, of simulated time mostly: whatever is waited for comes by then
VERIFIED = ("strata:current", "ninfer:v2")
CHANGES = ("stage", "put_back", "stop", "start")
FILES = {"v2": "qwen3_8_27b_nvfp4.ninfer", "v3": "qwen3_8_27b_nvfp4_v3.ninfer"}


class World:
    """Strata is deployed and its container made, NInfer's is stopped with v2; nothing has any evidence yet."""

    def __init__(self, folder: Path, models: Path | None = None) -> None:
        """`models`: a folder with the models of another world, which costs less than to write and to hash them anew."""
        self.folder, self.story = folder, _Story()
        self.models = models or write_models(folder / "models")
        self.logs: list[MutableMapping[str, Any]] = []
        self.card, self.gate, self.ledger = self.make_card(), FakeGate(), FakeLedger()
        self.gate.story = _Told(self.story, "gate ", lambda what: what)
        self.places = {name: _place() for name in ("strata", "ninfer")}
        recipes = self._recipes(self.models)
        self.engines = {"strata": self._strata(), "ninfer": self._ninfer()}
        self.runtimes = {name: self.make_runtime(name, recipes[name]) for name in self.engines}
        for name, runtime in self.runtimes.items():
            runtime.calls = _Told(self.story, f"{name} ", self._call)
        self.strata, self.ninfer = self.runtimes["strata"], self.runtimes["ninfer"]
        self.strata.create(recipes["strata"]["current"])
        self.ninfer.create(recipes["ninfer"]["v2"])
        self.readiness = FakeReadiness(self.runtimes)
        self.default: str | None = "strata"
        self.strict = False
        self.times = Times(drain=60.0, freeing=60.0)
        (folder / "state").mkdir(exist_ok=True)
        self.rebuild()

    def make_card(self) -> FakeCard:
        return _Card(self.story)

    def make_runtime(self, name: str, recipes: dict[str, Recipe]) -> FakeRuntime:
        return FakeRuntime(name, self.card, recipes)

    def make_journal(self) -> ToldJournal:
        return ToldJournal(self.folder / "state" / "journal.json")

    def rebuild(self) -> None:
        """What a new daemon has: everything that isn't on disk, or outside, is forgotten."""
        self.build(self.gate, lambda: self.gate.in_flight)

    def build(self, gate: Gate, in_flight: Callable[[], int]) -> None:
        self.journal = self.make_journal()
        self.checker = Checker(
            engines=self.engines,
            runtimes=self.runtimes,
            card=self.card,
            ledger=self.ledger,
            hasher=Hasher(self.folder / "state" / "hashes.json"),
            headroom=GiB // 4,
            baseline=0,
            strict=self.strict,
        )
        self.hands = Hands(
            engines=self.engines,
            runtimes=self.runtimes,
            card=self.card,
            checker=self.checker,
            gate=gate,
            journal=self.journal,
            readiness=self.readiness,
            headroom=GiB // 4,
            default=self.default,
            say=lambda _: None,
            in_flight=in_flight,
            times=self.times,
        )
        self.controller = Controller(self.engines, self.hands, self.ledger, gate)

    def when(self, line: str, do: Callable[[], object]) -> None:
        """Do this once, when the story comes there."""
        self.story.hooks[line] = do

    def close(self) -> None:
        for place in self.places.values():
            place.close()

    # ------------------------------------------------------------------------------------------ what is configured

    def _recipes(self, models: Path) -> dict[str, dict[str, Recipe]]:
        images = {"v2": "ninfer:local", "v3": "ninfer:v3"}
        ninfer = {name: recipe_for(images[name], FILES[name], models=str(models)) for name in FILES}
        strata = replace(
            recipe_for("strata:1", "strata.gguf"),
            command=(),
            env=(("MODEL", "/models/strata.gguf"),),
            mounts=(Mount(str(models), "/models", read_only=True),),
        )
        return {"strata": {"current": strata}, "ninfer": ninfer}

    def _strata(self) -> Engine:
        pair = Pair("strata", "current", "strata:1", (self.models / "strata.gguf",))
        return self._engine("strata", {"current": pair}, "current")

    def _ninfer(self) -> Engine:
        v2 = Pair("ninfer", "v2", "ninfer:local", (self.models / FILES["v2"],))
        v3 = Pair("ninfer", "v3", "ninfer:v3", (self.models / FILES["v3"],))
        return self._engine("ninfer", {"v2": v2, "v3": v3}, "v2")

    def _engine(self, name: str, pairs: dict[str, Pair], deployed: str) -> Engine:
        return Engine(
            name=name,
            profile={"strata": STRATA, "ninfer": NINFER}[name],
            url=f"http://127.0.0.1:{self.places[name].getsockname()[1]}",
            vram=30 * GiB,
            pairs=pairs,
            deployed=deployed,
            container=f"{name}-1",
            compose=ComposeService(self.folder / f"{name}.yml", name),
            start_deadline=120.0,
        )

    # ------------------------------------------------------------------------------------------ what has been

    async def verify(self, *labels: str) -> None:
        """They have served on this card as they are declared now."""
        for label in labels:
            engine, _, pair = label.partition(":")
            recipe = self.runtimes[engine].recipes[pair]
            subject = await self.checker.subject_of(self.engines[engine], recipe, self.engines[engine].pairs[pair])
            self.ledger.record(Evidence(subject, "", Outcome.SERVED, label, "2026-01-02T03:04:05Z", "trial", REAL))

    async def record(self, label: str, outcome: Outcome, **more: Any) -> None:
        """A line about this pair as it is declared now, by the operator."""
        engine, _, pair = label.partition(":")
        recipe, chosen = self.runtimes[engine].recipes[pair], self.engines[engine]
        subject = await self.checker.subject_of(chosen, recipe, chosen.pairs[pair])
        line = Evidence(subject, "", outcome, label, "2026-01-03T00:00:00Z", "operator", REAL)
        self.ledger.record(replace(line, **more))

    def served(self, label: str) -> None:
        """What the journal of the last daemon says."""
        self.journal.write(JournalEntry("serving", serving=label))

    def _call(self, call: str) -> str:
        return f"{call} [{self.journal.step}]" if call in CHANGES else call

    # ------------------------------------------------------------------------------------------ the daemon's life

    @asynccontextmanager
    async def running(self, *, verified: tuple[str, ...] = VERIFIED) -> AsyncIterator[Controller]:
        """A daemon's life, from when it has settled; `story` begins there."""
        await self.verify(*verified)
        async with asyncio.TaskGroup() as tasks:
            loop = tasks.create_task(self.controller.run())
            try:
                async with asyncio.timeout(PATIENCE):
                    await self.controller.settled()
                self.story.clear()
                yield self.controller
            finally:
                loop.cancel()

    @asynccontextmanager
    async def serving(self, label: str = "strata:current", **more: tuple[str, ...]) -> AsyncIterator[Controller]:
        """This one runs already, and is adopted."""
        engine, _, pair = label.partition(":")
        self.runtimes[engine].run(self.runtimes[engine].recipes[pair])
        async with self.running(**more) as controller:
            assert self.gate.state == f"open {engine}"
            yield controller

    def order(self, label: str, *, trial: bool = False, cut: bool = False, wish: Wish | None = None) -> Ticket:
        engine, _, pair = label.partition(":")
        pair = pair or self.engines[engine].deployed
        return self.controller.order(engine, pair, trial=trial, cut=cut, wish=wish or Wish())

    async def swap(self, label: str, *, trial: bool = False, cut: bool = False, wish: Wish | None = None) -> Ended:
        return await end_of(self.order(label, trial=trial, cut=cut, wish=wish))

    # ------------------------------------------------------------------------------------------ what can be seen

    @property
    def happened(self) -> list[str]:
        """The story without what only looks, and without what the gate was told again."""
        looks = ("look", "declared", "running", "has_image", "log_tail", "memory", "keep")
        happened: list[str] = []
        for line in self.story:
            gate = next((told for told in reversed(happened) if told.startswith("gate")), None)
            if not line.endswith(looks) and line != gate:
                happened.append(line)
        return happened

    @property
    def took(self) -> list[str]:
        """The names of all events that the machine has taken."""
        return [entry["took"] for entry in self.logs if entry["event"] == "step"]

    @property
    def up(self) -> set[str]:
        return {name for name, runtime in self.runtimes.items() if runtime.sight.running}

    def evidence_of(self, label: str) -> list[Outcome]:
        return [one.outcome for one in self.ledger.evidence() if one.pair == label]


def write_models(folder: Path) -> Path:
    folder.mkdir()
    for version, name in ((2, FILES["v2"]), (3, FILES["v3"])):
        write_artifact(folder / name, version)
    write_gguf(folder / "strata.gguf")
    return folder


class FakeReadiness(Readiness):
    """An engine that runs answers, unless its image is in `never`; `asked` before each answer, to intervene.

    `most`: it can't generate more tokens than these. `generated`: what was asked for beyond the few of readiness. A
    token takes it a hundredth of a second.
    """

    def __init__(self, runtimes: dict[str, FakeRuntime]) -> None:
        self._runtimes = runtimes
        self.never: set[str] = set()
        self.most = 1000
        self.generated: list[tuple[str, int]] = []
        self.asked: Callable[[str], None] = lambda _: None

    async def sign(self, engine: Engine) -> bool:
        self.asked(engine.name)
        sight = self._runtimes[engine.name].sight
        return sight.running and sight.recipe is not None and sight.recipe.image not in self.never

    async def completes(self, engine: Engine) -> Answered | None:
        return _said(engine.probe_tokens) if await self.sign(engine) else None

    async def generates(self, engine: Engine, tokens: int) -> Answered:
        self.generated.append((engine.name, tokens))
        if not await self.sign(engine) or tokens > self.most:
            raise Fault("no whole answer in 1.0 s")
        return _said(tokens)


def _said(tokens: int) -> Answered:
    return Answered(tokens, tokens / 100)


class _Story(list[str]):
    """What happened; `hooks` are called, once each, when their line does."""

    def __init__(self) -> None:
        super().__init__()
        self.hooks: dict[str, Callable[[], object]] = {}

    def append(self, line: str) -> None:
        super().append(line)
        if do := self.hooks.pop(line, None):
            do()


class _Card(FakeCard):
    """Tells that it was asked."""

    def __init__(self, story: _Story) -> None:
        super().__init__()
        self._story = story

    async def memory(self) -> Memory:
        self._story.append("card memory")
        return await super().memory()


class ToldJournal(FileJournal):
    """`step` is the one that is on disk."""

    step = "nothing"

    def write(self, entry: JournalEntry) -> None:
        super().write(entry)
        self.step = entry.step


class _Told(list[str]):
    """A fake's own list of calls that is told to the story, too."""

    def __init__(self, story: _Story, who: str, tell: Callable[[str], str]) -> None:
        super().__init__()
        self._story, self._who, self._tell = story, who, tell

    def append(self, what: str) -> None:
        super().append(what)
        self._story.append(self._who + self._tell(what))


def _place() -> socket.socket:
    """An address that is nobody else's: bound, and nobody listens there (until a test does)."""
    place = socket.socket()
    place.bind(("127.0.0.1", 0))
    return place


async def end_of(ticket: Ticket, progress: list[Progress] | None = None) -> Ended:
    """How the order ends; its phases go to `progress`."""
    async with asyncio.timeout(PATIENCE):
        async for item in ticket.follow():
            if isinstance(item, Ended):
                return item
            if progress is not None:
                progress.append(item)
    raise AssertionError("a ticket ends with Ended")


async def until(truth: Callable[[], object]) -> None:
    """Returns when it is true."""
    async with asyncio.timeout(PATIENCE):
        while not truth():
            await moment()


async def moment() -> None:
    await asyncio.sleep(0.05)


def now() -> float:
    """Seconds, of the loop's own clock."""
    return asyncio.get_running_loop().time()


# ------------------------------------------------------------------------------------------------- one effect alone


async def unit(world: World, label: str = "ninfer:v2") -> Unit:
    """The unit, known as it is after a check that allows it."""
    await world.verify(label)
    engine, _, pair = label.partition(":")
    return await world.hands.expect(await world.checker.judge(engine, pair, trial=False))


async def do(world: World, effect: Awaited) -> Told:
    """Its report."""
    return await world.hands.carry_out(effect, None)


def failed(report: Told) -> Failed:
    assert isinstance(report, Failed), report
    return report
