"""A few examples of `python -m tests.fuzz answers`, always other ones."""

from __future__ import annotations

import random

from tests.fuzz import answers
from tests.fuzz.__main__ import main


def test_any_answer_arrives_as_it_was_sent_and_is_counted_as_what_it_was() -> None:
    answers.examples(100, random.randrange(10**6))


def test_the_command_says_that_nothing_was_wrong() -> None:
    assert main(["answers", "--minutes", "0", "--seed", "1"]) == 0
