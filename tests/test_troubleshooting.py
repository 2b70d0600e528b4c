"""docs/troubleshooting.md has every error that an operator can meet, and none that nobody says any more."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.messages import ROOT, messages

DOCUMENT = ROOT / "docs" / "troubleshooting.md"
ROW = re.compile(r"^\| (?:`` (?P<ticked>.+?) ``|`(?P<plain>[^`]+)`) \| (?P<means>.+?) \| (?P<do>.+?) \|$")


def rows() -> dict[str, tuple[str, str]]:
    """By message: what it means, and what to do."""
    found = [match for line in DOCUMENT.read_text().splitlines() if (match := ROW.match(line))]
    return {
        (one["ticked"] or one["plain"]).replace("\\|", "|"): (one["means"].strip(), one["do"].strip()) for one in found
    }


def test_every_error_has_its_row() -> None:
    written = rows()
    missing = {one.template: one.where for one in messages() if one.template not in written}
    lines = [f"| `{template}` | … | … |   ({where})" for template, where in sorted(missing.items())]
    assert not missing, "docs/troubleshooting.md lacks these rows:\n" + "\n".join(lines)


def test_no_row_is_of_an_error_that_nobody_says() -> None:
    said = {one.template for one in messages()}
    stale = [message for message in rows() if message not in said]
    assert not stale, "docs/troubleshooting.md has rows that nothing says any more:\n" + "\n".join(stale)


def test_each_row_says_what_it_means_and_what_to_do_and_stands_once() -> None:
    lines = [line for line in DOCUMENT.read_text().splitlines() if line.startswith(("| `", "| ``"))]
    unreadable = [line for line in lines if not ROW.match(line)]
    assert not unreadable, "these rows aren't `message`, meaning, what to do:\n" + "\n".join(unreadable)
    empty = [message for message, (means, do) in rows().items() if len(means) < 3 or len(do) < 3]
    assert not empty
    twice = [line for line, count in Counter(line.split(" | ")[0] for line in lines).items() if count > 1]
    assert not twice


@pytest.mark.parametrize(
    "said",
    [
        "only … of the card are free, … are needed; held by …",
        "… listens at … already and would answer in its place; stop it",
        "was stopped by hand",
        "never ran on this card…",
        "slotproxy is stopping; try again in a moment",
        "the answer was no answer of slotproxy's (HTTP …)",
    ],
)
def test_the_messages_are_read_from_the_source(said: str) -> None:
    assert said in {one.template for one in messages()}
