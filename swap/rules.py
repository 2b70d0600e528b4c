"""The machine's rules, each one small function with a name: a test takes each away and watches the walk fail.

stop_ordered       only a report that it stopped or died clears what is up, never an intention to stop
gate_closed        *serving* is about the engine, the gate about requests: closing the gate unserves nothing
to_restore         only an engine that was serving can be what we restore
is_current         a late report of an old effect changes nothing …
learnt_up          … except "it is up", which is never discarded
overdue            after a time-out the unit is *unknown* until the call has ended and a look has answered
in_the_way         never start while another is up or unknown
must_inspect       never start without a good inspection of that very container
must_drain         never stop the holder with the gate open
tries_again        from every reachable state there is a way to serving; where only time is needed, by itself
chooses            what had the card and failed doesn't get it again unasked, nor does what time can't mend
"""

from __future__ import annotations

from dataclasses import replace

from swap.moves import Start, Stop, Unit
from swap.state import State


def stop_ordered(state: State, unit: Unit) -> State:
    """Only a report clears `up`. What we stop doesn't serve any more, though, and is what we would restore."""
    if state.serving == unit:
        return replace(state, serving=None, last=unit, closed=False)
    return state


def gate_closed(state: State) -> State:
    """Closing the gate is about requests; the engine goes on serving those in flight."""
    return replace(state, closed=True)


def to_restore(state: State) -> Unit | None:
    """What to put back after a failure: the unit that was serving, never one that merely was up."""
    return state.last


def is_current(state: State, n: int) -> bool:
    """Is this the report that we await?"""
    return state.doing is not None and state.doing.n == n


def learnt_up(state: State, unit: Unit) -> State:
    """Whoever says it and however late: it is up, so what was freed isn't any more.

    An engine has one container: what else of it was up, and may have served, isn't there any more.
    """
    others = frozenset(other for other in state.up if other.engine != unit.engine)
    serving = state.serving
    if serving is not None and serving.engine == unit.engine and serving != unit:
        state = replace(state, serving=None, last=serving, dark=f"{serving.label} was replaced by {unit.label}")
    return replace(state, up=others | {unit}, freed=None, own=None)


def overdue(state: State, effect: Start | Stop) -> State:
    """Nobody knows whether it is up; nothing starts until the call has ended and a look has answered."""
    state = replace(state, doing=None)
    if isinstance(effect, Start):
        return replace(state, starting=state.starting | {effect.unit})
    return replace(state, stopping=state.stopping | {effect.unit})


def in_the_way(state: State, goal: Unit | None) -> frozenset[Unit]:
    """What must be down before the goal may start: all that is up beside it, and whatever never got ready.

    Where there is no goal, one at most stays up, and gets no requests.
    """
    if goal is None and len(state.up) > 1:
        return state.up - {state.last if state.last in state.up else min(state.up - {state.spoiled})}
    return frozenset(unit for unit in state.up if unit == state.spoiled or goal not in (None, unit))


def must_inspect(state: State, goal: Unit) -> bool:
    return state.inspected != goal


def must_drain(state: State, victim: Unit) -> bool:
    """The unit that serves is stopped only after its requests have ended behind a closed gate."""
    return state.serving == victim and not state.drained


def tries_again(state: State, passing: bool) -> bool:
    """Nothing is left to fall back on: does time mend it?"""
    return passing and (state.goal or state.serving) is not None


def chooses(state: State, tried: Unit | None, passing: bool) -> bool:
    """The goal failed: is it to be asked who gets the card next? What only waits for something goes on waiting."""
    return state.serving is None and state.goal is not None and (tried == state.goal or not passing)
