"""What is said on the wire, and the observer that tells a whole stream from a broken one."""

from __future__ import annotations

import json

import pytest

from engines.spec import Api
from slotproxy.observer import Observer
from slotproxy.protocols import ApiError, error_body, error_event, keep_alive, spoken

CHAT = b'data: {"choices":[{"delta":{"content":"say \\"error\\": 1"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
RESPONSES = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"x"}\n\n'
MESSAGES = b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"[DONE]"}}\n\n'

WHOLE = [
    (Api.CHAT, CHAT + b": keep-alive\n\n" + CHAT + DONE),
    (Api.COMPLETIONS, CHAT + b"data:[DONE]\n\n"),
    (Api.RESPONSES, RESPONSES + b'event: response.completed\ndata: {"type":"response.completed"}\n\n'),
    (Api.RESPONSES, RESPONSES + b'data: {"type":"response.incomplete"}\n\n'),
    (Api.MESSAGES, MESSAGES + b'event: message_stop\ndata: {"type":"message_stop"}\n\n'),
    (Api.MESSAGES, MESSAGES + b'data: {"type":\ndata:  "message_stop"}\n\n'),
]
FAILED = [
    (Api.CHAT, CHAT + b'data: {"error": {"message": "out of memory"}}\n\n', False),
    (Api.CHAT, b'data: {"id": 1, "error": {"message": "died"}}\n\n' + DONE, True),
    (Api.RESPONSES, RESPONSES + b'event: response.failed\ndata: {"type":"response.failed"}\n\n', True),
    (Api.RESPONSES, RESPONSES + b'event: error\ndata: {"type":"error"}\n\n', False),
    (Api.MESSAGES, MESSAGES + b'event: error\ndata: {"type":"error"}\n\n', False),
]


def watched(api: Api, stream: bytes, size: int = 1 << 20) -> Observer:
    observer = Observer(api)
    for start in range(0, len(stream), size):
        observer.feed(stream[start : start + size])
    observer.end()
    return observer


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize(("api", "stream"), WHOLE)
def test_a_stream_with_its_end_marker_is_whole_however_it_is_cut(api: Api, stream: bytes, line_end: bytes) -> None:
    stream = stream.replace(b"\n", line_end)
    for cut in range(len(stream) + 1):
        observer = Observer(api)
        observer.feed(stream[:cut])
        observer.feed(stream[cut:])
        observer.end()
        assert (observer.complete, observer.failed) == (True, False), stream[:cut]
    by_the_byte = watched(api, stream, 1)
    assert (by_the_byte.complete, by_the_byte.events) == (True, observer.events)


@pytest.mark.parametrize(("api", "stream"), WHOLE)
def test_a_stream_without_its_end_marker_is_not_whole(api: Api, stream: bytes) -> None:
    marker = stream.rstrip(b"\n").rindex(b"\n\n") + 2
    for cut in range(marker + len(b"data:")):
        assert not watched(api, stream[:cut]).complete, stream[:cut]


@pytest.mark.parametrize(("api", "stream", "complete"), FAILED)
def test_an_error_in_a_stream_is_seen_and_no_marker_takes_it_back(api: Api, stream: bytes, complete: bool) -> None:
    for size in (1, 2, 7, len(stream)):
        observer = watched(api, stream, size)
        assert (observer.failed, observer.complete) == (True, complete)


def test_an_end_marker_counts_as_soon_as_its_event_is_there() -> None:
    observer = Observer(Api.CHAT)
    observer.feed(CHAT + DONE[:-1])
    assert not observer.complete
    observer.feed(DONE[-1:])
    assert observer.complete


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("api", [Api.CHAT, Api.RESPONSES, Api.MESSAGES])
def test_an_error_event_stands_alone_wherever_the_stream_was_cut(api: Api, line_end: bytes) -> None:
    stream = (b": keep-alive\n\n" + RESPONSES).replace(b"\n", line_end)
    error = error_event(api, ApiError(502, "died", "cut_short"), 3)
    for cut in range(len(stream) + 1):
        observer = Observer(api)
        observer.feed(stream[:cut])
        said = stream[:cut] + (b"" if observer.at_boundary else b"\n\n") + error
        last = said.replace(b"\r\n", b"\n").replace(b"\r", b"\n").rstrip(b"\n").rpartition(b"\n\n")[2]
        assert last == error.strip(), stream[:cut]


def test_errors_have_the_shape_of_their_protocol() -> None:
    error = ApiError(503, "no engine", "unavailable", retry_after=1.2)
    assert error.headers() == [(b"retry-after", b"2")]
    assert json.loads(error_body(Api.CHAT, error)) == {
        "error": {"message": "no engine", "type": "server_error", "param": None, "code": "unavailable"}
    }
    anthropic = {"type": "error", "error": {"type": "overloaded_error", "message": "no engine"}}
    assert json.loads(error_body(Api.MESSAGES, error)) == anthropic
    assert error_event(Api.CHAT, error).startswith(b'data: {"error":')
    event = error_event(Api.RESPONSES, error, 7)
    assert event.startswith(b"event: error\ndata: ")
    told = json.loads(event.partition(b"data: ")[2])
    assert (told["type"], told["sequence_number"], told["message"]) == ("error", 7, "no engine")


def test_keep_alives_mean_nothing_to_the_observer() -> None:
    for api in Api:
        observer = Observer(api)
        observer.feed(keep_alive(api) * 3)
        assert observer.at_boundary
        assert not observer.complete
        assert not observer.failed


def test_an_unknown_path_is_answered_in_the_protocol_that_its_client_seems_to_speak() -> None:
    assert spoken("/v1/messages/batches", []) is Api.MESSAGES
    assert spoken("/v1/nothing", [(b"anthropic-version", b"2023-06-01")]) is Api.MESSAGES
    assert spoken("/v1/nothing", []) is Api.OTHER
