"""Requests to one engine that answers in every way an engine has been seen to answer."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest

from engines.spec import CHAT, EMBEDDINGS, MESSAGES, RESPONSES
from slotproxy.config import SlotSettings
from slotproxy.keys import digests
from slotproxy.outcomes import Outcome
from tests.slotproxy.rig import (
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
    proxied,
    saying,
    whole,
)
from tests.slotproxy.streams import ENDS

# ------------------------------------------------------------------------------------------------ bytes unharmed


async def test_hop_by_hop_headers_stay_on_their_hop() -> None:
    said = whole(
        b"{}",
        b"connection: keep-alive, X-Foo",
        b"x-foo: 1",
        b"keep-alive: timeout=5",
        b"trailer: x-sum",
        b"x-kept: yes",
        b"set-cookie: a=1",
        b"set-cookie: b=2",
        b"server: engine",
    )
    async with Upstream(saying(said)) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        await client.post(
            CHAT,
            ask(),
            b"connection: keep-alive, X-Bar",
            b"x-bar: 1",
            b"te: trailers",
            b"x-kept: too",
            b"origin: http://localhost:3000",
            b"authorization: Bearer secret",
            b"x-api-key: secret",
            b"expect: 100-continue",
        )
        await client.until(b"{}")
    head = client.got.rpartition(b"\r\n\r\n")[0].lower()
    for gone in (b"x-foo", b"keep-alive", b"trailer", b"date:"):
        assert gone not in head
    assert head.count(b"content-length:") == 1
    assert head.count(b"set-cookie:") == 2
    assert head.count(b"server:") == 1
    assert b"x-kept: yes" in head
    (seen,) = up.seen
    names = [name.lower() for name, _ in seen.headers]
    for gone in (b"x-bar", b"te", b"origin", b"authorization", b"x-api-key", b"expect", b"transfer-encoding"):
        assert gone not in names
    assert seen.all(b"x-kept") == [b"too"]
    assert seen.all(b"host") == [up.url.removeprefix("http://").encode()]
    assert seen.all(b"content-length") == [b"%d" % len(seen.body)]


async def test_a_chunked_body_with_a_longer_model_name_reaches_the_engine_with_its_right_length() -> None:
    raw = b'{"model" : "m", "messages": [ {"role":"user",  "content":"caf\\u00e9 \xe2\x82\xac"} ], "n":1.0}'
    models = {"m": {"strata": "a-much-longer-name"}}
    up = Upstream(saying(whole(b"{}")))
    async with up, proxied(engine(up.url), models=models) as proxy, Client.at(proxy.port) as client:
        client.writer.write(b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" % CHAT.encode())
        for i in range(0, len(raw), 7):
            client.writer.write(chunk(raw[i : i + 7]))
        client.writer.write(b"0\r\n\r\n")
        await client.until(b"\r\n\r\n{}")
    (seen,) = up.seen
    assert seen.json["model"] == "a-much-longer-name"
    assert seen.all(b"content-length") == [b"%d" % len(seen.body)]
    assert not seen.all(b"transfer-encoding")
    assert b'[ {"role":"user",  "content":"caf\\u00e9 \xe2\x82\xac"} ]' in seen.body
    assert b"1.0" in seen.body


async def test_a_body_that_needs_no_change_goes_as_it_is() -> None:
    raw = b' {"model":"m",\n"model" : "m", "messages":[]}\r\n'
    async with Upstream(saying(whole(b"{}"))) as up, proxied(engine(up.url)) as proxy, browser() as client:
        await client.post(proxy.url + CHAT + "?beta=true", content=raw)
    assert up.seen[0].body == raw
    assert up.seen[0].line == b"POST /v1/chat/completions?beta=true HTTP/1.1"


async def test_a_large_body_arrives_whole() -> None:
    image = "".join(chr(33 + n % 57) for n in range(1_000_003)).replace('"', "x").replace("\\", "y")
    models = {"m": {"strata": "mm"}}
    up = Upstream(saying(whole(b"{}")))
    async with up, proxied(engine(up.url), models=models) as proxy, browser() as client:
        await client.post(proxy.url + CHAT, json=ask(image=image))
    assert up.seen[0].json == {**ask(image=image), "model": "mm"}


async def test_a_slots_defaults_are_for_generating_calls_and_only_where_the_client_set_nothing() -> None:
    slots = {"anonymous": SlotSettings("anonymous", defaults={"temperature": 0, "think": {"on": False}})}
    up = Upstream(saying(whole(b"{}")))
    async with up, proxied(engine(up.url), slots=slots) as proxy, browser() as client:
        await client.post(proxy.url + CHAT, json=ask(temperature=0.7))
        await client.post(proxy.url + EMBEDDINGS, json={"model": "m", "input": "x"})
    assert up.seen[0].json == {**ask(temperature=0.7), "think": {"on": False}}
    assert up.seen[1].json == {"model": "m", "input": "x"}


@pytest.mark.parametrize(("path", "named"), [(CHAT, [b"authorization"]), (MESSAGES, [b"authorization", b"x-api-key"])])
async def test_the_engines_own_key_takes_the_place_of_the_clients(path: str, named: list[bytes]) -> None:
    slots = {"voice": SlotSettings("voice", keys=digests("clients-key"))}
    up = Upstream(saying(whole(b"{}")))
    async with up, proxied(engine(up.url, api_key="engines-key"), slots=slots) as proxy, browser() as client:
        await client.post(proxy.url + path, json=ask(), headers={"x-api-key": "clients-key"})
    (seen,) = up.seen
    keys = [(name, value) for name, value in seen.headers if b"key" in value]
    assert [name for name, _ in keys] == named
    assert not any(b"clients-key" in value for _, value in seen.headers)


async def test_an_engines_error_is_handed_on_unchanged() -> None:
    body = b'{"error":  {"message":"too long","code":"context"}}'
    up = Upstream(saying(whole(body, b"retry-after: 3", status=b"429 Busy")))
    async with up, proxied(engine(up.url)) as proxy, browser() as client:
        answer = await client.post(proxy.url + CHAT, json=ask(stream=True))
        assert (answer.status_code, answer.content, answer.headers["retry-after"]) == (429, body, "3")
        await proxy.counted(Outcome.FAILED)


async def test_every_request_has_a_connection_of_its_own() -> None:
    async def behave(talk: Conversation, seen: Seen) -> None:
        await talk.send(whole(b"{}"))  # with keep-alive: the other side has to close it
        await talk.left()

    async with Upstream(behave) as up, proxied(engine(up.url)) as proxy, browser() as client:
        for _ in range(3):
            await client.post(proxy.url + CHAT, json=ask())
        await eventually(lambda: up.open == 0)
    assert len(up.seen) == 3


# ---------------------------------------------------------------------------------------------- broken answers


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
async def test_a_stream_with_its_end_marker_is_whole_whatever_the_connection_does_then(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slotproxy.forward._LINGER", 0.2)

    async def behave(talk: Conversation, _: Seen) -> None:
        await talk.send(SSE, chunk(b"".join(ENDS[path])))
        await talk.left()  # stalls: the answer's last chunk never comes

    async with Upstream(behave) as up, proxied(engine(up.url)) as proxy, browser() as client:
        answer = await client.post(proxy.url + path, json=ask(stream=True))
        assert answer.content == b"".join(ENDS[path])
        await proxy.counted(Outcome.SERVED)


async def test_a_stream_that_announces_its_length_can_still_be_told_to_have_broken_off() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 1000\r\n\r\n"
    async with Upstream(saying(head, delta())) as up, proxied(engine(up.url)) as proxy:
        async with Client.at(proxy.port) as client:
            await client.post(CHAT, ask(stream=True))
            await client.rest()
        await proxy.counted(Outcome.TRUNCATED)
    assert b'"error"' in client.body
    assert not client.ended_whole


async def test_a_json_answer_that_is_cut_short_never_looks_whole() -> None:
    cut = whole(b'{"choices": []}')[:-4]
    async with Upstream(saying(cut)) as up, proxied(engine(up.url)) as proxy, browser() as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post(proxy.url + CHAT, json=ask())
        await proxy.counted(Outcome.TRUNCATED)


async def test_an_engine_that_cannot_be_reached_is_tried_again_as_long_as_the_slot_holds_and_then_told() -> None:
    async with Upstream(saying()) as up:
        url = up.url
    slots = {"anonymous": SlotSettings("anonymous", max_hold=0.5)}
    async with proxied(engine(url), slots=slots) as proxy, browser() as client:
        began = time.monotonic()
        answer = await client.post(proxy.url + CHAT, json=ask())
        assert answer.status_code == 502
        assert time.monotonic() - began >= 0.5
        assert "strata can't be reached" in answer.json()["error"]["message"]
        await proxy.counted(Outcome.FAILED)


async def test_a_request_whose_connection_was_never_made_waits_for_the_engine_to_come_back() -> None:
    async with Upstream(saying()) as down, Upstream(saying(whole(b"{}"))) as up:
        await down.__aexit__()
        async with proxied(engine(down.url), engine(up.url, name="ninfer")) as proxy, browser() as client:
            async with asyncio.TaskGroup() as group:
                answer = group.create_task(client.post(proxy.url + CHAT, json=ask()))
                await asyncio.sleep(0.1)
                proxy.gate.close()
                await eventually(lambda: proxy.gate.view().waiting == 1)
                proxy.gate.open("ninfer", 1)
            assert answer.result().status_code == 200
            await proxy.counted(Outcome.SERVED)
