"""A few examples of `python -m tests.fuzz bodies`, always other ones; and that its tokenizer and comparing see harm."""

from __future__ import annotations

import random

import pytest

from tests.fuzz import bodies
from tests.fuzz.__main__ import main


def test_of_any_body_only_what_must_be_changed_is_changed() -> None:
    bodies.examples(100, random.randrange(10**6))


def test_the_tokenizer_takes_an_object_apart_without_touching_a_byte() -> None:
    text = b' {"a" : [1.0 , {"b":"},\\"" }],\n"a":-0,"\\u0062": "\\ud83e\xff" } '
    expected = [(b'"a"', b'[1.0 , {"b":"},\\"" }]'), (b'"a"', b"-0"), (b'"\\u0062"', b'"\\ud83e\xff"')]
    assert bodies.members(text) == expected
    assert bodies.last_ones(text) == {"a": b"-0", "b": b'"\\ud83e\xff"'}
    assert bodies.members(b"{ }") == []


@pytest.mark.parametrize("came", [b'"n":1.00', b'"n":1', b'"n": 1.0,"x":1', b'"m":1.0'])
def test_the_comparing_sees_harm(came: bytes) -> None:
    added = b'"chat_template_kwargs":{"enable_thinking":false,"nested":{"depth":1}}'
    bodies.compare(b'{"n":1.0}', b'{"n":1.0,"temperature":0,' + added + b"}")
    with pytest.raises(AssertionError):
        bodies.compare(b'{"n":1.0}', b"{" + came + b',"temperature":0,' + added + b"}")


def test_the_command_says_that_nothing_was_wrong() -> None:
    assert main(["bodies", "--minutes", "0", "--seed", "1"]) == 0
