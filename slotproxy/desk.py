"""The operator's desk: what people ask of the daemon, as plain data. `slotproxy.control` puts it on a socket."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import AsyncGenerator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engines.spec import Engine, Pair
from slotproxy import __version__
from slotproxy.adoption import version_of, written_since
from slotproxy.config import Settings, SlotSettings
from slotproxy.gate import Place, SlotGate
from swap.checks import Checker, Verdict
from swap.controller import Controller, Ended
from swap.evidence import extra_of
from swap.hands import Warmed, Wish
from swap.known import Known
from swap.ledger import FileLedger, key
from swap.moves import Rest, Unit
from swap.ports import Card, Evidence, Fault, Foreign, Outcome, Sight, Subject
from swap.readiness import Readiness
from swap.state import Refusing, gate, phase

HOLD_LIMIT = 600.0  # seconds that `hold` waits for requests in flight before it says that some are left
TICK = 1.0  # seconds between signs of life
PROBE = SlotSettings(name="(probe)", priority=1_000_000, max_hold=120.0)

Json = dict[str, Any]


class Refusal(Exception):
    """The answer is no: what, what to do, and slotctl's exit code."""

    def __init__(self, what: str, mend: str, code: int) -> None:
        super().__init__(what)
        self.what, self.mend, self.code = what, mend, code


@dataclass
class Desk:
    """Everything that answers are made of. Nothing here changes who holds the card but through the controller."""

    settings: Settings
    controller: Controller
    checker: Checker
    ledger: FileLedger
    card: Card
    gate: SlotGate
    readiness: Readiness

    # ------------------------------------------------------------------------------------------ what is true

    async def status(self) -> Json:
        state, view = self.controller.state, self.gate.view()
        serving = state.serving
        known = self.controller.hands.known.get(serving) if serving else None
        return {
            "pid": os.getpid(),
            "version": __version__,
            "state": phase(state),
            "holder": state.holder.engine if state.holder else None,
            "pair": state.holder.label if state.holder else None,
            "serving": serving is not None,
            "verified": None if known is None else known.verified,
            "since": self._since(),
            "gate": {
                **{name: getattr(view, name) for name in ("state", "engine", "reason", "waiting", "waiting_bytes")},
                **{name: getattr(view, name) for name in ("in_flight", "settling", "longest_wait")},
                "slots": {name: asdict(slot) for name, slot in view.slots.items()},
            },
            "hold": None if view.held_for is None else {"left": _finite(view.held_for)},
            "swap": self._swap(),
            "dark": self._dark(),
            "card": await self._card(),
            "engines": await self._engines(),
            "warnings": self.ledger.problems(),
        }

    def _since(self) -> str:
        """When what serves began to; when nothing does, when this phase began."""
        controller = self.controller
        began = controller.serving_since if controller.state.serving else controller.since
        return datetime.fromtimestamp(time.time() - (time.monotonic() - began), UTC).isoformat(timespec="seconds")

    def _swap(self) -> Json | None:
        state = self.controller.state
        if state.order is None:
            return None
        target = f"{state.order.engine}:{state.order.pair}"
        elapsed = time.monotonic() - self.controller.since
        return {
            "target": target,
            "phase": phase(state),
            "elapsed": elapsed,
            "trial": state.order.trial,
            "failure": state.failure,
        }

    def _dark(self) -> Json | None:
        state = self.controller.state
        if state.serving is not None or (not state.dark and not isinstance(gate(state), Refusing)):
            return None
        wait = None
        if isinstance(state.doing, Rest):
            backoff = self.controller.hands.times.backoff
            whole = backoff[min(state.doing.attempt, len(backoff) - 1)]
            wait = max(0.0, whole - (time.monotonic() - self.controller.since))
        return {"reason": state.dark, "passing": not state.person, "retry_in": wait}

    async def _card(self) -> Json:
        try:
            identity, memory = await self.card.identity(), await self.card.memory()
        except Fault as fault:
            return {"error": str(fault)}
        return {**asdict(identity), **asdict(memory)}

    async def _engines(self) -> Json:
        sights = await asyncio.gather(*(self._sight(engine) for engine in self.settings.engines.values()))
        return dict(zip(self.settings.engines, sights, strict=True))

    async def _sight(self, engine: Engine) -> Json:
        try:
            sight = await self.controller.hands.runtimes[engine.name].look()
        except Fault as fault:
            return {"status": "foreign" if isinstance(fault, Foreign) else "unknown", "error": str(fault)}
        pair = next((u.label for u, k in self.controller.hands.known.items() if sight.id and k.id == sight.id), None)
        return {
            "status": sight.status.value,
            "id": sight.id,
            "pair": pair,
            "started_at": sight.started_at,
            "exit_code": sight.exit_code,
            "url": engine.url,
            "owner": sight.owner,
        }

    async def gpu(self) -> Json:
        try:
            identity, memory = await self.card.identity(), await self.card.memory()
        except Fault as fault:
            return {"error": fault.what, "mend": fault.mend}
        processes = [asdict(process) for process in await self.card.processes()]
        return {**asdict(identity), **asdict(memory), "processes": processes}

    # ------------------------------------------------------------------------------------------ pairs

    def pair(self, engine: str, pair: str | None) -> tuple[Engine, Pair]:
        """The pair that these names mean (None: the deployed one). Raises Refusal naming what there is."""
        chosen = self.settings.engines.get(engine)
        if chosen is None:
            raise Refusal(f"there is no engine {engine!r}", f"the engines are {', '.join(self.settings.engines)}", 2)
        name = chosen.deployed if pair is None else pair
        if name not in chosen.pairs:
            raise Refusal(f"{engine} has no pair {name!r}", f"its pairs are {', '.join(chosen.pairs)}", 2)
        return chosen, chosen.pairs[name]

    async def plan(self, engine: str, pair: str | None, *, trial: bool) -> Json:
        _, chosen = self.pair(engine, pair)
        return _plan(await self.checker.judge(engine, chosen.name, trial=trial))

    async def pairs(self) -> Json:
        rows = [
            await self._pair(engine, pair)
            for engine in self.settings.engines.values()
            for pair in engine.pairs.values()
        ]
        return {"pairs": rows, "problems": self.ledger.problems()}

    async def _pair(self, engine: Engine, pair: Pair) -> Json:
        verdict = await self.checker.judge(engine.name, pair.name, trial=True)
        served = verdict.verified
        failed = verdict.standing.failure if verdict.standing else None
        state = verdict.state.value
        return {
            "label": pair.label,
            "deployed": pair.name == engine.deployed,
            "state": state,
            "when": served.when if served else None,
            "how": served.how if served else None,
            "ready_in": served.ready_in if served else None,
            "tokens": served.tokens if served else None,
            "last_failure": {"when": failed.when, "reason": failed.reason} if failed else None,
            "image": pair.image,
            "image_id": verdict.declared.image_id if verdict.declared else None,
            "artifacts": [str(path) for path in pair.artifacts],
            "refusals": [asdict(refusal) for refusal in verdict.refusals],
        }

    async def adopt(self, engine: str) -> Json:
        """Evidence from the engine that serves now: its files, its recipe, and a completion that it answers."""
        if engine not in self.settings.engines:
            self.pair(engine, None)
        serving = self.controller.state.serving
        if serving is None or serving.engine != engine:
            now = f"{serving.label} serves" if serving else "nothing serves"
            raise Refusal(f"{engine} isn't serving: {now}", "only what serves now can be adopted", 3)
        known = self.controller.hands.known[serving]
        if known.pair is None:
            mend = f"see `slotctl plan to-{engine}` for what differs, and correct the configuration"
            raise Refusal(f"what {engine} runs is none of its configured pairs", mend, 3)
        began, run = time.monotonic(), (known.id, known.started_at)
        subject = await self.checker.subject_of(known.engine, known.recipe, known.pair)
        await self._expect_read(known, known.pair, subject)
        tokens = await self._probe(known.engine)
        memory = await self.card.memory()
        version = await asyncio.to_thread(version_of, known.engine, known.pair, known.recipe)
        card = await self.card.identity()
        await self._expect_same(serving, run, subject)
        known.subject, known.artifact_version = subject, version
        evidence = Evidence(
            subject=subject,
            key=key(subject),
            outcome=Outcome.SERVED,
            pair=known.pair.label,
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            how="adopt",
            card=card,
            image=known.recipe.image,
            tokens=tokens,
            extra=extra_of(known, Warmed(0.0, tokens, memory.used)),
        )
        await asyncio.to_thread(self.ledger.record, evidence)
        known.standing = await self.checker.standing_of(subject, known.pair.label)
        return {"code": 0, "text": f"{known.pair.label} is verified: it serves now ({time.monotonic() - began:.1f} s)"}

    async def _expect_read(self, known: Known, pair: Pair, subject: Subject) -> None:
        """Raises Refusal where a file isn't what the engine has read when it started."""
        mend = (
            f"swap to another engine, then `slotctl swap to-{pair.label} --trial` starts it with the files as they are"
        )
        try:
            paths = [Path(file.path) for file in subject.files]
            changed = await asyncio.to_thread(written_since, paths, known.started_at)
        except (OSError, ValueError) as error:
            raise Refusal(f"nobody can tell whether {pair.label} runs with these files: {error}", mend, 3) from error
        if changed:
            what = f"{', '.join(changed)} changed after {pair.label} was started at {known.started_at}"
            raise Refusal(f"{what}: it runs with what was there before", mend, 3)

    async def _expect_same(self, unit: Unit, run: tuple[str, str], subject: Subject) -> None:
        """Raises Refusal unless what was hashed and asked is what serves still, in that very run."""
        sight = await self.controller.hands.runtimes[unit.engine].look()
        if not sight.running or (sight.id, sight.started_at) != run or self.controller.state.serving != unit:
            raise Refusal(f"{unit.label} was stopped meanwhile", "adopt it when it serves; nothing was recorded", 3)
        if not await self.checker.unchanged(subject):
            mend = f"when nobody writes them: swap to another engine, then `slotctl swap to-{unit.label} --trial`"
            raise Refusal(f"the files of {unit.label} changed meanwhile; nothing was recorded", mend, 3)

    async def _probe(self, engine: Engine) -> int:
        """A completion, with a place at the gate like any request."""
        place = await self.gate.enter(PROBE, size=0)
        if not isinstance(place, Place):
            raise Refusal(f"{engine.name} could not be asked: {place.reason}", "try again", 3)
        try:
            # It may have waited for a swap; then it is another engine's turn.
            answered = await self.readiness.completes(engine) if place.engine == engine.name else None
        finally:
            place.leave()
        if place.engine != engine.name:
            raise Refusal(f"{engine.name} serves no more: {place.engine} does", "only what serves can be adopted", 3)
        if answered is None:
            raise Refusal(f"{engine.name} answered no completion", "look at its log; nothing was recorded", 3)
        return answered.tokens

    # ------------------------------------------------------------------------------------------ what changes things

    async def stage(self, engine: str, pair: str | None) -> Json:
        """Make the stopped container what the pair declares; no VRAM is taken, and nothing that can't run is staged."""
        chosen, declared = self.pair(engine, pair)
        verdict = await self.checker.judge(chosen.name, declared.name, trial=True)
        if verdict.refusals:
            first = verdict.refusals[0]
            raise Refusal("; ".join(refusal.what for refusal in verdict.refusals), first.mend, 3)
        if not verdict.stage:
            there = verdict.sight.id if verdict.sight else ""
            return {"code": 0, "text": f"{declared.label} is staged already", "id": there, "differences": []}
        try:
            sight: Sight = await self.controller.stage(chosen.name, declared)
        except Fault as fault:
            raise Refusal(fault.what, fault.mend, 3) from fault
        differences = [asdict(one) for one in verdict.differences]
        return {"code": 0, "text": f"{declared.label} is staged", "id": sight.id, "differences": differences}

    async def swap(
        self,
        engine: str,
        pair: str | None,
        *,
        trial: bool = False,
        cut: bool = False,
        stage: bool = True,
        drain: float | None = None,
    ) -> AsyncGenerator[Json, None]:
        """Each phase as it passes, a tick each second, and how it ended. Nobody who stops reading stops the swap."""
        chosen, target = self.pair(engine, pair)
        wish = Wish(stage=stage, drain=drain)
        ticket = self.controller.order(chosen.name, target.name, trial=trial, cut=cut, wish=wish)
        while True:
            try:
                async with asyncio.timeout(TICK):
                    item = await ticket.news.get()
            except TimeoutError:
                yield {"tick": True}
                continue
            yield {"done": True, **asdict(item)} if isinstance(item, Ended) else asdict(item)
            if isinstance(item, Ended):
                return

    def abort(self) -> Json:
        target = self.controller.abort()
        if target is None:
            raise Refusal("no swap is under way", "", 3)
        return {"code": 0, "text": f"the swap to {target} is given up; its own command says how it ends"}

    async def hold(self, seconds: float | None) -> AsyncGenerator[Json, None]:
        """Set the hold; done when nothing is in flight any more, as PgBouncer's PAUSE is."""
        self.gate.hold(seconds)
        began, said = time.monotonic(), ""
        until = "until `slotctl release`" if seconds is None else f"for {seconds:g} s"
        code, text = 0, f"requests are held {until}; none is in flight"
        while not await self.gate.drained(TICK if said else 0.0):
            elapsed, view = time.monotonic() - began, self.gate.view()
            if view.held_for is None:
                code, text = 4, "the hold ended before all requests in flight had"
                break
            if elapsed > HOLD_LIMIT:
                code, text = 4, f"requests are held {until}, but {view.in_flight} are still in flight"
                break
            news = f"{view.in_flight} in flight"
            yield {"phase": "draining", "text": news, "elapsed": elapsed} if news != said else {"tick": True}
            said = news
        yield {"done": True, "code": code, "text": text, "elapsed": time.monotonic() - began}

    def release(self) -> Json:
        text = "released" if self.gate.release() else "no hold was set"
        return {"code": 0, "text": text}


def _plan(verdict: Verdict) -> Json:
    declared, served = verdict.declared, verdict.verified
    run = None
    if declared is not None:
        files = verdict.subject.files if verdict.subject else ()
        run = {
            "image": declared.image,
            "image_id": declared.image_id,
            "argv": list(declared.argv),
            "artifacts": [asdict(file) for file in files],
        }
    return {
        "label": verdict.label,
        "allowed": verdict.allowed,
        "refusals": [asdict(refusal) for refusal in verdict.refusals],
        "warnings": list(verdict.warnings),
        "differences": [asdict(one) for one in verdict.differences],
        "would_run": run,
        "container": verdict.sight.status.value if verdict.sight else None,
        "stage": verdict.stage,
        "judged": verdict.subject is not None,
        "verified": {"when": served.when, "how": served.how} if served else None,
        "artifact_version": verdict.artifact_version,
    }


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None
