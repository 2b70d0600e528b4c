"""A place whose client has left stays taken until its engine is free."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from engines.spec import CHAT, Settling
from slotproxy.outcomes import Outcome
from tests.slotproxy.rig import (
    ALL_APIS,
    DONE,
    SSE,
    Client,
    Conversation,
    Proxy,
    Seen,
    Upstream,
    ask,
    browser,
    chunk,
    engine,
    eventually,
    impatient,
    proxied,
    saying,
    whole,
)

SLOW = dataclasses.replace(ALL_APIS, settling=Settling.COMPLETION, settle_limit=30.0)
ANSWER = whole(b'{"choices":[{"message":{"content":"OK"},"finish_reason":"stop"}],"usage":{"completion_tokens":1}}')


class Prefilling:
    """An engine that goes on with a prefill whoever left, and takes nothing else meanwhile."""

    def __init__(self, busy: bytes | None) -> None:
        self.free = asyncio.Event()
        self.models: list[str] = []  # of every completion that it took
        self.refused = 0
        self._busy = busy  # what it says to others; None: they queue

    async def __call__(self, talk: Conversation, seen: Seen) -> None:
        if seen.line.startswith(b"GET"):
            await talk.send(whole(b'{"object":"list","data":[{"id":"its-own-name"}]}'))
        elif seen.json["messages"][0]["content"] == "long":
            await self.free.wait()  # not cancelled by a closed connection
        elif self._busy and not self.free.is_set():
            self.refused += 1
            await talk.send(self._busy)
        else:
            await self.free.wait()
            self.models.append(seen.json["model"])
            await talk.send(ANSWER)


@asynccontextmanager
async def left_in_prefill(busy: bytes | None, **profile: object) -> AsyncIterator[tuple[Prefilling, Upstream, Proxy]]:
    prefilling = Prefilling(busy)
    up = Upstream(prefilling)
    async with up, proxied(engine(up.url, profile=dataclasses.replace(SLOW, **profile))) as proxy:  # type: ignore[arg-type]
        async with Client.at(proxy.port) as client:
            await client.post(CHAT, ask(stream=True, messages=[{"role": "user", "content": "long"}]))
            await eventually(lambda: len(up.seen) == 1)
        await eventually(lambda: proxy.gate.view().settling == 1)
        yield prefilling, up, proxy
        prefilling.free.set()


@pytest.mark.parametrize("busy", [None, whole(b"{}", status=b"429 Busy"), whole(b"{}", status=b"503 Later")])
async def test_the_next_request_waits_until_the_engine_is_free_and_is_sent_once(busy: bytes | None) -> None:
    async with left_in_prefill(busy) as (prefilling, up, proxy), browser() as client:
        assert proxy.gate.view().in_flight == 0
        assert await proxy.gate.drained(0.1)
        async with asyncio.TaskGroup() as group:
            answer = group.create_task(client.post(proxy.url + CHAT, json=ask()))
            await eventually(lambda: proxy.gate.view().waiting == 1)
            await eventually(lambda: prefilling.refused > 1 if busy else len(up.seen) > 2)
            assert prefilling.models == []
            assert proxy.gate.view().settling == 1
            prefilling.free.set()
        assert answer.result().status_code == 200
    assert prefilling.models == ["its-own-name", "m"]
    assert proxy.outcomes.counts == {Outcome.CANCELLED: 1, Outcome.SERVED: 1}


async def test_a_place_that_never_settles_is_given_up_as_free() -> None:
    async with left_in_prefill(None, settle_limit=0.5) as (_, _, proxy):
        await proxy.idle()


async def test_a_cut_ends_the_settling() -> None:
    async with left_in_prefill(None) as (_, _, proxy):
        proxy.gate.cut()
        await proxy.idle()


async def test_an_engine_that_is_gone_is_free() -> None:
    async with left_in_prefill(whole(b"{}", status=b"503 Later")) as (_, up, proxy):
        await up.__aexit__()
        await proxy.idle()


async def test_an_engine_that_stalled_settles_too_but_its_client_is_told_at_once() -> None:
    async def behave(talk: Conversation, seen: Seen) -> None:
        if seen.line.startswith(b"GET"):
            await talk.send(whole(b"{}", status=b"404 Not Found"))
        elif b"Say OK." not in seen.body:
            await talk.send(SSE, chunk(b": thinking\n\n"))
        await talk.left()

    profile = dataclasses.replace(impatient(1.0), settling=Settling.COMPLETION, settle_limit=30.0)
    up = Upstream(behave)
    async with up, proxied(engine(up.url, profile=profile)) as proxy, Client.at(proxy.port) as client:
        await client.post(CHAT, ask(stream=True))
        await client.rest()
        assert b"sent nothing for 1 s" in client.body
        await eventually(lambda: proxy.gate.view().settling == 1)
        await eventually(lambda: any(b"Say OK." in seen.body for seen in up.seen))


@pytest.mark.parametrize("settling", list(Settling))
async def test_an_engine_that_has_answered_needs_no_settling(settling: Settling) -> None:
    profile = dataclasses.replace(SLOW, settling=settling)
    up = Upstream(saying(SSE, chunk(DONE), b"0\r\n\r\n"))
    async with up, proxied(engine(up.url, profile=profile)) as proxy, browser() as client:
        await client.post(proxy.url + CHAT, json=ask(stream=True))
        await proxy.counted(Outcome.SERVED)
        await proxy.idle()
    assert len(up.seen) == 1


async def test_an_engine_that_cancels_is_free_at_once() -> None:
    async def behave(talk: Conversation, _: Seen) -> None:
        await talk.left()

    async with Upstream(behave) as up, proxied(engine(up.url)) as proxy:
        async with Client.at(proxy.port) as client:
            await client.post(CHAT, ask(stream=True))
            await eventually(lambda: len(up.seen) == 1)
        await proxy.counted(Outcome.CANCELLED)
        await proxy.idle()
    assert len(up.seen) == 1
