"""The gate under clients: who goes through, who waits, who is turned away, and what a client that leaves gives back.

All in simulated time: seconds here are exact and take none. `test_gate_control.py` is the controller's
and the operator's side, `test_gate_walk.py` walks at random over both.
"""

from __future__ import annotations

import asyncio

import pytest

from slotproxy.config import SlotSettings
from slotproxy.places import Expired, Place, Refused
from slotproxy.turns import PATIENCE
from tests.simulated_time import in_simulated_time
from tests.slotproxy.gate_clients import OTHER, SLOT, Engine, entered, got, moment, new_gate

# ------------------------------------------------------------------------------------------------- through, or waiting


@in_simulated_time
async def test_a_request_goes_through_at_once_when_the_gate_is_open_and_the_engine_free() -> None:
    gate = new_gate()
    gate.open("strata", 1)
    place = await entered(gate)
    assert (place.engine, place.held, place.cut.is_set()) == ("strata", 0.0, False)
    place.leave()


@in_simulated_time
async def test_a_request_waits_for_the_card_and_knows_how_long() -> None:
    gate = new_gate()
    async with asyncio.TaskGroup() as clients:
        waiting = clients.create_task(entered(gate))
        await asyncio.sleep(40)
        gate.open("ninfer", 1)
    assert waiting.result().held == pytest.approx(40)


@in_simulated_time
async def test_the_herd_on_resume_goes_through_one_by_one_and_in_order() -> None:
    gate = new_gate()
    engine = Engine(gate, concurrency=1)
    gate.hold(None)
    gate.open("ninfer", 1)
    async with asyncio.TaskGroup() as clients:
        for number in range(50):
            clients.create_task(engine.serve(str(number)))
        await moment()
        assert gate.view().waiting == 50
        gate.release()
    assert engine.served == [str(number) for number in range(50)]


@in_simulated_time
async def test_as_many_are_in_flight_as_the_engine_takes_and_no_more() -> None:
    gate = new_gate()
    engine = Engine(gate, concurrency=3)
    async with asyncio.TaskGroup() as clients:
        for number in range(10):
            clients.create_task(engine.serve(str(number)))
        gate.open("llamacpp", 3)
        await moment()
        assert engine.busy == 3
    assert asyncio.get_running_loop().time() == pytest.approx(4, abs=0.01)  # ten requests, three at once, a second each


@in_simulated_time
async def test_a_settling_place_stays_taken_until_it_is_left() -> None:
    gate = new_gate()
    gate.open("ninfer", 1)
    first = await entered(gate)
    async with asyncio.TaskGroup() as clients:
        second = clients.create_task(entered(gate))
        await moment()
        first.settle()
        await moment()
        assert not second.done()
        first.leave()
        await moment()
        assert second.done()


@in_simulated_time
async def test_leaving_twice_makes_room_once() -> None:
    gate = new_gate()
    gate.open("ninfer", 1)
    first = await entered(gate)
    async with asyncio.TaskGroup() as clients:
        others = [clients.create_task(entered(gate)) for _ in range(2)]
        await moment()
        for _ in range(3):
            first.leave()
            first.settle()
        await moment()
        assert [other.done() for other in others] == [True, False]
        others[0].result().leave()


# ------------------------------------------------------------------------------------------------- between slots


@in_simulated_time
async def test_a_slot_in_a_tight_loop_does_not_starve_a_single_request_of_lower_priority() -> None:
    gate = new_gate()
    engine = Engine(gate, concurrency=1)
    gate.open("strata", 1)
    high = SlotSettings("high", priority=10)
    served = asyncio.Event()

    async def loop() -> None:
        while not served.is_set():
            await engine.serve("high", high)

    async with asyncio.TaskGroup() as clients:
        for _ in range(3):
            clients.create_task(loop())
        await asyncio.sleep(5.5)
        before = len(engine.served)
        await engine.serve("low", SlotSettings("low"))
        served.set()
    assert engine.served.index("low") <= before + PATIENCE


@in_simulated_time
async def test_slots_of_one_priority_share_the_engine_evenly() -> None:
    gate = new_gate()
    engine = Engine(gate, concurrency=1)
    async with asyncio.TaskGroup() as clients:
        for _ in range(9):
            clients.create_task(engine.serve("coder", SLOT))
        for _ in range(3):
            clients.create_task(engine.serve("voice", OTHER))
        await moment()
        gate.open("strata", 1)
    assert engine.served[:6] == ["coder", "voice"] * 3


@in_simulated_time
async def test_a_slot_at_its_limit_in_flight_waits_while_others_go_through() -> None:
    gate = new_gate()
    gate.open("llamacpp", 4)
    narrow = SlotSettings("narrow", max_in_flight=1, priority=5)
    async with asyncio.TaskGroup() as clients:
        first = await entered(gate, narrow)
        second = clients.create_task(entered(gate, narrow))
        other = await entered(gate, OTHER)
        await moment()
        assert not second.done()
        other.leave()
        await moment()
        assert not second.done()
        first.leave()


# ------------------------------------------------------------------------------------------------- limits


@in_simulated_time
async def test_a_request_over_its_slots_limit_is_refused_at_once_and_other_slots_are_not() -> None:
    gate = new_gate()
    small = SlotSettings("small", max_waiting=2)
    async with asyncio.TaskGroup() as clients:
        for slot in (small, small, OTHER):
            clients.create_task(entered(gate, slot))
        await moment()
        answer = await gate.enter(small, size=1)
        assert isinstance(answer, Refused)
        assert answer.status == 429
        assert "small" in answer.reason
        clients.create_task(entered(gate, OTHER))
        await moment()
        assert gate.view().waiting == 4
        gate.open("strata", 4)


@pytest.mark.parametrize(("max_waiting", "max_waiting_bytes"), [(3, 1000), (1000, 30)])
def test_over_the_limits_of_the_whole_gate_requests_are_refused_at_once(
    max_waiting: int, max_waiting_bytes: int
) -> None:
    @in_simulated_time
    async def scene() -> None:
        gate = new_gate(max_waiting=max_waiting, max_waiting_bytes=max_waiting_bytes)
        async with asyncio.TaskGroup() as clients:
            tasks = [clients.create_task(gate.enter(slot, size=10)) for slot in (SLOT, OTHER) * 500]
            await moment()
            refused = [answer for task in tasks if task.done() and isinstance(answer := task.result(), Refused)]
            assert len(refused) == 997
            assert all(answer.status == 429 and 1 <= answer.retry_after <= 60 for answer in refused)
            assert (gate.view().waiting, gate.view().waiting_bytes) == (3, 30)
            gate.open("strata", 3)

    scene()


@in_simulated_time
async def test_limits_on_waiting_concern_nobody_who_need_not_wait() -> None:
    gate = new_gate(max_waiting=0, max_waiting_bytes=0)
    gate.open("strata", 1)
    place = await entered(gate, SlotSettings("impatient", max_waiting=0))
    assert isinstance(await gate.enter(SLOT, size=1), Refused)
    place.leave()
    (await entered(gate)).leave()


@in_simulated_time
async def test_retry_after_is_a_guess_at_when_there_is_room() -> None:
    gate = new_gate(max_waiting=1)
    async with asyncio.TaskGroup() as clients:
        clients.create_task(entered(gate))
        await asyncio.sleep(20)
        by_the_line = await gate.enter(SLOT, size=1)
        gate.hold(33)
        by_the_hold = await gate.enter(SLOT, size=1)
        gate.open("strata", 1)
    assert isinstance(by_the_line, Refused)
    assert isinstance(by_the_hold, Refused)
    assert by_the_line.retry_after == pytest.approx(20)
    assert by_the_hold.retry_after == pytest.approx(33)


# ------------------------------------------------------------------------------------------------- deadlines


@pytest.mark.parametrize(("max_hold", "within", "expected"), [(30, None, 30), (30, 5, 5), (5, 30, 5), (30, 0, 0)])
def test_a_request_waits_for_its_slots_limit_or_its_own_whichever_is_less(
    max_hold: float, within: float | None, expected: float
) -> None:
    @in_simulated_time
    async def scene() -> None:
        gate = new_gate()
        answer = await gate.enter(SlotSettings("patient", max_hold=max_hold), size=7, within=within)
        assert isinstance(answer, Expired)
        assert answer.waited == asyncio.get_running_loop().time() == pytest.approx(expected)
        assert (gate.view().waiting, gate.view().waiting_bytes) == (0, 0)

    scene()


@in_simulated_time
async def test_a_deadline_says_what_was_waited_for() -> None:
    gate = new_gate()
    closed = await gate.enter(SLOT, size=1, within=1)
    gate.open("strata", 1)
    place = await entered(gate)
    busy = await gate.enter(SLOT, size=1, within=2)
    gate.hold(None)
    held = await gate.enter(SLOT, size=1, within=3)
    reasons = [answer.reason for answer in (closed, busy, held) if isinstance(answer, Expired)]
    assert reasons == [
        "waited 1.0 s for an engine to be ready",
        "waited 2.0 s for its turn at strata",
        "waited 3.0 s while the operator holds requests",
    ]
    place.leave()


@in_simulated_time
async def test_a_request_that_expired_never_gets_a_place() -> None:
    gate = new_gate()
    async with asyncio.TaskGroup() as clients:
        expired = clients.create_task(gate.enter(SLOT, size=1, within=5))
        patient = clients.create_task(entered(gate))
        await asyncio.sleep(6)
        gate.open("strata", 1)
        await moment()
        assert isinstance(got(expired), Expired)
        assert patient.result().held == pytest.approx(6)


@in_simulated_time
async def test_a_place_got_before_the_deadline_is_kept_past_it() -> None:
    gate = new_gate()
    gate.open("strata", 1)
    place = await gate.enter(SLOT, size=1, within=5)
    await asyncio.sleep(60)
    assert isinstance(place, Place)
    assert gate.view().in_flight == 1
    place.leave()


# ------------------------------------------------------------------------------------------------- clients that leave


@in_simulated_time
async def test_a_client_that_leaves_while_it_waits_frees_its_place_in_line_and_its_bytes() -> None:
    gate = new_gate(max_waiting=1, max_waiting_bytes=10)
    async with asyncio.TaskGroup() as clients:
        gone = clients.create_task(gate.enter(SLOT, size=10))
        await moment()
        gone.cancel()
        await asyncio.sleep(0)
        assert (gate.view().waiting, gate.view().waiting_bytes, gate.view().slots) == (0, 0, {})
        clients.create_task(gate.enter(SLOT, size=10))
        await moment()
        assert gate.view().waiting == 1
        gate.open("strata", 1)


@in_simulated_time
async def test_a_client_that_leaves_in_the_moment_of_its_turn_passes_the_place_on() -> None:
    """The classic lost wake-up: the place is granted, the task not yet resumed, and then it is cancelled."""
    gate = new_gate()
    gate.open("strata", 1)
    first = await entered(gate)
    async with asyncio.TaskGroup() as clients:
        leaving = clients.create_task(gate.enter(SLOT, size=1))
        next_one = clients.create_task(entered(gate))
        await moment()
        first.leave()
        leaving.cancel()
        await moment()
        assert leaving.cancelled()
        next_one.result().leave()
    assert gate.view().in_flight == 0


@in_simulated_time
async def test_a_client_that_left_before_its_turn_but_has_not_noticed_yet_uses_up_no_turn() -> None:
    gate = new_gate()
    gate.open("strata", 1)
    first = await entered(gate, OTHER)
    async with asyncio.TaskGroup() as clients:
        leaving = clients.create_task(gate.enter(SLOT, size=1))
        voice = clients.create_task(entered(gate, OTHER))
        coder = clients.create_task(entered(gate, SLOT))
        await moment()
        leaving.cancel()
        first.leave()
        await moment()
        assert coder.done()
        assert not voice.done()
        coder.result().leave()


@in_simulated_time
async def test_a_client_may_leave_in_the_very_moment_of_its_deadline() -> None:
    gate = new_gate()
    async with asyncio.TaskGroup() as clients:
        leaving = clients.create_task(gate.enter(SLOT, size=1, within=5))
        asyncio.get_running_loop().call_at(5, leaving.cancel)  # set before the deadline's own timer
        await asyncio.sleep(6)
    assert leaving.cancelled()
    assert gate.view().waiting == 0


@in_simulated_time
async def test_a_storm_of_clients_that_leave_loses_no_place_and_leaves_nothing_behind() -> None:
    gate = new_gate()
    engine = Engine(gate, concurrency=2)
    gate.open("strata", 2)
    async with asyncio.TaskGroup() as clients:
        tasks = [clients.create_task(engine.serve(str(number), seconds=0.1)) for number in range(600)]
        await moment()
        for number, task in enumerate(tasks):
            if number % 3:
                task.cancel()
            if number % 50 == 0:
                await asyncio.sleep(0.1)
    assert set(engine.served) >= {str(number) for number in range(0, 600, 3)}
    view = gate.view()
    assert (view.waiting, view.waiting_bytes, view.in_flight, view.settling) == (0, 0, 0, 0)
