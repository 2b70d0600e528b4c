"""Those who wait for an order, and what they are told: each phase as it passes, and how it ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from swap.moves import Code, Order


@dataclass(frozen=True, slots=True)
class Progress:
    """One phase of an order as it passes; `elapsed` seconds since the order."""

    phase: str
    text: str
    elapsed: float


@dataclass(frozen=True, slots=True)
class Ended:
    """How an order ended: what is true now."""

    code: int
    text: str
    serving: str | None
    elapsed: float


@dataclass(eq=False, slots=True)
class Ticket:
    """Somebody who waits for an order. Throwing it away changes nothing: the order goes on."""

    order: Order
    since: float = field(default_factory=time.monotonic)
    news: asyncio.Queue[Progress | Ended] = field(default_factory=asyncio.Queue)
    told: tuple[str, str] = ("", "")
    tried: bool = False  # it waits for the way back of a trial that it has waited for

    def tell(self, progress: Progress) -> None:
        """What it wasn't told just before."""
        if self.told != (progress.phase, progress.text):
            self.told = (progress.phase, progress.text)
            self.news.put_nowait(progress)

    async def follow(self) -> AsyncIterator[Progress | Ended]:
        """Each phase as it passes; the last is `Ended`."""
        while True:
            item = await self.news.get()
            yield item
            if isinstance(item, Ended):
                return


def truth(code: Code, serving: str | None, why: str) -> str:
    match code:
        case Code.SERVES:
            return f"{serving} serves"
        case Code.REFUSED:
            return f"refused, nothing was changed: {why}"
        case Code.RESTORED:
            return f"{serving} serves again: {why}"
        case Code.DARK:
            return f"dark, nothing serves: {why}"
