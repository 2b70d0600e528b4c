"""Streams that never come to their end, or come to a bad one: the client is told, and nobody counts them as served.

Cases 7, 8 and 9.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator

import pytest

from engines.ninfer.profile import PROFILE as NINFER
from engines.spec import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from engines.strata.profile import PROFILE as STRATA
from slotproxy.outcomes import Outcome
from tests.engines.ninfer_child import MODEL, Child, child
from tests.engines.strata_sim import Simulator, started
from tests.slotproxy.rig import (
    AT_ONCE,
    DONE,
    SSE,
    Client,
    Conversation,
    Seen,
    Upstream,
    browser,
    chunk,
    engine,
    eventually,
    impatient,
    proxied,
    saying,
)
from tests.slotproxy.streams import LAST, PLAIN_SSE, event, marker, question

PATHS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
SILENCE = 0.5  # seconds of it that end a stream


def last_event(client: Client) -> bytes:
    return [found for found in client.body.split(b"\n\n") if found][-1]


def check_told(client: Client, path: str, who: str = "strata") -> None:
    """The stream's last event is an error in the protocol's shape, and nothing says that the stream is whole."""
    said = last_event(client)
    told = json.loads(said.rpartition(b"data: ")[2])
    assert who in told["error"]["message"]
    if path in (RESPONSES, MESSAGES):
        assert said.startswith(b"event: error\n")
        assert told["type"] == "error"
    for end in (b"[DONE]", b"message_stop", b"response.completed", b"response.incomplete", b"response.failed"):
        assert end not in client.body
    assert not client.ended_whole


# ---------------------------------------------------------------------------------- 7: a queued stream, and nothing


@pytest.fixture(scope="module")
def ninfer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """It is soon tired of what it queues."""
    with child(tmp_path_factory.mktemp("ninfer"), decode_ms=2, pending_timeout_s=0.3) as running:
        yield running


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
async def test_case_7_a_queued_stream_that_ends_with_nothing_is_an_error_and_no_success(
    path: str, ninfer: Child
) -> None:
    """Case 7: NInfer is busy with somebody who came by another way, queues ours, and forgets it."""
    async with (
        Client.at(ninfer.port) as busy,
        proxied(engine(ninfer.url, name="ninfer", profile=NINFER)) as proxy,
        Client.at(proxy.port) as client,
    ):
        await busy.post(CHAT, question(CHAT, model=MODEL, max_tokens=100_000))
        await busy.until(b"delta")
        await client.post(path, question(path, model=MODEL))
        await client.rest()
        await proxy.counted(Outcome.TRUNCATED)
        await proxy.idle()
    assert client.got.startswith(b"HTTP/1.1 200")
    check_told(client, path, "ninfer")


async def test_case_7_neighbour_what_was_no_stream_gets_the_engines_own_refusal(ninfer: Child) -> None:
    async with Client.at(ninfer.port) as busy, proxied(engine(ninfer.url, name="ninfer", profile=NINFER)) as proxy:
        await busy.post(CHAT, question(CHAT, model=MODEL, max_tokens=100_000))
        await busy.until(b"delta")
        async with browser() as client:
            answer = await client.post(proxy.url + CHAT, json=question(CHAT, stream=False, model=MODEL))
        await proxy.counted(Outcome.FAILED)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "request_queue_timeout")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("said", [(SSE, LAST), (PLAIN_SSE,), (SSE, chunk(b": keep-alive\n\n"), LAST)])
async def test_case_7_neighbour_a_stream_of_no_event_is_no_success_however_it_ends(
    said: tuple[bytes, ...], path: str
) -> None:
    async with Upstream(saying(*said)) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        await client.post(path, question(path))
        await client.rest()
        await proxy.counted(Outcome.TRUNCATED)
    check_told(client, path)


# ------------------------------------------------------------------------------- 8: the engine dies in the middle


class Dying:
    """An engine that breaks off after one event, and remembers when."""

    def __init__(self, how: str, path: str) -> None:
        self._how, self._path = how, path
        self.broke = 0.0

    async def __call__(self, talk: Conversation, _: Seen) -> None:
        head = PLAIN_SSE if self._how == "a 1.0 server's end" else SSE
        await talk.send(head, event(self._path) if head is PLAIN_SSE else chunk(event(self._path)))
        await asyncio.sleep(0.05)  # what was sent is on its way before a reset could overtake it
        self.broke = time.monotonic()
        match self._how:
            case "reset":
                talk.reset()
            case "clean end":
                await talk.send(LAST)
            case "stall":
                await talk.left()
            case "in the middle of an event":
                await talk.send(chunk(b'data: {"choi'))
            case "in the middle of a chunk":
                await talk.send(chunk(event(self._path))[:-9])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "how",
    [
        "reset",
        "no last chunk",
        "clean end",
        "a 1.0 server's end",
        "stall",
        "in the middle of an event",
        "in the middle of a chunk",
    ],
)
async def test_case_8_an_engine_that_dies_in_the_middle_is_told_in_band_within_a_second_and_the_connection_aborted(
    how: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    dying = Dying(how, path)
    profile = impatient(SILENCE if how == "stall" else 60.0)
    async with Upstream(dying) as up, proxied(engine(up.url, profile=profile)) as proxy:
        async with Client.at(proxy.port) as client:
            await client.post(path, question(path))
            await client.rest()
            took = time.monotonic() - dying.broke
        await proxy.counted(Outcome.TRUNCATED)
        await proxy.idle()
        await eventually(lambda: up.open == 0)
    assert took < AT_ONCE
    assert took > SILENCE / 2 or how != "stall"
    assert client.body.startswith(event(path))
    check_told(client, path)
    assert len(up.seen) == 1
    assert not [line for line in caplog.records if line.name.startswith("uvicorn")]


ANY = b'data: {"choices":[]}\n\n'


@pytest.mark.parametrize(
    ("path", "end", "outcome"),
    [
        (CHAT, DONE, Outcome.SERVED),
        (COMPLETIONS, DONE, Outcome.SERVED),
        (RESPONSES, b'event: response.completed\ndata: {"type":"response.completed"}\n\n', Outcome.SERVED),
        (RESPONSES, b'event: response.incomplete\ndata: {"type":"response.incomplete"}\n\n', Outcome.SERVED),
        (RESPONSES, b'event: response.failed\ndata: {"type":"response.failed"}\n\n', Outcome.FAILED),
        (RESPONSES, b'data: {"type":"response.completed"}\n\n', Outcome.SERVED),
        (MESSAGES, b'event: message_stop\ndata: {"type":"message_stop"}\n\n', Outcome.SERVED),
        (RESPONSES, DONE, Outcome.TRUNCATED),
        (MESSAGES, DONE, Outcome.TRUNCATED),
        (CHAT, b'data: {"type":"message_stop"}\n\n', Outcome.TRUNCATED),
        (CHAT, b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n', Outcome.TRUNCATED),
        (CHAT, b"data: [DON", Outcome.TRUNCATED),
        (CHAT, b'data: {"content":"data: [DONE]"}\n\n', Outcome.TRUNCATED),
        (MESSAGES, b"event: message_sto", Outcome.TRUNCATED),
    ],
)
async def test_case_8_each_protocol_has_its_own_end_and_no_other_is_taken_for_it(
    path: str, end: bytes, outcome: Outcome
) -> None:
    said = (SSE, chunk(ANY), chunk(end), LAST)
    async with Upstream(saying(*said)) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        await client.post(path, question(path), b"connection: close")
        await client.rest()
        await proxy.counted(outcome)
    assert client.ended_whole is (outcome is not Outcome.TRUNCATED)
    assert (client.body == ANY + end) is (outcome is not Outcome.TRUNCATED)


async def test_case_8_neighbour_a_client_of_http_1_0_is_told_in_band_for_it_has_no_last_chunk_to_miss() -> None:
    body = json.dumps(question(CHAT)).encode()
    async with Upstream(saying(SSE, chunk(event(CHAT)))) as up, proxied(engine(up.url)) as proxy:
        async with Client.at(proxy.port) as client:
            client.writer.write(b"POST %b HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body))
            await client.rest()
        await proxy.counted(Outcome.TRUNCATED)
    check_told(client, CHAT)


async def test_case_8_neighbour_a_client_of_http_1_0_can_tell_a_cut_answer_that_is_no_stream_by_a_reset() -> None:
    """Case 8: it waits for no last chunk and no length, so an ordinary end would look like the end of the answer."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"
    body = json.dumps(question(CHAT, stream=False)).encode()
    async with Upstream(saying(head, chunk(b"the first half"))) as up, proxied(engine(up.url)) as proxy:
        async with Client.at(proxy.port) as client:
            client.writer.write(b"POST %b HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body))
            with pytest.raises(ConnectionResetError):
                await client.rest()
        await proxy.counted(Outcome.TRUNCATED)
    assert client.got.endswith(b"the first half")


# ------------------------------------------------------------------------------------- 9: `[DONE]` after an error


@pytest.fixture(scope="module")
def strata(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulator]:
    """Its engine dies in each answer, after three tokens."""
    with started(tmp_path_factory.mktemp("strata"), "--sim-fault", "crash:3") as simulator:
        yield simulator


@pytest.mark.parametrize(("path", "says_done"), [(CHAT, True), (MESSAGES, False)])
async def test_case_9_an_error_of_stratas_passes_through_with_its_done_and_counts_as_failed(
    path: str, says_done: bool, strata: Simulator
) -> None:
    """Case 9: in messages there is no marker at all, and none is made up."""
    async with proxied(engine(strata.url, profile=STRATA)) as proxy, Client.at(proxy.port) as client:
        await client.post(path, question(path), b"connection: close")
        await client.rest()
        await proxy.counted(Outcome.FAILED)
        await proxy.idle()
    assert b'"error"' in last_event(client) or says_done
    assert client.ended_whole
    assert client.body.count(b'"error"') == 1 + (path == MESSAGES)
    assert client.body.endswith(DONE) is says_done
    assert b"message_stop" not in client.body


@pytest.mark.parametrize(
    ("path", "error"),
    [
        (CHAT, b'data: {"error": {"message": "engine died"}}\n\n'),
        (CHAT, b'event: error\ndata: {"message": "engine died"}\n\n'),
        (COMPLETIONS, b'data: {"error": "engine died"}\n\n'),
        (MESSAGES, b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"x"}}\n\n'),
        (RESPONSES, b'event: error\ndata: {"type":"error","message":"x"}\n\n'),
    ],
)
@pytest.mark.parametrize("ends", [True, False])
async def test_case_9_neighbour_in_every_protocol_an_engines_error_is_handed_on_once_with_or_without_an_end(
    ends: bool, path: str, error: bytes
) -> None:
    stream = event(path) + error + (marker(path) if ends else b"")
    async with Upstream(saying(PLAIN_SSE, stream)) as up, proxied(engine(up.url)) as proxy:
        async with Client.at(proxy.port) as client:
            await client.post(path, question(path), b"connection: close")
            await client.rest()
        await proxy.counted(Outcome.FAILED)
    assert client.body == stream


@pytest.mark.parametrize("path", PATHS)
async def test_case_9_neighbour_an_engine_that_dies_of_the_error_it_has_told_is_not_told_of_again(path: str) -> None:
    error = b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"x"}}\n\n'

    async def behave(talk: Conversation, _: Seen) -> None:
        await talk.send(SSE, chunk(event(path)), chunk(error))

    async with Upstream(behave) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        await client.post(path, question(path))
        await client.rest()
        await eventually(lambda: sum(proxy.outcomes.counts.values()) == 1)
        assert not proxy.outcomes.counts[Outcome.SERVED]
    assert client.body == event(path) + error
    assert not client.ended_whole


async def test_case_9_neighbour_an_error_that_the_model_only_talks_about_is_none() -> None:
    stream = event(CHAT, r"\"error\": {\"message\": \"x\"}") + b'data: {"error": null, "choices": []}\n\n' + DONE
    async with Upstream(saying(PLAIN_SSE, stream)) as up, proxied(engine(up.url)) as proxy, browser() as client:
        answer = await client.post(proxy.url + CHAT, json=question(CHAT))
        assert answer.content == stream
        await proxy.counted(Outcome.SERVED)
