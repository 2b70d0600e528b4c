"""How long the look at start may take where Docker hangs, or where much is to be mended of one engine."""

from __future__ import annotations

import asyncio

import pytest

from swap.boot import KEPT_WAITING, RECOVERY_LIMIT
from swap.ports import Unreachable
from tests.simulated_time import in_simulated_time
from tests.swap.fakes import FakeRuntime
from tests.swap.world import World, now, until

READING = 10.0  # seconds that a question to a Docker that hangs takes


@in_simulated_time
async def test_a_docker_that_hangs_is_waited_for_once_and_not_for_each_engine(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(*_: object) -> str:
        await asyncio.sleep(READING)
        raise Unreachable("Docker doesn't answer", passing=True)

    with monkeypatch.context() as hangs:
        hangs.setattr(FakeRuntime, "recover", silent)
        hangs.setattr(FakeRuntime, "look", silent)
        began = now()
        async with world.running() as controller:
            await until(lambda: "doesn't answer" in controller.state.dark)
            assert now() - began <= 2 * READING + 1


@in_simulated_time
@pytest.mark.parametrize("slow", ["strata", "ninfer"])
async def test_what_runs_waits_only_so_long_for_what_is_mended_of_another(world: World, slow: str) -> None:
    served = "ninfer" if slow == "strata" else "strata"
    runtime = world.runtimes[served]
    runtime.run(runtime.recipes["current" if served == "strata" else "v2"])
    world.runtimes[slow].hang("recover")
    began = now()
    async with world.running():
        await until(lambda: world.gate.state == f"open {served}")
        assert KEPT_WAITING <= now() - began < KEPT_WAITING + 5
    assert KEPT_WAITING < RECOVERY_LIMIT / 2
