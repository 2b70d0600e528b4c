"""The gate under the controller (open, close, refuse, drain, cut) and the operator (hold, release, shut down)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import pytest

from slotproxy.config import SlotSettings
from slotproxy.gate import SlotGate
from slotproxy.places import Expired, Place, Refused, SlotView
from swap.ports import Gate
from tests.simulated_time import in_simulated_time
from tests.slotproxy.gate_clients import OTHER, SLOT, entered, got, moment, new_gate

# ------------------------------------------------------------------------------------------------- open and close


@in_simulated_time
async def test_the_controller_can_use_it_as_its_gate() -> None:
    gate: Gate = new_gate()
    assert await gate.drained(0)


@in_simulated_time
async def test_a_closed_gate_lets_those_in_flight_go_on_and_everyone_else_wait() -> None:
    gate = new_gate()
    gate.open("strata", 2)
    place = await entered(gate)
    gate.close()
    assert isinstance(await gate.enter(SLOT, size=1, within=10), Expired)
    assert (gate.view().state, gate.view().engine, gate.view().in_flight) == ("closed", None, 1)
    place.leave()


@in_simulated_time
async def test_reopened_to_the_same_engine_the_places_still_taken_count() -> None:
    """A drain that was given up: what was in flight still is."""
    gate = new_gate()
    gate.open("strata", 1)
    place = await entered(gate)
    gate.close()
    gate.open("strata", 1)
    assert isinstance(await gate.enter(SLOT, size=1, within=10), Expired)
    place.leave()
    (await entered(gate)).leave()


@in_simulated_time
async def test_opened_to_another_engine_the_places_at_the_old_one_neither_take_nor_make_room() -> None:
    gate = new_gate()
    for engine in ("strata", "ninfer", "strata"):
        gate.open(engine, 1)
        lingering = await entered(gate)
        assert lingering.engine == engine
        gate.close()
    gate.open("ninfer", 1)
    place = await entered(gate)
    lingering.leave()
    assert isinstance(await gate.enter(SLOT, size=1, within=10), Expired)
    place.leave()


@in_simulated_time
async def test_a_smaller_concurrency_counts_from_the_next_turn_on() -> None:
    gate = new_gate()
    gate.open("llamacpp", 2)
    places = [await entered(gate) for _ in range(2)]
    gate.open("llamacpp", 1)
    places[0].leave()
    assert isinstance(await gate.enter(SLOT, size=1, within=10), Expired)
    places[1].leave()
    (await entered(gate)).leave()


# ------------------------------------------------------------------------------------------------- refuse and end


@in_simulated_time
async def test_a_refusing_gate_answers_everyone_at_once_with_the_reason() -> None:
    gate = new_gate()
    async with asyncio.TaskGroup() as clients:
        waiting = [clients.create_task(gate.enter(slot, size=1)) for slot in (SLOT, OTHER)]
        await moment()
        gate.refuse("dark: the engine never ran")
        await moment()
        answers = [got(task) for task in waiting] + [await gate.enter(SLOT, size=1)]
    assert answers == [Refused(503, "dark: the engine never ran", 30.0)] * 3
    assert (gate.view().state, gate.view().reason) == ("refusing", "dark: the engine never ran")


@in_simulated_time
async def test_a_client_may_leave_in_the_very_moment_of_the_refusal() -> None:
    gate = new_gate()
    async with asyncio.TaskGroup() as clients:
        leaving, waiting = (clients.create_task(gate.enter(SLOT, size=1)) for _ in range(2))
        await moment()
        leaving.cancel()
        gate.refuse("dark")
        await moment()
    assert leaving.cancelled()
    assert isinstance(waiting.result(), Refused)
    assert gate.view().waiting == 0


@in_simulated_time
async def test_after_refusing_requests_wait_or_go_through_again() -> None:
    gate = new_gate()
    gate.refuse("dark")
    gate.close()
    assert isinstance(await gate.enter(SLOT, size=1, within=1), Expired)
    gate.refuse("dark")
    gate.open("strata", 1)
    (await entered(gate)).leave()
    assert gate.view().reason == ""


@in_simulated_time
async def test_after_the_end_nobody_enters_whatever_the_controller_still_does() -> None:
    gate = new_gate()
    gate.open("strata", 1)
    in_flight = await entered(gate)
    async with asyncio.TaskGroup() as clients:
        waiting = clients.create_task(gate.enter(SLOT, size=1))
        await moment()
        assert gate.end("shutting down") == 1
        await moment()
        assert isinstance(got(waiting), Refused)
        drained = clients.create_task(gate.drained(60))
        orders: list[Callable[[], None]] = [gate.close, lambda: gate.open("n", 1), lambda: gate.refuse("dark")]
        for order in orders:
            order()
            answer = await gate.enter(SLOT, size=1)
            assert isinstance(answer, Refused)
            assert (answer.status, answer.reason) == (503, "shutting down")
        assert not drained.done()
        in_flight.leave()
        await moment()
        assert drained.result()


# ------------------------------------------------------------------------------------------------- drain and cut


@in_simulated_time
async def test_two_who_wait_for_the_drain_both_hear_of_it_when_the_last_request_has_left() -> None:
    gate = new_gate()
    gate.open("llamacpp", 2)
    places = [await entered(gate) for _ in range(2)]
    gate.close()
    async with asyncio.TaskGroup() as tasks:
        drains = [tasks.create_task(gate.drained(timeout)) for timeout in (60, 600)]
        await asyncio.sleep(10)
        places[0].leave()
        await moment()
        assert not any(drain.done() for drain in drains)
        places[1].leave()
        await moment()
        assert [drain.result() for drain in drains] == [True, True]


@in_simulated_time
async def test_a_drain_gives_up_at_its_deadline() -> None:
    gate = new_gate()
    gate.open("strata", 1)
    place = await entered(gate)
    gate.close()
    assert not await gate.drained(5)
    assert asyncio.get_running_loop().time() == pytest.approx(5)
    place.leave()
    assert await gate.drained(0)


@in_simulated_time
async def test_a_drain_does_not_wait_for_an_engine_whose_client_has_left() -> None:
    gate = new_gate()
    gate.open("ninfer", 1)
    place = await entered(gate)
    gate.close()
    async with asyncio.TaskGroup() as tasks:
        drain = tasks.create_task(gate.drained(60))
        await moment()
        place.settle()
        await moment()
        assert drain.result()
    assert (gate.view().in_flight, gate.view().settling) == (0, 1)
    place.leave()


@in_simulated_time
async def test_a_drain_does_not_wait_for_requests_still_ending_at_the_engine_before() -> None:
    gate = new_gate()
    gate.open("strata", 1)
    lingering = await entered(gate)
    gate.open("ninfer", 1)
    assert await gate.drained(0)
    place = await entered(gate)
    lingering.leave()
    assert not await gate.drained(0)
    place.leave()


@in_simulated_time
async def test_a_drain_at_a_busy_open_gate_is_not_fooled_by_the_moment_between_two_requests() -> None:
    gate = new_gate()
    gate.open("strata", 1)
    first = await entered(gate)
    async with asyncio.TaskGroup() as tasks:
        drain = tasks.create_task(gate.drained(5))
        await moment()
        first.leave()  # idle now: the drain is woken, but before it runs
        second = await entered(gate)  # the next request is there
        await moment()
        assert not drain.done()
        assert not await drain
        second.leave()


@in_simulated_time
async def test_a_cut_reaches_every_request_in_flight_and_none_that_comes_after() -> None:
    gate = new_gate()
    gate.open("llamacpp", 3)
    places = [await entered(gate) for _ in range(3)]
    places[0].settle()
    places[1].leave()
    assert gate.cut() == 1
    assert [place.cut.is_set() for place in places] == [True, False, True]
    for place in places:
        place.leave()
    fresh = await entered(gate)
    assert not fresh.cut.is_set()
    fresh.leave()
    assert gate.cut() == 0


# ------------------------------------------------------------------------------------------------- hold and release


@in_simulated_time
async def test_a_hold_and_a_drain_are_a_pause_and_release_is_the_resume() -> None:
    gate = new_gate()
    gate.open("strata", 1)
    in_flight = await entered(gate)
    gate.hold(None)
    async with asyncio.TaskGroup() as tasks:
        paused = tasks.create_task(gate.drained(60))
        waiting = tasks.create_task(entered(gate))
        await asyncio.sleep(10)
        assert not paused.done()
        in_flight.leave()
        await asyncio.sleep(10)
        assert paused.result()
        assert not waiting.done()
        assert gate.release()
        await moment()
        assert waiting.result().held == pytest.approx(20, abs=0.1)


@in_simulated_time
async def test_a_hold_survives_all_that_the_controller_does() -> None:
    gate = new_gate()
    gate.hold(None)
    gate.open("strata", 1)
    gate.close()
    gate.refuse("dark")
    gate.open("n", 1)
    assert (gate.view().state, gate.view().engine, gate.view().held_for) == ("held", "n", math.inf)
    assert isinstance(await gate.enter(SLOT, size=1, within=100), Expired)
    gate.release()
    (await entered(gate)).leave()


@in_simulated_time
async def test_release_opens_no_closed_gate() -> None:
    gate = new_gate()
    gate.hold(None)
    gate.release()
    assert isinstance(await gate.enter(SLOT, size=1, within=1), Expired)


@in_simulated_time
async def test_release_says_whether_there_was_a_hold() -> None:
    gate = new_gate()
    assert not gate.release()
    gate.hold(10)
    assert gate.release()
    assert not gate.release()


@in_simulated_time
async def test_a_hold_expires_by_itself_and_wakes_who_waits() -> None:
    gate = new_gate()
    gate.open("strata", 1)
    gate.hold(600)
    async with asyncio.TaskGroup() as clients:
        waiting = clients.create_task(entered(gate, SlotSettings("patient", max_hold=1000)))
        await asyncio.sleep(100)
        assert gate.view().held_for == pytest.approx(500)
        await asyncio.sleep(501)
        assert waiting.result().held == pytest.approx(600)
    assert gate.view().held_for is None


@in_simulated_time
async def test_a_new_hold_replaces_the_old_one_and_its_expiry() -> None:
    gate = new_gate()
    gate.open("strata", 1)
    for seconds, expected in ((10.0, 300.0), (600.0, 20.0)):
        gate.hold(seconds)
        gate.hold(expected)
        place = await entered(gate)
        assert place.held == pytest.approx(expected)
        place.leave()
    gate.hold(5)
    gate.hold(None)
    assert isinstance(await gate.enter(SLOT, size=1, within=100), Expired)


@in_simulated_time
async def test_a_drain_notices_that_its_hold_has_expired_and_requests_go_through_again() -> None:
    gate = new_gate()
    gate.open("llamacpp", 2)
    first = await entered(gate)
    gate.hold(10)
    async with asyncio.TaskGroup() as tasks:
        drain = tasks.create_task(gate.drained(60))
        waiting = tasks.create_task(entered(gate))
        await asyncio.sleep(11)
        first.leave()
        await moment()
        assert waiting.done()
        assert not drain.done()
        waiting.result().leave()
        await moment()
        assert drain.result()


# ------------------------------------------------------------------------------------------------- what it says


@in_simulated_time
async def test_the_view_counts_everything_once() -> None:
    gate = new_gate()
    gate.open("llamacpp", 2)
    in_flight, settling = await entered(gate), await entered(gate, OTHER)
    settling.settle()
    async with asyncio.TaskGroup() as clients:
        waiting = clients.create_task(gate.enter(SLOT, size=500))
        await asyncio.sleep(7)
        view = gate.view()
        in_flight.leave()
        settling.leave()
    assert (view.state, view.engine, view.reason, view.held_for) == ("open", "llamacpp", "", None)
    assert (view.waiting, view.waiting_bytes, view.in_flight, view.settling) == (1, 500, 1, 1)
    assert view.longest_wait == pytest.approx(7)
    assert view.slots == {"coder": SlotView(1, 1, 0), "voice": SlotView(0, 0, 1)}
    place = waiting.result()
    assert isinstance(place, Place)
    place.leave()


def test_a_gate_that_was_never_opened_is_closed_and_empty() -> None:
    view = SlotGate(max_waiting=1, max_waiting_bytes=1).view()
    assert (view.state, view.engine, view.waiting, view.in_flight, view.longest_wait) == ("closed", None, 0, 0, 0.0)
