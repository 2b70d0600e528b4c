"""When an engine that runs is useless: what is counted, and what takes it back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from swap.strikes import Limits, Strikes

LIMITS = Limits(errors=3, failures=3)
FRESH = Strikes("run 1")


def errors(count: int, strikes: Strikes = FRESH) -> Strikes:
    for _ in range(count):
        strikes = strikes.error("HTTP 503: unavailable")
    return strikes


def bad_signs(count: int, strikes: Strikes = FRESH) -> Strikes:
    for _ in range(count):
        strikes = strikes.sign_failed("/health says 503")
    return strikes


@pytest.mark.parametrize("add", [errors, bad_signs])
def test_so_many_in_a_row_and_not_one_fewer(add: Callable[[int], Strikes]) -> None:
    assert not add(2).useless(LIMITS, explicit=True)
    assert add(3).useless(LIMITS, explicit=True)


def test_errors_and_bad_signs_are_counted_apart() -> None:
    assert not bad_signs(2, errors(2)).useless(LIMITS, explicit=True)


def test_a_whole_answer_to_anybody_takes_everything_back() -> None:
    strikes = bad_signs(2, errors(2))
    for well in (strikes.answered(), strikes.answered_us()):
        assert (well.errors, well.failures) == (0, 0)


def test_a_good_sign_takes_back_bad_signs_only() -> None:
    """Older builds say 200 for ever after a failure of the whole engine."""
    strikes = bad_signs(2, errors(2)).sign_good()
    assert (strikes.errors, strikes.failures) == (2, 0)
    assert errors(1, strikes).useless(LIMITS, explicit=True)


def test_it_is_asked_after_the_first_error_and_after_enough_bad_signs() -> None:
    assert not FRESH.to_be_asked(LIMITS)
    assert errors(1).to_be_asked(LIMITS)
    assert not bad_signs(2).to_be_asked(LIMITS)
    assert bad_signs(3).to_be_asked(LIMITS)


def test_one_that_was_well_when_asked_is_asked_again_only_when_errors_have_added_up() -> None:
    trusted = errors(1).answered_us()
    assert not errors(2, trusted).to_be_asked(LIMITS)
    assert errors(3, trusted).to_be_asked(LIMITS)
    assert errors(1, trusted.answered()).to_be_asked(LIMITS)


def test_without_a_word_only_bad_signs_are_confirmed() -> None:
    assert not errors(5).useless(LIMITS, explicit=False)
    assert bad_signs(3).useless(LIMITS, explicit=False)


def test_0_switches_a_reason_off_and_leaves_the_other() -> None:
    no_errors, no_signs = Limits(0, 3), Limits(3, 0)
    assert not errors(100).useless(no_errors, explicit=True)
    assert not errors(100).to_be_asked(no_errors)
    assert bad_signs(3).useless(no_errors, explicit=True)
    assert not bad_signs(100).useless(no_signs, explicit=True)
    assert not bad_signs(100).to_be_asked(no_signs)
    assert errors(3).useless(no_signs, explicit=True)


def test_what_is_held_against_it_is_told_in_words() -> None:
    assert errors(3).told == "errors in a row: 3; the last: HTTP 503: unavailable"
    told = bad_signs(1, errors(2)).told
    assert told == "errors in a row: 2, bad signs of health in a row: 1; the last: /health says 503"
