"""SIGHUP and `slotctl reload`: the configuration's file is taken over, whole or not at all.

All of it is read and checked first, off the event loop. Then every part takes it in one step that nothing comes
between; or nothing has changed, and one message says why. Engines that run are never touched by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from engines.spec import Engine
from slotproxy import config
from slotproxy.changes import changes, fixed
from slotproxy.config import Settings
from slotproxy.gate import SlotGate
from slotproxy.in_force import InForce
from slotproxy.refusal import Refusal
from slotproxy.runtimes import Maker
from swap import refit
from swap.checks import Checker
from swap.controller import Controller
from swap.decisions import Kind
from swap.hands import Times
from swap.moves import Unit
from swap.ports import Card, Fault, Runtime
from swap.threads import MODELS

READING = 30.0  # seconds that the file, and the files of keys that it names, may take
LIBRARIES = "the disk of slotproxy's own libraries"
AGAIN = "correct it, and reload again"

Json = dict[str, Any]


@dataclass
class Reload:
    """`told` are called when the settings in force are other ones. `around` each try: systemd wants to know."""

    in_force: InForce
    controller: Controller
    checker: Checker
    gate: SlotGate
    card: Card
    maker: Maker
    told: list[Callable[[], None]] = field(default_factory=list)
    around: Callable[[], AbstractContextManager[None]] = nullcontext
    load: Callable[[Path], Settings] = config.load
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def reload(self) -> Json:
        """What has changed. Raises Refusal: nothing has."""
        decisions = self.controller.hands.decisions
        async with self._turn:
            with self.around():
                try:
                    lines = await self._reload()
                except Refusal as no:
                    why = f"{no.what}; {no.mend}" if no.mend else no.what
                    decisions.add(Kind.RELOADED, "the configuration isn't taken over: nothing has changed", why=why)
                    raise
        text = "the configuration is taken over" if lines else "nothing in the configuration has changed"
        decisions.add(Kind.RELOADED, text, why="; ".join(lines), changes=lines)
        return {"code": 0, "text": text, "changes": lines}

    async def on(self, signal: asyncio.Event) -> None:
        """At each SIGHUP, until cancelled. Why it was refused stands in the event log."""
        while True:
            await signal.wait()
            signal.clear()
            try:
                await self.reload()
            except Refusal:
                continue
            except Exception:
                structlog.get_logger("slotproxy").exception("the reload broke; the configuration is as it was")

    async def _reload(self) -> list[str]:
        new = await self._read()
        self._expect_possible(new)
        made = await self._made(new)
        self._expect_possible(new)  # nothing awaits from here on
        return self._take(new, made)

    # ------------------------------------------------------------------------------------------ may it be?

    async def _read(self) -> Settings:
        path = self.in_force.settings.path
        try:
            new = await MODELS.run(partial(self.load, path), f"the disk of {path}", READING)
        except config.ConfigError as error:
            raise Refusal(str(error), AGAIN, 2) from error
        except Fault as fault:
            raise Refusal(fault.what, fault.mend, 3) from fault
        for problem in await self._too_big(new):
            raise Refusal(f"{path}: {problem}", AGAIN, 2)
        return new

    async def _too_big(self, new: Settings) -> list[str]:
        """A card that can't be asked is no reason to refuse."""
        try:
            memory = await self.card.memory()
        except Fault:
            return []
        return config.check_fits(new, memory.total, memory.reserved)

    def _expect_possible(self, new: Settings) -> None:
        """Raises Refusal."""
        if keys := fixed(self.in_force.settings, new):
            what = f"{', '.join(keys)} can't change while slotproxy runs"
            raise Refusal(what, "`systemctl restart slotproxy` takes it over, and engines run on meanwhile", 3)
        if why := refit.busy(self.controller):
            raise Refusal(why, "reload when that has ended", 3)
        for name in refit.on_card(self.controller.state):
            self._expect_kept(self.controller.engines[name], new.engines.get(name))

    def _expect_kept(self, old: Engine, new: Engine | None) -> None:
        """What is on the card stays there under its name. Raises Refusal."""
        first = "it is on the card, or the next to be: swap to another engine first"
        if new is None:
            raise Refusal(f"engines.{old.name} can't be removed now", first, 3)
        if refit.another(old, new):
            raise Refusal(f"container and compose of engines.{old.name} can't change now", first, 3)

    async def _made(self, new: Settings) -> dict[str, Runtime]:
        """Runtimes of what is new, or is another container now."""
        old = self.controller.engines
        wanted = [engine for name, engine in new.engines.items() if name not in old or refit.another(old[name], engine)]
        try:
            return {
                engine.name: await MODELS.run(partial(self.maker.make, engine), LIBRARIES, READING) for engine in wanted
            }
        except Fault as fault:
            raise Refusal(fault.what, fault.mend, 3) from fault

    # ------------------------------------------------------------------------------------------ the one step

    def _take(self, new: Settings, made: dict[str, Runtime]) -> list[str]:
        old, hands = self.in_force.settings, self.controller.hands
        lines = [*changes(old, new), *self._remarks(old, new)]
        refit.refit(self.controller, new.engines, made)
        for name in new.engines.keys() - made.keys():
            self.maker.configured(hands.runtimes[name], new.engines[name])
        card = new.card
        hands.default, hands.headroom, hands.baseline = new.default, card.headroom, card.baseline
        hands.times = Times(new.drain, new.freeing, hands.times.backoff)
        self.checker.configure(headroom=card.headroom, baseline=card.baseline, strict=card.on_change == "refuse")
        self.in_force.settings = new
        gone = old.slots.keys() - new.slots.keys()
        self.gate.configure(new.slots, gone, new.limits, new.engines)
        for tell in self.told:
            tell()
        return lines

    def _remarks(self, old: Settings, new: Settings) -> list[str]:
        """What was changed of an engine that runs, or is tried again, and holds for the next swap to it only."""
        up, goal = self.controller.state.up, self.controller.state.goal
        stays = [(unit, "left as it is") for unit in sorted(up)]
        if goal is not None and goal not in up:
            stays.append((goal, "tried again as it was"))
        lines = (_remark(unit, how, old.engines[unit.engine], new.engines[unit.engine]) for unit, how in stays)
        return [line for line in lines if line]


def _remark(unit: Unit, how: str, old: Engine, new: Engine) -> str:
    if unit.pair and unit.pair not in new.pairs:
        return f"{unit.label} isn't declared any more; it is {how} until the next swap"
    reached = any(getattr(old, name) != getattr(new, name) for name in refit.REACHED)
    if reached or old.pairs.get(unit.pair) != new.pairs.get(unit.pair):
        return f"{unit.engine}: entry changed; it is {how}, the next swap to it runs what is declared now"
    return ""
