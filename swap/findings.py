"""What speaks against a swap, collected: all of it is mended in one go."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from swap.ports import Fault
from swap.threads import MODELS

FILES_LIMIT = 30.0  # seconds to resolve paths and read headers

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason against it (`what`), and what to do about it (`mend`). `passing`: time may mend it."""

    what: str
    mend: str
    passing: bool = False


@dataclass
class Findings:
    """What has been found so far, each thing once."""

    refusals: list[Refusal] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def refuse(self, what: str, mend: str, *, passing: bool = False) -> None:
        refusal = Refusal(what, mend, passing)
        if refusal not in self.refusals:
            self.refusals.append(refusal)

    async def ask(self, answer: Awaitable[T]) -> T | None:
        """The answer; None, and a refusal, when it is a fault."""
        try:
            return await answer
        except Fault as fault:
            self.refuse(fault.what, fault.mend, passing=fault.passing)
            return None


async def off_loop(work: Callable[[], T], whose: str) -> T:
    """Run in a thread, for as long as a look at files may take. `whose`: a pair's name. Raises Fault, see `threads`."""
    return await MODELS.run(work, f"the disk of {whose}'s files", FILES_LIMIT)
