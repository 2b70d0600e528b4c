"""A few examples of `python -m tests.fuzz http`, always other ones."""

from __future__ import annotations

import random

from tests.fuzz import http_surface
from tests.fuzz.__main__ import main


def test_nothing_that_a_client_sends_does_harm() -> None:
    http_surface.examples(20, random.randrange(10**6))


def test_the_command_says_that_nothing_was_wrong() -> None:
    assert main(["http", "--minutes", "0", "--seed", "1"]) == 0
