"""What an awaited effect's report adds to the facts, and what a failure does to the goal. Pure."""

from __future__ import annotations

from dataclasses import replace

from swap import rules
from swap.moves import (
    Awaited,
    Check,
    Checked,
    Choose,
    Chosen,
    Code,
    Done,
    Drain,
    Effect,
    Failed,
    Found,
    Free,
    Glance,
    Inspect,
    Look,
    PutBack,
    Record,
    Report,
    Rest,
    Seen,
    Stage,
    Start,
    Stop,
    Unit,
    Warm,
)
from swap.news import down
from swap.state import State
from swap.steps import MAX_ATTEMPT, Step, back_to_wanted, choose, end, one_more, rest


def report(state: State, event: Report) -> Step:
    if not rules.is_current(state, event.n):
        return state, ()
    doing, state = state.doing, replace(state, doing=None)
    match doing, event:
        case _, Found():
            return _found(state, event)
        case _, Checked(_, unit):
            return go_on(replace(state, target=unit))
        case Glance(_, unit), Seen(_, is_up):
            return _seen(state, unit, is_up)
        case Check(), Failed():
            return _unchecked(state, event)
        case ((Look() | Glance()), Failed(_, why)):
            return _cannot_ask(state, why)
        case Warm(_, unit), Done():
            return _ready(state, unit)
        case Choose() as choice, Chosen(_, unit, why):
            return _chosen(state, choice, unit, why)
        case Choose() as choice, Failed():
            return _not_chosen(state, choice, event)
        case ((Warm() | Start()), Failed(_, why, interrupted=True)):
            return _failed(state, why, passing=True)
        case Warm(_, unit), Failed(_, why, passing, gone):
            state = down(state, unit) if gone else replace(state, spoiled=unit)
            return _failed(state, why, passing, tried=unit)
        case Stop(), Failed(_, why):
            return _failed(state, why, passing=True)  # what is in the way stays in the way: it is tried until it goes
        case Start(_, unit), Failed(_, why, passing):
            return _failed(state, why, passing, tried=unit)
        case _, Failed(_, why, passing):
            return _failed(state, why, passing)
        case _, Done():
            return go_on(_progress(state, doing))
        case _:
            return state, ()


def _unchecked(state: State, event: Failed) -> Step:
    """Refused, given up, or put off because what was serving has died and comes first."""
    if state.given_up:
        return end(state, Code.RESTORED if state.serving else Code.DARK, event.why)
    return (state, ()) if event.interrupted else end(state, Code.REFUSED, event.why)


def _progress(state: State, doing: Awaited | None) -> State:
    """What a plain Done adds to the facts."""
    match doing:
        case Stage(_, unit):
            return replace(state, staged=unit)
        case PutBack():
            return replace(state, displaced=None)
        case Drain():
            return replace(state, drained=True)
        case Stop(_, unit):
            return down(state, unit)
        case Free(_, unit):
            return replace(state, freed=None if state.up else unit)
        case Inspect(_, unit):
            return replace(state, inspected=unit)
        case Rest():
            return replace(state, attempt=min(state.attempt + 1, MAX_ATTEMPT))
        case _:
            return state


def go_on(state: State) -> Step:
    """Go on, unless the operator has given the order up."""
    if state.given_up and state.order and state.target and not state.failure:
        return _failed(state, "given up by the operator", passing=True)
    return state, ()


def _found(state: State, found: Found) -> Step:
    goal = found.keep or found.start
    state = replace(state, looked=True, up=state.up | found.up, goal=goal, spoiled=found.ending)
    return replace(state, dark="" if goal else found.why), ()


def _seen(state: State, unit: Unit, is_up: bool) -> Step:
    """An overdue call has ended, and this is how it ended."""
    was_start = unit in state.starting
    state = replace(state, starting=state.starting - {unit}, stopping=state.stopping - {unit})
    state = rules.learnt_up(state, unit) if is_up else down(state, unit)
    if is_up and not was_start:
        return _failed(state, f"{unit.label} could not be stopped", passing=True)
    if not is_up and was_start and state.goal == unit:
        return _failed(state, f"{unit.label} did not start in time", passing=True, tried=unit)
    return go_on(state)


def _cannot_ask(state: State, why: str) -> Step:
    """It can't be asked what is up. An order isn't kept waiting for that."""
    effects: tuple[Effect, ...] = ()
    if state.order:
        code = Code.RESTORED if state.serving else Code.DARK
        goal = rules.to_restore(state) if state.target else state.goal
        state, effects = end(replace(state, goal=goal), code, why)
    state, pause = rest(replace(state, dark=why))
    return state, effects + pause


def _ready(state: State, unit: Unit) -> Step:
    if unit not in state.up:
        return _failed(state, f"{unit.label} ended as it became ready", passing=True, tried=unit)
    ordered = state.target == unit and not state.failure
    state = replace(state, serving=unit, last=unit, goal=unit, wanted=None, doubted=None)
    if ordered:
        state = replace(state, failures=0, spent=frozenset(), later=frozenset())
    return state, (Record(unit, True, state.order if ordered else None),)


def serves(state: State) -> Step:
    """The goal serves and nothing else is up: everything about the way here is over."""
    displaced = None if state.target == state.serving else state.displaced
    state = replace(state, goal=None, wanted=None, own=None, displaced=displaced, staged=None, attempt=0, dark="")
    if not state.order:
        return replace(state, closed=False), ()
    return end(state, Code.RESTORED if state.failure else Code.SERVES, state.failure)


def _failed(state: State, why: str, passing: bool, tried: Unit | None = None) -> Step:
    """Something on the way to the goal failed; `tried`: this unit had the card when it did."""
    effects: tuple[Effect, ...] = ()
    target = state.target
    if state.order and target and not state.failure:
        if tried == target:
            effects = (Record(target, False, state.order, why),)
        goal = rules.to_restore(state)
        state = replace(state, failure=why, goal=goal, given_up=False)
        if goal:
            return state, effects
        unready = target if target in state.up else state.spoiled
        state, answer = end(replace(state, dark=why, spoiled=unready), Code.DARK, why)
        return back_to_wanted(state), effects + answer
    again = rules.tries_again(state, passing)
    if state.order and not state.target:  # cut short for the order, which is next
        return replace(state, goal=state.goal if again else None, dark=why), effects
    state = replace(state, dark=f"{state.failure}; then {why}" if state.failure else why)
    chooses = rules.chooses(state, tried, passing)
    why = f"{state.dark}; it is seen who else may have the card" if chooses else state.dark
    state, answer = end(state, Code.RESTORED if state.serving else Code.DARK, why)
    if chooses:
        state, choice = choose(one_more(state), passing)
        return state, answer + choice
    if again:
        state, pause = rest(state)
        return state, answer + pause
    return replace(state, goal=None, wanted=None), answer


# ------------------------------------------------------------------------------------------------- which one next


def _chosen(state: State, choice: Choose, unit: Unit | None, why: str) -> Step:
    """The same again after a while, another at once, one given up before after a while, or none: then a person must."""
    state = replace(state, doubted=None)
    if unit is None:
        return replace(state, goal=None, wanted=None, dark=why or state.dark), ()
    if unit != choice.failed:
        spent, later = state.spent | {choice.failed}, state.later | ({choice.failed} if choice.passing else set())
        state = replace(state, goal=unit, spent=spent, later=later, failures=0, dark=why or state.dark)
        return rest(state) if unit in choice.spent and state.order is None else (state, ())
    state = replace(state, goal=unit, spent=frozenset(), later=frozenset())
    if state.order is not None:
        return state, ()
    return rest(replace(state, attempt=max(state.attempt, min(state.failures - 2, MAX_ATTEMPT))))


def _not_chosen(state: State, choice: Choose, failed: Failed) -> Step:
    """It can't be told now what else may run. What failed is tried again, where time may mend that."""
    state = replace(state, doubted=None)
    if state.order is not None:  # cut short for it
        return state, ()
    if choice.passing or failed.passing:
        return rest(state)
    return replace(state, goal=None, wanted=None), ()
