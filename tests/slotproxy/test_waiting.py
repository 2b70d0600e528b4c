"""Requests that wait: pings, patience, and leaving the line."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

import anthropic
import openai
import pytest

from engines.spec import CHAT, MESSAGES, RESPONSES
from slotproxy.config import Limits, SlotSettings
from slotproxy.outcomes import Outcome
from tests.slotproxy.rig import (
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
    proxied,
    saying,
    whole,
)

# The SDKs bring so many objects that looking through them for garbage stops the event loop for most of a second.
gc.freeze()

CHATTING = saying(SSE, chunk(delta("Hel")), chunk(delta("lo")), chunk(DONE), b"0\r\n\r\n")
PING = b": keep-alive\n\n"
SOON = Limits(first_ping=0.2, ping_every=0.1)


async def test_a_stream_that_waits_gets_pings_and_then_its_answer() -> None:
    async with (
        Upstream(CHATTING) as up,
        proxied(engine(up.url), limits=SOON, opened=False) as proxy,
        Client.at(proxy.port) as client,
    ):
        await client.post(CHAT, ask(stream=True), b"accept-encoding: gzip")
        await client.until(PING)
        await eventually(lambda: proxy.gate.view().waiting == 1)
        proxy.gate.open("strata", 1)
        await client.until(b"0\r\n\r\n")
        await proxy.counted(Outcome.SERVED)
    head = client.got.partition(b"\r\n\r\n")[0].lower()
    assert head.startswith(b"http/1.1 200")
    assert b"x-accel-buffering: no" in head
    assert client.body.startswith(PING)
    assert client.body.replace(PING, b"") == b"".join((delta("Hel"), delta("lo"), DONE))
    assert up.seen[0].all(b"accept-encoding") == [b"identity"]


async def test_pings_go_on_through_a_silent_prefill_and_stop_at_the_first_byte() -> None:
    go = asyncio.Event()

    async def behave(talk: Conversation, _: Seen) -> None:
        await talk.send(SSE)
        await go.wait()
        await talk.send(chunk(delta()), chunk(b"data: cut in"), pause=0.3)
        await talk.send(chunk(b" the middle\n\n"), chunk(DONE), b"0\r\n\r\n")

    async with (
        Upstream(behave) as up,
        proxied(engine(up.url), limits=SOON, opened=False) as proxy,
        Client.at(proxy.port) as client,
    ):
        await client.post(CHAT, ask(stream=True))
        await client.until(PING)
        proxy.gate.open("strata", 1)
        await eventually(lambda: len(up.seen) == 1)
        before = len(client.got)
        await asyncio.sleep(0.3)
        go.set()
        await client.until(b"0\r\n\r\n")
    assert PING in client.got[before:]
    assert client.body.replace(PING, b"") == delta() + b"data: cut in the middle\n\n" + DONE


def anthropic_event(name: str, **more: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **more})}\n\n".encode()


async def test_a_waiting_anthropic_stream_gets_pings_that_its_sdk_knows() -> None:
    message: dict[str, Any] = {
        "id": "1",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": "m",
        "stop_reason": None,
    }
    events = (
        anthropic_event("message_start", message={**message, "usage": {"input_tokens": 1, "output_tokens": 1}}),
        anthropic_event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
        anthropic_event("content_block_delta", index=0, delta={"type": "text_delta", "text": "Hi"}),
        anthropic_event("content_block_stop", index=0),
        anthropic_event("message_stop"),
    )
    up = Upstream(saying(SSE, *map(chunk, events), b"0\r\n\r\n"))
    async with up, proxied(engine(up.url), limits=SOON, opened=False) as proxy, asyncio.TaskGroup() as group:

        async def talk() -> str:
            async with (
                anthropic.AsyncAnthropic(base_url=proxy.url, api_key="x", max_retries=0) as sdk,
                sdk.messages.stream(model="m", max_tokens=5, messages=[{"role": "user", "content": "hi"}]) as stream,
            ):
                return await stream.get_final_text()

        text = group.create_task(talk())
        await eventually(lambda: proxy.gate.view().waiting == 1)
        await asyncio.sleep(0.5)
        proxy.gate.open("strata", 1)
        assert await text == "Hi"


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
async def test_after_the_first_ping_a_refusal_is_an_event_and_the_stream_is_aborted(path: str) -> None:
    async with (
        proxied(engine("http://127.0.0.1:1"), limits=SOON, opened=False) as proxy,
        Client.at(proxy.port) as client,
    ):
        await client.post(path, ask(stream=True))
        await client.until(b"ping" if path == MESSAGES else PING)
        proxy.gate.refuse("nothing serves: call the operator")
        await client.rest()
        await proxy.counted(Outcome.REFUSED)
    assert b"call the operator" in client.body.split(b"\n\n")[-2]
    assert not client.ended_whole


async def test_after_the_first_ping_the_engines_error_is_told_in_band() -> None:
    body = b'{"error": {"message": "prompt too long", "code": "context_length_exceeded"}}'
    async with (
        Upstream(saying(whole(body, status=b"400 Bad"))) as up,
        proxied(engine(up.url), limits=SOON, opened=False) as proxy,
        Client.at(proxy.port) as client,
    ):
        await client.post(CHAT, ask(stream=True))
        await client.until(PING)
        proxy.gate.open("strata", 1)
        await client.rest()
        await proxy.counted(Outcome.FAILED)
    told = json.loads(client.body.split(b"data: ")[-1])["error"]
    assert "prompt too long" in told["message"]
    assert told["code"] == "context_length_exceeded"
    assert not client.ended_whole


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_who_waits_too_long_is_told_when_to_come_back_and_never_reaches_the_engine(path: str) -> None:
    slots = {"anonymous": SlotSettings("anonymous", max_hold=0.2)}
    async with Upstream(saying(whole(b"{}"))) as up, proxied(engine(up.url), slots=slots, opened=False) as proxy:
        async with browser() as client:
            answer = await client.post(proxy.url + path, json=ask())
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 0
        await proxy.counted(Outcome.EXPIRED)
        proxy.gate.open("strata", 1)
        await asyncio.sleep(0.1)
    assert not up.seen


async def test_over_a_slots_limit_is_a_429_before_anything_is_streamed() -> None:
    slots = {"anonymous": SlotSettings("anonymous", max_waiting=0)}
    async with proxied(engine("http://127.0.0.1:1"), slots=slots, opened=False) as proxy, browser() as client:
        answer = await client.post(proxy.url + CHAT, json=ask(stream=True))
    assert answer.status_code == 429
    assert answer.headers["retry-after"]
    assert answer.json()["error"]["type"] == "rate_limit_error"


# ---------------------------------------------------------------------------------------------------------- SDKs


async def test_the_openai_sdk_streams_and_sees_a_broken_stream() -> None:
    async with (
        Upstream(CHATTING) as good,
        Upstream(saying(SSE, chunk(delta("Hel")))) as bad,
        proxied(engine(good.url), engine(bad.url, name="bad")) as proxy,
        openai.AsyncOpenAI(base_url=proxy.url + "/v1", api_key="x", max_retries=0) as sdk,
    ):

        async def talk() -> str:
            text = ""
            stream = await sdk.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            async for event in stream:
                text += event.choices[0].delta.content or ""
            return text

        assert await talk() == "Hello"
        proxy.gate.open("bad", 1)
        with pytest.raises(openai.APIError, match="bad broke off"):
            await talk()
