"""A few examples of `python -m tests.fuzz sse`, always other ones; and its reader, by the standard's words."""

from __future__ import annotations

import random

from tests.fuzz import event_streams
from tests.fuzz.__main__ import main


def test_the_observer_sees_what_a_simple_reader_sees_however_a_stream_is_cut() -> None:
    event_streams.examples(200, random.randrange(10**6))


def test_the_command_says_that_nothing_was_wrong() -> None:
    assert main(["sse", "--minutes", "0", "--seed", "1"]) == 0


def test_the_simple_reader_reads_the_standards_own_examples() -> None:
    """Of "9.2.6 Interpreting an event stream", in the order in which they stand there."""
    stocks = b"data: YHOO\ndata: +2\ndata: 10\n\n"
    assert event_streams.read(stocks).events == [(b"", b"YHOO\n+2\n10")]
    four = b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event"
    assert event_streams.read(four).events == [(b"", b"first event"), (b"", b"second event")]
    assert event_streams.read(four).begun == (b"", b" third event")
    empty = b"data\n\ndata\ndata\n\ndata:"
    assert event_streams.read(empty).events == [(b"", b""), (b"", b"\n")]
    assert event_streams.read(b"data:test\n\ndata: test\n\n").events == [(b"", b"test")] * 2
