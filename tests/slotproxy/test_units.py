"""Sizes and durations: what may be written, what is refused and with which words."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotproxy import units


@pytest.mark.parametrize(
    ("written", "bytes_"),
    [
        ("30.5GiB", 30 * 1024**3 + 512 * 1024**2),
        ("512MiB", 512 * 1024**2),
        ("4 KiB", 4096),
        ("17B", 17),
        ("1TiB", 1024**4),
        (0, 0),
    ],
)
def test_a_size_with_a_unit_is_bytes(written: object, bytes_: int) -> None:
    assert units.parse_size(written) == bytes_


@pytest.mark.parametrize(
    ("written", "seconds"), [("120s", 120), ("10m", 600), ("1h", 3600), ("250ms", 0.25), ("1.5 h", 5400), (0, 0)]
)
def test_a_duration_with_a_unit_is_seconds(written: object, seconds: float) -> None:
    assert units.parse_duration(written) == seconds


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (30.5, "30.5 has no unit; write a size such as 30.5GiB"),
        ("30.5", "30.5 has no unit; write a size such as 30.5GiB"),
        (512, "512 has no unit; write a size such as 512MiB"),
        (32749125632, "32749125632 has no unit; write a size such as 30.5GiB"),
        ("30GB", "30GB has an unknown unit, GB; write a number and one of B, KiB, MiB, GiB or TiB"),
        ("30gib", "30gib has an unknown unit, gib; write a number and one of B, KiB, MiB, GiB or TiB"),
        (True, "True is not a size; write a number and one of B, KiB, MiB, GiB or TiB, such as 30.5GiB"),
        (-1, "-1 is not a size; write a number and one of B, KiB, MiB, GiB or TiB, such as 30.5GiB"),
    ],
)
def test_a_size_without_a_known_unit_is_refused_with_what_to_write(written: object, words: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        units.parse_size(written)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (120, "120 has no unit; write a duration such as 120s"),
        ("2min", "2min has an unknown unit, min; write a number and one of ms, s, m or h"),
        (float("inf"), "inf is not a duration; write a number and one of ms, s, m or h, such as 120s"),
        (None, "None is not a duration; write a number and one of ms, s, m or h, such as 120s"),
    ],
)
def test_a_duration_without_a_known_unit_is_refused_with_what_to_write(written: object, words: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        units.parse_duration(written)


@given(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.text())))
def test_whatever_is_written_gives_a_number_or_one_line(written: object) -> None:
    for parse in (units.parse_size, units.parse_duration):
        assert len(outcome(parse, written).splitlines()) == 1


def outcome(parse: Callable[[object], float], written: object) -> str:
    try:
        return str(parse(written))
    except ValueError as refusal:
        return str(refusal)


@given(st.integers(1, 999), st.sampled_from(["B", "KiB", "MiB", "GiB", "TiB"]))
def test_a_size_that_is_shown_can_be_written(number: int, unit: str) -> None:
    written = f"{number}{unit}"
    assert units.format_size(units.parse_size(written)) == written


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.25, "250 ms"), (1.24, "1.2 s"), (125, "2 min 5 s"), (12_000, "3 h 20 min")]
)
def test_a_duration_is_shown_as_people_say_it(seconds: float, shown: str) -> None:
    assert units.format_duration(seconds) == shown


@pytest.mark.parametrize(("size", "shown"), [(0, "0B"), (1023, "1023B"), (23_719_496_192, "22.09GiB")])
def test_a_size_is_shown_in_the_largest_unit_that_leaves_a_whole_part(size: int, shown: str) -> None:
    assert units.format_size(size) == shown
