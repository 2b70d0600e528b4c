"""A trial is refused when nothing verified could be restored, except from dark: by the order, and by the plan alike."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from engines.spec import Require
from swap.moves import Code
from swap.ports import Outcome
from swap.tickets import Ended
from tests.simulated_time import in_simulated_time
from tests.swap.fakes import REAL
from tests.swap.world import VERIFIED, World, until

NOTHING_LEFT = "so nothing verified could be restored if the trial fails (`slotctl pairs adopt strata` first)"


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"more")


async def planned(world: World, label: str, *, trial: bool = True) -> str:
    engine, _, pair = label.partition(":")
    return (await world.hands.judge(engine, pair, trial=trial)).why


async def refused(world: World, label: str) -> str:
    """The order is refused and nothing was changed, not even what serves; the plan gives the same reason."""
    world.story.clear()
    seen = {name: runtime.sight for name, runtime in world.runtimes.items()}
    ended: Ended = await world.swap(label, trial=True)
    assert ended.code == Code.REFUSED, ended
    assert {name: runtime.sight for name, runtime in world.runtimes.items()} == seen
    assert world.happened == []
    plan = await planned(world, label)
    assert ended.text == f"refused, nothing was changed: {plan}"
    return plan


# ------------------------------------------------------------------------------------------------- the rule


@in_simulated_time
async def test_a_trial_is_refused_while_what_serves_isnt_verified(world: World) -> None:
    async with world.serving("strata:current", verified=()):
        assert await refused(world, "ninfer:v3") == f"strata:current serves and isn't verified, {NOTHING_LEFT}"
        await world.verify("strata:current")  # as `slotctl pairs adopt` does
        assert await planned(world, "ninfer:v3") == ""
        assert (await world.swap("ninfer:v3", trial=True)).code == Code.SERVES


@in_simulated_time
async def test_from_dark_a_trial_needs_nothing_to_restore(world: World) -> None:
    world.default = None
    world.rebuild()
    async with world.running(verified=()):
        assert await planned(world, "ninfer:v3") == ""
        assert (await world.swap("ninfer:v3", trial=True)).code == Code.SERVES


@in_simulated_time
@pytest.mark.parametrize("trial", [False, True])
async def test_an_order_to_a_proven_pair_may_leave_an_unproven_one(world: World, trial: bool) -> None:
    async with world.serving("strata:current", verified=("ninfer:v2",)):
        assert await planned(world, "ninfer:v2", trial=trial) == ""
        assert (await world.swap("ninfer:v2", trial=trial)).code == Code.SERVES


@in_simulated_time
async def test_a_trial_of_what_serves_already_is_no_trial(world: World) -> None:
    async with world.serving("ninfer:v3", verified=()) as controller:
        assert await planned(world, "ninfer:v3") == ""
        assert controller.state.serving is not None
        known = world.hands.known[controller.state.serving]
        await until(lambda: known.verified is not None)
        ended = await world.swap("ninfer:v3", trial=True)
        assert (ended.code, ended.serving) == (Code.SERVES, "ninfer:v3")
        assert "it isn't verified: `slotctl pairs adopt ninfer`" in ended.text
        assert world.happened == []


@in_simulated_time
async def test_a_trial_within_one_engine_is_held_to_the_rule_too(world: World) -> None:
    async with world.serving("ninfer:v2", verified=()):
        assert "ninfer:v2 serves and isn't verified" in await refused(world, "ninfer:v3")


@in_simulated_time
@pytest.mark.parametrize("verified", [("strata:current",), ()])
async def test_whether_what_was_adopted_is_verified_is_found_out_by_the_check_where_nobody_knows_yet(
    world: World, verified: tuple[str, ...]
) -> None:
    async with world.serving("strata:current", verified=verified) as controller:
        serving = controller.state.serving
        assert serving is not None
        known = world.hands.known[serving]
        await until(lambda: known.subject is not None)
        known.subject = known.standing = None
        expected = "" if verified else f"strata:current serves and isn't verified, {NOTHING_LEFT}"
        assert await planned(world, "ninfer:v3") == expected
        assert known.verified is bool(verified)  # and is known from now on


# ------------------------------------------------------------------------------------------------- what counts


@in_simulated_time
async def test_a_serving_engine_that_was_revoked_since_is_nothing_to_restore(world: World) -> None:
    async with world.serving("strata:current"):
        await world.record("strata:current", Outcome.REVOKED, reason="garbles tools")
        told = await refused(world, "ninfer:v3")
        assert told.startswith("strata:current serves and was revoked, so nothing verified could be restored")
        assert "(swap to a verified pair first; `slotctl pairs adopt strata` would lift the revocation)" in told


@in_simulated_time
async def test_a_serving_engine_whose_files_changed_since_is_nothing_to_restore(world: World) -> None:
    async with world.serving("strata:current"):
        path = world.folder / "models" / "strata.gguf"
        await asyncio.to_thread(grow, path)
        assert "strata:current serves and isn't verified" in await refused(world, "ninfer:v3")
        await asyncio.to_thread(path.unlink)
        assert "strata:current serves, and whether it is verified can't be told" in await refused(world, "ninfer:v3")


@in_simulated_time
@pytest.mark.parametrize("word", ["attested", "candidate"])
async def test_what_must_be_restorable_is_what_its_own_engine_requires(world: World, word: str) -> None:
    world.engines["strata"] = replace(world.engines["strata"], require=Require(word))
    async with world.serving("strata:current", verified=()):
        if word == "attested":
            assert "strata:current serves and isn't verified" in await refused(world, "ninfer:v3")
            await world.record("strata:current", Outcome.ATTESTED)
        assert await planned(world, "ninfer:v3") == ""
        assert (await world.swap("ninfer:v3", trial=True)).code == Code.SERVES


@in_simulated_time
async def test_where_another_driver_is_refused_what_serves_must_be_proven_with_this_one(world: World) -> None:
    async with world.serving("strata:current"):
        world.card._identity = replace(REAL, driver="580.1")
        assert await planned(world, "ninfer:v3") == ""
        world.checker._strict = True
        words = "is in doubt (it was verified with driver 575.57, this is 580.1)"
        assert await refused(world, "ninfer:v3") == f"strata:current serves and {words}, {NOTHING_LEFT}"


@in_simulated_time
async def test_what_serves_and_is_none_of_the_pairs_can_not_be_adopted_so_another_way_is_named(world: World) -> None:
    stranger = replace(world.strata.recipes["current"], command=("--other",))
    world.strata.run(stranger)
    async with world.running(verified=VERIFIED):
        words = await planned(world, "ninfer:v3")
        assert "strata:? serves and isn't verified" in words
        assert "see `slotctl plan to-strata` for what differs" in words


@in_simulated_time
async def test_a_trial_that_fails_puts_back_what_served(world: World) -> None:
    async with world.serving("strata:current"):
        world.readiness.never.add("ninfer:v3")
        ended = await world.swap("ninfer:v3", trial=True)
        assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
