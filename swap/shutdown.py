"""Stopping engines at the daemon's own end, where the configuration says so (`on_stop: stop`)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from engines.spec import Engine
from swap.ports import Fault, Foreign, Runtime

KILLING = 1.0  # seconds that are kept for the time after the grace: SIGKILL, and a look


@dataclass
class Stopped:
    """Who was stopped; and who may run on, with why. By engine; true at any moment."""

    stopped: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)


async def stop_engines(
    engines: Mapping[str, Engine], runtimes: Mapping[str, Runtime], within: float, done: Stopped
) -> None:
    """Stop whatever of ours runs, each with its own grace, and all in `within` seconds; `done` says what came of it.

    Call it when nobody is left who might start one. The journal still says who served, and the next start brings that
    one back.
    """
    done.left |= dict.fromkeys(runtimes, "nobody waited for its end")
    async with asyncio.TaskGroup() as tasks:
        for name, runtime in runtimes.items():
            tasks.create_task(_stop(engines[name], runtime, within, done), name=f"stop {name}")


async def _stop(engine: Engine, runtime: Runtime, within: float, done: Stopped) -> None:
    try:
        async with asyncio.timeout(within):
            sight = await runtime.look()
            if sight.running:
                await runtime.stop(sight.id, max(0.0, min(engine.stop_grace, within - KILLING)))
                done.stopped.append(engine.name)
        del done.left[engine.name]
    except Foreign:
        del done.left[engine.name]  # it isn't ours
    except (Fault, TimeoutError) as error:
        done.left[engine.name] = str(error) or f"it isn't gone after {within:.1f} s"
