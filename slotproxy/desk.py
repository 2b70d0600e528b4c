"""The operator's desk: what people ask of the daemon, as plain data. `slotproxy.control` puts it on a socket."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import AsyncGenerator
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from engines.spec import Engine
from slotproxy import __version__
from slotproxy.config import Settings
from slotproxy.corrections import corrected
from slotproxy.drift_desk import DriftDesk, about_proof, plain
from slotproxy.evidence_desk import EvidenceDesk
from slotproxy.gate import SlotGate
from slotproxy.in_force import InForce
from slotproxy.outcomes import Outcomes
from slotproxy.refusal import Refusal, named
from slotproxy.runtimes import Maker
from slotproxy.visits import Visits
from swap import restart_policy, source
from swap.checks import Checker, Verdict
from swap.controller import Controller
from swap.decisions import Kind
from swap.drift import shown_line
from swap.known import Known
from swap.ledger import FileLedger
from swap.moves import Rest
from swap.policy import in_words, relaxed
from swap.ports import Card, Fault, Foreign, Sight
from swap.reading import Reading, Say, nobody
from swap.standing import Standing
from swap.state import Refusing, gate, phase
from swap.statefolder import StateFolder
from swap.tickets import Ended
from swap.wish import Wish

if TYPE_CHECKING:
    from swap.dockerd import Docker  # the SDK is slow to load

HOLD_LIMIT = 600.0  # seconds that `hold` waits for requests in flight before it says that some are left
TICK = 1.0  # seconds between signs of life

Json = dict[str, Any]


@dataclass
class Desk:
    """Everything that answers are made of. Nothing here changes who holds the card but through the controller."""

    in_force: InForce
    controller: Controller
    checker: Checker
    ledger: FileLedger
    card: Card
    gate: SlotGate
    evidence: EvidenceDesk
    state: StateFolder
    visits: Visits = field(default_factory=Visits)
    outcomes: Outcomes = field(default_factory=Outcomes)
    maker: Maker | None = None  # of runtimes; None in tests that have their own

    @property
    def settings(self) -> Settings:
        return self.in_force.settings

    @property
    def docker(self) -> Docker | None:
        """Where any engine runs in a container."""
        return self.maker.docker if self.maker is not None else None

    # ------------------------------------------------------------------------------------------ what is true

    async def status(self) -> Json:
        state, view = self.controller.state, self.gate.view()
        serving = state.serving
        known = self.controller.hands.known.get(serving) if serving else None
        standing, engines = await self._standing(known), await self._engines()
        return {
            "pid": os.getpid(),
            "version": __version__,
            "state": phase(state),
            "holder": state.holder.engine if state.holder else None,
            "pair": state.holder.label if state.holder else None,
            "serving": serving is not None,
            "verified": None if standing is None else standing.served is not None,
            "proof": None if known is None else in_words(standing),
            "policy": [words for engine in self.settings.engines.values() if (words := relaxed(engine))],
            "since": self._since(),
            "gate": {
                **{name: getattr(view, name) for name in ("state", "engine", "reason", "waiting", "waiting_bytes")},
                **{name: getattr(view, name) for name in ("in_flight", "settling", "longest_wait")},
                "slots": {name: asdict(slot) for name, slot in view.slots.items()},
            },
            "requests": self.outcomes.plain(),
            "hold": None if view.held_for is None else {"left": _finite(view.held_for)},
            "swap": self._swap(),
            "dark": self.dark(),
            "card": await self._card(),
            "engines": engines,
            "warnings": [*self.ledger.problems(), *filter(None, [self.state.trouble]), *_warnings(engines)],
        }

    async def _standing(self, known: Known | None) -> Standing | None:
        """What is recorded now of what serves; None: nothing serves, or nobody has looked at its files yet."""
        if known is None or known.subject is None:
            return None
        return await self.checker.standing_of(known.subject, known.pair.label if known.pair else "")

    def _since(self) -> str:
        """When what serves began to; when nothing does, when this phase began."""
        controller = self.controller
        began = controller.serving_since if controller.state.serving else controller.since
        return datetime.fromtimestamp(time.time() - (time.monotonic() - began), UTC).isoformat(timespec="seconds")

    def _swap(self) -> Json | None:
        state, order = self.controller.state, self.controller.under_way
        if order is None:
            return None
        target = f"{order.engine}:{order.pair}"
        elapsed = time.monotonic() - self.controller.since
        wish = self.controller.hands.wishes.get(order.id)
        return {
            "target": target,
            "phase": phase(state),
            "elapsed": elapsed,
            "trial": order.trial,
            "and_back": wish is not None and wish.and_back,
            "back": self.controller.hands_back,
            "failure": state.failure,
        }

    def dark(self) -> Json | None:
        """Why nothing serves; None while something does, or is about to."""
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
        engines = self.settings.engines  # others may be in force once all have been looked at
        sights = await asyncio.gather(*(self._sight(engine) for engine in engines.values()))
        return dict(zip(engines, sights, strict=True))

    async def _sight(self, engine: Engine) -> Json:
        try:
            sight = await self.controller.hands.runtimes[engine.name].look()
        except Fault as fault:
            return {"status": "foreign" if isinstance(fault, Foreign) else "unknown", "error": str(fault)}
        wrong = restart_policy.against_the_rules(engine, sight)
        pair = next((u.label for u, k in self.controller.hands.known.items() if sight.id and k.id == sight.id), None)
        return {
            "status": sight.status.value,
            "id": sight.id,
            "pair": pair,
            "started_at": sight.started_at,
            "exit_code": sight.exit_code,
            "url": engine.url,
            "owner": sight.owner,
            "warning": f"{wrong}: {restart_policy.mend(engine)}" if wrong else "",
        }

    async def gpu(self) -> Json:
        try:
            identity, memory = await self.card.identity(), await self.card.memory()
        except Fault as fault:
            return {"error": fault.what, "mend": fault.mend}
        processes = [asdict(process) for process in await self.card.processes()]
        return {**asdict(identity), **asdict(memory), "processes": processes}

    # ------------------------------------------------------------------------------------------ pairs

    @property
    def drift(self) -> DriftDesk:
        return DriftDesk(self.settings, self.controller, self.checker, self.ledger)

    async def plan(
        self, engine: str, pair: str | None, *, trial: bool, rehash: bool = False, say: Say = nobody
    ) -> Json:
        _, chosen = named(self.settings, engine, pair)
        how = Reading(say, anew=rehash, aside=True)
        verdict = await self.controller.hands.judge(engine, chosen.name, trial=trial, how=how)
        moved = await source.look(chosen, verdict.declared)  # here only: a swap doesn't wait for git
        sides = plain(await self.drift.sides(verdict))
        return _plan(replace(verdict, warnings=(*verdict.warnings, *map(str, moved)))) | {"drift": sides}

    # ------------------------------------------------------------------------------------------ what changes things

    async def correct(self, engine: str | None) -> Json:
        """Take the restart policy away from this engine's container, or from all of them."""
        chosen = self.settings.engines.values() if engine is None else [named(self.settings, engine, None)[0]]
        hands = self.controller.hands
        done = [await restart_policy.correct(one, hands.runtimes[one.name], hands.decisions) for one in chosen]
        return corrected(done)

    async def stage(self, engine: str, pair: str | None, say: Say = nobody) -> Json:
        """Make the stopped container what the pair declares; no VRAM is taken, and nothing that can't run is staged."""
        chosen, declared = named(self.settings, engine, pair)
        verdict = await self.checker.judge(chosen.name, declared.name, trial=True, how=Reading(say, aside=True))
        if (unwritable := await self.checker.unwritable()) is not None:
            verdict = replace(verdict, refusals=(*verdict.refusals, unwritable))
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
        tokens: int | None = None,
        rehash: bool = False,
        and_back: bool = False,
    ) -> AsyncGenerator[Json, None]:
        """Each phase as it passes, a tick each second, and how it ended. Nobody who stops reading stops the swap."""
        chosen, target = named(self.settings, engine, pair)
        if tokens is not None and not trial:
            raise Refusal("`tokens` is a trial's", "order it with --trial, or without --tokens", 2)
        if and_back and not trial:
            raise Refusal("`and_back` belongs to a trial", "swap with --trial, or without --and-back", 2)
        wish = Wish(stage=stage, drain=drain, tokens=tokens, rehash=rehash, and_back=and_back)
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
        decisions = self.controller.hands.decisions
        self.gate.hold(seconds, lambda: decisions.add(Kind.RELEASED, "the hold has expired"))
        began, said = time.monotonic(), ""
        until = "until `slotctl release`" if seconds is None else f"for {seconds:g} s"
        decisions.add(Kind.HOLD, f"requests are held {until}", why="the operator says so")
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
        if not self.gate.release():
            return {"code": 0, "text": "no hold was set"}
        self.controller.hands.decisions.add(Kind.RELEASED, "the hold is released", why="the operator says so")
        return {"code": 0, "text": "released"}


def _warnings(engines: Json) -> list[str]:
    return [one["warning"] for one in engines.values() if one.get("warning")]


def _plan(verdict: Verdict) -> Json:
    declared = verdict.declared
    run = None
    if declared is not None:
        files = verdict.subject.files if verdict.subject else ()
        run = {
            "image": declared.image,
            "image_id": declared.image_id,
            "argv": shown_line(declared.argv),
            "artifacts": [{"path": file.path, "size": file.size, "sha256": file.sha256} for file in files],
        }
    return {
        "label": verdict.label,
        "allowed": verdict.allowed,
        "refusals": [asdict(refusal) for refusal in verdict.refusals],
        "warnings": list(verdict.warnings),
        "would_run": run,
        "container": verdict.sight.status.value if verdict.sight else None,
        "stage": verdict.stage,
        "judged": verdict.subject is not None,
        **about_proof(verdict),
        "artifact_version": verdict.artifact_version,
    }


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None
