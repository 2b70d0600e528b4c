"""Card of the demo: the folder that the simulated engines take their "VRAM" from (its format: `engines.simvram`)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from engines import simvram
from swap import card, proc
from swap.ports import CardIdentity, CardProcess, CardUnknown, Memory

T = TypeVar("T")


class SimulatedCard:
    """`total`: its bytes, written into the folder for the engines at the first question.

    `bound`: seconds that it may take to answer, for the folder can tell it to be slow.
    """

    def __init__(self, folder: Path, total: int, *, bound: float = card.BOUND) -> None:
        self._folder = folder
        self._total = total
        self._made = False
        self._turns = card.OneAtATime(bound)

    async def memory(self) -> Memory:
        return await self._ask(("memory",), self._memory)

    async def processes(self) -> tuple[CardProcess, ...]:
        try:
            return await self._ask(("processes",), self._processes)
        except CardUnknown:
            return ()

    async def identity(self) -> CardIdentity:
        return await self._ask(("name", "uuid", "driver"), self._identity)

    async def _ask(self, calls: tuple[str, ...], question: Callable[[], T]) -> T:
        return await self._turns.ask(partial(self._asked_afresh, ("init", "handle", *calls), question))

    def _asked_afresh(self, calls: tuple[str, ...], question: Callable[[], T]) -> T:
        try:
            self._make()
            for call in calls:
                self._obey(call)
            return question()
        except (OSError, ValueError, IndexError) as error:
            what = f"the simulated card in {self._folder} can't be read: {error}"
            raise CardUnknown(what, "correct its files, or remove the folder", passing=True) from error

    def _make(self) -> None:
        if not self._made:
            self._folder.mkdir(parents=True, exist_ok=True)
            if simvram.read_number(self._folder / "total", 0) != self._total:
                (self._folder / "total").write_text(f"{self._total}\n")
            self._made = True

    def _obey(self, call: str) -> None:
        """Be as slow as delays/CALL says, then fail as errors/CALL says."""
        if delay := _line(self._folder / "delays" / call):
            time.sleep(float(delay))
        if code := simvram.read_number(self._folder / "errors" / call):
            raise card.unknown(call, code)

    def _memory(self) -> Memory:
        total = simvram.read_number(self._folder / "total", self._total)
        if not total:
            raise card.no_memory()
        reserved = simvram.read_number(self._folder / "reserved")
        free = simvram.free_bytes(self._folder)
        return Memory(total, free, max(0, total - reserved - free), reserved)

    def _processes(self) -> tuple[CardProcess, ...]:
        silent = simvram.read_number(self._folder / "errors" / "process_bytes")
        return tuple(
            CardProcess(use.pid, None if silent else use.bytes, use.name, proc.container(use.pid))
            for use in simvram.uses(self._folder)
            if use.pid  # what is released late is held by nobody
        )

    def _identity(self) -> CardIdentity:
        own = uuid.uuid5(uuid.NAMESPACE_URL, self._folder.resolve().as_uri())
        return CardIdentity(
            name=_line(self._folder / "name") or "Simulated card",
            uuid=_line(self._folder / "uuid") or f"SIM-{own}",
            driver=_line(self._folder / "driver") or "none",
            simulated=True,
        )


def _line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
