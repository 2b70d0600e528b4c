"""Each effect by itself: exactly one report, and the one that is true."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from engines.spec import GiB
from swap.hands import GLANCE_LIMIT
from swap.moves import (
    Check,
    Checked,
    Done,
    Drain,
    Glance,
    Inspect,
    Look,
    Order,
    Overdue,
    Rest,
    Seen,
    Stage,
    Start,
    Stop,
    Up,
)
from swap.ports import CannotStart, Fault, Foreign, Sight, Status
from swap.wish import Wish
from tests.simulated_time import in_simulated_time
from tests.swap.fakes import Behaviour
from tests.swap.world import GONE, World, do, failed, now, unit


@pytest.fixture
def said(world: World) -> list[str]:
    texts: list[str] = []
    world.hands.say = texts.append
    return texts


# ------------------------------------------------------------------------------------------------- checking


@in_simulated_time
async def test_a_check_that_refuses_says_every_reason_and_what_to_do(world: World) -> None:
    world.engines["ninfer"] = replace(world.engines["ninfer"], vram=40 * GiB)
    order = Order(1, "ninfer", "v2")
    world.hands.wishes[1] = wish = Wish()
    why = failed(await do(world, Check(7, order))).why
    assert "can never fit" in why
    assert "(correct engines.ninfer.vram, or run it with less); ninfer:v2 never ran on this card" in why
    assert wish.unit is None


@in_simulated_time
async def test_a_check_that_allows_names_the_unit_that_the_container_is_then_recognised_as(world: World) -> None:
    await world.verify("ninfer:v2")
    world.hands.wishes[1] = Wish()
    report = await do(world, Check(7, Order(1, "ninfer", "v2")))
    assert isinstance(report, Checked)
    assert report.unit.label == "ninfer:v2"
    assert await world.hands.meet("ninfer", world.ninfer.sight) == report.unit
    known = world.hands.known[report.unit]
    assert known.subject is not None
    assert known.verified is not None
    assert known.artifact_version == 2
    assert known.stage


@in_simulated_time
async def test_a_look_finds_all_that_runs_and_passes_over_what_is_foreign(world: World, said: list[str]) -> None:
    world.ninfer.run(world.ninfer.recipes["v3"])
    world.strata.fail("look", Foreign("strata-1 was made by project other", "rename it"))
    report = await do(world, Look(7))
    assert [found.label for found in getattr(report, "up", ())] == ["ninfer:v3"]
    assert "project other" in said[0]


@in_simulated_time
async def test_a_look_that_gets_no_answer_is_a_passing_failure(world: World) -> None:
    world.ninfer.fail("look", GONE)
    assert failed(await do(world, Look(7))).passing


# ------------------------------------------------------------------------------------------------- staging


@in_simulated_time
async def test_staging_says_what_it_recreates_and_leaves_alone_what_is_as_declared(
    world: World, said: list[str]
) -> None:
    v2, v3 = await unit(world, "ninfer:v2"), await unit(world, "ninfer:v3")
    assert await do(world, Stage(7, v2)) == Done(7)
    assert ("stage" in world.ninfer.calls, said) == (False, [])
    assert await do(world, Stage(7, v3)) == Done(7)
    assert said == ["recreating the container: image, command"]
    assert world.hands.known[v3].id == world.ninfer.sight.id


@in_simulated_time
async def test_where_there_is_no_container_one_is_made(world: World, said: list[str]) -> None:
    v2 = await unit(world)
    world.ninfer.sight = Sight(Status.ABSENT)
    assert await do(world, Stage(7, v2)) == Done(7)
    assert said == ["recreating the container: there was none"]
    world.ninfer.sight = Sight(Status.ABSENT)
    world.hands.known[v2].stage = False
    assert failed(await do(world, Stage(7, v2))).why == "there is no container for ninfer:v2, and it may not be made"


@in_simulated_time
async def test_what_may_not_be_recreated_is_left_for_the_inspection_to_judge(world: World) -> None:
    v3 = await unit(world, "ninfer:v3")
    world.hands.known[v3].stage = False
    assert await do(world, Stage(7, v3)) == Done(7)
    assert "stage" not in world.ninfer.calls
    assert "image is ninfer:local" in failed(await do(world, Inspect(7, v3))).why


# ------------------------------------------------------------------------------------------------- inspecting


@in_simulated_time
async def test_the_inspection_of_the_right_container_remembers_that_very_one(world: World) -> None:
    v2 = await unit(world)
    assert await do(world, Inspect(7, v2)) == Done(7)
    assert world.hands.known[v2].id == world.ninfer.sight.id


@in_simulated_time
async def test_the_inspection_forgives_what_makes_no_other_pair(world: World) -> None:
    v2 = await unit(world)
    world.ninfer.create(replace(world.ninfer.recipes["v2"], healthcheck="CMD other"))
    assert await do(world, Inspect(7, v2)) == Done(7)


@in_simulated_time
async def test_the_inspection_refuses_another_container_none_and_one_that_runs(world: World) -> None:
    v2 = await unit(world)
    world.ninfer.create(replace(world.ninfer.recipes["v2"], env=(("PATH", "/opt"),)))
    report = failed(await do(world, Inspect(7, v2)))
    assert "environment PATH is '/opt', not '/usr/bin'" in report.why
    assert not report.passing
    world.ninfer.run(world.ninfer.recipes["v2"])
    report = failed(await do(world, Inspect(7, v2)))
    assert "running already, started by somebody else" in report.why
    assert report.passing
    world.ninfer.sight = Sight(Status.ABSENT)
    assert failed(await do(world, Inspect(7, v2))).why == "the container of ninfer:v2 is gone"


async def test_the_inspection_names_who_listens_in_the_engines_place(world: World) -> None:
    v2 = await unit(world)
    assert await do(world, Inspect(7, v2)) == Done(7)
    world.places["ninfer"].listen()
    report = failed(await do(world, Inspect(7, v2)))
    assert report.why.startswith("pid ")
    assert f"listens at {world.engines['ninfer'].url} already and would answer in its place; stop it" in report.why
    assert report.passing


# ------------------------------------------------------------------------------------------------- up and down


@in_simulated_time
async def test_starting_reports_up_with_that_very_run(world: World) -> None:
    v2 = await unit(world)
    await do(world, Inspect(7, v2))
    assert await do(world, Start(7, v2)) == Up(7, v2)
    assert world.hands.known[v2].same_run(world.ninfer.sight)


@in_simulated_time
async def test_a_start_that_was_answered_no_is_a_failure_and_one_that_wasnt_answered_is_overdue(world: World) -> None:
    v2 = await unit(world)
    await do(world, Inspect(7, v2))
    world.ninfer.fail("start", CannotStart("no driver", "install it"))
    assert failed(await do(world, Start(7, v2))).why == "no driver; install it"
    world.ninfer.fail("start", GONE)
    assert await do(world, Start(7, v2)) == Overdue(7)
    world.when("ninfer start [nothing]", lambda: world.ninfer.fail("look", GONE))
    assert await do(world, Start(7, v2)) == Overdue(7)  # it is up, but nobody has seen it


@in_simulated_time
async def test_stopping_what_has_stopped_already_asks_for_nothing(world: World) -> None:
    v2 = await unit(world)
    assert await do(world, Stop(7, v2)) == Done(7)
    assert "stop" not in world.ninfer.calls


@in_simulated_time
async def test_stopping_says_when_it_had_to_kill(world: World, said: list[str]) -> None:
    v2 = await unit(world)
    world.ninfer.behaviours["ninfer:local"] = Behaviour(deaf=True)
    world.ninfer.run(world.ninfer.recipes["v2"])
    assert await do(world, Stop(7, v2)) == Done(7)
    assert said == ["ninfer:v2 had to be killed after 60 s"]


@in_simulated_time
@pytest.mark.parametrize("call", ["look", "stop"])
async def test_a_stop_that_may_have_been_heard_is_overdue(world: World, call: str) -> None:
    v2 = await unit(world)
    world.ninfer.run(world.ninfer.recipes["v2"])
    world.ninfer.fail(call, GONE)
    assert await do(world, Stop(7, v2)) == Overdue(7)


@in_simulated_time
async def test_a_glance_waits_for_the_overdue_call_as_often_as_it_takes_and_never_ends_it(world: World) -> None:
    v2 = await unit(world)
    await do(world, Inspect(7, v2))
    world.ninfer.unfinish("start")
    assert await do(world, Start(7, v2)) == Overdue(7)
    for _ in range(2):
        began = now()
        report = failed(await do(world, Glance(7, v2)))
        assert "a call on ninfer:v2 hasn't ended yet" in report.why
        assert report.passing
        assert now() - began == pytest.approx(GLANCE_LIMIT)
    asyncio.get_running_loop().call_later(5, world.ninfer.finish)
    assert await do(world, Glance(7, v2)) == Seen(7, True)
    assert world.hands.known[v2].same_run(world.ninfer.sight)
    world.ninfer.exit(1)
    assert await do(world, Glance(7, v2)) == Seen(7, False)


@in_simulated_time
async def test_a_rest_takes_longer_with_each_attempt_up_to_a_limit(world: World) -> None:
    took = []
    for attempt in range(9):
        began = now()
        assert await do(world, Rest(7, attempt)) == Done(7)
        took.append(round(now() - began))
    assert took == [5, 10, 20, 40, 80, 160, 300, 300, 300]


@in_simulated_time
async def test_a_drain_without_an_order_takes_the_configured_time(world: World, said: list[str]) -> None:
    world.gate.in_flight = 1
    assert "after 60 s" in failed(await do(world, Drain(7, cut=False))).why
    assert said == ["1 request in flight"]
    assert now() == pytest.approx(60)


# ------------------------------------------------------------------------------------------------- reports


@in_simulated_time
async def test_a_fault_becomes_a_failure_that_says_whether_time_mends_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    v2 = await unit(world)
    for fault in (Fault("it broke", "mend it"), Fault("it broke", "mend it", passing=True)):
        world.ninfer.fail("look", fault)
        report = failed(await do(world, Inspect(7, v2)))
        assert (report.why, report.passing) == ("it broke; mend it", fault.passing)
