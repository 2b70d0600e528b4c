"""What was checked is what is started; what serves already needs no check, and what served comes back as it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from engines.artifacts.sample_gguf import write_gguf
from engines.ninfer.sample import write_artifact
from swap.moves import Code
from swap.ports import Fault
from tests.simulated_time import in_simulated_time
from tests.swap.world import FILES, World, until


async def _recognized(world: World) -> None:
    serving = world.controller.state.serving
    assert serving is not None
    await until(lambda: world.hands.known[serving].subject is not None)


@in_simulated_time
@pytest.mark.parametrize("served_before", [False, True])
async def test_an_artifact_that_was_replaced_after_the_check_never_gets_the_card(
    world: World, served_before: bool
) -> None:
    path = world.folder / "models" / FILES["v2"]
    async with world.serving():
        if served_before:
            assert (await world.swap("ninfer")).code == Code.SERVES
            assert (await world.swap("strata")).code == Code.SERVES
            world.story.clear()
        world.when("strata stop [stop]", lambda: write_artifact(path, 3))
        ended = await world.swap("ninfer")
        assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
        assert f"{path} changed since ninfer:v2 was checked" in ended.text
        assert world.gate.state == "open strata"
    assert "ninfer start [start]" not in world.happened


@in_simulated_time
async def test_an_artifact_that_was_replaced_before_the_start_of_the_day_ends_is_not_started(world: World) -> None:
    path = world.folder / "models" / "strata.gguf"
    world.when("card memory", lambda: world.when("card memory", lambda: write_gguf(path, name="other")))
    async with world.running(verified=("strata:current",)):
        assert f"{path} changed since strata:current was checked" in world.gate.state
        assert world.up == set()


@in_simulated_time
@pytest.mark.parametrize("why", ["it died", "a swap failed"])
async def test_what_served_comes_back_though_its_files_changed_meanwhile(world: World, why: str) -> None:
    async with world.serving():
        await _recognized(world)
        write_gguf(world.folder / "models" / "strata.gguf", name="other")
        if why == "it died":
            world.strata.exit(1)
        else:
            world.ninfer.exits_on_start = 1
            assert (await world.swap("ninfer")).code == Code.RESTORED
        await until(lambda: world.gate.story.count("open strata") == 2)


@in_simulated_time
async def test_a_swap_to_what_serves_unverified_succeeds_and_says_so(world: World) -> None:
    async with world.serving(verified=()):
        await _recognized(world)
        ended = await world.swap("strata")
        assert ended.code == Code.SERVES
        assert "it isn't verified" in ended.text
        assert (await world.swap("ninfer")).code == Code.REFUSED
    assert [line for line in world.happened if not line.startswith("gate")] == []


@in_simulated_time
async def test_what_runs_is_not_called_verified_for_files_that_came_after_its_start(world: World) -> None:
    path = world.folder / "models" / FILES["v2"]
    await world.verify("ninfer:v2")
    verified = path.read_bytes()
    write_artifact(path, 2, objects=7)
    world.ninfer.run(world.ninfer.recipes["v2"])
    await asyncio.to_thread(time.sleep, 0.05)  # times of files have a grain
    path.write_bytes(verified)
    async with world.running() as controller:
        await until(lambda: any("nobody knows what it has read" in line["event"] for line in world.logs))
        assert (await world.swap("ninfer:v2")).code == Code.SERVES
        serving = controller.state.serving
        assert serving is not None
        assert world.hands.known[serving].verified is None


@in_simulated_time
async def test_a_swap_to_another_pair_of_the_engine_that_serves_is_refused_all_the_same(world: World) -> None:
    async with world.serving("ninfer:v2", verified=()):
        assert (await world.swap("ninfer:v3")).code == Code.REFUSED
        assert world.gate.state == "open ninfer"


@in_simulated_time
@pytest.mark.parametrize(
    "break_with", [lambda: OSError("I/O error"), lambda: RuntimeError("a bug"), lambda: Fault("no")]
)
async def test_files_that_cant_be_recognized_cost_that_knowledge_and_not_the_daemon(
    world: World, monkeypatch: pytest.MonkeyPatch, break_with: Callable[[], Exception]
) -> None:
    async def broken(*_: object) -> None:
        raise break_with()

    with monkeypatch.context() as patch:
        patch.setattr(world.checker, "subject_of", broken)
        patch.setattr(world, "verify", _nothing)
        async with world.serving() as controller:
            patch.undo()
            await world.verify("strata:current", "ninfer:v2")
            assert (await world.swap("ninfer")).code == Code.SERVES
            assert controller.state.serving is not None


async def _nothing(*_: str) -> None:
    return None
