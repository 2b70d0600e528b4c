"""A reload's engines, taken over by everybody who holds them, in one step that nothing comes between.

What runs isn't touched. An engine that is on the card goes on being reached as it was when it got the card, whatever
its entry says now: it is the next swap to it that runs what is declared then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from engines.spec import Engine
from swap.controller import Controller
from swap.moves import Rest, Unit
from swap.ports import Runtime
from swap.state import State, phase

REACHED = ("profile", "url", "api_key", "container", "compose", "command", "env")
"""The fields that say how a run is reached and what it was made from; all others are ours, and hold at once."""

WHOSE = ("container", "compose")
"""The fields that say whose container it is: with another one, what runs would be nobody's."""


def busy(controller: Controller) -> str:
    """Why engines can't be taken over just now; empty: they can."""
    order, state = controller.under_way, controller.state
    if order is not None:
        return f"a swap to {order.engine}:{order.pair} is under way"
    if not state.looked:
        return "slotproxy is still looking at what runs"
    if state.doing is not None and not isinstance(state.doing, Rest):
        what = state.goal.label if state.goal else "the card"
        return f"{what} is being brought up ({phase(state)})"
    if controller.pending:
        return "something has just happened to an engine"
    return "a container is being staged" if controller.staging else ""


def on_card(state: State) -> set[str]:
    """The engines that run, or that would be started or restored as things stand."""
    return {unit.engine for unit in _units(state)}


def _units(state: State) -> Iterator[Unit]:
    yield from state.up | state.unknown
    meant = (state.serving, state.last, state.goal, state.wanted, state.target, state.displaced, state.spoiled)
    yield from (unit for unit in (*meant, state.doubted) if unit is not None)


def another(old: Engine, new: Engine) -> bool:
    """Is it another container now, or in none where it was in one?"""
    return any(getattr(old, name) != getattr(new, name) for name in WHOSE)


def refit(controller: Controller, engines: Mapping[str, Engine], made: Mapping[str, Runtime]) -> None:
    """Take them over. `made`: a runtime for each that is new, or is `another` now; none of these is on the card."""
    hands = controller.hands
    controller.watches.end([name for name in controller.engines if name not in engines or name in made])
    runs = on_card(controller.state)
    for unit, known in tuple(hands.known.items()):
        if unit.engine not in engines or unit.engine in made:
            del hands.known[unit]
            hands.warmed.pop(unit, None)
        else:
            known.engine = as_it_runs(known.engine, engines[unit.engine], unit.engine in runs)
    runtimes = {name: made[name] if name in made else hands.runtimes[name] for name in engines}
    _now(controller.engines, engines)
    _now(hands.runtimes, runtimes)
    controller.watches.add(made)


def as_it_runs(before: Engine, now: Engine, runs: bool) -> Engine:
    """What is declared now, reached as it was when it got the card."""
    return replace(now, **{name: getattr(before, name) for name in REACHED}) if runs else now


def engine_of(controller: Controller, name: str) -> Engine:
    """The engine that requests to this one go to: as it runs, where it does."""
    state = controller.state
    for unit in (state.serving, state.last):
        if unit is not None and unit.engine == name and (known := controller.hands.known.get(unit)) is not None:
            return known.engine
    return controller.engines[name]


def _now(held: Mapping[str, object], new: Mapping[str, object]) -> None:
    """In place: everybody holds this very object."""
    assert isinstance(held, dict)
    held.clear()
    held.update(new)
