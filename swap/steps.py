"""The small steps that the machine's other parts are made of. Pure."""

from __future__ import annotations

from dataclasses import replace

from swap.moves import Answer, Awaited, Choose, Code, Effect, Inspect, Rest
from swap.state import State

Step = tuple[State, tuple[Effect, ...]]

MOST_FAILURES = 99  # are counted
MAX_ATTEMPT = 6  # the back-off grows so often (the controller says how long each is)


def do(state: State, effect: Awaited) -> Step:
    """What was found just now is old news once something else is done."""
    freed = state.freed if isinstance(effect, Inspect) else None
    return replace(state, doing=effect, number=effect.n, inspected=None, drained=False, freed=freed), (effect,)


def rest(state: State) -> Step:
    """Back off, then look again at what is to be done."""
    return do(state, Rest(state.number + 1, state.attempt))


def one_more(state: State) -> State:
    """One failure more in a row: nothing has served long enough since to forget those before."""
    return replace(state, failures=min(state.failures + 1, MOST_FAILURES))


def choose(state: State, passing: bool) -> Step:
    """Ask who gets the card after the goal has failed. `passing`: time may mend it."""
    assert state.goal is not None
    n = state.number + 1
    return do(state, Choose(n, state.goal, state.failures, state.spent, state.dark, passing, state.later))


def end(state: State, code: Code, why: str) -> Step:
    """The order is over; nothing of it is left in the state."""
    if state.order is None:
        return state, ()
    answer = Answer(state.order, code, why)
    state = replace(state, order=None, target=None, failure="", given_up=False, staged=None)
    return replace(state, closed=False), (answer,)


def back_to_wanted(state: State) -> State:
    """What was in between has gone."""
    return replace(state, goal=state.wanted, wanted=None) if state.wanted else state
