"""Case 18: something between client and proxy that cuts what is silent for a minute, and a wait of a minute and a half.

All times in the ratio that they have on a real box, at a fortieth of them: 60 s are 1.5 s here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from engines.spec import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from slotproxy.config import Limits, SlotSettings
from slotproxy.outcomes import Outcome
from tests.slotproxy.rig import (
    SSE,
    Client,
    Conversation,
    Seen,
    Upstream,
    chunk,
    engine,
    eventually,
    proxied,
    saying,
    whole,
)
from tests.slotproxy.streams import LAST, event, marker, question

SCALE = 1 / 40
CUTS_AFTER = 60 * SCALE
HELD = 90 * SCALE
DEFAULTS = Limits()
PINGS = Limits(first_ping=DEFAULTS.first_ping * SCALE, ping_every=DEFAULTS.ping_every * SCALE)
NO_PINGS = Limits(first_ping=600.0, ping_every=600.0)
PATHS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)


@contextlib.asynccontextmanager
async def impatient_way(to: int) -> AsyncIterator[int]:
    """A relay to this port that closes a connection on which nothing passed for too long; its own port."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, alive: asyncio.Timeout) -> None:
        while data := await reader.read(65536):
            alive.reschedule(asyncio.get_running_loop().time() + CUTS_AFTER)
            writer.write(data)
            await writer.drain()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection("127.0.0.1", to)
        try:
            async with asyncio.timeout(CUTS_AFTER) as alive, asyncio.TaskGroup() as group:
                there = group.create_task(pass_on(reader, outer, alive))
                await pass_on(inner, writer, alive)
                there.cancel()
        except* (TimeoutError, ConnectionError):
            pass
        finally:
            writer.close()
            outer.close()

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def answering(talk: Conversation, seen: Seen) -> None:
    path = seen.line.split()[1].decode()
    await talk.send(SSE, chunk(event(path)), chunk(marker(path)), LAST)


async def test_case_18_a_stream_that_is_held_for_90_s_passes_what_cuts_after_60_s_of_silence() -> None:
    """Case 18: in every protocol, all at once."""
    async with (
        Upstream(answering) as up,
        proxied(engine(up.url), limits=PINGS, opened=False) as proxy,
        impatient_way(proxy.port) as port,
        contextlib.AsyncExitStack() as stack,
    ):
        clients = [await stack.enter_async_context(Client.at(port)) for _ in PATHS]
        for path, client in zip(PATHS, clients, strict=True):
            await client.post(path, question(path))
        await asyncio.sleep(HELD)
        assert proxy.gate.view().waiting == len(PATHS)
        proxy.gate.open("strata", 1)
        for path, client in zip(PATHS, clients, strict=True):
            await client.until(LAST)
            assert client.body.endswith(event(path) + marker(path))
        await proxy.counted(Outcome.SERVED, len(PATHS))


async def test_case_18_neighbour_the_way_does_cut_and_whom_it_cut_takes_no_place() -> None:
    """Case 18: without pings; and what is no stream can be sent none."""
    async with (
        Upstream(answering) as up,
        proxied(engine(up.url), limits=NO_PINGS, opened=False) as proxy,
        impatient_way(proxy.port) as port,
        Client.at(port) as streams,
        Client.at(port) as waits,
    ):
        await streams.post(CHAT, question(CHAT))
        await waits.post(CHAT, question(CHAT, stream=False))
        await eventually(lambda: proxy.gate.view().waiting == 2)
        assert await streams.rest() == await waits.rest() == b""
        await eventually(lambda: proxy.gate.view().waiting == 0)
        await proxy.counted(Outcome.CANCELLED, 2)
    assert not up.seen


async def test_case_18_neighbour_what_is_no_stream_is_told_to_come_back_before_the_way_is_cut() -> None:
    """Case 18: where its slot's `max_hold` is less than the way's patience."""
    slots = {"anonymous": SlotSettings("anonymous", max_hold=CUTS_AFTER / 2)}
    async with (
        proxied(engine("http://127.0.0.1:1"), slots=slots, limits=PINGS, opened=False) as proxy,
        impatient_way(proxy.port) as port,
        Client.at(port) as client,
    ):
        await client.post(CHAT, question(CHAT, stream=False))
        await client.until(b"\r\n\r\n")
    assert client.got.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nretry-after: " in client.got.lower()


async def test_case_18_neighbour_one_who_was_pinged_is_pinged_through_a_prefill_of_90_s_too() -> None:
    """Case 18: whether the engine sends its headers before it or after it."""

    async def behave(talk: Conversation, seen: Seen) -> None:
        early = b"early" in seen.body
        await talk.send(SSE if early else b"")
        await asyncio.sleep(HELD)
        await talk.send(b"" if early else SSE, chunk(event(CHAT)), chunk(marker(CHAT)), LAST)

    async with (
        Upstream(behave) as up,
        proxied(engine(up.url, concurrency=2), limits=PINGS, opened=False) as proxy,
        impatient_way(proxy.port) as port,
        Client.at(port) as early,
        Client.at(port) as late,
    ):
        await early.post(CHAT, question(CHAT, user="early"))
        await late.post(CHAT, question(CHAT, user="late"))
        await asyncio.gather(*(client.until(b": keep-alive") for client in (early, late)))
        proxy.gate.open("strata", 2)
        for client in (early, late):
            await client.until(LAST)
            assert client.body.endswith(event(CHAT) + marker(CHAT))
        await proxy.counted(Outcome.SERVED, 2)


async def test_case_18_neighbour_a_connection_that_is_kept_open_and_idle_is_the_clients_to_close() -> None:
    """Case 18: clients drop idle connections after 5 to 60 s, and must be the first to do so, or requests are lost."""
    async with Upstream(saying(whole(b"{}"))) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        await client.post(CHAT, question(CHAT, stream=False))
        await client.until(b"\r\n\r\n{}")
        (connection,) = proxy.connections
        assert connection.timeout_keep_alive > 60
