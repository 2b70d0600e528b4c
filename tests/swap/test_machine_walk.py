"""Every promise of the machine, proven by walking through all that can happen; and every rule, by taking it away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from swap import machine, news, rules
from swap.moves import Start, Stop, Unit, Up
from swap.state import State
from tests.swap.walk import ONE_ENGINE, TWO_ENGINES, Violation, walk

pytestmark = pytest.mark.timeout(600)

STOP_ORDERED = rules.stop_ordered  # as they are, for the versions below that lack something
UP = news.up


@pytest.mark.parametrize("cast", [ONE_ENGINE, TWO_ENGINES], ids=["two pairs of one engine", "two engines"])
def test_nothing_that_can_happen_breaks_a_promise(cast: tuple[Unit, ...]) -> None:
    assert walk(cast) > 1000


def test_the_walk_is_not_content_with_a_machine_that_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_next", lambda state: (state, ()))
    with pytest.raises(Violation):
        walk(TWO_ENGINES)


# ------------------------------------------------------------------------------------------------- without a rule


def _stop_ordered(state: State, unit: Unit) -> State:
    """Without: an intention to stop already clears what is up."""
    return replace(STOP_ORDERED(state, unit), up=state.up - {unit})


def _gate_closed(state: State) -> State:
    """Without: closing the gate means that the engine doesn't serve."""
    return replace(state, closed=True, serving=None)


def _to_restore(state: State) -> Unit | None:
    """Without: whatever is up is as good as what was serving."""
    return state.holder or state.last


def _is_current(state: State, n: int) -> bool:
    """Without: any report counts as the one that is awaited."""
    return state.doing is not None


def _up(state: State, event: Up) -> State:
    """Without: "it is up" is dropped like any other late report."""
    return UP(state, event) if rules.is_current(state, event.n) else state


def _overdue(state: State, effect: Start | Stop) -> State:
    """Without: what wasn't answered in time didn't happen."""
    return replace(state, doing=None)


WITHOUT: list[tuple[str, Callable[..., Any], str]] = [
    ("stop_ordered", _stop_ordered, "nobody remembers it"),
    ("gate_closed", _gate_closed, "serve any more"),
    ("to_restore", _to_restore, "never served"),
    ("is_current", _is_current, "changed something"),
    ("up", _up, "was dropped"),
    ("overdue", _overdue, "during a call on it"),
    ("in_the_way", lambda state, goal: frozenset(), "left on the card"),
    ("must_inspect", lambda state, goal: False, "without a good inspection"),
    ("must_drain", lambda state, victim: False, "with the gate open"),
    ("chooses", lambda state, tried, passing: False, "nobody asked who else"),
    ("tries_again", lambda state, passing: False, "for a person"),
]


@pytest.mark.parametrize(("rule", "without", "promise"), WITHOUT, ids=[rule for rule, _, _ in WITHOUT])
def test_without_this_rule_the_walk_prints_a_violating_path(
    rule: str, without: Callable[..., Any], promise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news if rule == "up" else rules, rule, without)
    with pytest.raises(Violation) as broken:
        walk(TWO_ENGINES)
    message = str(broken.value)
    assert promise in message.splitlines()[0]
    assert message.splitlines()[1].startswith("  start: running")
    assert "here" in message.splitlines()[-1]
