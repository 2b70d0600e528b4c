"""How requests end: each kind is told apart, counted once, and a line of the log under the request's own id."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import structlog

from engines.spec import CHAT, MESSAGES, RESPONSES
from slotproxy.config import Limits
from slotproxy.config_slots import SlotSettings
from slotproxy.house import Patience
from slotproxy.outcomes import Outcome
from slotproxy.supervision import Unsupervised
from tests.slotproxy.rig import (
    DONE,
    RUN,
    SSE,
    Behaviour,
    Client,
    Conversation,
    Seen,
    Upstream,
    ask,
    browser,
    chunk,
    delta,
    engine,
    eventually,
    impatient,
    proxied,
    saying,
    whole,
)

SECRET = "the prompt, word for word"
ERROR = json.dumps({"error": {"message": SECRET, "type": "server_error", "code": 500}}).encode()
ID = b"x-request-id: by-which-it-is-known"
MESSAGE_STOP = b'event: message_stop\ndata: {"type": "message_stop"}\n\n'
COMPLETED = b'event: response.completed\ndata: {"type": "response.completed"}\n\n'


def stream(*events: bytes, kind: bytes = b"text/event-stream", coding: bytes = b"") -> bytes:
    """A whole answer in chunks, as far as HTTP goes."""
    head = SSE.replace(b"text/event-stream", kind)
    if coding:
        head = head.replace(b"\r\n\r\n", b"\r\ncontent-encoding: " + coding + b"\r\n\r\n")
    return head + b"".join(map(chunk, events)) + b"0\r\n\r\n"


def one_by_one(packed: bytes) -> list[bytes]:
    return [packed[at : at + 1] for at in range(len(packed))]


def members(*parts: bytes) -> bytes:
    """Gzip's own way to go on: one after another."""
    return b"".join(map(gzip.compress, parts))


JSON_1_0 = b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n"
IN_BAND = b"data: " + ERROR + b"\n\n"
NO_HTTP = b"HTTP/1.1 200 %b\r\n%b\r\n\r\n" % (SECRET.encode(), SECRET.encode())
BOM = b"\xef\xbb\xbf"

ENDS: dict[str, tuple[str, bytes, str, str]] = {
    # what the engine says, and how that ends: path, answer, outcome, how
    "whole": (CHAT, stream(delta(), DONE), "served", ""),
    "whole, whatever its type looks like": (CHAT, stream(DONE, kind=b"Text/Event-Stream; charset=UTF-8"), "served", ""),
    "whole, and JSON where a stream was asked for": (CHAT, whole(b'{"choices": []}'), "served", ""),
    "whole, and a stream of another kind": (CHAT, stream(b'{"a":1}\n', kind=b"application/x-ndjson"), "served", ""),
    "whole JSON that only its connection's end ends": (CHAT, JSON_1_0 + b'{"choices": []}\r\n', "served", ""),
    "whole, with no error in it": (RESPONSES, whole(b'{"error": null, "output": []}'), "served", ""),
    "a client's own mistake": (CHAT, whole(ERROR, status=b"400 Bad"), "served", ""),
    "a path that the engine hasn't": (CHAT, whole(ERROR, status=b"404 Not Found"), "served", ""),
    "an error by its status": (CHAT, whole(ERROR, status=b"500 Failed"), "failed", "status"),
    "busy, by its status": (CHAT, whole(ERROR, status=b"429 Busy"), "failed", "status"),
    "an error in the stream": (CHAT, stream(delta(), IN_BAND), "failed", "in-band"),
    "an error in the stream, and then its marker": (CHAT, stream(IN_BAND, DONE), "failed", "in-band"),
    "an error in the stream after a byte order mark": (CHAT, stream(BOM + IN_BAND), "failed", "in-band"),
    "an error of messages": (MESSAGES, stream(b"event: error\n" + IN_BAND), "failed", "in-band"),
    "an error that messages' clients pass over, having no name": (MESSAGES, stream(IN_BAND), "failed", "in-band"),
    "an error of responses": (RESPONSES, stream(b"event: error\n" + IN_BAND), "failed", "in-band"),
    "an error with the status of success": (CHAT, whole(ERROR), "failed", "in-band"),
    "a response that failed, with the status of success": (
        RESPONSES,
        whole(b'{"object":"response","status":"failed","error":{"code":"server_error","message":"x"},"output":[]}'),
        "failed",
        "in-band",
    ),
    "no marker": (CHAT, stream(delta()), "truncated", "cut_short"),
    "no marker, in a type with parameters": (CHAT, stream(kind=b"TEXT/event-stream;x=y"), "truncated", "cut_short"),
    "the marker of another protocol": (MESSAGES, stream(DONE), "truncated", "cut_short"),
    "JSON that breaks off with its connection": (CHAT, JSON_1_0 + b'{"choices": [', "truncated", "cut_short"),
    "JSON that breaks off within its length": (CHAT, whole(b'{"choices": []}')[:-3], "truncated", "cut_short"),
    "no HTTP": (CHAT, NO_HTTP, "failed", "no_answer"),
    "no word": (CHAT, b"", "failed", "no_answer"),
    "broken chunks": (CHAT, SSE + SECRET.encode() + b"\r\n", "truncated", "cut_short"),
    "whole and compressed": (CHAT, stream(*one_by_one(gzip.compress(delta() + DONE)), coding=b"gzip"), "served", ""),
    "whole and deflated": (CHAT, stream(zlib.compress(delta() + DONE), coding=b"Deflate"), "served", ""),
    "whole and compressed in parts": (MESSAGES, stream(members(b": a\n", MESSAGE_STOP), coding=b"gzip"), "served", ""),
    "compressed, with an error in it": (CHAT, stream(gzip.compress(IN_BAND), coding=b"gzip"), "failed", "in-band"),
    "compressed, without a marker": (CHAT, stream(gzip.compress(delta()), coding=b"gzip"), "truncated", "cut_short"),
    "compressed in a way that nobody here can read": (CHAT, stream(b"\x0b\x02\x80", coding=b"br"), "served", "unread"),
    "compressed, it says": (CHAT, stream(delta(), DONE, coding=b"gzip"), "served", "unread"),
    "compressed, and what it unpacks to is huge": (
        CHAT,
        stream(gzip.compress(b"data: " + b"x" * 10_000_000 + b"\n\n" + DONE), coding=b"gzip"),
        "served",
        "",
    ),
}  # fmt: skip


@contextmanager
def logged() -> Iterator[list[dict[str, Any]]]:
    with structlog.testing.capture_logs() as lines:
        yield lines  # type: ignore[misc]  # structlog's dicts


@pytest.mark.parametrize("name", ENDS)
async def test_it_is_counted_once_and_told_under_its_id(name: str) -> None:
    path, said, outcome, how = ENDS[name]
    with logged() as lines:
        async with Upstream(saying(said)) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
            await client.post(path, ask(stream=True), ID, b"connection: close", b"accept-encoding: gzip")
            await client.rest()
            await proxy.counted(Outcome(outcome))
    (line,) = [line for line in lines if line["event"] == "request"]
    assert (line["outcome"], line.get("how", ""), line["id"]) == (outcome, how, "by-which-it-is-known")
    assert b"\r\nx-request-id: by-which-it-is-known\r\n" in client.got
    assert SECRET not in json.dumps(lines, default=str)
    if "pass over" in name:
        assert client.body.startswith(IN_BAND + b"event: error\n")
        assert not client.ended_whole
    elif outcome in ("served", "failed") and said:
        assert client.ended_whole is (b"0\r\n\r\n" in said or JSON_1_0 in said)
    if outcome == "truncated":
        assert not client.ended_whole


def _begun(so_far: bytes) -> Behaviour:
    """Says so much, and nothing more until its connection is closed."""

    async def behave(talk: Conversation, _: Seen) -> None:
        if so_far:
            await talk.send(so_far)
        await talk.left()

    return behave


STALLED = [(SSE + chunk(delta()), "truncated", "stalled"), (b"", "failed", "timed_out")]


@pytest.mark.parametrize(("so_far", "outcome", "how"), STALLED)
async def test_silence_is_told_from_breaking_off(so_far: bytes, outcome: str, how: str) -> None:
    with logged() as lines:
        async with Upstream(_begun(so_far)) as up, proxied(engine(up.url, profile=impatient(1.0))) as proxy:
            async with Client.at(proxy.port) as client:
                await client.post(CHAT, ask(stream=True), b"connection: close")
                await client.rest()
            await proxy.counted(Outcome(outcome))
    assert [line["how"] for line in lines if line["event"] == "request"] == [how]


@pytest.mark.parametrize("so_far", [SSE + chunk(delta()), b""])
async def test_what_the_operator_cuts_off_is_no_failure_of_the_engine(so_far: bytes) -> None:
    with logged() as lines:
        async with Upstream(_begun(so_far)) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
            await client.post(CHAT, ask(stream=True), ID, b"connection: close")
            await eventually(lambda: len(up.seen) == 1)
            if so_far:
                await client.until(b"hi")
            assert proxy.gate.cut() == 1
            await client.rest()
            await proxy.counted(Outcome.CUT)
    (line,) = [line for line in lines if line["event"] == "request"]
    assert (line["how"], line["id"]) == ("cut", "by-which-it-is-known")
    assert b'"cut"' in client.got


async def test_who_leaves_is_told_from_who_stays_and_reads_nothing() -> None:
    async def endless(talk: Conversation, _: Seen) -> None:
        while True:
            await talk.send(SSE, *[chunk(b": " + b"x" * 60_000 + b"\n\n")] * 1000)

    with logged() as lines:
        async with Upstream(endless) as up, proxied(engine(up.url), patience=Patience(write=1.0)) as proxy:
            async with Client.at(proxy.port) as client:
                await client.post(CHAT, ask(stream=True))
                await proxy.counted(Outcome.CANCELLED, 1)
            async with Client.at(proxy.port) as other:
                await other.post(CHAT, ask(stream=True))
                await other.until(b"\r\n\r\n")
                other.writer.transport.abort()
                await proxy.counted(Outcome.CANCELLED, 2)
    assert [line["how"] for line in lines if line["event"] == "request"] == ["not_reading", "left"]


async def test_what_never_reached_an_engine_says_which_rule_it_was() -> None:
    slots = {"anonymous": SlotSettings("anonymous", max_hold=0.1)}
    limits = Limits(max_body=1000)
    nobody = engine("http://127.0.0.1:1")
    with logged() as lines:
        async with proxied(nobody, slots=slots, limits=limits, opened=False) as proxy, browser(proxy.url) as client:
            sent = [ask(), {"model": 7}, {"x": "y" * 2000}]
            statuses = [(await client.post(CHAT, json=one)).status_code for one in sent]
            proxy.gate.refuse("the operator has his reasons")
            statuses.append((await client.post(CHAT, json=ask())).status_code)
            proxy.gate.open("strata", 1)
            statuses.append((await client.post(CHAT, json=ask())).status_code)
    assert statuses == [503, 400, 413, 503, 502]
    told = [(line["outcome"], line["how"]) for line in lines if line["event"] == "request"]
    assert told == [
        ("expired", "wait_expired"),
        ("refused", "invalid_model"),
        ("refused", "body_too_large"),
        ("refused", "unavailable"),
        ("failed", "unreachable"),
    ]


async def test_a_compressed_stream_is_never_written_into_and_never_looks_whole_when_it_breaks() -> None:
    packed = gzip.compress(delta())
    async with Upstream(saying(stream(packed, coding=b"gzip"))) as up, proxied(engine(up.url)) as proxy:
        async with Client.at(proxy.port) as client:
            await client.post(CHAT, ask(stream=True), b"accept-encoding: gzip")
            await client.rest()
        assert up.seen[0].all(b"accept-encoding") == [b"gzip"]
    assert client.body == packed
    assert not client.ended_whole


async def test_a_client_of_pings_is_told_of_a_stream_that_comes_compressed_although_it_must_not() -> None:
    limits = Limits(first_ping=0.05, ping_every=0.05)
    said = stream(gzip.compress(delta() + DONE), coding=b"gzip")
    async with Upstream(saying(said)) as up, proxied(engine(up.url), limits=limits, opened=False) as proxy:
        async with Client.at(proxy.port) as client:
            await client.post(CHAT, ask(stream=True), b"accept-encoding: gzip")
            await client.until(b": keep-alive")
            proxy.gate.open("strata", 1)
            await client.rest()
        await proxy.counted(Outcome.FAILED)
        assert up.seen[0].all(b"accept-encoding") == [b"identity"]
    assert b"uncompressed stream" in client.body
    assert not client.ended_whole


async def test_a_fault_of_our_own_is_told_in_json_and_in_a_line_that_quotes_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        try:
            raise KeyError(SECRET)
        except KeyError as error:
            raise ValueError(f"can't read {SECRET}") from error

    with logged() as lines:
        async with proxied(engine("http://127.0.0.1:1")) as proxy, browser(proxy.url) as client:
            monkeypatch.setattr("slotproxy.models.Models.check", broken)
            monkeypatch.setattr("slotproxy.models.Models.names", property(broken))
            answers = [
                await client.post(CHAT, json=ask()),
                await client.get("/v1/models", headers={"anthropic-version": "1"}),
            ]
            monkeypatch.setattr("slotproxy.app.bad_target", broken)
            answers.append(await client.get("/health"))
            await asyncio.sleep(0)
    assert [answer.status_code for answer in answers] == [500] * 3
    assert [answer.json()["error"]["message"].partition(";")[0] for answer in answers] == [
        "slotproxy itself failed"
    ] * 3
    faults = [line for line in lines if line["event"] == "a fault of slotproxy's own"]
    assert [line["id"] for line in faults] == [answer.headers["x-request-id"] for answer in answers]
    assert all(line["error"] == "ValueError from KeyError" and "broken" in line["at"][-1] for line in faults)
    assert SECRET not in json.dumps(lines, default=str)


class Listening(Unsupervised):
    """What is said of the engine."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def answered(self, run: str) -> None:
        self.heard.append(f"{run} answers")

    def error(self, run: str, why: str) -> bool:
        self.heard.append(f"{run}: {why}")
        return False


SAID_OF_IT = [
    (whole(b'{"choices": []}'), f"{RUN} answers"),
    (whole(ERROR), f"{RUN}: in-band 500 server_error, request by-which-it-is-known"),
    (whole(ERROR, status=b"500 Failed"), f"{RUN}: HTTP 500 server_error, request by-which-it-is-known"),
    (stream(IN_BAND), f"{RUN}: in-band 500 server_error, request by-which-it-is-known"),
    (stream(gzip.compress(IN_BAND), coding=b"gzip"), f"{RUN}: in-band 500 server_error, request by-which-it-is-known"),
    (stream(gzip.compress(delta() + DONE), coding=b"gzip"), f"{RUN} answers"),
]


@pytest.mark.parametrize(("said", "heard"), SAID_OF_IT)
async def test_what_an_error_says_of_the_engine_is_its_name_and_the_requests_id(said: bytes, heard: str) -> None:
    ears = Listening()
    async with Upstream(saying(said)) as up, proxied(engine(up.url), supervision=ears) as proxy:
        async with Client.at(proxy.port) as client:
            await client.post(CHAT, ask(stream=True), ID, b"connection: close")
            await client.rest()
        await proxy.idle()
    assert ears.heard == [heard]


# ---------------------------------------------------------------------------------------------------- one id


ANSWERS = [
    ("GET", "/health", 200),
    ("HEAD", "/health", 200),
    ("GET", "/v1/models", 200),
    ("GET", "/v1/models/nobody", 404),
    ("OPTIONS", CHAT, 204),
    ("GET", CHAT, 405),
    ("DELETE", "/v1/models", 405),
    ("GET", "/nowhere", 404),
    ("POST", CHAT, 200),
]


@pytest.mark.parametrize(("method", "path", "status"), ANSWERS)
async def test_every_answer_has_the_id_that_its_client_gave_and_else_one_of_its_own(
    method: str, path: str, status: int
) -> None:
    async with Upstream(saying(whole(b"{}"))) as up, proxied(engine(up.url)) as proxy, browser(proxy.url) as client:
        target = httpx.URL(proxy.url).copy_with(raw_path=path.encode())
        given = await client.request(method, target, headers={"x-request-id": "mine"}, content=b"{}")
        made = [await client.request(method, target, content=b"{}") for _ in range(2)]
    assert given.headers.get_list("x-request-id") == ["mine"]
    assert len({answer.headers["x-request-id"] for answer in made}) == 2
    assert given.status_code == status


async def test_a_target_that_no_engine_could_be_asked_for_is_refused_under_its_id() -> None:
    async with proxied(engine("http://127.0.0.1:1")) as proxy, Client.at(proxy.port) as client:
        client.writer.write(b"GET /v1/x?# HTTP/1.1\r\nhost: x\r\n" + ID + b"\r\n\r\n")
        await client.until(b"bad_target")
    assert client.got.startswith(b"HTTP/1.1 400")
    assert client.got.count(ID) == 1


async def test_anthropics_clients_find_it_where_they_look_for_it() -> None:
    said = whole(b"{}", b"request-id: the engine's own")
    async with Upstream(saying(said)) as up, proxied(engine(up.url)) as proxy, browser(proxy.url) as client:
        answer = await client.post(MESSAGES, json=ask(), headers={"x-request-id": "mine"})
        other = await client.get("/v1/nothing", headers={"x-request-id": "mine", "anthropic-version": "2023-06-01"})
        third = await client.post(CHAT, json=ask())
    assert answer.headers.get_list("request-id") == other.headers.get_list("request-id") == ["mine"]
    assert third.headers["request-id"] == "the engine's own"
