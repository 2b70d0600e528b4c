"""Docker's events in our order: a death that somebody meant is told after the stop."""

from __future__ import annotations

from swap.dockerevents import StopFirst
from swap.ports import Change, RuntimeEvent

STARTED, STOPPED = RuntimeEvent(Change.STARTED, "x"), RuntimeEvent(Change.STOPPED, "x")


def _event(action: str, **attributes: str) -> dict[str, object]:
    return {"Action": action, "Actor": {"ID": "x", "Attributes": attributes}}


def _died(code: int) -> RuntimeEvent:
    return RuntimeEvent(Change.DIED, "x", code)


def test_a_stop_is_told_before_the_death_that_it_caused() -> None:
    order = StopFirst()
    assert order.feed(_event("kill", signal="15")) == []
    assert order.feed(_event("die", exitCode="0")) == []
    assert order.waiting
    assert order.feed(_event("stop")) == [STOPPED, _died(0)]
    assert not order.waiting


def test_a_stop_that_had_to_kill_is_told_the_same_way() -> None:
    order = StopFirst()
    for event in (_event("kill", signal="15"), _event("kill", signal="9"), _event("die", exitCode="137")):
        assert order.feed(event) == []
    assert order.feed(_event("stop")) == [STOPPED, _died(137)]


def test_a_death_by_docker_kill_or_by_itself_is_told_at_once() -> None:
    order = StopFirst()
    assert order.feed(_event("kill", signal="9")) == []
    assert order.feed(_event("die", exitCode="137")) == [_died(137)]
    assert order.feed(_event("start")) == [STARTED]
    assert order.feed(_event("die", exitCode="1")) == [_died(1)]


def test_a_signal_that_ends_it_without_a_stop_is_a_death_told_a_moment_later() -> None:
    order = StopFirst()
    order.feed(_event("kill", signal="15"))
    assert order.feed(_event("die", exitCode="143")) == []
    assert order.flush() == [_died(143)]
    assert order.flush() == []


def test_a_start_lets_no_death_wait_and_forgets_old_signals() -> None:
    order = StopFirst()
    order.feed(_event("kill", signal="15"))
    order.feed(_event("die", exitCode="0"))
    assert order.feed(_event("start")) == [_died(0), STARTED]
    assert order.feed(_event("kill", signal="1")) == []  # a reload: it survives, then ends by itself
    assert order.feed(_event("start")) == [STARTED]
    assert order.feed(_event("die", exitCode="1")) == [_died(1)]


def test_what_we_have_no_word_for_is_left_out() -> None:
    assert StopFirst().feed(_event("exec_create: sh")) == []
