"""The soak itself: lives of the daemon, each of some rounds, with a quiet moment before and after each round."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from tests.soak.clients import Clients
from tests.soak.eyes import Eyes
from tests.soak.faults import Faults, moment
from tests.soak.ground import Ground
from tests.soak.measure import Size, growth, measure
from tests.soak.story import Story

WARM = 40  # requests that a daemon has answered before it is measured for the first time
SETTLE = 0.5  # seconds of nothing before it is measured


@dataclass(frozen=True, slots=True)
class Plan:
    """How much: lives of the daemon, rounds in each, things that happen in a round; `seconds`: no life begins later.

    `longer`: how many times as long every third life is: what grows slowly is seen in a long one.
    """

    seed: int
    lives: int
    rounds: int
    events: int
    seconds: float
    longer: int = 1


@dataclass
class Report:
    """What was seen. `faults` in it: what must not be."""

    seed: int
    seconds: float = 0.0
    lives: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    swaps: Counter[int] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    sizes: list[list[Size]] = field(default_factory=list)
    longest: float = 0.0
    looks: int = 0
    wrong: list[str] = field(default_factory=list)
    story: str = ""

    def __str__(self) -> str:
        sizes = [size for life in self.sizes for size in life]
        return "\n".join(
            [
                f"seed          {self.seed}, {self.seconds:.0f} s, {self.lives} lives of the daemon",
                f"requests      {sum(self.outcomes.values())}: {_counted(self.outcomes)}; longest {self.longest:.1f} s",
                f"orders        {sum(self.swaps.values())}, by exit code: {_counted(self.swaps)}",
                f"what happened {sum(self.done.values())}: {_counted(self.done)}",
                f"looks         {self.looks} for two engines at once",
                f"the daemon    {sizes[0]} → {sizes[-1]}" if sizes else "the daemon    was never measured",
                *(f"WRONG         {fault}" for fault in self.wrong),
            ]
        )


def _counted(counter: Counter[str] | Counter[int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counter.most_common())


async def soak(ground: Ground, plan: Plan) -> Report:
    """What was seen, in the end also of a swap there and back."""
    story, report = Story(), Report(plan.seed)
    clients, eyes = Clients(ground.url, story, plan.seed), Eyes(ground, story)
    faults = Faults(ground, story, plan.seed)
    try:
        async with asyncio.TaskGroup() as tasks:
            await faults.begin(tasks)
            await faults.prove()
            beside = [tasks.create_task(clients.run()), tasks.create_task(faults.watch_dark())]
            with eyes:
                await _live(ground, plan, faults, clients, report)
            for task in beside:
                task.cancel()
    except* (AssertionError, TimeoutError) as broken:
        report.wrong += [f"it went no further: {error!r}" for error in broken.exceptions]
    report.outcomes, report.longest, report.looks = clients.outcomes, clients.longest, eyes.looks
    report.swaps, report.done, report.seconds = faults.swaps, faults.done, time.monotonic() - story.began
    report.wrong += [*(f"two engines: {one}" for one in eyes.double), *clients.losses, *faults.wrong]
    report.wrong += [f"eyes broke: {eyes.broken}"] if eyes.broken else []
    report.story = str(story)
    return report


async def _live(ground: Ground, plan: Plan, faults: Faults, clients: Clients, report: Report) -> None:
    draw, began = Random(f"{plan.seed} lives"), time.monotonic()
    for life in range(plan.lives):
        if life and time.monotonic() - began > plan.seconds:
            break
        if life:
            clients.resume()
            await _dies(faults, draw)
        report.lives += 1
        rounds = plan.rounds * (plan.longer if life % 3 == 1 else 1)
        report.sizes.append(await _one_life(ground, rounds, plan.events, faults, clients))
        if grown := growth(report.sizes[-1], ground.pooled):
            report.wrong.append(grown)
    for ended in await faults.there_and_back():
        if ended.get("code") != 0:
            report.wrong.append(f"the swap there and back in the end: {ended}")
    await faults.end()


async def _dies(faults: Faults, draw: Random) -> None:
    """The daemon, in the middle of something or in peace."""
    if draw.random() < 0.7:
        faults.order_any()
        await asyncio.sleep(draw.random() * 2)
    await faults.restart()


async def _one_life(ground: Ground, rounds: int, events: int, faults: Faults, clients: Clients) -> list[Size]:
    before = clients.requests
    clients.resume()
    await _until_warm(clients, before)
    sizes = [await _quiet_moment(ground, faults, clients, before)]
    for _ in range(rounds):
        clients.resume()
        for _ in range(events):
            await faults.happen()
        sizes.append(await _quiet_moment(ground, faults, clients, before))
    return sizes


async def _until_warm(clients: Clients, before: int) -> None:
    async with asyncio.timeout(120):
        while clients.requests - before < WARM:
            await moment()


async def _quiet_moment(ground: Ground, faults: Faults, clients: Clients, before: int) -> Size:
    await clients.pause()
    await faults.quiet()
    await asyncio.sleep(SETTLE)
    pid = ground.pid
    assert pid is not None
    return await asyncio.to_thread(measure, pid, clients.requests - before)
