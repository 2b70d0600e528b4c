"""Who gets the card next: `step(state, event) -> (state, effects)`, pure.

Read this file first; everything else in `swap` carries out what it decides.

The theory
    The machine never follows a script. It keeps *facts* (what is up, what is unknown, what serves, what has been
    staged, inspected, freed) and a *goal* (the unit that should have the card), and whenever it awaits nothing it
    asks one question: given the facts, what is the next thing to do on the way to the goal? `_next` is that decision
    tree, numbered. A failure changes the goal (to what was serving), never the facts.

    An effect that takes time has a number; the machine awaits one at a time, and the controller reports exactly one
    event with that number. When a start or stop passes its bound the controller says `Overdue` first: the call is
    still under way and its report comes late, or never.

The rules that the tree must keep are in `swap.rules`, each one small function with a name.

No clock here: deadlines are the controller's and come back as events.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from swap import news, orders, reports, rules
from swap.moves import (
    Aborted,
    Check,
    Checked,
    Chosen,
    Died,
    Done,
    Drain,
    Event,
    Failed,
    Found,
    Free,
    Glance,
    Inspect,
    Look,
    NotByHand,
    Ordered,
    Overdue,
    PutBack,
    Seen,
    Stage,
    Start,
    Steady,
    Stop,
    Unit,
    Up,
    Useless,
    Warm,
)
from swap.state import State
from swap.steps import Step, choose, do

START = State(doing=Look(1), number=1)  # the controller runs START.doing first


def step(state: State, event: Event) -> Step:
    """What the event changes, and what to do now. Total: any event in any state."""
    match event:
        case Ordered(order):
            state, effects = orders.ordered(state, order)
        case Aborted():
            state, effects = orders.aborted(state)
        case Up(n):
            ours, before, state = rules.is_current(state, n), state, news.up(state, event)
            state, effects = reports.go_on(state) if ours else (state, news.overtaken(before, state))
        case Died():
            state, effects = news.died(state, event)
        case NotByHand():
            state, effects = news.not_by_hand(state, event), ()
        case Useless():
            state, effects = news.useless(state, event)
        case Steady():
            state, effects = news.steady(state, event), ()
        case Overdue(n):
            state, effects = news.overdue(state, n), ()
        case Found() | Checked() | Chosen() | Seen() | Done() | Failed():
            state, effects = reports.report(state, event)
        case _ as never:
            assert_never(never)
    if state.doing is not None:
        return state, effects
    state, more = _next(state)
    return state, effects + more


def _next(state: State) -> Step:
    """The decision tree; nothing is awaited.

    1. Nobody has looked yet, or something is unknown: look.
    2. An order has not been checked: check it (after what may serve in a moment, and be restored then).
    3. Its container isn't what the pair declares, and nothing of that engine is up: stage it.
    4. An order that is checked (and staged) is the goal.
    5. What served has failed again: choose whether it gets the card once more, or another.
    6. Something is in the way: drain if it serves, then stop it. No goal, and nothing serves: nothing to do.
    7. The goal is up: it serves, or is warmed.
    8. Its container was replaced, or isn't staged: put it back, or stage it.
    9. Its memory isn't free: wait for it.
    10. Not inspected: inspect.  11. Start.
    """
    if not state.looked:
        return do(state, Look(state.number + 1))
    if state.unknown:
        return do(state, Glance(state.number + 1, min(state.unknown)))
    if state.order and not state.target and not _soon_serving(state):
        return do(state, Check(state.number + 1, state.order))
    if state.order and state.target and not state.failure:
        if state.staged != state.target and not any(unit.engine == state.target.engine for unit in state.up):
            return _stage(state, state.target)
        state = _aim(state, state.target)
    if _in_doubt(state):
        return choose(state, passing=True)
    goal = state.goal or state.serving
    if victims := rules.in_the_way(state, goal):
        return _stop(state, min(victims))
    if goal is None:
        return state, ()
    if goal == state.serving:
        return reports.serves(state)
    if goal in state.up:
        return do(state, Warm(state.number + 1, goal))
    return _bring_up(state, goal)


def _aim(state: State, target: Unit) -> State:
    """What was being brought up and has never served can't be restored, but is gone on with when the order fails."""
    interrupted = state.goal if state.last is None and state.goal != target else state.wanted
    return replace(state, goal=target, wanted=interrupted)


def _soon_serving(state: State) -> bool:
    """The goal is warming and could not be restored yet, or it has just died and starts again at once."""
    never_served = state.goal in state.up and state.goal not in (state.last, state.serving, state.spoiled)
    return never_served or (state.goal is not None and state.goal == state.freed == state.last)


def _in_doubt(state: State) -> bool:
    """What served and failed more than once is next, and nobody has started it meanwhile."""
    started = state.goal in state.up and state.goal != state.spoiled
    return state.goal is not None and state.goal == state.doubted and not started


def _bring_up(state: State, goal: Unit) -> Step:
    ordered = goal == state.target and not state.failure
    if state.displaced == goal and not ordered:
        return do(state, PutBack(state.number + 1, goal))
    if state.staged != goal and (ordered or goal != state.last):
        return _stage(state, goal)
    if goal not in (state.freed, state.own):
        return do(state, Free(state.number + 1, goal))
    if rules.must_inspect(state, goal):
        return do(state, Inspect(state.number + 1, goal))
    return do(state, Start(state.number + 1, goal))


def _stage(state: State, unit: Unit) -> Step:
    """From here on the engine's container may be another one, also when staging fails."""
    last = state.last
    displaced = last if last and last.engine == unit.engine and last != unit else state.displaced
    return do(replace(state, displaced=displaced), Stage(state.number + 1, unit))


def _stop(state: State, victim: Unit) -> Step:
    if rules.must_drain(state, victim):
        cut = state.order is not None and state.order.cut
        return do(rules.gate_closed(state), Drain(state.number + 1, cut))
    return do(rules.stop_ordered(state, victim), Stop(state.number + 1, victim))
