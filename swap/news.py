"""What happens to engines without the machine's doing, and what it makes of it. Pure."""

from __future__ import annotations

from dataclasses import replace

from swap import rules
from swap.moves import (
    Ascertain,
    Check,
    Choose,
    Died,
    Effect,
    Interrupt,
    NotByHand,
    Rest,
    Start,
    Steady,
    Stop,
    Unit,
    Up,
    Useless,
)
from swap.state import State
from swap.steps import Step, back_to_wanted, do, one_more


def up(state: State, event: Up) -> State:
    """It is up. The report of our own start is settled by the caller."""
    ours = rules.is_current(state, event.n)
    state = rules.learnt_up(state, event.unit)
    if ours:
        return replace(state, doing=None)
    settled = state.doing is None or isinstance(state.doing, Rest | Ascertain | Choose)
    if not settled or state.serving or state.order or not state.looked or state.unknown:
        return state  # the decision tree finds it in the way, or on the way
    if event.fit:  # whatever else is up isn't, and makes way
        return replace(state, goal=event.unit, doing=None)
    if len(state.up) > 1:  # one of them is enough to refuse
        return replace(state, spoiled=state.spoiled if state.goal else event.unit, doing=None)
    why = f"{event.unit.label} was started by hand and isn't verified"
    return replace(state, goal=None, wanted=state.goal or state.wanted, doing=None, dark=why)


def overtaken(before: State, state: State) -> tuple[Effect, ...]:
    """Who gets the card needn't be found out any more: somebody has started it."""
    return (Interrupt(before.doing.n),) if isinstance(before.doing, Choose) and state.doing is None else ()


def died(state: State, event: Died) -> Step:
    unit = event.unit
    if unit not in state.up:
        return state, ()
    state = down(state, unit)
    if state.serving != unit:
        return (back_to_wanted(state) if state.person and not state.up else state), ()
    state = replace(state, serving=None, last=unit, dark=f"{unit.label} {event.why}")
    if event.by_hand:
        return do(state, Ascertain(state.number + 1, unit)) if state.person else (state, ())
    # The same container may start again at once: its own memory went with it, and nobody waits for NVML.
    return _again(replace(state, freed=unit, own=unit), unit)


def not_by_hand(state: State, event: NotByHand) -> State:
    """It comes back by itself, unless something else has been begun since, or somebody has started an engine."""
    unit = event.unit
    if unit != state.last or state.serving or state.goal or state.up:
        return state
    doing = None if isinstance(state.doing, Ascertain) else state.doing
    return replace(state, doing=doing, goal=unit, dark=f"{unit.label} was stopped by Docker going down")


def useless(state: State, event: Useless) -> Step:
    """It runs and answers nothing any more: requests wait from now on, it is stopped and started anew."""
    unit = event.unit
    if state.serving != unit:
        return state, ()
    dark = f"{unit.label} is useless: {event.why}"
    return _again(replace(state, serving=None, last=unit, spoiled=unit, dark=dark), unit)


def _again(state: State, unit: Unit) -> Step:
    """What has served gets the card again; not unasked, where it has failed before and nobody orders anything."""
    doubted = unit if state.failures and state.order is None else None
    state = one_more(replace(state, goal=state.goal or unit, doubted=doubted))
    return state, (Interrupt(state.doing.n),) if isinstance(state.doing, Check) else ()


def steady(state: State, event: Steady) -> State:
    """What failed before it served so long counts no more."""
    if state.serving != event.unit:
        return state
    return replace(state, failures=0, spent=frozenset(), later=frozenset(), doubted=None)


def down(state: State, unit: Unit) -> State:
    spoiled = None if state.spoiled == unit else state.spoiled
    return replace(state, up=state.up - {unit}, spoiled=spoiled)


def overdue(state: State, n: int) -> State:
    match state.doing:
        case (Start() | Stop()) as effect if effect.n == n:
            return rules.overdue(state, effect)
        case _:
            return state
