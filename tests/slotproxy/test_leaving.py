"""Clients that leave, stop reading, or are cut off, in whatever phase."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.types import Message

from engines.spec import CHAT
from slotproxy.house import Patience
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
    chunk,
    delta,
    engine,
    eventually,
    proxied,
    saying,
)


@pytest.mark.parametrize("phase", ["prefill", "headers", "events"])
@pytest.mark.parametrize("leaves", ["close", "reset", "half-close"])
async def test_a_client_that_leaves_closes_the_engines_connection(phase: str, leaves: str) -> None:
    closed = asyncio.Event()

    async def behave(talk: Conversation, _: Seen) -> None:
        if phase != "prefill":
            await talk.send(SSE)
        if phase == "events":
            await talk.send(*[chunk(delta())] * 3)
        await talk.left()
        closed.set()

    async with Upstream(behave) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        await client.post(CHAT, ask(stream=True))
        await eventually(lambda: len(up.seen) == 1)
        if phase != "prefill":
            await client.until(b"\r\n\r\n" if phase == "headers" else b"hi")
        match leaves:
            case "close":
                client.writer.close()
            case "reset":
                client.writer.transport.abort()
            case "half-close":
                client.writer.write_eof()
        async with asyncio.timeout(AT_ONCE):
            await closed.wait()
        await proxy.counted(Outcome.CANCELLED)
        await proxy.idle()


async def test_after_many_clients_that_left_no_connection_and_no_task_is_left() -> None:
    async def behave(talk: Conversation, _: Seen) -> None:
        await talk.send(SSE, *[chunk(delta())] * 3)
        await talk.left()

    async with Upstream(behave) as up, proxied(engine(up.url, concurrency=20)) as proxy:

        async def leave_early() -> None:
            async with Client.at(proxy.port) as client:
                await client.post(CHAT, ask(stream=True))
                await client.until(b"hi")

        for _ in range(10):
            async with asyncio.TaskGroup() as group:
                for _ in range(20):
                    group.create_task(leave_early())
        await eventually(lambda: up.open == 0 and not proxy.tasks)
        await proxy.counted(Outcome.CANCELLED, 200)
        await proxy.idle()


async def test_a_client_that_stops_reading_loses_its_place_and_not_our_memory() -> None:
    sent = 0

    async def behave(talk: Conversation, _: Seen) -> None:
        nonlocal sent
        await talk.send(SSE)
        event = chunk(delta("x" * 50_000))
        while True:
            await talk.send(event)
            sent += len(event)

    patience = Patience(write=0.5)
    up = Upstream(behave)
    async with up, proxied(engine(up.url), patience=patience) as proxy, Client.at(proxy.port) as client:
        await client.post(CHAT, ask(stream=True))
        await proxy.counted(Outcome.CANCELLED)
        await proxy.idle()
        await eventually(lambda: up.open == 0)
        assert sent < 64 * 1024 * 1024  # kernel buffers, but not all that it would have said
        await eventually(lambda: not proxy.tasks)
        await eventually(lambda: not proxy.connections)


async def test_the_place_is_free_while_a_slow_client_still_takes_the_end_of_its_answer() -> None:
    body = json.dumps(ask(stream=True)).encode()
    asked = iter([{"type": "http.request", "body": body, "more_body": False}])
    at_the_end, taken = asyncio.Event(), asyncio.Event()

    async def receive() -> Any:
        return next(asked, None) or await taken.wait()

    async def send(message: Message) -> None:
        if not message.get("more_body", True):
            at_the_end.set()
            await taken.wait()

    scope = {"type": "http", "method": "POST", "path": CHAT, "query_string": b"", "headers": []}
    up = Upstream(saying(SSE, chunk(DONE), b"0\r\n\r\n"))
    async with up, proxied(engine(up.url)) as proxy, asyncio.TaskGroup() as group:
        group.create_task(proxy.app(scope, receive, send))
        await at_the_end.wait()
        assert proxy.gate.view().in_flight == 0
        taken.set()


async def test_a_client_that_closes_at_the_end_marker_was_served() -> None:
    async def behave(talk: Conversation, _: Seen) -> None:
        await talk.send(SSE, chunk(delta()), chunk(DONE))
        await talk.left()

    async with Upstream(behave) as up, proxied(engine(up.url)) as proxy:
        async with Client.at(proxy.port) as client:
            await client.post(CHAT, ask(stream=True))
            await client.until(b"[DONE]")
        await proxy.counted(Outcome.SERVED)


# -------------------------------------------------------------------------------------------------- cut


@pytest.mark.parametrize("begun", [True, False])
async def test_a_cut_ends_a_request_in_the_way_that_is_still_open(begun: bool) -> None:
    async def behave(talk: Conversation, _: Seen) -> None:
        if begun:
            await talk.send(SSE, chunk(delta()))
        await talk.left()

    async with Upstream(behave) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        await client.post(CHAT, ask(stream=True))
        await eventually(lambda: len(up.seen) == 1)
        if begun:
            await client.until(b"hi")
        assert proxy.gate.cut() == 1
        await client.until(b'"cut"')
        if begun:
            await client.rest()
        await proxy.counted(Outcome.CUT)
        await proxy.idle()
        await eventually(lambda: up.open == 0)
    assert client.got.startswith(b"HTTP/1.1 200" if begun else b"HTTP/1.1 503")
    assert client.ended_whole is False
