"""Whose turn is next, as a conversation of names: a slot's name stands for one request of it."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from slotproxy.config import SlotSettings
from slotproxy.turns import PATIENCE, Turns, Waiter

HIGH = SlotSettings("high", priority=2)
MIDDLE = SlotSettings("middle", priority=1)
LOW = SlotSettings("low", priority=0)
PEERS = tuple(SlotSettings(name) for name in "abc")


def waiting(*slots: SlotSettings) -> Turns[Waiter]:
    turns: Turns[Waiter] = Turns()
    for number, slot in enumerate(slots):
        turns.add(Waiter(slot, size=1, since=float(number)))
    return turns


def take(turns: Turns[Waiter]) -> Waiter:
    turn = turns.next({})
    assert turn is not None
    return turns.take(turn)


def order(turns: Turns[Waiter], count: int, again: Iterable[SlotSettings] = ()) -> str:
    """The slots of the next `count` turns; those in `again` ask again as soon as they have had one."""
    names = []
    for _ in range(count):
        slot = take(turns).slot
        names.append(slot.name)
        if slot in again:
            turns.add(Waiter(slot, size=1, since=0.0))
    return " ".join(names)


def test_nobody_waits_nobody_goes() -> None:
    assert waiting().next({}) is None


def test_the_higher_priority_goes_first_whoever_came_first() -> None:
    assert order(waiting(LOW, MIDDLE, HIGH), 3) == "high middle low"


def test_slots_of_one_priority_take_turns_however_many_each_has_waiting() -> None:
    a, b, c = PEERS
    assert order(waiting(a, a, a, b, b, c), 6) == "a b c a b a"


def test_a_slot_that_was_away_gets_one_turn_for_it_not_many() -> None:
    a, b, _ = PEERS
    turns = waiting(a, a, a, a, a)
    order(turns, 3)
    for _ in range(3):
        turns.add(Waiter(b, size=1, since=0.0))
    assert order(turns, 5) == "b a b a b"


def test_within_a_slot_the_first_to_come_is_the_first_to_go() -> None:
    turns = waiting(LOW, LOW, LOW)
    assert [take(turns).since for _ in range(3)] == [0.0, 1.0, 2.0]


def test_a_lower_slot_gets_a_turn_after_patience_turns_past_it() -> None:
    turns = waiting(HIGH, LOW)
    assert order(turns, PATIENCE + 1, again=[HIGH]) == "high " * PATIENCE + "low"


def test_turns_past_nobody_use_up_no_patience() -> None:
    turns = waiting(HIGH)
    order(turns, 10, again=[HIGH])
    turns.add(Waiter(LOW, size=1, since=0.0))
    assert order(turns, PATIENCE + 1, again=[HIGH]) == "high " * PATIENCE + "low"


def test_the_highest_keeps_most_turns_however_many_lower_slots_wait() -> None:
    lows = [SlotSettings(f"low{number}") for number in range(20)]
    names = order(waiting(HIGH, *lows), 100, again=[HIGH, *lows]).split()
    assert names.count("high") == 100 * PATIENCE / (PATIENCE + 1)


def test_fair_turns_reach_the_lowest_although_the_middle_loops_too() -> None:
    turns = waiting(HIGH, MIDDLE, LOW)
    assert "low" in order(turns, 2 * (PATIENCE + 1), again=[HIGH, MIDDLE])


def test_a_slot_at_its_own_limit_lets_the_others_pass() -> None:
    limited = SlotSettings("limited", priority=9, max_in_flight=1)
    turns = waiting(limited, LOW)
    turn = turns.next({"limited": 1})
    assert turn is not None
    assert turn.waiter.slot is LOW
    assert not turn.passes
    turns.take(turn)
    assert turns.next({"limited": 1}) is None
    assert turns.next({}) is not None


def test_choosing_changes_nothing_and_removing_twice_neither() -> None:
    turns = waiting(HIGH, LOW)
    chosen = turns.next({})
    assert chosen == turns.next({})
    assert chosen is not None
    turns.remove(chosen.waiter)
    turns.remove(chosen.waiter)
    assert (len(turns), turns.bytes, turns.of("high"), turns.of("low")) == (1, 1, 0, 1)


SLOTS = tuple(SlotSettings(f"s{number}", priority=number % 3) for number in range(5))


@given(victim=st.sampled_from(SLOTS), script=st.lists(st.integers(0, 2 ** len(SLOTS) - 1), min_size=60, max_size=80))
def test_no_slot_starves_whatever_the_others_do(victim: SlotSettings, script: list[int]) -> None:
    """Before each turn an adversary chooses (as bits) which slots wait beside the victim. In vain."""
    turns: Turns[Waiter] = Turns()
    past = 0
    for bits in script:
        _let_wait(turns, [slot for number, slot in enumerate(SLOTS) if bits >> number & 1 or slot is victim])
        past = 0 if take(turns).slot is victim else past + 1
        assert past < (PATIENCE + 1) * len(SLOTS)


def _let_wait(turns: Turns[Waiter], present: list[SlotSettings]) -> None:
    """Exactly these slots wait, with one request each; who waited already keeps its place."""
    for waiter in list(turns):
        if waiter.slot not in present:
            turns.remove(waiter)
    for slot in present:
        if not turns.of(slot.name):
            turns.add(Waiter(slot, size=1, since=0.0))
