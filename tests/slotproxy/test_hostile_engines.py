"""Engines whose answers are no good HTTP: a clean 502, never a second answer, nothing of it in our own headers."""

from __future__ import annotations

import asyncio
import json

import pytest

from engines.spec import CHAT
from slotproxy.config import Limits
from slotproxy.outcomes import Outcome
from tests.slotproxy.rig import (
    AT_ONCE,
    DONE,
    SSE,
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

OK = b"HTTP/1.1 200 OK\r\n"
SECOND = whole(b'{"stolen": 1}')
JSON = b"content-type: application/json\r\n"

NO_HTTP = {
    "nothing like it": b"hello\r\n\r\n",
    "noise": b"\x00\xff\x00\r\n\r\n",
    "a request": b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
    "a status of two digits": b"HTTP/1.1 99 Odd\r\n\r\n",
    "a status of four digits": b"HTTP/1.1 2000 OK\r\n\r\n",
    "status 099": b"HTTP/1.1 099 Odd\r\ncontent-length: 0\r\n\r\n",
    "status 999": b"HTTP/1.1 999 Odd\r\ncontent-length: 0\r\n\r\n",
    "status 000": b"HTTP/1.1 000 Odd\r\ncontent-length: 0\r\n\r\n",
    "status 600": b"HTTP/1.1 600 Odd\r\ncontent-length: 0\r\n\r\n",
    "status 101": b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n" + SECOND,
    "a negative status": b"HTTP/1.1 -200 OK\r\n\r\n",
    "two lengths": OK + b"content-length: 2\r\ncontent-length: 20\r\n\r\n{}" + SECOND,
    "two lengths in one": OK + b"content-length: 2, 20\r\n\r\n{}",
    "a length of +2": OK + b"content-length: +2\r\n\r\n{}",
    "a length of -2": OK + b"content-length: -2\r\n\r\n{}",
    "an unknown coding": OK + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": OK + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a header without a colon": OK + b"nonsense\r\n\r\n",
    "a header without a name": OK + b": x\r\n\r\n",
    "a space before the colon": OK + b"content-length : 2\r\n\r\n{}",
    "a NUL in a header": OK + b"x: a\x00b\r\ncontent-length: 2\r\n\r\n{}",
    "a bare CR in a header": OK + b"x: a\rset-cookie: b\r\ncontent-length: 2\r\n\r\n{}",
    "endless headers": OK + b"x: " + b"y" * 300_000,
    "many headers": OK + b"x: y\r\n" * 100_000,
}


@pytest.mark.parametrize("name", NO_HTTP)
async def test_an_answer_that_is_no_http_is_a_502(name: str) -> None:
    async with Upstream(saying(NO_HTTP[name])) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        await client.post(CHAT, ask(), b"connection: close")
        got = await client.rest()
        await proxy.counted(Outcome.FAILED)
        assert len(up.seen) == 1
    assert got.startswith(b"HTTP/1.1 502 ")
    assert got.count(b"HTTP/1.1 ") == 1
    assert b"stolen" not in got
    assert json.loads(client.body)["error"]["message"].startswith("strata ")
    assert b"set-cookie" not in got.lower()


CUT = {
    "a chunk of no size": SSE + chunk(delta()) + b"zz\r\n",
    "a chunk that is longer": SSE + b"2\r\nabcdef\r\n",
    "a bad trailer": SSE + chunk(delta()) + b"0\r\nno colon\r\n\r\n",
    "a huge chunk size": SSE + chunk(delta()) + b"f" * 30 + b"\r\n",
    "an endless extension": SSE + chunk(delta()) + b"5;" + b"x" * 300_000,
}


@pytest.mark.parametrize("name", CUT)
async def test_a_stream_whose_chunks_are_bad_ends_with_an_error_and_no_last_chunk(name: str) -> None:
    async with Upstream(saying(CUT[name])) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        await client.post(CHAT, ask(stream=True))
        await client.rest()
        await proxy.counted(Outcome.TRUNCATED)
    assert b'"error"' in client.body.split(b"\n\n")[-2]
    assert not client.ended_whole


SECOND_ANSWERS = {
    "after its length": whole(b"{}") + SECOND,
    "after its last chunk": OK + JSON + b"transfer-encoding: chunked\r\n\r\n" + chunk(b"{}") + b"0\r\n\r\n" + SECOND,
    "length and coding": OK
    + JSON
    + b"content-length: 99\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    + SECOND,
    "the same length twice": OK + JSON + b"content-length: 2\r\ncontent-length: 2\r\n\r\n{}" + SECOND,
    "an informational one before it": b"HTTP/1.1 103 Early\r\nlink: x\r\n\r\n" * 5 + whole(b"{}"),
}


@pytest.mark.parametrize("name", SECOND_ANSWERS)
async def test_nothing_that_follows_an_answer_reaches_a_client(name: str) -> None:
    up = Upstream(saying(SECOND_ANSWERS[name]))
    async with up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        await client.post(CHAT, ask())
        await client.until(b"{}")
        client.writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        got = await client.rest()
    first, second = got.split(b"HTTP/1.1 ")[1:]
    assert first.startswith(b"200 OK")
    assert b'"status":"ok"' in second
    assert b"stolen" not in got
    assert (b"content-length" in first.lower()) != (b"transfer-encoding" in first.lower())


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_an_answer_without_a_body_has_none_whatever_it_announces(status: bytes) -> None:
    raw = b"HTTP/1.1 " + status + b"\r\ncontent-length: 13\r\n\r\n" + b'{"stolen": 1}'
    async with Upstream(saying(raw)) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        await client.post(CHAT, ask(), b"connection: close")
        got = await client.rest()
    assert got.startswith(b"HTTP/1.1 " + status[:3])
    assert b"stolen" not in got


async def test_headers_that_are_ours_cannot_be_set_by_an_engine() -> None:
    fields = (b"X-Request-Id: evil", b"x-slotproxy-engine: evil", b"Connection: x-secret, close", b"x-secret: evil")
    async with Upstream(saying(whole(b"{}", *fields))) as up, proxied(engine(up.url)) as proxy, browser() as client:
        answer = await client.post(proxy.url + CHAT, json=ask())
    assert answer.json() == {}
    assert b"evil" not in b"".join(value for _, value in answer.headers.raw)
    assert answer.headers["x-slotproxy-engine"] == "strata"


async def test_a_flood_of_informational_answers_ends_and_keeps_nobody_waiting() -> None:
    async def behave(talk: Conversation, _: Seen) -> None:
        while True:
            await talk.send(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)
            await asyncio.sleep(0)

    async with Upstream(behave) as up, proxied(engine(up.url, profile=impatient(0.5))) as proxy:
        async with Client.at(proxy.port) as client, browser(proxy.url) as other:
            await client.post(CHAT, ask(), b"connection: close")
            await eventually(lambda: len(up.seen) == 1)
            async with asyncio.timeout(AT_ONCE):
                assert (await other.get("/health")).status_code == 200
            assert (await client.rest()).startswith(b"HTTP/1.1 504 ")
        await eventually(lambda: not up.open)


@pytest.mark.parametrize(
    "location", [b"http://[", b"/elsewhere", b"http://127.0.0.1:1/v1/chat/completions", b"//x:99999999/"]
)
async def test_a_redirect_is_not_followed_and_goes_through_as_it_is(location: bytes) -> None:
    raw = whole(b"{}", b"location: " + location, status=b"307 Elsewhere")
    async with Upstream(saying(raw)) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        await client.post(CHAT, ask(), b"connection: close")
        got = await client.rest()
        assert len(up.seen) == 1
    assert got.startswith(b"HTTP/1.1 307 ")
    assert b"\r\nlocation: " + location + b"\r\n" in got


async def test_cookies_of_an_engine_reach_its_client_and_no_other() -> None:
    raw = whole(b"{}", b"set-cookie: session=one; Path=/")
    async with Upstream(saying(raw)) as up, proxied(engine(up.url)) as proxy:
        for _ in range(2):
            async with Client.at(proxy.port) as client:
                await client.post(CHAT, ask())
                assert b"set-cookie: session=one; Path=/" in await client.until(b"{}")
    assert not [seen for seen in up.seen if seen.all(b"cookie")]


async def test_after_pings_have_begun_an_answer_that_is_no_http_is_told_in_the_stream() -> None:
    soon = Limits(first_ping=0.05, ping_every=0.05)
    async with (
        Upstream(saying(NO_HTTP["two lengths"])) as up,
        proxied(engine(up.url), limits=soon, opened=False) as proxy,
        Client.at(proxy.port) as client,
    ):
        await client.post(CHAT, ask(stream=True))
        await client.until(b": keep-alive")
        proxy.gate.open("strata", 1)
        await client.rest()
    assert b'"error"' in client.body
    assert DONE not in client.body
    assert not client.ended_whole
