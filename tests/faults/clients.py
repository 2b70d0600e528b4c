"""Clients at the real gate: some wait for as long as it takes, some not; each must be answered, once, and truly.

A client stands outside the daemon: it loses its connection when the daemon is killed, and asks the next one again.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from slotproxy.config import SlotSettings
from slotproxy.gate import SlotGate
from slotproxy.places import Expired, Place, Refused
from tests.faults.outside import TimedRuntime

PATIENT = SlotSettings("agents", max_hold=3600.0, max_waiting=1000)
HASTY = SlotSettings("voice", priority=10, max_hold=5.0)
LATE_BY = 0.5  # seconds by which an answer may come after its time
STREAM = 5.0  # seconds that the answer takes which is under way when the swap is ordered
TICK = 0.4  # seconds between two pieces of an answer


class Got(enum.Enum):
    """How a request ended, as its client sees it."""

    ANSWERED = "answered"
    EXPIRED = "503: waited too long"
    REFUSED = "503: with a reason"
    BUSY = "429"
    CUT = "cut in-band"
    BROKEN_OFF = "the engine died in it"
    NO_ENGINE = "502: the engine was gone"
    LOST = "the daemon was killed"
    LEFT = "the client left"


@dataclass
class Daemon:
    """What a client sees of one life of the daemon. `dead`: its connections are closed, unanswered."""

    gate: SlotGate
    dead: bool = False
    requests: set[asyncio.Task[None]] = field(default_factory=set)


@dataclass
class Clients:
    """All who ask. `daemon`: the one that answers now; None: nobody listens. `runtimes`: the engines."""

    tasks: asyncio.TaskGroup
    runtimes: dict[str, TimedRuntime]
    daemon: Callable[[], Daemon | None]
    known_dead: Callable[[TimedRuntime], bool]
    got: list[Got] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    begun: int = 0
    answered_by: Counter[str] = field(default_factory=Counter)  # by engine: how many just now
    more: float = 0.0  # seconds that their answers take longer

    def ask(self, slot: SlotSettings, seconds: float = TICK) -> None:
        """One request that an engine needs so long for. Nobody at the port: the client tries again in a second."""
        self.begun += 1
        self.tasks.create_task(self._ask(slot, seconds), name=f"client {self.begun}")

    async def come(self, until: asyncio.Event) -> None:
        """One that is being answered, and then one after the other, until told."""
        self.ask(PATIENT, STREAM)
        pause = 0.4
        while not await _told(until, pause):
            self.ask(PATIENT)
            self.ask(HASTY)
            pause = min(pause * 1.6, 60.0)

    def leave(self) -> None:
        """All who are there."""
        daemon = self.daemon()
        for request in tuple(daemon.requests) if daemon is not None else ():
            request.cancel()

    @property
    def counts(self) -> Counter[Got]:
        return Counter(self.got)

    # ------------------------------------------------------------------------------------------ one request

    async def _ask(self, slot: SlotSettings, seconds: float) -> None:
        while (daemon := self.daemon()) is None:  # noqa: ASYNC110  (it knocks, as clients do)
            await asyncio.sleep(1.0)
        task = asyncio.current_task()
        assert task is not None
        daemon.requests.add(task)
        try:
            got = await self._answer(daemon, slot, seconds)
        except asyncio.CancelledError:
            got = Got.LOST if daemon.dead else Got.LEFT
        finally:
            daemon.requests.discard(task)
        self.got.append(got)
        if got is Got.LOST:  # it tries again
            self.ask(slot, seconds)

    async def _answer(self, daemon: Daemon, slot: SlotSettings, seconds: float) -> Got:
        began = _now()
        answer = await daemon.gate.enter(slot, size=100)
        match answer:
            case Place():
                self.answered_by[answer.engine] += 1
                try:
                    return await self._served(answer, seconds)
                finally:
                    self.answered_by[answer.engine] -= 1
                    answer.leave()
            case Expired(waited, reason):
                self._expect(
                    bool(reason) and waited <= slot.max_hold + LATE_BY, f"told late or without a reason: {answer}"
                )
                self._expect(_now() - began <= slot.max_hold + LATE_BY, f"answered late: {answer}")
                return Got.EXPIRED
            case Refused(status, reason, _):
                self._expect(bool(reason.strip()), "refused without a reason")
                return Got.REFUSED if status == 503 else Got.BUSY

    async def _served(self, place: Place, seconds: float) -> Got:
        runtime = self.runtimes[place.engine]
        run = runtime.sight
        if not run.running:
            self._expect(not self.known_dead(runtime), f"sent to {place.engine}, which has been down for long")
            return Got.NO_ENGINE
        self._expect(runtime.ready, f"sent to {place.engine}, which wasn't ready")
        began = _now()
        while _now() < began + seconds + self.more:
            await asyncio.sleep(TICK)
            if runtime.sight.started_at != run.started_at or not runtime.sight.running:
                return Got.BROKEN_OFF
            if place.cut.is_set():
                return Got.CUT
        return Got.ANSWERED

    def _expect(self, true: bool, else_broken: str) -> None:
        if not true:
            self.broken.append(f"a client was {else_broken}")


async def _told(event: asyncio.Event, within: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within):
            await event.wait()
    return event.is_set()


def _now() -> float:
    return asyncio.get_running_loop().time()
