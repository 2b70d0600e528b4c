"""The world in memory keeps the same contract as the real runtimes, and its card is really taken."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from engines.spec import GiB, Pair
from swap.ports import Exit, Status, Unfinished, Unreachable
from tests.swap.fakes import Behaviour, FakeCard, FakeGate, FakeRuntime, recipe_for
from tests.swap.runtime_contract import RuntimeBed, RuntimeContract

RECIPE = recipe_for("ninfer:local", "v2.ninfer")


class TestFakeRuntime(RuntimeContract):
    @pytest.fixture
    def bed(self) -> RuntimeBed:
        runtime = FakeRuntime("fake", FakeCard(), {})
        runtime.behaviours = {
            "hello": Behaviour(log="serving: hello\n"),
            "changed": Behaviour(log="serving: changed\n"),
            "deaf": Behaviour(log="serving:\n", deaf=True),
            "failing": Behaviour(log="error: no such model\n", exits=3),
        }
        pairs = {image: Pair("fake", image, image, ()) for image in (*runtime.behaviours, "missing")}
        for image in runtime.behaviours:
            runtime.recipes[image] = replace(recipe_for(image, "x.ninfer"), env=(("GREETING", image),))

        async def kill(id: str) -> None:
            runtime.exit(137)

        return RuntimeBed(
            runtime, pairs["hello"], pairs["changed"], pairs["deaf"], pairs["failing"], pairs["missing"], kill
        )


async def test_two_engines_dont_fit_and_the_second_exits_as_a_real_one_does() -> None:
    card = FakeCard()
    strata, ninfer = FakeRuntime("strata", card, {}), FakeRuntime("ninfer", card, {})
    strata.run(RECIPE)
    sight = ninfer.run(RECIPE)
    assert (sight.status, sight.exit_code) == (Status.EXITED, 1)
    assert "bytes are free before loading" in await ninfer.log_tail(sight.id)
    assert card.peak == 30 * GiB


async def test_memory_comes_back_with_the_stop_or_late_if_told_so() -> None:
    card = FakeCard(reserved=GiB)
    runtime = FakeRuntime("ninfer", card, {})
    card.late = 2
    sight = runtime.run(RECIPE)
    assert (await card.memory()).free == GiB
    assert await runtime.stop(sight.id, 1) == Exit(0, forced=False)
    assert [(await card.memory()).free for _ in range(3)] == [GiB, GiB, 31 * GiB]


@pytest.mark.parametrize("lost", [False, True])
async def test_an_unfinished_start_happens_later_or_is_lost(lost: bool) -> None:
    runtime = FakeRuntime("ninfer", FakeCard(), {})
    made = runtime.create(RECIPE).id
    runtime.unfinish("start")
    with pytest.raises(Unfinished) as caught:
        await runtime.start(made)
    assert (await runtime.look()).status is Status.CREATED
    runtime.finish(lost=lost)
    async with asyncio.timeout(30):
        await caught.value.ended
    assert (await runtime.look()).running is not lost


async def test_a_call_fails_or_hangs_as_often_as_it_was_told() -> None:
    runtime = FakeRuntime("ninfer", FakeCard(), {})
    runtime.fail("look", Unreachable("Docker is gone"))
    with pytest.raises(Unreachable):
        await runtime.look()
    runtime.hang("look")
    async with asyncio.TaskGroup() as group:
        look = group.create_task(runtime.look())
        await asyncio.sleep(0.01)
        assert not look.done()
        runtime.let_go("look")
    assert look.result().status is Status.ABSENT
    assert runtime.calls == ["look", "look"]


async def test_the_gate_is_drained_when_nothing_is_in_flight() -> None:
    gate = FakeGate()
    gate.open("strata", 1)
    gate.in_flight = 2
    gate.close()
    assert not await gate.drained(0.01)
    assert gate.cut() == 2
    assert await gate.drained(30)
    assert gate.story == ["open strata", "closed", "cut 2"]
