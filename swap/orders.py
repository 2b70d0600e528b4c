"""What an operator's order, or giving one up, does to the machine. Pure."""

from __future__ import annotations

from dataclasses import replace

from swap.moves import Answer, Ascertain, Check, Choose, Code, Drain, Free, Interrupt, Join, Order, Rest, Warm
from swap.state import State
from swap.steps import Step


def ordered(state: State, order: Order) -> Step:
    """One order at a time; the same target joins. A wait on the way to something else is cut short."""
    if state.order is not None:
        return state, (_join_or_refuse(state, state.order, order),)
    state = replace(state, order=order, target=None, failure="", given_up=False, doubted=None)
    match state.doing:
        case Rest() | Ascertain():
            return replace(state, doing=None), ()
        case Free(n) | Choose(n) if state.serving is None:
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


def aborted(state: State) -> Step:
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
