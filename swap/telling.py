"""What one step of the machine means to people: the decisions that it comes to, each with its reason.

Derived from the state before, the event, the state after and the effects, and from what was told before and still
holds; nothing here is decided. Called once for each step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from swap.decisions import Kind
from swap.moves import (
    Aborted,
    Answer,
    Ascertain,
    Choose,
    Chosen,
    Code,
    Died,
    Done,
    Effect,
    Event,
    Found,
    Join,
    NotByHand,
    Order,
    Ordered,
    Rest,
    Stop,
    Unit,
    Up,
    Useless,
)
from swap.state import State


@dataclass(frozen=True, slots=True)
class Said:
    """A decision, before it has a number and a time."""

    kind: Kind
    text: str
    why: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Turn:
    """One step of the machine, and when it was (seconds, of a clock that never goes back)."""

    before: State
    event: Event
    after: State
    effects: Sequence[Effect]
    now: float


@dataclass(slots=True)
class Telling:
    """`backoff`: seconds between tries, by attempt. The rest is what was told and still holds."""

    backoff: Sequence[float]
    _out_since: float | None = None  # since then nothing serves, and nobody ordered that
    _dark: tuple[str, bool] | None = None  # the reason, less its numbers, and whether it passes by itself
    _attempt: int | None = None
    _met: dict[Unit, str] = field(default_factory=dict)  # these run without our doing; how that came
    _beside: set[Unit] = field(default_factory=set)  # came up beside another, and are to be stopped
    _instead: str = ""  # of whom another engine gets the card
    _starting: str = ""  # why the engine is started that is started because nothing ran

    def of(self, before: State, event: Event, after: State, effects: Sequence[Effect], now: float) -> list[Said]:
        """In the order in which people should read it."""
        turn = Turn(before, event, after, effects, now)
        return [
            *_ascertained(turn),
            *self._event(turn),
            *self._failure(turn),
            *self._serves(turn),
            *self._nothing_serves(turn),
            *self._rests(turn),
            *self._answers(turn),
        ]

    # ------------------------------------------------------------------------------------------ what happened

    def _event(self, turn: Turn) -> Iterator[Said]:
        match turn.event:
            case Ordered(order):
                yield from _ordered(order, turn.effects)
            case Aborted(why) if turn.after.given_up and not turn.before.given_up and turn.after.order:
                yield Said(
                    Kind.ORDERED, f"the swap to {_target(turn.after.order)} is given up", why or "the operator says so"
                )
            case Died():
                yield from self._died(turn, turn.event)
            case Up():
                yield from self._up(turn, turn.event)
            case Useless(unit, why) if turn.before.serving == unit:
                self._out_since = turn.now
                yield Said(Kind.USELESS, f"{unit.label} runs and serves nobody", why, {"unit": unit.label})
                yield from _again(unit, turn.after, why)
            case NotByHand(unit) if turn.after.goal == unit and turn.before.goal is None:
                yield Said(Kind.FAILED, f"{unit.label} failed", turn.after.dark, {"unit": unit.label})
                yield from _again(unit, turn.after, turn.after.dark)
            case Chosen(_, unit) if isinstance(choice := turn.before.doing, Choose):
                self._instead = f"{choice.failed.label} has failed" if unit not in (None, choice.failed) else ""
            case Found():
                yield from self._found(turn.event)
            case Done(n) if isinstance(doing := turn.before.doing, Stop) and n == doing.n:
                self._met.pop(doing.unit, None)
                if doing.unit in self._beside:
                    self._beside.discard(doing.unit)
                    yield Said(Kind.SECOND_ENGINE, f"{doing.unit.label} is stopped", "it came up beside another")

    def _died(self, turn: Turn, event: Died) -> Iterator[Said]:
        unit = event.unit
        self._met.pop(unit, None)
        if unit in self._beside:
            self._beside.discard(unit)
            yield Said(Kind.SECOND_ENGINE, f"{unit.label} is gone", f"it {event.why}")
        if turn.before.serving != unit:
            return
        self._out_since = turn.now
        if event.by_hand:
            if not isinstance(turn.after.doing, Ascertain):
                yield _by_hand(unit, turn.after)
            return
        yield Said(Kind.FAILED, f"{unit.label} failed", f"it {event.why}", {"unit": unit.label})
        yield from _again(unit, turn.after, f"it {event.why}")

    def _up(self, turn: Turn, event: Up) -> Iterator[Said]:
        unit, before, after = event.unit, turn.before, turn.after
        if before.serving is not None and before.serving not in after.up:
            self._out_since = turn.now
            yield Said(Kind.FAILED, after.dark, "its container was replaced without our doing")
        ours = before.doing is not None and before.doing.n == event.n
        if ours or unit in before.up:
            return
        how = "it was started without our doing" if event.n == 0 else "its start took effect late"
        if unit in (after.goal, after.target):
            self._met[unit] = how
        elif other := next(iter(sorted(before.up)), before.goal):
            self._beside.add(unit)
            yield _second(unit, other, how)

    def _found(self, found: Found) -> Iterator[Said]:
        if (ending := found.ending) is not None:
            why = "slotproxy had told it to stop when it ended itself"
            yield Said(
                Kind.MENDED, f"{ending.label} is stopped before anything is started", why, {"unit": ending.label}
            )
        if found.keep is not None:
            self._met[found.keep] = "it ran already"
            for other in sorted(found.up - {found.keep, ending}):
                self._beside.add(other)
                yield _second(other, found.keep, "both ran already")
        elif found.start is not None:
            self._starting = found.why or "nothing ran"
            yield Said(Kind.STARTING, f"{found.start.label} is started", self._starting, {"unit": found.start.label})

    # ------------------------------------------------------------------------------------------ what came of it

    def _failure(self, turn: Turn) -> Iterator[Said]:
        before, after = turn.before, turn.after
        if after.order is None or not after.failure or before.failure or before.given_up:
            return
        back = f"; {after.goal.label} is put back" if after.goal else ""
        yield Said(Kind.FAILED, f"the swap to {_target(after.order)} failed{back}", after.failure)

    def _serves(self, turn: Turn) -> Iterator[Said]:
        unit = turn.after.serving
        if unit is None or unit == turn.before.serving:
            return
        out, met, how = self._out_since, unit in self._met, self._how(unit, turn.before)
        self._out_since = self._dark = self._attempt = None
        self._starting = self._instead = ""
        self._met.pop(unit, None)
        facts = {"unit": unit.label}
        if turn.before.failure and turn.before.order:
            failed = f"the swap to {_target(turn.before.order)} failed: {turn.before.failure}"
            yield Said(Kind.RESTORED, f"{unit.label} serves again", failed, facts)
        elif out is not None:
            seconds = round(turn.now - out)
            why = "; ".join(filter(None, (how, f"nothing served for {seconds} s")))
            again = " again" if unit == turn.before.last else ""
            yield Said(Kind.RECOVERED, f"{unit.label} serves{again}", why, {**facts, "dark_for": seconds})
        elif met:
            yield Said(Kind.ADOPTED, f"{unit.label} serves, adopted as it runs", how, facts)
        else:
            yield Said(Kind.SERVING, f"{unit.label} serves", how, facts)

    def _how(self, unit: Unit, before: State) -> str:
        """By what it came to serve."""
        if before.order is not None and before.target == unit:
            return "a swap to it was ordered"
        if unit in self._met:
            return self._met[unit]
        if self._starting or self._instead:
            return self._instead or self._starting
        return "it was started again" if unit == before.last else ""

    def _nothing_serves(self, turn: Turn) -> Iterator[Said]:
        """Dark, in the moment in which nothing goes on by itself: told again only when it is another dark."""
        after = turn.after
        if after.serving is not None or not (after.doing is None or isinstance(after.doing, Rest)):
            return
        passing = isinstance(after.doing, Rest)
        dark = re.sub(r"\d+", "", after.dark), passing
        if dark == self._dark:
            return
        self._dark = dark
        if self._out_since is None:
            self._out_since = turn.now
        text = "nothing serves; it is tried again" if passing else "nothing serves, and a person is needed"
        yield Said(Kind.DARK, text, after.dark, {"passing": passing})

    def _rests(self, turn: Turn) -> Iterator[Said]:
        """Each longer pause once: dark may last for days."""
        doing = turn.after.doing
        if not isinstance(doing, Rest):
            return
        attempt = min(doing.attempt, len(self.backoff) - 1)
        if attempt == self._attempt:
            return
        self._attempt = attempt
        longest, pause = attempt == len(self.backoff) - 1, self.backoff[attempt]
        when = f"every {pause:g} s from now on" if longest else f"in {pause:g} s"
        yield Said(Kind.RETRYING, f"tried again {when}", turn.after.dark, {"retry_in": pause})

    def _answers(self, turn: Turn) -> Iterator[Said]:
        for effect in turn.effects:
            if isinstance(effect, Answer):
                yield from _answered(effect, turn)


def _ordered(order: Order, effects: Sequence[Effect]) -> Iterator[Said]:
    if any(isinstance(effect, Answer) and effect.order == order for effect in effects):
        return  # it is refused at once
    what = "a trial of" if order.trial else "a swap to"
    joined = any(isinstance(effect, Join) and effect.order == order for effect in effects)
    facts = {"trial": order.trial, "cut": order.cut}
    yield Said(
        Kind.ORDERED, f"{what} {_target(order)} was ordered{', and joins the one under way' * joined}", "", facts
    )


def _answered(answer: Answer, turn: Turn) -> Iterator[Said]:
    order, code = answer.order, answer.code
    target, before, serving = _target(order), turn.before, turn.after.serving
    facts = {"code": int(code)}
    if code is Code.REFUSED:
        yield Said(Kind.REFUSED, f"the swap to {target} was refused", answer.why, facts)
        return
    if code is not Code.SERVES and not before.failure and not before.given_up:
        yield Said(Kind.FAILED, f"the swap to {target} failed", answer.why)
    truth = f"{serving.label} serves" if serving else "nothing serves"
    yield Said(Kind.ANSWERED, f"the swap to {target} ended with {int(code)}: {truth}", answer.why, facts)


def _ascertained(turn: Turn) -> Iterator[Said]:
    """Whether it was by hand had to be found out; whatever ends that, but Docker's going down, leaves it so."""
    doing = turn.before.doing
    if isinstance(doing, Ascertain) and doing != turn.after.doing and not isinstance(turn.event, NotByHand):
        yield _by_hand(doing.unit, turn.after)


def _by_hand(unit: Unit, after: State) -> Said:
    stays = "nothing starts it again" if after.person else ""
    return Said(Kind.STOPPED_BY_HAND, f"{unit.label} was stopped by hand", stays, {"unit": unit.label})


def _again(unit: Unit, after: State, why: str) -> Iterator[Said]:
    """Unless that is still to be chosen: then who chooses says so."""
    if after.goal == unit and after.doubted is None and not isinstance(after.doing, Choose):
        yield Said(Kind.RESTARTING, f"{unit.label} is started again", why, {"unit": unit.label})


def _second(unit: Unit, beside: Unit, how: str) -> Said:
    text = f"{unit.label} came up beside {beside.label} and is stopped"
    return Said(Kind.SECOND_ENGINE, text, f"one engine at a time has the card; {how}", {"unit": unit.label})


def _target(order: Order) -> str:
    return f"{order.engine}:{order.pair}"
