"""`--trial --and-back`: a trial that hands the card back, whoever listens, and whatever comes between."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from engines.spec import Require
from swap.moves import Code
from swap.ports import Evidence, Fault, Outcome
from swap.state import phase
from swap.tickets import Ended, Progress, Ticket
from swap.wish import Wish
from tests.simulated_time import in_simulated_time
from tests.swap.world import World, end_of, until

NEITHER = ()


def ordered(world: World, label: str = "ninfer:v3", *, cut: bool = False, **wish: object) -> Ticket:
    return world.order(label, trial=True, cut=cut, wish=Wish(and_back=True, **wish))  # type: ignore[arg-type]


async def there_and_back(world: World, label: str = "ninfer:v3", progress: list[Progress] | None = None) -> Ended:
    return await end_of(ordered(world, label), progress)


# ------------------------------------------------------------------------------------------------- there and back


@in_simulated_time
async def test_a_trial_proves_itself_and_what_served_before_serves_again(world: World) -> None:
    progress: list[Progress] = []
    async with world.serving("strata:current"):
        ended = await there_and_back(world, progress=progress)
        assert (ended.code, ended.serving) == (Code.SERVES, "strata:current")
        assert ended.text == "ninfer:v3 is verified; strata:current serves again"
        assert world.up == {"strata"}
        assert world.gate.state == "open strata"
        assert (await world.swap("ninfer:v3")).code == Code.SERVES  # it is verified indeed, without a trial
    assert world.evidence_of("ninfer:v3")[0] is Outcome.SERVED
    assert world.evidence_of("strata:current") == [Outcome.SERVED, Outcome.SERVED]  # the way back, too
    phases = list(dict.fromkeys(one.phase for one in progress))
    steps = ["checking", "draining", "stopping", "freeing", "starting", "warming"]
    there = ["checking", "staging", *steps[1:]]
    assert [one for one in phases if one != "back: staging"] == [*there, "serving", *(f"back: {one}" for one in steps)]
    told = next(one.text for one in progress if one.phase == "serving")
    assert told == "ninfer:v3 is verified; the card goes back to strata:current"


@in_simulated_time
async def test_within_one_engine_the_old_container_is_made_again(world: World) -> None:
    async with world.serving("ninfer:v2"):
        ended = await there_and_back(world)
        assert (ended.code, ended.text) == (Code.SERVES, "ninfer:v3 is verified; ninfer:v2 serves again")
        assert world.ninfer.sight.recipe == world.ninfer.recipes["v2"]


@in_simulated_time
async def test_nobody_needs_to_listen(world: World) -> None:
    async with world.serving("strata:current") as controller:
        ordered(world)
        await until(lambda: "gate open ninfer" in world.story)
        await until(lambda: controller.state.order is None and world.gate.state == "open strata")
    assert world.evidence_of("ninfer:v3") == [Outcome.SERVED]


@in_simulated_time
async def test_whoever_looks_between_the_halves_sees_that_it_isnt_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    record = world.ledger.record

    async with world.serving("strata:current") as controller:

        def recorded(evidence: Evidence) -> None:
            seen.append(controller.under_way.engine if controller.under_way else "nothing")
            record(evidence)

        monkeypatch.setattr(world.ledger, "record", recorded)
        await there_and_back(world)
        await until(lambda: controller.under_way is None)
    assert seen == ["ninfer", "strata"]


@in_simulated_time
async def test_a_trial_that_fails_hands_nothing_back_but_what_a_failed_trial_does(world: World) -> None:
    async with world.serving("strata:current"):
        world.readiness.never.add("ninfer:v3")
        ended = await there_and_back(world)
        assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
        assert ended.text.startswith("strata:current serves again: not ready after")
        await asyncio.sleep(1000)
        assert world.up == {"strata"}


@in_simulated_time
async def test_without_evidence_the_card_goes_back_all_the_same_and_the_trial_has_failed(world: World) -> None:
    async with world.serving("strata:current"):
        world.ledger.full = Fault("the ledger can't be written: no space left", "make room")
        ended = await there_and_back(world)
        assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
        assert ended.text == (
            "ninfer:v3 served, but no evidence was written: the ledger can't be written: no space left; make room; "
            "strata:current serves again"
        )


# ------------------------------------------------------------------------------------------------- refused


@in_simulated_time
async def test_from_dark_there_is_nothing_to_hand_back_to(world: World) -> None:
    world.default = None
    world.rebuild()
    async with world.running(verified=NEITHER):
        ended = await there_and_back(world)
        assert ended.code == Code.REFUSED
        assert "nothing served before; there is nothing to hand back to" in ended.text
        assert (world.up, "ninfer start" in " ".join(world.happened)) == (set(), False)


@in_simulated_time
async def test_what_could_not_be_handed_back_to_is_refused_before_anything_stops(world: World) -> None:
    async with world.serving("strata:current", verified=("strata:current", "ninfer:v2")):
        del world.strata.recipes["current"]  # its compose file has been broken since
        ended = await there_and_back(world)
        assert ended.code == Code.REFUSED
        assert "strata:current could not be handed back to: the compose file can't be resolved" in ended.text
        assert world.happened == []


@in_simulated_time
async def test_an_unproven_pair_is_not_handed_back_to_even_when_the_other_one_is_proven(world: World) -> None:
    async with world.serving("strata:current", verified=("ninfer:v2",)):
        ended = await there_and_back(world, "ninfer:v2")
        assert ended.code == Code.REFUSED
        assert "strata:current could not be handed back to: strata:current never ran on this card" in ended.text
        assert world.happened == []


@in_simulated_time
async def test_what_serves_and_is_not_what_its_name_declares_now_could_not_be_had_back(world: World) -> None:
    """Its file was edited since, and the edited one is proven, too: an order by its name would run that."""
    async with world.serving("ninfer:v2"):
        edited = replace(world.ninfer.recipes["v2"], env=(("PATH", "/usr/bin"), ("NEW", "1")))
        world.ninfer.recipes["v2"] = edited
        await world.verify("ninfer:v2")
        ended = await there_and_back(world)
        assert ended.code == Code.REFUSED
        assert "what serves isn't what it declares now (environment NEW is new)" in ended.text
        assert world.happened == []


@in_simulated_time
async def test_when_the_target_serves_already_nothing_is_handed_back(world: World) -> None:
    async with world.serving("ninfer:v2"):
        ended = await there_and_back(world, "ninfer:v2")
        assert (ended.code, ended.serving) == (Code.SERVES, "ninfer:v2")
        assert ended.text == "ninfer:v2 serves; it served already, so nothing was tried and nothing is handed back"
        assert world.happened == []


# ------------------------------------------------------------------------------------------------- the way back fails


@in_simulated_time
async def test_where_the_way_back_fails_the_tried_pair_serves_on(world: World) -> None:
    async with world.serving("strata:current"):
        world.when("gate open ninfer", lambda: world.readiness.never.add("strata:1"))
        ended = await there_and_back(world)
        assert (ended.code, ended.serving) == (Code.RESTORED, "ninfer:v3")
        assert ended.text.startswith(
            "ninfer:v3 is verified; strata:current doesn't serve again, ninfer:v3 does: not ready after"
        )
        assert world.up == {"ninfer"}


@in_simulated_time
async def test_where_the_way_back_is_refused_it_isnt_said_that_nothing_was_changed(world: World) -> None:
    async with world.serving("strata:current"):
        world.when("gate open ninfer", world.strata.recipes.clear)
        ended = await there_and_back(world)
        assert (ended.code, ended.serving) == (Code.RESTORED, "ninfer:v3")
        assert "nothing was changed" not in ended.text
        assert "strata:current doesn't serve again, ninfer:v3 does: the compose file can't be resolved" in ended.text


@in_simulated_time
async def test_where_neither_comes_up_it_is_dark_and_the_evidence_is_told_of(world: World) -> None:
    async with world.serving("strata:current"):
        world.when("gate open ninfer", lambda: world.readiness.never.update(("strata:1", "ninfer:v3")))
        ended = await there_and_back(world)
        assert (ended.code, ended.serving) == (Code.DARK, None)
        assert ended.text.startswith("dark, nothing serves: not ready after")
        assert ended.text.endswith("; ninfer:v3 is verified")


# ------------------------------------------------------------------------------------------------- others


async def on_the_way_back(world: World) -> None:
    await until(lambda: (order := world.controller.state.order) is not None and order.engine == "strata")


@in_simulated_time
async def test_the_way_back_can_be_given_up(world: World) -> None:
    async with world.serving("strata:current") as controller:
        ticket = ordered(world)
        world.when("gate open ninfer", lambda: setattr(world.gate, "in_flight", 1))  # a long request of a client's
        await on_the_way_back(world)
        await until(lambda: phase(controller.state) == "draining")
        assert controller.abort() == "strata:current"
        ended = await end_of(ticket)
        assert (ended.code, ended.serving) == (Code.RESTORED, "ninfer:v3")
        assert "ninfer:v3 does: given up by the operator" in ended.text
        assert world.gate.state == "open ninfer"


@in_simulated_time
async def test_an_order_that_comes_as_the_trial_ends_does_not_get_between(world: World) -> None:
    tickets: list[Ticket] = []
    async with world.serving("strata:current"):
        world.when("gate open ninfer", lambda: tickets.append(world.order("ninfer:v2")))
        ended = await there_and_back(world)
        assert ended.text == "ninfer:v3 is verified; strata:current serves again"
        (other,) = tickets
        late = await end_of(other)
        assert (late.code, late.text) == (
            Code.REFUSED,
            "refused, nothing was changed: a swap to strata:current is under way",
        )


@in_simulated_time
async def test_who_joins_a_trial_or_the_way_back_follows_it_to_the_end(world: World) -> None:
    async with world.serving("strata:current"):
        world.ninfer.hang("start")
        first = ordered(world)
        await until(lambda: phase(world.controller.state) == "starting")
        second = ordered(world)
        world.strata.hang("start")
        world.ninfer.let_go("start")
        await on_the_way_back(world)
        third = world.order("strata:current")
        world.strata.let_go("start")
        for ticket in (first, second):
            ended = await end_of(ticket)
            assert (ended.code, ended.text) == (Code.SERVES, "ninfer:v3 is verified; strata:current serves again")
        ended = await end_of(third)
        assert (ended.code, ended.text) == (Code.SERVES, "strata:current serves")


@in_simulated_time
async def test_who_has_joined_the_way_back_is_told_nothing_but_whether_that_serves(world: World) -> None:
    """The trial has failed, for it left no evidence; that isn't what this one has asked for."""
    async with world.serving("strata:current"):
        world.ledger.full = Fault("no space left", "make room")
        world.strata.hang("start")
        first = ordered(world)
        await on_the_way_back(world)
        second = world.order("strata:current")
        world.strata.let_go("start")
        assert (await end_of(second)).code == Code.SERVES
        assert (await end_of(first)).code == Code.RESTORED


@in_simulated_time
@pytest.mark.parametrize("first", [True, False])
async def test_who_wants_the_tried_pair_to_stay_does_not_join_one_that_goes_back_nor_the_other_way_round(
    world: World, first: bool
) -> None:
    async with world.serving("strata:current"):
        world.ninfer.hang("start")
        one = world.order("ninfer:v3", trial=True, wish=Wish(and_back=first))
        await until(lambda: phase(world.controller.state) == "starting")
        other = await end_of(world.order("ninfer:v3", trial=True, wish=Wish(and_back=not first)))
        assert other.code == Code.REFUSED
        how = "with" if first else "without"
        assert f"a swap to ninfer:v3 {how} --and-back is under way" in other.text
        world.ninfer.let_go("start")
        assert (await end_of(one)).serving == ("strata:current" if first else "ninfer:v3")


@in_simulated_time
async def test_the_options_of_the_order_hold_for_both_halves(world: World) -> None:
    async with world.serving("strata:current"):
        world.when("gate open ninfer", lambda: setattr(world.gate, "in_flight", 1))
        ended = await end_of(ordered(world, drain=7.0))
        assert "1 request in flight after 7 s" in ended.text
        world.gate.in_flight = 0
    world.ninfer.stop_by_hand()


@in_simulated_time
async def test_cut_holds_for_both_halves(world: World) -> None:
    async with world.serving("strata:current"):
        world.when("gate open ninfer", lambda: setattr(world.gate, "in_flight", 1))
        ended = await end_of(ordered(world, cut=True))
        assert (ended.code, ended.serving) == (Code.SERVES, "strata:current")
        assert "cut 1" in world.gate.story


@in_simulated_time
async def test_no_stage_holds_for_both_halves(world: World) -> None:
    async with world.serving("strata:current"):
        world.ninfer.create(world.ninfer.recipes["v3"])
        edited = replace(world.strata.recipes["current"], healthcheck="CMD other")
        world.when("gate open ninfer", lambda: world.strata.recipes.update(current=edited))
        ended = await end_of(ordered(world, stage=False))
        assert (ended.code, ended.serving) == (Code.RESTORED, "ninfer:v3")
        assert "isn't what strata:current declares: healthcheck" in ended.text


@in_simulated_time
async def test_a_daemon_that_dies_between_the_two_leaves_the_tried_pair_which_is_adopted(world: World) -> None:
    async with world.serving("strata:current"):
        world.when("gate open ninfer", lambda: world.strata.hang("declared"))
        ordered(world)
        await on_the_way_back(world)
    world.strata.let_go("declared")
    world.rebuild()
    async with world.running(verified=NEITHER) as controller:
        assert world.gate.state == "open ninfer"
        serving = controller.state.serving
        assert serving is not None
        await until(lambda: world.hands.known[serving].verified)
        await asyncio.sleep(1000)
        assert world.up == {"ninfer"}


# ------------------------------------------------------------------------------------------------- by policy


@in_simulated_time
async def test_the_answer_says_when_it_was_policy_and_not_evidence_that_let_a_pair_through(world: World) -> None:
    world.engines["ninfer"] = replace(world.engines["ninfer"], require=Require.CANDIDATE)
    progress: list[Progress] = []
    async with world.serving("strata:current"):
        ended = await end_of(world.order("ninfer:v3"), progress)
        words = "ninfer:v3 never ran on this card; it is allowed by `require: candidate`"
        assert (ended.code, ended.text) == (Code.SERVES, f"ninfer:v3 serves; it got the card by policy: {words}")
        assert words in [one.text for one in progress]
        assert world.evidence_of("ninfer:v3") == [Outcome.SERVED]  # and now there is evidence
        assert (await world.swap("strata")).code == Code.SERVES
        assert (await world.swap("ninfer:v3")).text == "ninfer:v3 serves"
