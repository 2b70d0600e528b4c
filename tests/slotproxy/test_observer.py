"""The observer where streams are odd, huge or hostile. Whole and failed ones are in `test_protocols`."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator

import pytest

from engines.spec import Api
from slotproxy.observer import Observer

MB = 1 << 20
DONE = b"data: [DONE]\n\n"
LONG = 20.0  # seconds for what takes less than one: quadratic code would need minutes


def after(api: Api, *pieces: bytes) -> Observer:
    observer = Observer(api)
    for piece in pieces:
        observer.feed(piece)
    observer.end()
    return observer


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


# ------------------------------------------------------------------------------------------------------ odd ones


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_byte_order_mark_before_the_first_event_means_nothing(size: int) -> None:
    observer = Observer(Api.CHAT)
    for piece in pieces(b"\xef\xbb\xbf", size):
        observer.feed(piece)
    assert observer.at_boundary
    assert after(Api.CHAT, *pieces(b"\xef\xbb\xbf" + DONE, size)).complete
    assert not after(Api.CHAT, *pieces(b"\xef\xbb\xbf" * 2 + DONE, size)).complete
    assert not after(Api.CHAT, *pieces(b"\n\xef\xbb\xbf" + DONE, size)).complete


@pytest.mark.parametrize(
    ("api", "last"),
    [
        (Api.CHAT, b"data: [DONE]"),
        (Api.CHAT, b"data: [DONE]\n"),
        (Api.MESSAGES, b'event: message_stop\ndata: {"type":"message_stop"}'),
        (Api.RESPONSES, b'data: {"type":"response.completed"}\r'),
    ],
)
def test_an_end_marker_that_nothing_closes_counts_at_the_end(api: Api, last: bytes) -> None:
    observer = Observer(api)
    observer.feed(last)
    assert not observer.complete
    observer.end()
    assert observer.complete
    assert not observer.at_boundary


@pytest.mark.parametrize(
    ("api", "last"),
    [
        (Api.RESPONSES, b'event: response.completed\ndata: {"type":"response.completed","response":{"output":['),
        (Api.MESSAGES, b'event: message_stop\ndata: {"type":"mess'),
        (Api.MESSAGES, b"event: message_stop\n"),
        (Api.MESSAGES, b"event: error\ndata: {"),
        (Api.CHAT, b'data: {"error": {"mess'),
    ],
)
def test_an_event_whose_data_was_cut_is_no_marker(api: Api, last: bytes) -> None:
    observer = after(api, last)
    assert (observer.complete, observer.failed, observer.events) == (False, False, 0)
    assert not observer.at_boundary


@pytest.mark.parametrize(
    "data",
    [
        b'{"error":{"message":"half a pair: \\ud800"}}',
        b'{"error":{"message":"bytes \xff"},"\xff":1}',
        b'{"logprob":NaN,"error":{"message":"died"}}',
        b'{"error":"tab\there"}',
        b'{"error":{"code":' + b"9" * 5000 + b"}}",
    ],
)
@pytest.mark.parametrize("api", [Api.CHAT, Api.RESPONSES, Api.MESSAGES])
def test_an_error_that_only_lenient_parsers_can_read_is_one(api: Api, data: bytes) -> None:
    observer = after(api, b"data: " + data + b"\n\n")
    assert observer.failed
    assert observer.refusal == data


@pytest.mark.parametrize("data", [b'{"error":' + b"[" * 100_000, b'{"error":NaN' + b"{" * 99, b'["error"]', b'"error"'])
def test_what_cannot_be_read_as_an_object_is_neither_an_error_nor_a_fault_of_ours(data: bytes) -> None:
    for api in Api:
        observer = after(api, b"data: " + data + b"\n\n")
        assert (observer.complete, observer.failed, observer.events) == (False, False, 1)


def test_the_name_that_all_events_have_by_default_says_no_more_than_none() -> None:
    assert after(Api.MESSAGES, b'event: message\ndata: {"type":"message_stop"}\n\n').complete
    assert after(Api.RESPONSES, b'event: message\ndata: {"type":"response.failed"}\n\n').failed
    assert not after(Api.MESSAGES, b'event: other\ndata: {"type":"message_stop"}\n\n').complete


# ----------------------------------------------------------------------------------------------- huge and hostile


@pytest.mark.parametrize(
    "part",
    [b"data: " + b"x" * 5000, b"\ndata: " + b"y" * 5000, b"data\n" * 5000, b"data:\n" * 5000, b"event: " + b"z" * 5000],
    ids=["one line", "lines", "no value", "empty values", "a name"],
)
def test_an_event_that_is_huge_costs_no_more_memory_than_the_limit(
    part: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Observer, "LONGEST", 20_000)
    observer = Observer(Api.CHAT)
    tracemalloc.start()
    try:
        for _ in range(100):
            observer.feed(part)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held <= 12 * Observer.LONGEST  # of empty lines there are as many as it has bytes, and each has its place
    assert not observer.at_boundary
    observer.feed(b"\n\n" + DONE)
    assert observer.complete


@pytest.mark.parametrize("size", [1000, 1 << 16, 8 * MB])
def test_a_marker_too_long_to_be_kept_is_known_by_its_name_or_by_the_type_it_begins_with(size: int) -> None:
    long = b'data: {"type":"response.completed","response":"' + b"x" * 2 * MB + b'"}\n\n'
    assert after(Api.RESPONSES, *pieces(long, size)).complete
    assert after(Api.RESPONSES, *pieces(b"event: response.completed\n" + long, size)).complete
    assert not after(Api.RESPONSES, *pieces(long.replace(b"completed", b"deltadelt"), size)).complete


@pytest.mark.parametrize(
    "stream",
    [
        b"x" * 4 * MB,
        b"data: " + b"x" * 4 * MB,
        b"data:\n" * (MB // 2),
        b"data\n" * (MB // 2),
        b"\n" * MB,
        b"\r" * MB,
        b"data: x\n\n" * (MB // 8),
        b'data: "error"\n\n' * (MB // 16),
        b'data: {"error":' + b"[" * 4 * MB,
        b'"text":' * (MB // 2) + b"\n\n",
        b'data: "text": ' * (MB // 2) + b"\n\n",
    ],
    ids=range(11),
)
def test_the_time_is_that_of_reading_whatever_comes(stream: bytes) -> None:
    began = time.process_time()
    after(Api.RESPONSES, *pieces(stream, 1 << 16))
    assert time.process_time() - began < LONG


def test_a_line_that_comes_by_the_byte_takes_no_time_that_grows_with_it() -> None:
    began = time.process_time()
    after(Api.CHAT, *pieces(b"data: " + b"x" * (MB // 2), 1))
    assert time.process_time() - began < LONG
