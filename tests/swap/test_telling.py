"""What people are told of the machine's steps: each decision once, with its reason."""

from __future__ import annotations

import random

import pytest

from swap.moves import (
    Aborted,
    Check,
    Checked,
    Choose,
    Chosen,
    Died,
    Done,
    Event,
    Failed,
    Found,
    Glance,
    Look,
    NotByHand,
    Order,
    Ordered,
    Overdue,
    Rest,
    Seen,
    Start,
    Stop,
    Unit,
    Up,
    Useless,
    Warm,
)
from swap.state import State
from swap.telling import Telling
from tests.swap.test_machine import STRATA, TO_NINFER, V2, Talk

BACKOFF = (5.0, 10.0, 300.0)


BOTH_RAN = (
    "second-engine: ninfer:v2 came up beside strata:current and is stopped"
    " (one engine at a time has the card; both ran already)"
)
CAME_UP = (
    "second-engine: ninfer:v2 came up beside strata:current and is stopped"
    " (one engine at a time has the card; it was started without our doing)"
)


class Listener(Talk):
    """A conversation with the machine, and what is told of it: `kind: text (why)`. Each event takes a second."""

    def __init__(self) -> None:
        super().__init__()
        self.telling = Telling(BACKOFF)
        self.clock = 0.0
        self.heard: list[str] = []

    def tell(self, event: Event) -> Listener:
        before = self.state
        super().tell(event)
        self.clock += 1
        for said in self.telling.of(before, event, self.state, self.effects, self.clock):
            self.heard.append(f"{said.kind}: {said.text}{f' ({said.why})' * bool(said.why)}")
        return self

    def until(self, kind: type) -> Listener:
        """Whatever is to be done ends well until it is one of these."""
        for _ in range(20):
            if self.doing(kind):
                return self
            self.well()
        raise AssertionError(f"{kind.__name__} doesn't come: {self.state}")

    def well(self) -> Listener:
        match self.state.doing:
            case Check(n, order):
                return self.tell(Checked(n, Unit(order.engine, order.pair)))
            case doing if doing is not None and type(doing).__name__ == "Start":
                return self.tell(Up(doing.n, doing.unit))  # type: ignore[union-attr]
            case _:
                return self.tell(Done(self.n))

    def to_the_end(self) -> Listener:
        while self.state.doing is not None:
            self.well()
        return self

    def news(self) -> list[str]:
        """What was told since it was asked last."""
        news, self.heard = self.heard, []
        return news


def serving() -> Listener:
    told = Listener()
    told.found(STRATA).done()
    told.news()
    return told


def test_what_runs_at_start_is_told_adopted() -> None:
    told = Listener()
    told.found(STRATA).done()
    assert told.news() == ["adopted: strata:current serves, adopted as it runs (it ran already)"]


def test_of_two_that_run_at_start_one_is_told_adopted_and_the_other_stopped() -> None:
    told = Listener()
    told.found(STRATA, V2)
    told.to_the_end()
    assert told.news() == [
        BOTH_RAN,
        "second-engine: ninfer:v2 is stopped (it came up beside another)",
        "adopted: strata:current serves, adopted as it runs (it ran already)",
    ]


def test_what_is_started_because_nothing_ran_is_told_with_why_it() -> None:
    told = Listener()
    told.tell(Found(told.n, frozenset(), None, STRATA, "it served last")).to_the_end()
    assert told.news() == [
        "starting: strata:current is started (it served last)",
        "serving: strata:current serves (it served last)",
    ]


def test_nothing_to_start_is_dark_and_needs_a_person() -> None:
    told = Listener()
    told.found()
    assert told.news() == ["dark: nothing serves, and a person is needed (nothing is verified)"]


def test_a_swap_is_told_as_ordered_as_serving_and_as_answered() -> None:
    told = serving()
    told.tell(Ordered(TO_NINFER)).to_the_end()
    assert told.news() == [
        "ordered: a swap to ninfer:v2 was ordered",
        "serving: ninfer:v2 serves (a swap to it was ordered)",
        "answered: the swap to ninfer:v2 ended with 0: ninfer:v2 serves",
    ]


def test_a_refused_swap_is_told_with_the_reason_and_nothing_failed() -> None:
    told = serving()
    told.tell(Ordered(TO_NINFER)).tell(Failed(told.n, "it isn't verified"))
    assert told.news() == [
        "ordered: a swap to ninfer:v2 was ordered",
        "refused: the swap to ninfer:v2 was refused (it isn't verified)",
    ]


def test_who_asks_for_the_same_joins_and_who_asks_for_another_is_refused() -> None:
    told = serving()
    told.tell(Ordered(TO_NINFER))
    told.news()
    told.tell(Ordered(Order(2, "ninfer", "v2"))).tell(Ordered(Order(3, "ninfer", "v3")))
    assert told.news() == [
        "ordered: a swap to ninfer:v2 was ordered, and joins the one under way",
        "refused: the swap to ninfer:v3 was refused (a swap to ninfer:v2 is under way)",
    ]


def test_a_swap_that_fails_is_told_as_failed_restored_and_answered() -> None:
    told = serving()
    told.tell(Ordered(TO_NINFER)).until(Warm).tell(Failed(told.n, "it exited with code 1", gone=True)).to_the_end()
    assert told.news() == [
        "ordered: a swap to ninfer:v2 was ordered",
        "failed: the swap to ninfer:v2 failed; strata:current is put back (it exited with code 1)",
        "restored: strata:current serves again (the swap to ninfer:v2 failed: it exited with code 1)",
        "answered: the swap to ninfer:v2 ended with 4: strata:current serves (it exited with code 1)",
    ]


def test_what_the_operator_gives_up_has_not_failed() -> None:
    told = serving()
    told.tell(Ordered(TO_NINFER)).until(Warm).tell(Aborted("slotproxy is stopping"))
    told.tell(Failed(told.n, "given up by the operator", passing=True, interrupted=True)).to_the_end()
    heard = told.news()
    assert "ordered: the swap to ninfer:v2 is given up (slotproxy is stopping)" in heard
    assert not [line for line in heard if line.startswith("failed")]
    assert heard[-1].startswith("answered: the swap to ninfer:v2 ended with 4: strata:current serves")


def test_an_engine_that_dies_is_told_as_failed_started_again_and_recovered_with_how_long_nothing_served() -> None:
    told = serving()
    told.tell(Died(STRATA, "exited with code 137"))
    assert told.news()[:2] == [
        "failed: strata:current failed (it exited with code 137)",
        "restarting: strata:current is started again (it exited with code 137)",
    ]
    began = told.clock
    told.to_the_end()
    assert told.news() == [
        f"recovered: strata:current serves again (it was started again; nothing served for {told.clock - began:.0f} s)"
    ]


def test_a_useless_engine_is_told_started_again_and_recovered() -> None:
    told = serving()
    told.tell(Useless(STRATA, "5 errors in a row"))
    began = told.clock
    told.to_the_end()
    assert told.news() == [
        "useless: strata:current runs and serves nobody (5 errors in a row)",
        "restarting: strata:current is started again (5 errors in a row)",
        f"recovered: strata:current serves again (it was started again; nothing served for {told.clock - began:.0f} s)",
    ]


def test_who_is_in_doubt_is_told_by_who_decides_it() -> None:
    told = serving()
    told.tell(Died(STRATA, "exited with code 1")).to_the_end()
    told.news()
    told.tell(Died(STRATA, "exited with code 1"))
    assert told.doing(Choose)
    assert told.news() == ["failed: strata:current failed (it exited with code 1)"]


def test_what_was_told_to_stop_before_we_came_is_stopped_first() -> None:
    told = Listener()
    told.tell(Found(told.n, frozenset({STRATA}), None, STRATA, "it served last", ending=STRATA))
    mended, starting = told.news()
    assert mended == (
        "mended: strata:current is stopped before anything is started"
        " (slotproxy had told it to stop when it ended itself)"
    )
    assert starting == "starting: strata:current is started (it served last)"


def test_another_engine_that_gets_the_card_is_told_with_whom_it_replaces() -> None:
    told = serving()
    told.tell(Died(STRATA, "exited with code 1")).to_the_end()
    told.tell(Died(STRATA, "exited with code 1")).tell(Chosen(told.n, V2, "it is verified"))
    told.news()
    began = told.clock - 1
    told.to_the_end()
    assert told.news() == [
        f"recovered: ninfer:v2 serves (strata:current has failed; nothing served for {told.clock - began:.0f} s)"
    ]


def test_a_docker_that_goes_down_is_no_stop_by_hand() -> None:
    told = serving()
    told.tell(Died(STRATA, "was stopped by hand", by_hand=True)).tell(NotByHand(STRATA))
    assert told.news()[:2] == [
        "failed: strata:current failed (strata:current was stopped by Docker going down)",
        "restarting: strata:current is started again (strata:current was stopped by Docker going down)",
    ]


def test_what_was_stopped_by_hand_is_told_so_and_is_dark() -> None:
    told = serving()
    told.tell(Died(STRATA, "was stopped by hand", by_hand=True))
    assert told.news() == [], "it is found out first"
    told.done()
    assert told.news() == [
        "stopped-by-hand: strata:current was stopped by hand (nothing starts it again)",
        "dark: nothing serves, and a person is needed (strata:current was stopped by hand)",
    ]


def test_what_somebody_starts_in_the_dark_ends_it() -> None:
    told = serving()
    told.tell(Died(STRATA, "was stopped by hand", by_hand=True)).tell(Up(0, V2))
    assert told.news() == ["stopped-by-hand: strata:current was stopped by hand"]
    told.to_the_end()
    assert told.news() == ["recovered: ninfer:v2 serves (it was started without our doing; nothing served for 2 s)"]


def test_a_second_engine_is_told_when_it_comes_up_and_when_it_is_stopped() -> None:
    told = serving()
    told.tell(Up(0, V2))
    assert told.doing(Stop)
    told.to_the_end()
    assert told.news() == [
        CAME_UP,
        "second-engine: ninfer:v2 is stopped (it came up beside another)",
    ]


def test_what_serves_is_told_replaced_where_its_container_is_another_now() -> None:
    told = serving()
    told.tell(Up(0, Unit("strata", "other")))
    assert told.news()[0] == (
        "failed: strata:current was replaced by strata:other (its container was replaced without our doing)"
    )


def test_an_unverified_engine_alone_is_dark_and_says_why() -> None:
    told = Listener()
    told.found().tell(Up(0, V2, fit=False))
    assert told.news()[-1] == (
        "dark: nothing serves, and a person is needed (ninfer:v2 was started by hand and isn't verified)"
    )


def test_dark_that_passes_is_told_once_and_each_longer_pause_once() -> None:
    """However many tries it takes, and whatever numbers the reason has each time."""
    told = Listener()
    for free in range(8):
        told.tell(Failed(told.n, f"Docker doesn't answer after {free} s", passing=True)).done()
    assert told.news() == [
        "dark: nothing serves; it is tried again (Docker doesn't answer after 0 s)",
        "retrying: tried again in 5 s (Docker doesn't answer after 0 s)",
        "retrying: tried again in 10 s (Docker doesn't answer after 1 s)",
        "retrying: tried again every 300 s from now on (Docker doesn't answer after 2 s)",
    ]


def test_another_reason_is_another_dark() -> None:
    told = Listener()
    told.tell(Failed(told.n, "Docker doesn't answer", passing=True)).done()
    told.news()
    told.tell(Failed(told.n, "permission denied", passing=True))
    assert told.news()[0] == "dark: nothing serves; it is tried again (permission denied)"


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_dark_is_told_exactly_while_nothing_serves_and_waits(seed: int) -> None:
    """A random life: no step breaks the telling; whoever reads it knows at any moment whether anything serves."""
    draw, told, dark = random.Random(seed), Listener(), False
    for _ in range(400):
        told.tell(_any_event(draw, told.state))
        for line in told.news():
            kind = line.partition(":")[0]
            dark = kind == "dark" or (dark and kind not in ("serving", "adopted", "recovered", "restored"))
        state = told.state
        if state.serving is not None:
            assert not dark, state
        elif state.doing is None or isinstance(state.doing, Rest):
            assert dark, state


def _any_event(draw: random.Random, state: State) -> Event:
    """What may come next, likely or not; a report of what is awaited mostly."""
    unit, n = draw.choice([STRATA, V2, Unit("ninfer", "v3")]), state.doing.n if state.doing else 0
    news: list[Event] = [
        Up(0, unit, draw.random() < 0.5),
        Died(unit, "exited with code 1", by_hand=draw.random() < 0.3),
        Useless(unit, "5 errors"),
        Aborted(),
        Ordered(Order(draw.randrange(1000), unit.engine, unit.pair)),
        Overdue(n),
    ]
    failed = Failed(n, f"it failed {draw.randrange(100)} times", passing=draw.random() < 0.7)
    if state.doing is None or draw.random() < 0.2:
        return draw.choice(news)
    if draw.random() < 0.25:
        return failed
    match state.doing:
        case Look():
            return Found(n, frozenset(), None, draw.choice([unit, None]), "nothing ran")
        case Check():
            return Checked(n, unit)
        case Choose():
            return Chosen(n, draw.choice([unit, None]), "it is verified")
        case Glance():
            return Seen(n, draw.random() < 0.5)
        case Start(_, started):
            return Up(n, started)
        case _:
            return Done(n)
