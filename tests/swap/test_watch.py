"""Behind our back: engines die, are stopped or started by hand, and the runtime's events break."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from engines.ninfer.sample import write_artifact
from engines.spec import Engine
from swap.decisions import Kind
from swap.hands import MEANT
from swap.moves import Choose, Code
from swap.ports import CannotStart, CardUnknown, Foreign, Sight, Status, Subject, Unreachable
from swap.state import phase
from swap.watch import LOOK_EVERY, PAUSE, TOLD_WITHIN
from tests.simulated_time import in_simulated_time
from tests.swap.fakes import Behaviour, FakeLedger
from tests.swap.world import FILES, World, end_of, now, until

# ------------------------------------------------------------------------------------------------- the holder dies


@in_simulated_time
async def test_the_holder_that_dies_is_started_again_without_card_or_ledger(world: World) -> None:
    async with world.serving() as controller:
        sight = world.strata.sight
        world.card.unknown = CardUnknown("driver and library differ (18)", "reboot")
        controller.ledger = controller.hands.checker.ledger = FakeLedger()
        world.strata.exit(139)
        await until(lambda: world.gate.story.count("open strata") == 2)
        assert world.strata.sight.id == sight.id
        assert world.strata.sight.started_at != sight.started_at
    assert world.happened == ["gate closed", "strata start [start]", "gate open strata"]
    assert "card memory" not in world.story[: world.story.index("strata start [start]")]


@in_simulated_time
async def test_who_keeps_dying_is_started_again_ever_more_rarely_while_clients_wait(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[float] = []
    start = world.strata.start

    async def noted(id: str) -> None:
        starts.append(now())
        await start(id)

    async with world.serving(verified=("strata:current",)) as controller:
        monkeypatch.setattr(world.strata, "start", noted)
        world.strata.behaviours["strata:1"] = Behaviour(exits=1, log="error: no such device\n")
        world.strata.exit(1)
        await until(lambda: len(starts) == 6)
        assert [later - earlier for earlier, later in pairwise(starts)] == pytest.approx([5, 10, 20, 40, 80], abs=2)
        assert world.gate.state == "closed"
        assert "error: no such device" in controller.state.dark
        world.strata.behaviours.clear()
        await until(lambda: world.gate.state == "open strata")
        assert controller.state.attempt == 0


@in_simulated_time
async def test_an_engine_that_dies_as_it_became_ready_doesnt_serve_for_long(world: World) -> None:
    async with world.serving():
        world.when("ninfer start [start]", lambda: world.when("card memory", lambda: world.ninfer.exit(1)))
        ended = await world.swap("ninfer")
        assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
        assert "open ninfer" not in world.gate.story


@in_simulated_time
async def test_the_holder_that_was_started_anew_by_somebody_else_is_probed_before_requests_go_to_it(
    world: World,
) -> None:
    async with world.serving():
        world.readiness.never.add("strata:1")
        world.strata.exit(0)
        world.strata.start_by_hand()
        sight = world.strata.sight
        await asyncio.sleep(30)
        assert world.gate.state == "closed"
        world.readiness.never.clear()
        await until(lambda: world.gate.state == "open strata")
        assert world.strata.sight == sight  # untouched
    assert world.happened == ["gate closed", "gate open strata"]


@in_simulated_time
async def test_a_holder_that_was_restarted_by_hand_and_is_ready_serves_at_once(world: World) -> None:
    async with world.serving():
        world.strata.exit(0)
        world.strata.start_by_hand()
        async with asyncio.timeout(1):  # no back-off: nothing has failed
            await until(lambda: world.gate.story.count("open strata") == 2)


# ------------------------------------------------------------------------------------------------- stopped by hand


@in_simulated_time
async def test_what_was_stopped_by_hand_stays_down_and_clients_are_told(world: World) -> None:
    async with world.serving():
        world.strata.stop_by_hand()
        await until(lambda: world.gate.state.startswith("refusing"))
        await asyncio.sleep(1000)
        assert world.up == set()
        assert world.gate.state == "refusing: strata:current was stopped by hand"
        assert (await world.swap("strata")).code == Code.SERVES


@in_simulated_time
async def test_a_stop_by_hand_during_a_slow_look_isnt_taken_for_a_death(world: World) -> None:
    async with world.serving():
        world.strata.hang("look")
        looks = world.strata.calls.count("look")
        await until(lambda: world.strata.calls.count("look") > looks)  # the regular one
        world.strata.stop_by_hand()
        await asyncio.sleep(LOOK_EVERY + 1)
        world.strata.let_go("look")
        await asyncio.sleep(100)
        assert world.up == set()


@in_simulated_time
async def test_clients_wait_until_it_is_sure_that_it_was_stopped_by_hand(world: World) -> None:
    async with world.serving() as controller:
        world.strata.stop_by_hand()
        await asyncio.sleep(MEANT - 1)
        assert (world.gate.state, phase(controller.state)) == ("closed", "looking")
        await asyncio.sleep(2)
        assert world.gate.state == "refusing: strata:current was stopped by hand"


@in_simulated_time
@pytest.mark.parametrize("breaks", [Unreachable("Docker's event stream has ended", passing=True), None])
async def test_a_docker_that_goes_down_isnt_taken_for_a_stop_by_hand(world: World, breaks: Unreachable | None) -> None:
    """It stops what runs and says so as of a stop by hand; then its events end, and looks may be answered late."""
    async with world.serving():
        world.strata.stop_by_hand()
        await asyncio.sleep(MEANT - 1)
        world.strata.break_events(breaks)
        await until(lambda: world.gate.state == "open strata")
        assert not any(state.startswith("refusing") for state in world.gate.story)


@in_simulated_time
async def test_a_stop_after_which_docker_doesnt_answer_isnt_one_by_hand(world: World) -> None:
    async with world.serving():
        world.strata.stop_by_hand()
        await asyncio.sleep(MEANT - 1)
        world.strata.fail("look", Unreachable("Docker can't be reached", passing=True), times=3)
        await until(lambda: world.gate.state == "open strata")


@in_simulated_time
async def test_started_again_by_hand_it_serves_again(world: World) -> None:
    async with world.serving(verified=()):
        world.strata.stop_by_hand()
        await until(lambda: world.gate.state.startswith("refusing"))
        world.strata.start_by_hand()
        await until(lambda: world.gate.state == "open strata")
    assert "strata start [start]" not in world.story


@in_simulated_time
async def test_what_our_own_hands_do_is_told_by_their_reports_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker answers a while after it has done what it was asked, and has told its events by then."""

    def answers_late(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def late(*arguments: Any) -> Any:
            answer = await call(*arguments)
            await asyncio.sleep(5)
            return answer

        return late

    async with world.serving():
        monkeypatch.setattr(world.strata, "stop", answers_late(world.strata.stop))
        monkeypatch.setattr(world.ninfer, "start", answers_late(world.ninfer.start))
        taken = len(world.took)
        assert (await world.swap("ninfer")).code == Code.SERVES
        await asyncio.sleep(30)
        told = world.took[taken:]
        assert (told.count("Died"), told.count("Up")) == (0, 1)


# ------------------------------------------------------------------------------------------------- another comes up


@in_simulated_time
async def test_a_second_engine_that_comes_up_is_stopped_and_the_holder_serves_on(world: World) -> None:
    world.ninfer.vram = 0
    async with world.serving():
        world.ninfer.start_by_hand()
        await until(lambda: world.up == {"strata"})
        await asyncio.sleep(30)
    assert world.happened == ["ninfer stop [stop]"]


@in_simulated_time
async def test_a_second_engine_is_stopped_at_once_though_hashing_it_would_take_long(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(*_: object) -> None:
        await asyncio.sleep(30)

    world.ninfer.vram = 0
    async with world.serving() as controller:
        monkeypatch.setattr(controller.hands.checker, "subject_of", slow)
        world.ninfer.start_by_hand()
        async with asyncio.timeout(2):
            await until(lambda: world.up == {"strata"})


@in_simulated_time
async def test_the_old_engine_started_by_hand_in_the_middle_of_a_swap_is_stopped_again(world: World) -> None:
    async with world.serving():
        world.ninfer.vram = world.strata.vram = 0
        world.readiness.never.add("ninfer:local")
        ticket = world.order("ninfer")
        await until(lambda: world.up == {"ninfer"})
        world.strata.start_by_hand()
        await asyncio.sleep(5)
        world.readiness.never.clear()
        assert (await end_of(ticket)).code == Code.SERVES
        assert world.up == {"ninfer"}


async def _dark(world: World) -> None:
    world.strata.stop_by_hand()
    await until(lambda: world.gate.state.startswith("refusing"))


@in_simulated_time
async def test_a_verified_engine_that_comes_up_alone_in_the_dark_is_adopted(world: World) -> None:
    async with world.serving():
        await _dark(world)
        world.ninfer.start_by_hand()
        await until(lambda: world.gate.state == "open ninfer")
        assert world.up == {"ninfer"}
    assert not [line for line in world.happened if not line.startswith("gate")]


@in_simulated_time
@pytest.mark.parametrize("card", ["asked", "unknown"])
async def test_an_unverified_engine_that_comes_up_alone_in_the_dark_is_refused_and_left_alone(
    world: World, card: str
) -> None:
    async with world.serving(verified=("strata:current", "ninfer:v2")):
        await _dark(world)
        if card == "unknown":  # then nobody can say that it is verified
            world.card.unknown = CardUnknown("driver and library differ (18)", "reboot")
        else:
            world.ninfer.create(world.ninfer.recipes["v3"])
        world.ninfer.start_by_hand()
        await until(lambda: "ninfer" in world.gate.state)
        assert "was started by hand and isn't verified" in world.gate.state
        await asyncio.sleep(100)
        assert world.up == {"ninfer"}
        (why,) = [one.why for one in world.hands.decisions.last() if one.kind is Kind.REFUSED]
        assert ("driver and library differ" in why) == (card == "unknown")
        world.card.unknown = None
        assert (await world.swap("strata")).code == Code.SERVES  # it is remembered as being in the way
        assert world.up == {"strata"}
    assert world.happened.index("ninfer stop [stop]") < world.happened.index("strata start [start]")


@in_simulated_time
async def test_a_verified_engine_that_comes_up_beside_a_refused_one_is_adopted_and_the_other_stopped(
    world: World,
) -> None:
    world.card.total *= 2
    async with world.serving():
        await _dark(world)
        world.ninfer.run(world.ninfer.recipes["v3"])
        await until(lambda: "isn't verified" in world.gate.state)
        world.strata.start_by_hand()
        await until(lambda: world.gate.state == "open strata")
        assert world.up == {"strata"}


@in_simulated_time
async def test_of_two_unverified_engines_that_come_up_in_the_dark_the_second_is_stopped(world: World) -> None:
    world.card.total *= 2
    async with world.serving("ninfer:v2", verified=("ninfer:v2",)):
        world.ninfer.stop_by_hand()
        await until(lambda: "stopped by hand" in world.gate.state)
        world.strata.start_by_hand()
        await until(lambda: "isn't verified" in world.gate.state)
        world.ninfer.run(world.ninfer.recipes["v3"])
        await until(lambda: world.up == {"strata"})
        assert world.gate.state == "refusing: strata:current was started by hand and isn't verified"


@in_simulated_time
async def test_a_verified_engine_that_is_started_while_it_is_seen_who_gets_the_card_is_adopted(world: World) -> None:
    async with world.serving() as controller:
        world.strata.fail("start", CannotStart("no such device", "install the toolkit"))
        world.ninfer.fail("start", CannotStart("no such device", "install the toolkit"))
        world.when("ninfer start [start]", lambda: world.strata.hang("declared"))
        world.strata.exit(1)
        await until(lambda: isinstance(one := controller.state.doing, Choose) and one.failed.engine == "ninfer")
        world.ninfer.start_by_hand()
        await until(lambda: world.gate.state == "open ninfer")
        assert world.up == {"ninfer"}


@in_simulated_time
async def test_what_comes_up_alone_is_not_taken_for_verified_files_that_came_after_its_start(world: World) -> None:
    path = world.folder / "models" / FILES["v2"]
    world.default = None
    world.rebuild()
    await world.verify("ninfer:v2")
    verified = path.read_bytes()

    def put_back() -> None:
        time.sleep(0.05)  # times of files have a grain
        path.write_bytes(verified)

    async with world.running(verified=()):
        write_artifact(path, 2, objects=7)
        world.when("ninfer look", put_back)
        world.ninfer.start_by_hand()
        await until(lambda: world.gate.state == "refusing: ninfer:v2 was started by hand and isn't verified")
        await asyncio.sleep(60)
        assert world.gate.state == "refusing: ninfer:v2 was started by hand and isn't verified"


@in_simulated_time
async def test_what_came_up_is_recognised_though_its_compose_file_cant_be_read_any_more(world: World) -> None:
    async with world.serving() as controller:
        unit = controller.state.serving
        world.strata.recipes.clear()
        world.strata.stop_by_hand()
        await until(lambda: world.gate.state.startswith("refusing"))
        world.strata.start_by_hand()
        await until(lambda: world.gate.state == "open strata")
        assert controller.state.serving == unit


@in_simulated_time
async def test_a_container_remade_by_hand_under_the_holders_name_is_another_unit(world: World) -> None:
    async with world.serving("ninfer:v2", verified=("ninfer:v2", "ninfer:v3")) as controller:
        world.ninfer.exit(0)
        world.ninfer.create(world.ninfer.recipes["v3"])
        world.ninfer.start_by_hand()
        await asyncio.sleep(30)
        assert world.up == {"ninfer"}
        serving = controller.state.serving
        assert serving is not None
        assert serving.label == "ninfer:v3"
        assert world.gate.state == "open ninfer"


# ------------------------------------------------------------------------------------------------- lost news


@in_simulated_time
async def test_when_the_event_stream_breaks_what_happened_meanwhile_is_looked_at(world: World) -> None:
    async with world.serving():
        world.strata.break_events(Unreachable("Docker's event stream has ended", passing=True))
        await asyncio.sleep(0.1)
        world.strata.exit(1)  # nobody listens
        began = now()
        await until(lambda: world.gate.story.count("open strata") == 2)
        assert now() - began < PAUSE + TOLD_WITHIN + 1
        said = [(one.text, one.why) for one in world.hands.decisions.last() if one.kind is Kind.UNSEEN]
        assert said[:1] == [("strata can't be heard of", "Docker's event stream has ended")]
        world.strata.stop_by_hand()
        await until(lambda: "strata is heard of again" in [one.text for one in world.hands.decisions.last()])


@in_simulated_time
@pytest.mark.parametrize("end", [None, Unreachable("broken", passing=True)])
async def test_events_are_listened_to_again(world: World, end: Unreachable | None) -> None:
    async with world.serving():
        world.strata.break_events(end)
        await asyncio.sleep(5)
        world.strata.stop_by_hand()
        async with asyncio.timeout(MEANT + 1):
            await until(lambda: world.gate.state.startswith("refusing"))


@in_simulated_time
async def test_a_death_that_no_event_told_is_seen_by_and_by(world: World) -> None:
    async with world.serving():
        world.card.release("strata")
        world.strata.sight = replace(world.strata.sight, status=Status.EXITED, exit_code=1)
        began = now()
        await until(lambda: world.gate.story.count("open strata") == 2)
        assert now() - began <= LOOK_EVERY + TOLD_WITHIN + 2


@in_simulated_time
async def test_a_look_that_was_overtaken_by_a_swap_is_taken_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that took long on its way says what was: that the engine runs, which we have stopped since."""
    async with world.serving():
        stale, look, slow = world.strata.sight, world.strata.look, asyncio.Event()

        async def first_is_slow() -> Sight:
            monkeypatch.setattr(world.strata, "look", look)
            await slow.wait()
            return stale

        monkeypatch.setattr(world.strata, "look", first_is_slow)
        await until(lambda: world.strata.look == look)  # the watch has asked
        assert (await world.swap("ninfer")).code == Code.SERVES
        slow.set()
        taken = len(world.took)
        await asyncio.sleep(30)
        assert world.took[taken:] == []


@in_simulated_time
@pytest.mark.parametrize("part", ["look", "events"])
async def test_a_bug_in_watching_costs_a_look_and_not_the_daemon(
    world: World, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    async def bug() -> Sight:
        raise KeyError("a bug")

    async with world.serving():
        with monkeypatch.context() as patch:
            if part == "look":
                patch.setattr(world.strata, "look", bug)
            else:
                patch.setattr(world.strata, "events", lambda: 1 / 0)
                world.strata.break_events()
            await asyncio.sleep(25)
        await asyncio.sleep(2)
        world.strata.stop_by_hand()
        await until(lambda: world.gate.state.startswith("refusing"))


# ------------------------------------------------------------------------------------------------- slow to find out


def _slow_to_hash(world: World, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    subject_of = world.checker.subject_of

    async def slow(chosen: Engine, *what: Any) -> Subject:
        if chosen.name == engine:
            await asyncio.sleep(30)
        return await subject_of(chosen, *what)

    monkeypatch.setattr(world.checker, "subject_of", slow)


@in_simulated_time
async def test_what_comes_up_in_the_dark_is_told_at_once_and_adopted_when_it_is_found_verified(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.serving():
        await _dark(world)
        _slow_to_hash(world, monkeypatch, "ninfer")
        world.ninfer.start_by_hand()
        async with asyncio.timeout(2):
            await until(lambda: "ninfer:v2 was started by hand and isn't verified" in world.gate.state)
        began = now()
        await until(lambda: world.gate.state == "open ninfer")
        assert 25 < now() - began < 35


@in_simulated_time
async def test_nothing_is_started_beside_what_came_up_while_its_files_are_hashed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.strata.vram = world.ninfer.vram = 0  # memory tells nobody that there are two
    async with world.serving():
        await _dark(world)
        _slow_to_hash(world, monkeypatch, "ninfer")
        world.ninfer.start_by_hand()
        await asyncio.sleep(2)
        world.when("strata start [start]", lambda: world.story.append(f"beside {world.up}"))
        assert (await world.swap("strata")).code == Code.SERVES
        assert "beside set()" in world.story
        taken = len(world.took)
        await asyncio.sleep(60)  # it is found verified, and runs no more
        assert world.took[taken:] == []
        assert world.gate.state == "open strata"


@in_simulated_time
async def test_a_holder_whose_name_a_foreign_container_took_gets_no_more_requests(world: World) -> None:
    async with world.serving(verified=("strata:current",)):
        taken = Foreign("strata-1 was made by project other", "rename it")
        world.strata.fail("look", taken, times=1000)
        async with asyncio.timeout(LOOK_EVERY + 2):
            await until(lambda: world.gate.state != "open strata")
        await until(lambda: world.gate.state.startswith("refusing"))
        assert "strata-1 was made by project other" in world.gate.state
    assert [line for line in world.happened if not line.startswith("gate")] == []


@in_simulated_time
async def test_a_name_that_a_foreign_container_takes_while_it_warms_costs_the_swap_and_not_the_fallback(
    world: World,
) -> None:
    """What we have started is stopped by its id, whatever it is called now."""
    async with world.serving() as controller:
        world.readiness.never.add("ninfer:v3")
        ticket = world.order("ninfer:v3", trial=True)
        await until(lambda: phase(controller.state) == "warming")
        world.ninfer.fail("look", Foreign("ninfer-1 was made by project other", "rename it"), times=1000)
        ended = await end_of(ticket)
        assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
        assert "ninfer-1 was made by project other" in ended.text
        assert world.happened.count("ninfer stop [stop]") == 1
        assert world.up == {"strata"}
