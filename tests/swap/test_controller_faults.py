"""Each failure at each step ends with the right code, the right engine, and a reason that a person can use."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from engines.spec import GiB
from swap.moves import Code
from swap.ports import CannotStage, CannotStart, CardUnknown, Outcome
from swap.wish import Wish
from tests.simulated_time import in_simulated_time
from tests.swap.fakes import Behaviour
from tests.swap.world import GONE, World, end_of, now, until


def strata_needs_less(world: World) -> None:
    """So that it can come back where NInfer can't start."""
    world.engines["strata"] = replace(world.engines["strata"], vram=20 * GiB)
    world.strata.vram = 20 * GiB


# ------------------------------------------------------------------------------------------------- before the stop


@in_simulated_time
async def test_docker_gone_while_checking_is_refused(world: World) -> None:
    async with world.serving():
        world.ninfer.fail("declared", GONE)
        ended = await world.swap("ninfer")
        assert (ended.code, ended.serving) == (Code.REFUSED, "strata:current")
        assert "Docker doesn't answer (start it)" in ended.text
    assert world.happened == []


@in_simulated_time
async def test_staging_that_fails_leaves_the_old_engine_serving_all_the_time(world: World) -> None:
    async with world.serving():
        world.ninfer.fail("stage", CannotStage("compose says: no space left on device", "make room"))
        ended = await world.swap("ninfer:v3", trial=True)
        assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
        assert "no space left on device; make room" in ended.text
    assert world.happened == ["ninfer stage [stage]"]
    assert world.evidence_of("ninfer:v3") == []  # it never had the card


@in_simulated_time
async def test_a_drain_past_its_deadline_is_given_up_and_the_old_engine_never_stopped(world: World) -> None:
    async with world.serving():
        world.gate.in_flight = 2
        began = now()
        ended = await world.swap("ninfer")
        assert 60 <= now() - began < 61
        assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
        assert "2 requests in flight after 60 s; `--cut` ends them, `--drain` waits longer" in ended.text
    assert world.happened == ["gate closed", "gate open strata"]


@in_simulated_time
async def test_an_order_may_bring_its_own_drain_deadline(world: World) -> None:
    async with world.serving():
        world.gate.in_flight = 1
        began = now()
        assert (await world.swap("ninfer", wish=Wish(drain=5.0))).code == Code.RESTORED
        assert 5 <= now() - began < 6


@in_simulated_time
async def test_with_cut_requests_past_the_deadline_are_ended_and_the_swap_goes_on(world: World) -> None:
    async with world.serving():
        world.gate.in_flight = 2
        assert (await world.swap("ninfer", cut=True)).code == Code.SERVES
    assert world.happened[:3] == ["gate closed", "gate cut 2", "strata stop [stop]"]


@in_simulated_time
async def test_requests_that_dont_end_though_they_are_cut_keep_the_old_engine(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.serving():
        world.gate.in_flight = 1
        monkeypatch.setattr(world.gate, "cut", lambda: 1)
        ended = await world.swap("ninfer", cut=True)
        assert ended.code == Code.RESTORED
        assert "1 request in flight 5 s after they were told to end" in ended.text
    assert world.happened == ["gate closed", "gate open strata"]


@in_simulated_time
async def test_an_old_engine_that_dies_while_it_is_drained_needs_no_stop(world: World) -> None:
    async with world.serving():
        world.gate.in_flight = 1
        ticket = world.order("ninfer")
        await until(lambda: world.gate.state == "closed")
        world.strata.exit(1)
        await asyncio.sleep(1)
        world.gate.in_flight = 0
        assert (await end_of(ticket)).code == Code.SERVES
    assert world.happened == ["gate closed", "ninfer start [start]", "gate open ninfer"]


# ------------------------------------------------------------------------------------------------- the stop


@in_simulated_time
async def test_an_overdue_stop_that_ends_late_lets_the_swap_go_on(world: World) -> None:
    async with world.serving() as controller:
        world.strata.unfinish("stop")
        ticket = world.order("ninfer")
        await until(lambda: controller.state.unknown)
        await asyncio.sleep(8)
        assert "ninfer start [start]" not in world.story
        world.strata.finish()
        assert (await end_of(ticket)).code == Code.SERVES


@in_simulated_time
async def test_an_overdue_stop_that_never_happens_leaves_the_old_engine_serving(world: World) -> None:
    async with world.serving() as controller:
        world.strata.unfinish("stop")
        ticket = world.order("ninfer")
        await until(lambda: controller.state.unknown)
        world.strata.finish(lost=True)
        ended = await end_of(ticket)
        assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
        assert "strata:current could not be stopped" in ended.text
    assert world.happened == ["gate closed", "strata stop [stop]", "gate open strata"]


@in_simulated_time
async def test_a_stop_whose_end_cant_be_told_ends_the_order_and_nothing_is_started_until_it_can(world: World) -> None:
    async with world.serving() as controller:
        world.strata.unfinish("stop")
        ended = await world.swap("ninfer")
        assert ended.code == Code.DARK
        assert "a call on strata:current hasn't ended yet" in ended.text
        assert world.gate.state == "closed"  # time may mend it: clients wait
        await asyncio.sleep(100)
        assert "ninfer start [start]" not in world.story
        world.strata.finish()
        await until(lambda: controller.state.serving)
    assert world.happened == ["gate closed", "strata stop [stop]", "strata start [start]", "gate open strata"]


@in_simulated_time
async def test_docker_gone_at_the_stop_is_looked_into_before_anything_else(world: World) -> None:
    async with world.serving():
        world.strata.fail("stop", GONE)
        ended = await world.swap("ninfer")
        assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
    assert world.happened == ["gate closed", "strata stop [stop]", "gate open strata"]


@in_simulated_time
async def test_an_engine_that_had_to_be_killed_is_gone_all_the_same(world: World) -> None:
    async with world.serving():
        world.strata.behaviours["strata:1"] = Behaviour(deaf=True)
        assert (await world.swap("ninfer")).code == Code.SERVES


# ------------------------------------------------------------------------------------------------- the memory


@in_simulated_time
async def test_case_25_memory_that_somebody_else_holds_brings_the_old_engine_back_and_names_him(world: World) -> None:
    strata_needs_less(world)
    async with world.serving():
        world.when("strata stop [stop]", lambda: world.card.foreign.update(game=5 * GiB))
        began = now()
        ended = await world.swap("ninfer")
        assert 60 <= now() - began < 65
        assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
        assert "only 27.0 GiB of the card are free, 30.2 GiB are needed" in ended.text
        assert "pid 2000 (game, 5.0 GiB, in no container) after 60 s" in ended.text
    assert world.happened == ["gate closed", "strata stop [stop]", "strata start [start]", "gate open strata"]


@in_simulated_time
async def test_memory_that_isnt_free_for_the_old_engine_either_is_dark_and_tried_again_until_it_is(
    world: World,
) -> None:
    """Case 25, where next to nothing is free."""
    async with world.serving() as controller:
        world.when("strata stop [stop]", lambda: world.card.foreign.update(game=20 * GiB))
        ended = await world.swap("ninfer")
        assert (ended.code, ended.serving) == (Code.DARK, None)
        assert ended.text.count("game") == 2  # in the way of both
        assert world.gate.state == "closed"  # a passing cause: clients wait
        assert not controller.state.person
        await asyncio.sleep(1000)
        assert world.up == set()
        world.card.foreign.clear()
        freed = now()
        await until(lambda: world.gate.state == "open strata")
        assert now() - freed <= 300 + 60 + 5
    assert world.happened == ["gate closed", "strata stop [stop]", "strata start [start]", "gate open strata"]


@in_simulated_time
async def test_a_card_that_cant_be_asked_any_more_starts_nothing(world: World) -> None:
    async with world.serving():
        broken = CardUnknown("driver and library differ (18)", "reboot", passing=True)
        world.when("strata stop [stop]", lambda: setattr(world.card, "unknown", broken))
        ended = await world.swap("ninfer")
        assert ended.code == Code.DARK
        assert "driver and library differ (18); reboot" in ended.text
        assert world.up == set()
        world.card.unknown = None
        await until(lambda: world.gate.state == "open strata")


# ------------------------------------------------------------------------------------------------- the start


@in_simulated_time
async def test_a_container_that_was_replaced_meanwhile_is_never_started(world: World) -> None:
    async with world.serving():
        world.when("strata stop [stop]", lambda: world.ninfer.create(world.ninfer.recipes["v3"]))
        ended = await world.swap("ninfer")
        assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
        assert "the container isn't that of ninfer:v2: image is ninfer:v3" in ended.text
    assert "ninfer start [start]" not in world.happened


@in_simulated_time
async def test_an_address_where_somebody_listens_already_is_nobodys_to_start_at(world: World) -> None:
    """Case 22: who answers there isn't ours."""
    async with world.serving():
        world.when("strata stop [stop]", world.places["ninfer"].listen)
        ended = await world.swap("ninfer")
        assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
        assert f"listens at {world.engines['ninfer'].url} already" in ended.text
    assert "ninfer start [start]" not in world.happened


@in_simulated_time
async def test_a_start_that_is_answered_with_an_error_brings_the_old_engine_back(world: World) -> None:
    async with world.serving():
        what = 'could not select device driver "nvidia"'
        world.ninfer.fail("start", CannotStart(what, "install nvidia-container-toolkit"))
        ended = await world.swap("ninfer:v3", trial=True)
        assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
        assert ended.text.endswith(f"{what}; install nvidia-container-toolkit")
        assert world.evidence_of("ninfer:v3") == [Outcome.FAILED]


@in_simulated_time
async def test_an_overdue_start_that_succeeds_late_serves(world: World) -> None:
    async with world.serving() as controller:
        world.ninfer.unfinish("start")
        ticket = world.order("ninfer")
        await until(lambda: controller.state.unknown)
        await asyncio.sleep(8)
        assert world.up == set()  # and nothing else is started meanwhile
        world.ninfer.finish()
        assert (await end_of(ticket)).code == Code.SERVES
    assert world.happened == ["gate closed", "strata stop [stop]", "ninfer start [start]", "gate open ninfer"]


@in_simulated_time
async def test_an_overdue_start_that_fails_late_brings_the_old_engine_back(world: World) -> None:
    async with world.serving() as controller:
        world.ninfer.unfinish("start")
        ticket = world.order("ninfer")
        await until(lambda: controller.state.unknown)
        world.ninfer.finish(lost=True)
        ended = await end_of(ticket)
        assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
        assert "ninfer:v2 did not start in time" in ended.text


@in_simulated_time
async def test_a_start_that_comes_true_when_its_order_has_long_ended_is_undone(world: World) -> None:
    async with world.serving():
        world.ninfer.unfinish("start")
        assert (await world.swap("ninfer")).code == Code.DARK
        await asyncio.sleep(100)
        assert "strata start [start]" not in world.story  # it might come up beside it
        world.ninfer.finish()
        await until(lambda: world.gate.state == "open strata")
        assert world.up == {"strata"}
    assert world.happened[2:] == [
        "ninfer start [start]",
        "ninfer stop [stop]",
        "strata start [start]",
        "gate open strata",
    ]


@in_simulated_time
async def test_docker_gone_at_the_start_is_looked_into_before_anything_else(world: World) -> None:
    async with world.serving():
        world.ninfer.fail("start", GONE)
        ended = await world.swap("ninfer")
        assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")


# ------------------------------------------------------------------------------------------------- not ready


@in_simulated_time
async def test_an_engine_that_exits_at_once_says_its_code_and_the_first_line_of_its_error(world: World) -> None:
    log = "loading weights\nerror: artifact magic is not NInfer v2\nusage: ninfer-serve ARTIFACT [flags]\n"
    async with world.serving():
        world.ninfer.behaviours["ninfer:local"] = Behaviour(exits=1, log=log)
        began = now()
        ended = await world.swap("ninfer")
        assert now() - began < 3
        assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
        assert ended.text.endswith("ninfer:v2 exited with code 1: error: artifact magic is not NInfer v2")


@in_simulated_time
async def test_an_engine_that_exits_while_it_loads_fails_then_and_not_at_the_deadline(world: World) -> None:
    async with world.serving():
        world.readiness.never.add("ninfer:local")
        loop = asyncio.get_running_loop()
        world.when("ninfer start [start]", lambda: loop.call_later(30, world.ninfer.exit, 134, "CUDA error: 700"))
        began = now()
        ended = await world.swap("ninfer")
        assert 30 <= now() - began < 33
        assert ended.code == Code.RESTORED
        assert "exited with code 134: CUDA error: 700" in ended.text


@in_simulated_time
async def test_an_engine_that_is_never_ready_is_stopped_and_the_old_one_comes_back(world: World) -> None:
    async with world.serving():
        world.readiness.never.add("ninfer:local")
        began = now()
        ended = await world.swap("ninfer")
        assert 120 <= now() - began < 125
        assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
        assert "not ready after 120 s" in ended.text
        assert world.up == {"strata"}
    assert world.happened[2:] == [
        "ninfer start [start]",
        "ninfer stop [stop]",
        "strata start [start]",
        "gate open strata",
    ]


@in_simulated_time
async def test_docker_that_cant_be_asked_while_it_warms_says_nothing_about_the_engine(world: World) -> None:
    async with world.serving():
        asked = iter([lambda: world.ninfer.fail("look", GONE, times=20)])
        world.readiness.asked = lambda _: next(asked, lambda: None)()
        assert (await world.swap("ninfer")).code == Code.SERVES


# ------------------------------------------------------------------------------------------------- the way back


@in_simulated_time
async def test_the_same_engines_old_pair_is_put_back_as_it_was(world: World) -> None:
    async with world.serving("ninfer:v2"):
        created = world.ninfer.sight.recipe
        world.ninfer.behaviours["ninfer:v3"] = Behaviour(exits=1)
        ended = await world.swap("ninfer:v3", trial=True)
        assert (ended.code, ended.serving) == (Code.RESTORED, "ninfer:v2")
        assert world.ninfer.sight.recipe == created
        assert world.evidence_of("ninfer:v3") == [Outcome.FAILED]
    assert world.happened == [
        "gate closed",
        "ninfer stop [stop]",
        "ninfer stage [stage]",
        "ninfer start [start]",
        "ninfer put_back [putback]",
        "ninfer start [start]",
        "gate open ninfer",
    ]


@in_simulated_time
@pytest.mark.parametrize("earlier", [(), ("ninfer:v3", "ninfer:v2")])
async def test_a_staging_that_fails_leaves_the_old_container_which_serves_again(
    world: World, earlier: tuple[str, ...]
) -> None:
    async with world.serving("ninfer:v2"):
        for label in earlier:  # what is kept then is an older one
            assert (await world.swap(label, trial=True)).code == Code.SERVES
        kept = world.ninfer.sight.id
        world.ninfer.fail("stage", CannotStage("compose can't use ninfer.yml", "correct it"))
        ended = await world.swap("ninfer:v3", trial=True)
        assert (ended.code, ended.serving) == (Code.RESTORED, "ninfer:v2")
        assert (world.ninfer.sight.id, world.gate.state) == (kept, "open ninfer")


@in_simulated_time
async def test_what_cant_be_put_back_is_dark_and_says_both_reasons(world: World) -> None:
    async with world.serving("ninfer:v2", verified=("ninfer:v2",)):
        world.ninfer.behaviours["ninfer:v3"] = Behaviour(exits=1)
        world.ninfer.fail("put_back", CannotStage("no such image: ninfer:local", "build it again"))
        ended = await world.swap("ninfer:v3", trial=True)
        assert (ended.code, ended.serving) == (Code.DARK, None)
        assert "ninfer:v3 exited with code 1; then no such image: ninfer:local; build it again" in ended.text
        await until(lambda: world.gate.state.startswith("refusing: "))
        assert world.up == set()
        assert (await world.swap("strata", trial=True)).code == Code.SERVES


@in_simulated_time
async def test_what_cant_be_put_back_leaves_the_card_to_another_verified_pair(world: World) -> None:
    async with world.serving("ninfer:v2"):
        world.ninfer.behaviours["ninfer:v3"] = Behaviour(exits=1)
        world.ninfer.fail("put_back", CannotStage("no such image: ninfer:local", "build it again"))
        ended = await world.swap("ninfer:v3", trial=True)
        assert (ended.code, ended.serving) == (Code.DARK, None)
        assert "it is seen who else may have the card" in ended.text
        await until(lambda: world.gate.state == "open strata")


@in_simulated_time
async def test_a_restore_that_fails_is_dark_and_tried_again(world: World) -> None:
    async with world.serving():
        world.ninfer.exits_on_start = world.strata.exits_on_start = 1
        ended = await world.swap("ninfer")
        assert (ended.code, ended.serving) == (Code.DARK, None)
        assert "ninfer:v2 exited with code 1; then strata:current exited with code 1" in ended.text
        assert world.gate.state == "closed"
        dark = now()
        await until(lambda: world.gate.state == "open strata")
        assert 5 <= now() - dark < 7  # the first back-off
