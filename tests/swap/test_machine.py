"""Conversations with the machine that the walk can't judge: what a person would call right or wrong.

The walk (`test_machine_walk.py`) proves the promises; here stand the decisions between several ways that keep them.
"""

from __future__ import annotations

from swap.machine import START, step
from swap.moves import (
    Aborted,
    Answer,
    Check,
    Checked,
    Choose,
    Chosen,
    Code,
    Died,
    Done,
    Effect,
    Event,
    Failed,
    Found,
    Free,
    Inspect,
    Interrupt,
    Join,
    NotByHand,
    Order,
    Ordered,
    Record,
    Rest,
    Stage,
    Start,
    Stop,
    Unit,
    Up,
    Warm,
)
from swap.state import Closed, State, gate

STRATA = Unit("strata", "current")
V2, V3 = Unit("ninfer", "v2"), Unit("ninfer", "v3")
TO_NINFER = Order(1, "ninfer", "v2")


class Talk:
    """Events in, effects out; `n` is the number of what is awaited now."""

    def __init__(self) -> None:
        self.state: State = START
        self.effects: tuple[Effect, ...] = ()
        self.answers: list[tuple[int, Code]] = []
        self.recorded: list[Record] = []

    def tell(self, event: Event) -> Talk:
        self.state, self.effects = step(self.state, event)
        for effect in self.effects:
            if isinstance(effect, Answer):
                self.answers.append((effect.order.id, effect.code))
            if isinstance(effect, Record):
                self.recorded.append(effect)
        return self

    @property
    def n(self) -> int:
        assert self.state.doing is not None
        return self.state.doing.n

    def done(self) -> Talk:
        return self.tell(Done(self.n))

    def fail(self, **how: bool) -> Talk:
        return self.tell(Failed(self.n, "it failed", **how))

    def found(self, *up: Unit, start: Unit | None = None) -> Talk:
        return self.tell(Found(self.n, frozenset(up), up[0] if up else None, start, "nothing is verified"))

    def doing(self, kind: type) -> bool:
        return isinstance(self.state.doing, kind)


def serving(unit: Unit = STRATA) -> Talk:
    return Talk().found(unit).done()


def ordered(talk: Talk, target: Unit = V2) -> Talk:
    """An order whose container is staged: the old engine is to be drained next."""
    return talk.tell(Ordered(TO_NINFER)).tell(Checked(talk.n, target)).done()


# ------------------------------------------------------------------------------------------------- what is warming


def test_an_order_waits_for_what_is_being_adopted_so_that_it_can_be_restored() -> None:
    talk = Talk().found(STRATA).tell(Ordered(TO_NINFER))
    assert talk.doing(Warm)
    assert not talk.effects
    talk.done()
    assert talk.doing(Check)
    assert talk.state.last == STRATA


def test_an_order_for_what_is_being_adopted_starts_nothing_anew() -> None:
    talk = Talk().found(V2).tell(Ordered(TO_NINFER)).done()
    talk.tell(Checked(talk.n, V2))
    assert talk.answers == [(1, Code.SERVES)]
    assert talk.state.doing is None


def test_a_refused_order_leaves_what_starts_again_alone() -> None:
    talk = serving().tell(Died(STRATA, "exited")).done()
    talk.tell(Up(talk.n, STRATA)).tell(Ordered(TO_NINFER))
    assert talk.effects == (Interrupt(talk.n),)
    talk.tell(Failed(talk.n, "x", passing=True, interrupted=True)).fail()
    assert talk.answers == [(1, Code.REFUSED)]
    assert talk.state.doing == Warm(talk.n, STRATA), "warmed on, not stopped"


# ------------------------------------------------------------------------------------------------- giving up


def test_a_first_trial_that_is_given_up_leaves_nothing_on_the_card() -> None:
    talk = ordered(Talk().found())
    for kind in (Free, Inspect):
        assert talk.doing(kind)
        talk.done()
    talk.tell(Up(talk.n, V2)).tell(Aborted())
    assert talk.effects == (Interrupt(talk.n),)
    talk.tell(Failed(talk.n, "given up", passing=True, interrupted=True))
    assert talk.answers == [(1, Code.DARK)]
    assert talk.state.doing == Stop(talk.n, V2)
    assert not talk.recorded, "that it was given up says nothing about the pair"
    assert not talk.done().state.up


def test_a_check_that_is_given_up_ends_at_once() -> None:
    talk = serving().tell(Ordered(TO_NINFER)).tell(Aborted())
    assert talk.effects == (Interrupt(talk.n),)
    talk.tell(Failed(talk.n, "given up", passing=True, interrupted=True))
    assert talk.answers == [(1, Code.RESTORED)]
    assert talk.state.serving == STRATA


def test_nobody_joins_an_order_that_is_being_given_up() -> None:
    talk = serving().tell(Ordered(TO_NINFER)).tell(Aborted()).tell(Ordered(Order(2, "ninfer", "v2")))
    assert talk.answers == [(2, Code.REFUSED)]


def test_the_same_order_joins() -> None:
    talk = serving().tell(Ordered(TO_NINFER)).tell(Ordered(Order(2, "ninfer", "v2")))
    assert talk.effects == (Join(Order(2, "ninfer", "v2")),)


# ------------------------------------------------------------------------------------------------- what comes between


def test_a_failed_order_goes_on_with_what_was_being_started_before_it() -> None:
    talk = Talk().found(start=STRATA).done()
    assert talk.doing(Free)
    talk.fail(passing=True)
    assert talk.doing(Rest)
    ordered(talk).fail(passing=True)
    assert talk.answers == [(1, Code.DARK)]
    assert not talk.state.person
    assert talk.state.goal == STRATA
    assert talk.state.doing == Stage(talk.n, STRATA)


def test_what_was_started_by_hand_and_ended_again_leaves_the_retries_where_they_were() -> None:
    talk = Talk().found(start=STRATA).done().fail(passing=True).tell(Up(0, V2, fit=False))
    assert talk.state.person
    assert "by hand" in talk.state.dark
    talk.tell(Died(V2, "exited"))
    assert not talk.state.person
    assert talk.state.goal == STRATA


def test_the_holder_that_dies_while_an_order_is_checked_starts_again_first() -> None:
    talk = serving().tell(Ordered(TO_NINFER)).tell(Died(STRATA, "exited"))
    assert talk.effects == (Interrupt(talk.n),)
    talk.tell(Failed(talk.n, "x", passing=True, interrupted=True))
    assert talk.state.doing == Inspect(talk.n, STRATA), "its memory is its own: nobody waits for NVML"
    talk.done()
    assert talk.doing(Start)
    talk.tell(Up(talk.n, STRATA))
    assert talk.doing(Check), "and what served can be restored: the order goes on"
    assert not talk.answers


def test_a_restart_needs_no_look_at_the_card_however_often_it_is_tried() -> None:
    talk = serving().tell(Died(STRATA, "exited"))
    for _ in range(3):
        assert talk.doing(Inspect)
        talk.done()
        assert talk.doing(Start)
        talk.fail(passing=True)
        assert talk.doing(Choose)
        talk.tell(Chosen(talk.n, STRATA))
        assert talk.doing(Rest)
        talk.done()
    assert isinstance(gate(talk.state), Closed), "clients wait meanwhile"


def test_what_was_stopped_by_hand_stays_stopped_and_says_so() -> None:
    talk = serving().tell(Died(STRATA, "was stopped by hand", by_hand=True))
    assert gate(talk.state) == Closed("strata:current was stopped by hand")
    talk.done()
    assert talk.state.person
    assert "by hand" in talk.state.dark


def test_what_docker_stopped_as_it_went_down_is_brought_back_as_soon_as_that_is_known() -> None:
    stopped = Died(STRATA, "was stopped by hand", by_hand=True)
    for talk in (serving().tell(stopped), serving().tell(stopped).done()):
        talk.tell(NotByHand(STRATA))
        assert talk.state.doing == Free(talk.n, STRATA)


def test_what_docker_stopped_as_it_went_down_comes_back_when_the_order_meanwhile_is_refused() -> None:
    talk = serving().tell(Ordered(TO_NINFER)).tell(Died(STRATA, "was stopped by hand", by_hand=True))
    talk.tell(NotByHand(STRATA)).fail()
    assert talk.answers == [(1, Code.REFUSED)]
    assert talk.state.goal == STRATA


def test_that_it_was_docker_changes_nothing_where_another_has_been_started_since() -> None:
    talk = serving().tell(Died(STRATA, "was stopped by hand", by_hand=True)).tell(Up(0, V2))
    before = talk.state
    assert talk.tell(NotByHand(STRATA)).state == before


def test_the_old_pair_of_the_same_engine_is_put_back_only_after_the_new_one_has_been_stopped() -> None:
    talk = serving(V2).tell(Ordered(Order(1, "ninfer", "v3")))
    talk.tell(Checked(talk.n, V3))
    steps = []
    for _ in range(4):
        steps.append(type(talk.state.doing).__name__)
        talk.done()
    steps.append(type(talk.state.doing).__name__)
    assert steps == ["Drain", "Stop", "Stage", "Free", "Inspect"]
    talk.done().tell(Up(talk.n, V3)).fail(passing=True)
    steps = []
    for _ in range(4):
        steps.append(type(talk.state.doing).__name__)
        talk.done()
    assert steps == ["Stop", "PutBack", "Free", "Inspect"]
    talk.tell(Up(talk.n, V2)).done()
    assert talk.answers == [(1, Code.RESTORED)]
    assert [(record.unit, record.served) for record in talk.recorded] == [(V2, True), (V3, False), (V2, True)]


def test_who_was_given_up_before_is_tried_again_only_after_a_while() -> None:
    talk = serving().tell(Died(STRATA, "exited")).done().fail()
    talk.tell(Chosen(talk.n, V2))
    assert not talk.doing(Rest)
    while not talk.doing(Start):
        talk.done()
    talk.fail(passing=True)
    assert isinstance(talk.state.doing, Choose)
    assert talk.state.doing.spent == frozenset((STRATA,))
    assert talk.state.doing.later == frozenset()
    talk.tell(Chosen(talk.n, STRATA))
    assert talk.doing(Rest)
