"""A trial shows that the pair generates, not only that it answers; how fast, and with how much of the card."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from engines.spec import GiB
from swap.moves import Code
from swap.ports import Outcome
from swap.warming import beyond
from swap.wish import Wish
from tests.simulated_time import in_simulated_time
from tests.swap.world import World, end_of, now, until


@in_simulated_time
async def test_a_trial_generates_as_many_tokens_as_configured_once_it_is_ready(world: World) -> None:
    async with world.serving():
        world.readiness.never.add("ninfer:v3")
        ticket = world.order("ninfer:v3", trial=True)
        await until(lambda: "ninfer" in world.up)
        assert world.readiness.generated == []  # a few tokens tell whether it is ready
        world.readiness.never.clear()
        assert (await end_of(ticket)).code == Code.SERVES
    assert world.readiness.generated == [("ninfer", 64)]
    evidence = world.ledger.evidence()[-1]
    assert evidence.tokens == 64
    assert evidence.tokens_per_second == pytest.approx(100)


@in_simulated_time
async def test_a_trial_may_be_told_another_number(world: World) -> None:
    async with world.serving():
        assert (await world.swap("ninfer:v3", trial=True, wish=Wish(tokens=512))).code == Code.SERVES
    assert world.readiness.generated == [("ninfer", 512)]
    assert world.ledger.evidence()[-1].tokens == 512


@in_simulated_time
async def test_a_trial_that_answers_a_few_tokens_and_no_more_has_failed(world: World) -> None:
    async with world.serving():
        world.readiness.most = 8
        ended = await world.swap("ninfer:v3", trial=True)
        assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
        why = "ready, but the trial's completion of 64 tokens failed: no whole answer in 1.0 s"
        assert why in ended.text
        assert world.gate.state == "open strata"
    assert world.readiness.generated == [("ninfer", 64)]  # of what is restored nothing is asked but readiness
    assert [(one.outcome, one.reason) for one in world.ledger.evidence() if one.pair == "ninfer:v3"] == [
        (Outcome.FAILED, why)
    ]


@in_simulated_time
async def test_a_trial_that_dies_while_it_generates_says_of_what(world: World) -> None:
    def dies(engine: str) -> None:
        if world.readiness.generated:
            world.readiness.asked = lambda _: None
            world.ninfer.exit(134, "error: CUDA out of memory\n")

    async with world.serving():
        world.readiness.asked = dies
        ended = await world.swap("ninfer:v3", trial=True)
        assert ended.code == Code.RESTORED
        assert "64 tokens failed: ninfer:v3 exited with code 134: error: CUDA out of memory" in ended.text
        assert "ninfer stop [stop]" not in world.happened  # nobody stops what has gone


@in_simulated_time
async def test_a_swap_that_is_no_trial_asks_for_a_few_tokens_only(world: World) -> None:
    async with world.serving():
        assert (await world.swap("ninfer")).code == Code.SERVES
    assert world.readiness.generated == []
    evidence = world.ledger.evidence()[-1]
    assert evidence.tokens == 4
    assert evidence.tokens_per_second == pytest.approx(100)


@in_simulated_time
async def test_a_trial_that_is_given_up_while_it_generates_ends_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def for_an_hour(*_: object) -> None:
        world.controller.abort()
        await asyncio.sleep(3600)

    async with world.serving():
        monkeypatch.setattr(world.readiness, "generates", for_an_hour)
        began = now()
        ended = await world.swap("ninfer:v3", trial=True)
        assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
        assert "given up by the operator" in ended.text
        assert now() - began < 60


# ------------------------------------------------------------------------------------------------- the card


@in_simulated_time
async def test_the_peak_is_the_most_that_was_in_use_and_not_what_was_left_in_the_end(world: World) -> None:
    """Loading may need more than serving does, and generating more than both."""

    def on_the_way(_: str) -> None:
        takes = {0: 31 * GiB, 3: 30 * GiB}  # by how often it was asked
        world.card.allocations["ninfer"] = takes.get(len(asked), world.card.allocations["ninfer"])
        asked.append(1)

    asked: list[int] = []
    async with world.serving():
        world.when("ninfer start [start]", lambda: setattr(world.readiness, "asked", on_the_way))
        world.readiness.never.add("ninfer:local")
        ticket = world.order("ninfer:v2")
        await until(lambda: len(asked) > 5)
        world.readiness.never.clear()
        ended = await end_of(ticket)
    assert world.card.allocations == {"ninfer": 30 * GiB}
    assert world.ledger.evidence()[-1].vram_peak == 31 * GiB
    assert ended.code == Code.SERVES
    assert ended.text == "ninfer:v2 serves; it used 31.0 GiB of the card, engines.ninfer.vram says 30.0 GiB"


@in_simulated_time
async def test_a_trial_that_used_more_than_configured_has_proven_itself_all_the_same(world: World) -> None:
    def grows(_: str) -> None:
        world.card.allocations.update(dict.fromkeys(world.up & {"ninfer"}, 31 * GiB))

    async with world.serving():
        world.readiness.asked = grows
        ended = await world.swap("ninfer:v3", trial=True, wish=Wish(and_back=True))
        assert (ended.code, ended.serving) == (Code.SERVES, "strata:current")
        assert ended.text == (
            "ninfer:v3 is verified; it used 31.0 GiB of the card, engines.ninfer.vram says 30.0 GiB; "
            "strata:current serves again"
        )


def test_an_engine_that_takes_whatever_is_free_is_not_said_to_take_too_much(world: World) -> None:
    ninfer = world.engines["ninfer"]
    greedy = replace(ninfer, profile=replace(ninfer.profile, takes_what_is_free=True))
    assert beyond(32 * GiB, ninfer, 0) != ""
    assert beyond(32 * GiB, greedy, 0) == ""


def test_only_what_is_beyond_the_need_and_the_baseline_is_said(world: World) -> None:
    ninfer = world.engines["ninfer"]
    assert beyond(None, ninfer, 0) == ""
    assert beyond(30 * GiB, ninfer, 0) == ""
    assert beyond(31 * GiB, ninfer, GiB) == ""
    assert beyond(31 * GiB + GiB // 2, ninfer, GiB) == (
        "it used 31.5 GiB of the card, engines.ninfer.vram says 30.0 GiB beside a baseline of 1.0 GiB"
    )
