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

from swap import rules
from swap.moves import (
    Aborted,
    Answer,
    Awaited,
    Check,
    Checked,
    Code,
    Died,
    Done,
    Drain,
    Effect,
    Event,
    Failed,
    Found,
    Free,
    Glance,
    Inspect,
    Interrupt,
    Join,
    Look,
    Order,
    Ordered,
    Overdue,
    PutBack,
    Record,
    Report,
    Rest,
    Seen,
    Stage,
    Start,
    Stop,
    Unit,
    Up,
    Warm,
)
from swap.state import State

MAX_ATTEMPT = 6  # the back-off grows so often (the controller says how long each is)


# ------------------------------------------------------------------------------------------------- state


START = State(doing=Look(1), number=1)  # the controller runs START.doing first

# ------------------------------------------------------------------------------------------------- step

Step = tuple[State, tuple[Effect, ...]]


def step(state: State, event: Event) -> Step:
    """What the event changes, and what to do now. Total: any event in any state."""
    match event:
        case Ordered(order):
            state, effects = _ordered(state, order)
        case Aborted():
            state, effects = _aborted(state)
        case Up():
            state, effects = _up(state, event)
        case Died():
            state, effects = _died(state, event)
        case Overdue(n):
            state, effects = _overdue(state, n), ()
        case Found() | Checked() | Seen() | Done() | Failed():
            state, effects = _report(state, event)
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
    5. Something is in the way: drain if it serves, then stop it. No goal, and nothing serves: nothing to do.
    6. The goal is up: it serves, or is warmed.
    7. Its container was replaced, or isn't staged: put it back, or stage it.
    8. Its memory isn't free: wait for it.
    9. Not inspected: inspect.  10. Start.
    """
    if not state.looked:
        return _do(state, Look(state.number + 1))
    if state.unknown:
        return _do(state, Glance(state.number + 1, min(state.unknown)))
    if state.order and not state.target and not _soon_serving(state):
        return _do(state, Check(state.number + 1, state.order))
    if state.order and state.target and not state.failure:
        if state.staged != state.target and not any(unit.engine == state.target.engine for unit in state.up):
            return _stage(state, state.target)
        state = _aim(state, state.target)
    goal = state.goal or state.serving
    if victims := rules.in_the_way(state, goal):
        return _stop(state, min(victims))
    if goal is None:
        return state, ()
    if goal == state.serving:
        return _serves(state)
    if goal in state.up:
        return _do(state, Warm(state.number + 1, goal))
    return _bring_up(state, goal)


def _aim(state: State, target: Unit) -> State:
    """What was being brought up and has never served can't be restored, but is gone on with when the order fails."""
    interrupted = state.goal if state.last is None and state.goal != target else state.wanted
    return replace(state, goal=target, wanted=interrupted)


def _soon_serving(state: State) -> bool:
    """The goal is warming and could not be restored yet, or it has just died and starts again at once."""
    never_served = state.goal in state.up and state.goal not in (state.last, state.serving, state.spoiled)
    return never_served or (state.goal is not None and state.goal == state.freed == state.last)


def _bring_up(state: State, goal: Unit) -> Step:
    ordered = goal == state.target and not state.failure
    if state.displaced == goal and not ordered:
        return _do(state, PutBack(state.number + 1, goal))
    if state.staged != goal and (ordered or goal != state.last):
        return _stage(state, goal)
    if goal not in (state.freed, state.own):
        return _do(state, Free(state.number + 1, goal))
    if rules.must_inspect(state, goal):
        return _do(state, Inspect(state.number + 1, goal))
    return _do(state, Start(state.number + 1, goal))


def _do(state: State, effect: Awaited) -> Step:
    """What was found just now is old news once something else is done."""
    freed = state.freed if isinstance(effect, Inspect) else None
    return replace(state, doing=effect, number=effect.n, inspected=None, drained=False, freed=freed), (effect,)


def _stage(state: State, unit: Unit) -> Step:
    """From here on the engine's container may be another one, also when staging fails."""
    last = state.last
    displaced = last if last and last.engine == unit.engine and last != unit else state.displaced
    return _do(replace(state, displaced=displaced), Stage(state.number + 1, unit))


def _stop(state: State, victim: Unit) -> Step:
    if rules.must_drain(state, victim):
        cut = state.order is not None and state.order.cut
        return _do(rules.gate_closed(state), Drain(state.number + 1, cut))
    return _do(rules.stop_ordered(state, victim), Stop(state.number + 1, victim))


# ------------------------------------------------------------------------------------------------- orders


def _ordered(state: State, order: Order) -> Step:
    """One order at a time; the same target joins. A wait on the way to something else is cut short."""
    if state.order is not None:
        return state, (_join_or_refuse(state, state.order, order),)
    state = replace(state, order=order, target=None, failure="", given_up=False)
    match state.doing:
        case Rest():
            return replace(state, doing=None), ()
        case Free(n) if state.serving is None:
            return state, (Interrupt(n),)
        case Warm(n, unit) if unit == state.last and (unit.engine, unit.pair) != (order.engine, order.pair):
            return state, (Interrupt(n),)  # what never served is left to get ready: else nothing could be restored
        case _:
            return state, ()


def _join_or_refuse(state: State, current: Order, order: Order) -> Join | Answer:
    where = f"a swap to {current.engine}:{current.pair}"
    if state.given_up:
        return Answer(order, Code.REFUSED, f"{where} is being given up; ask again when it has ended")
    if (current.engine, current.pair, current.trial) == (order.engine, order.pair, order.trial):
        return Join(order)
    return Answer(order, Code.REFUSED, f"{where} is under way")


def _aborted(state: State) -> Step:
    """Waits end at once; everything else when its report is in. A restore under way goes on."""
    if state.order is None or state.failure:
        return state, ()
    state = replace(state, given_up=True)
    match state.doing:
        case Check(n) | Drain(n) | Free(n):
            return state, (Interrupt(n),)
        case Warm(n, unit) if unit == state.target:
            return state, (Interrupt(n),)
        case _:
            return state, ()


def _end(state: State, code: Code, why: str) -> Step:
    """The order is over; nothing of it is left in the state."""
    if state.order is None:
        return state, ()
    answer = Answer(state.order, code, why)
    state = replace(state, order=None, target=None, failure="", given_up=False, staged=None)
    return replace(state, closed=False), (answer,)


# ------------------------------------------------------------------------------------------------- news


def _up(state: State, event: Up) -> Step:
    ours = rules.is_current(state, event.n)
    state = rules.learnt_up(state, event.unit)
    if ours:
        return _go_on(replace(state, doing=None))
    settled = state.doing is None or isinstance(state.doing, Rest)
    if not settled or state.serving or state.order or not state.looked or state.unknown:
        return state, ()  # the decision tree finds it in the way, or on the way
    if event.fit and len(state.up) == 1:
        return replace(state, goal=event.unit, doing=None), ()
    why = f"{event.unit.label} was started by hand and isn't verified"
    return replace(state, goal=None, wanted=state.goal or state.wanted, doing=None, dark=why), ()


def _died(state: State, event: Died) -> Step:
    unit = event.unit
    if unit not in state.up:
        return state, ()
    state = _down(state, unit)
    if state.serving != unit:
        return (_back_to_wanted(state) if state.person and not state.up else state), ()
    state = replace(state, serving=None, last=unit, dark=f"{unit.label} {event.why}")
    if event.by_hand:
        return state, ()
    # The same container may start again at once: its own memory went with it, and nobody waits for NVML.
    state = replace(state, goal=state.goal or unit, freed=unit, own=unit)
    return state, (Interrupt(state.doing.n),) if isinstance(state.doing, Check) else ()


def _back_to_wanted(state: State) -> State:
    """What was in between has gone."""
    return replace(state, goal=state.wanted, wanted=None) if state.wanted else state


def _down(state: State, unit: Unit) -> State:
    spoiled = None if state.spoiled == unit else state.spoiled
    return replace(state, up=state.up - {unit}, spoiled=spoiled)


def _overdue(state: State, n: int) -> State:
    match state.doing:
        case (Start() | Stop()) as effect if effect.n == n:
            return rules.overdue(state, effect)
        case _:
            return state


# ------------------------------------------------------------------------------------------------- reports


def _report(state: State, event: Report) -> Step:
    if not rules.is_current(state, event.n):
        return state, ()
    doing, state = state.doing, replace(state, doing=None)
    match doing, event:
        case _, Found():
            return _found(state, event)
        case _, Checked(_, unit):
            return _go_on(replace(state, target=unit))
        case Glance(_, unit), Seen(_, is_up):
            return _seen(state, unit, is_up)
        case Check(), Failed():
            return _unchecked(state, event)
        case ((Look() | Glance()), Failed(_, why)):
            return _cannot_ask(state, why)
        case Warm(_, unit), Done():
            return _ready(state, unit)
        case ((Warm() | Start()), Failed(_, why, interrupted=True)):
            return _failed(state, why, passing=True)
        case Warm(_, unit), Failed(_, why, passing, gone):
            state = _down(state, unit) if gone else replace(state, spoiled=unit)
            return _failed(state, why, passing, tried=unit)
        case Start(_, unit), Failed(_, why, passing):
            return _failed(state, why, passing, tried=unit)
        case _, Failed(_, why, passing):
            return _failed(state, why, passing)
        case _, Done():
            return _go_on(_progress(state, doing))
        case _:
            return state, ()


def _unchecked(state: State, event: Failed) -> Step:
    """Refused, given up, or put off because what was serving has died and comes first."""
    if state.given_up:
        return _end(state, Code.RESTORED if state.serving else Code.DARK, event.why)
    return (state, ()) if event.interrupted else _end(state, Code.REFUSED, event.why)


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
            return _down(state, unit)
        case Free(_, unit):
            return replace(state, freed=None if state.up else unit)
        case Inspect(_, unit):
            return replace(state, inspected=unit)
        case Rest():
            return replace(state, attempt=min(state.attempt + 1, MAX_ATTEMPT))
        case _:
            return state


def _go_on(state: State) -> Step:
    """Go on, unless the operator has given the order up."""
    if state.given_up and state.order and state.target and not state.failure:
        return _failed(state, "given up by the operator", passing=True)
    return state, ()


def _found(state: State, found: Found) -> Step:
    goal = found.keep or found.start
    state = replace(state, looked=True, up=state.up | found.up, goal=goal)
    return replace(state, dark="" if goal else found.why), ()


def _seen(state: State, unit: Unit, is_up: bool) -> Step:
    """An overdue call has ended, and this is how it ended."""
    was_start = unit in state.starting
    state = replace(state, starting=state.starting - {unit}, stopping=state.stopping - {unit})
    state = rules.learnt_up(state, unit) if is_up else _down(state, unit)
    if is_up and not was_start:
        return _failed(state, f"{unit.label} could not be stopped", passing=True)
    if not is_up and was_start and state.goal == unit:
        return _failed(state, f"{unit.label} did not start in time", passing=True, tried=unit)
    return _go_on(state)


def _cannot_ask(state: State, why: str) -> Step:
    """It can't be asked what is up. An order isn't kept waiting for that."""
    effects: tuple[Effect, ...] = ()
    if state.order:
        code = Code.RESTORED if state.serving else Code.DARK
        goal = rules.to_restore(state) if state.target else state.goal
        state, effects = _end(replace(state, goal=goal), code, why)
    state, rest = _rest(replace(state, dark=why))
    return state, effects + rest


def _rest(state: State) -> Step:
    return _do(state, Rest(state.number + 1, state.attempt))


def _ready(state: State, unit: Unit) -> Step:
    if unit not in state.up:
        return _failed(state, f"{unit.label} ended as it became ready", passing=True, tried=unit)
    ordered = state.target == unit and not state.failure
    state = replace(state, serving=unit, last=unit, goal=unit, wanted=None)
    return state, (Record(unit, True, state.order if ordered else None),)


def _serves(state: State) -> Step:
    """The goal serves and nothing else is up: everything about the way here is over."""
    displaced = None if state.target == state.serving else state.displaced
    state = replace(state, goal=None, wanted=None, own=None, displaced=displaced, staged=None, attempt=0, dark="")
    if not state.order:
        return replace(state, closed=False), ()
    return _end(state, Code.RESTORED if state.failure else Code.SERVES, state.failure)


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
        state, answer = _end(replace(state, dark=why, spoiled=unready), Code.DARK, why)
        return _back_to_wanted(state), effects + answer
    again = rules.tries_again(state, passing)
    if state.order and not state.target:  # cut short for the order, which is next
        return replace(state, goal=state.goal if again else None, dark=why), effects
    state = replace(state, dark=f"{state.failure}; then {why}" if state.failure else why)
    state, answer = _end(state, Code.RESTORED if state.serving else Code.DARK, state.dark)
    if again:
        state, rest = _rest(state)
        return state, answer + rest
    return replace(state, goal=None, wanted=None), answer
