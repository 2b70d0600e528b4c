"""Clients that leave, in whatever phase, or stop reading: the wait ends, the engine is let go, nothing leaks.

Cases 10, 11, 12 and 19.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from engines.spec import CHAT, MESSAGES, RESPONSES
from slotproxy.app import ClientPort
from slotproxy.config import Limits, SlotSettings
from slotproxy.house import Patience
from slotproxy.outcomes import Outcome
from tests.slotproxy.leaving import WAYS, leave
from tests.slotproxy.rig import (
    AT_ONCE,
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
    proxied,
    saying,
    whole,
)
from tests.slotproxy.streams import event, marker, question

LEAVER = b"the one who leaves"
SOON = Limits(first_ping=0.05, ping_every=0.05)


def names_leaver(**more: object) -> dict[str, object]:
    return {**question(CHAT), "user": LEAVER.decode(), **more}


async def silent(talk: Conversation, _: Seen) -> None:
    """In a prefill that lasts."""
    await talk.left()


def taken(proxy: Proxy) -> int:
    """Bytes of bodies that are held."""
    assert isinstance(proxy.app, ClientPort)
    return proxy.app._house.room.taken


# ------------------------------------------------------------------------------------ 10: before the first byte


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("way", WAYS)
async def test_case_10_gone_while_it_waits_its_turn_it_is_out_within_a_second_and_never_sent(
    way: str, streams: bool
) -> None:
    async with Upstream(silent) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as first:
        await first.post(CHAT, ask())
        await eventually(lambda: len(up.seen) == 1)
        async with Client.at(proxy.port) as client:
            await client.post(CHAT, names_leaver(stream=streams))
            await eventually(lambda: proxy.gate.view().waiting == 1)
            leave(client, way)
            await eventually(lambda: proxy.gate.view().waiting == 0, within=AT_ONCE)
            await proxy.counted(Outcome.CANCELLED)
        assert proxy.gate.view().in_flight == 1, "who was there lost its place"
        leave(first, "close")
        await proxy.idle()
    assert not [seen for seen in up.seen if LEAVER in seen.body]


@pytest.mark.parametrize("limits", [Limits(), SOON], ids=["silent", "with pings"])
@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("way", WAYS)
async def test_case_10_gone_while_held_for_the_card_it_is_out_within_a_second_and_never_sent(
    way: str, streams: bool, limits: Limits
) -> None:
    up = Upstream(saying(whole(b"{}")))
    async with up, proxied(engine(up.url), limits=limits, opened=False) as proxy:
        async with Client.at(proxy.port) as client:
            await client.post(CHAT, names_leaver(stream=streams))
            await eventually(lambda: proxy.gate.view().waiting == 1)
            if streams and limits is SOON:
                await client.until(b": keep-alive")
            leave(client, way)
            await eventually(lambda: proxy.gate.view().waiting == 0, within=AT_ONCE)
            await proxy.counted(Outcome.CANCELLED)
        proxy.gate.open("strata", 1)
        async with browser() as other:
            assert (await other.post(proxy.url + CHAT, json=ask())).status_code == 200
    assert not [seen for seen in up.seen if LEAVER in seen.body]


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("way", WAYS)
async def test_case_10_gone_in_a_prefill_the_engines_connection_is_closed_within_a_second(
    way: str, streams: bool
) -> None:
    async with Upstream(silent) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        await client.post(CHAT, names_leaver(stream=streams))
        await eventually(lambda: len(up.seen) == 1)
        leave(client, way)
        await eventually(lambda: up.open == 0, within=AT_ONCE)
        await proxy.counted(Outcome.CANCELLED)
        await proxy.idle()
    assert len(up.seen) == 1


@pytest.mark.parametrize("way", WAYS)
async def test_case_10_neighbour_gone_while_its_body_comes_nothing_is_kept_of_it_and_no_engine_asked(way: str) -> None:
    up = Upstream(saying(whole(b"{}")))
    async with up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        client.writer.write(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{" % CHAT.encode())
        await eventually(lambda: taken(proxy) == 1)
        leave(client, way)
        await eventually(lambda: taken(proxy) == 0, within=AT_ONCE)
        await proxy.counted(Outcome.CANCELLED)
    assert not up.seen


async def test_case_10_neighbour_one_who_leaves_with_a_second_request_behind_the_first_takes_both_along() -> None:
    async with Upstream(saying(whole(b"{}"))) as up, proxied(engine(up.url), opened=False) as proxy:
        async with Client.at(proxy.port) as client:
            await client.post(CHAT, names_leaver())
            await client.post(CHAT, names_leaver())
            await eventually(lambda: proxy.gate.view().waiting == 1)
        await eventually(lambda: proxy.gate.view().waiting == 0, within=AT_ONCE)
        await eventually(lambda: not proxy.tasks)
    assert not up.seen


# --------------------------------------------------------------------------------------- 11: in the middle of it


async def endless(talk: Conversation, seen: Seen) -> None:
    """Events without end; one who asks for `headers` only gets these."""
    path = seen.line.split()[1].decode()
    await talk.send(SSE)
    if b"headers" in seen.body:
        await talk.left()
    while not talk.reader.at_eof():
        await talk.send(chunk(event(path)), pause=0.01)


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize("way", WAYS)
async def test_case_11_gone_after_three_events_the_engines_connection_is_closed_within_a_second(
    way: str, path: str
) -> None:
    async with Upstream(endless) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        await client.post(path, question(path))
        while client.body.count(b"\n\n") < 3:
            await client.until(b"\n\n")
            client.got += await client.reader.read(65536)
        leave(client, way)
        await eventually(lambda: up.open == 0, within=AT_ONCE)
        await proxy.counted(Outcome.CANCELLED)
        await proxy.idle()


@pytest.mark.parametrize("way", WAYS)
async def test_case_11_gone_between_headers_and_body_the_engines_connection_is_closed_within_a_second(way: str) -> None:
    async with Upstream(endless) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        await client.post(CHAT, question(CHAT, user="headers"))
        await client.until(b"\r\n\r\n")
        leave(client, way)
        await eventually(lambda: up.open == 0, within=AT_ONCE)
        await proxy.counted(Outcome.CANCELLED)
        await proxy.idle()


async def test_case_11_after_two_hundred_of_them_no_connection_has_leaked() -> None:
    """Case 11: all ways and both moments, twenty at a time."""
    async with Upstream(endless) as up, proxied(engine(up.url, concurrency=20)) as proxy:

        async def come_and_go(number: int) -> None:
            async with crowd, Client.at(proxy.port) as client:
                only_headers = number % 2 == 0
                await client.post(CHAT, question(CHAT, user="headers" if only_headers else "all"))
                await client.until(b"\r\n\r\n" if only_headers else b"\n\n")
                leave(client, WAYS[number % 3])

        crowd = asyncio.Semaphore(20)
        await come_and_go(0)
        await eventually(lambda: up.open == 0 and not proxy.connections)
        before = open_files()
        async with asyncio.TaskGroup() as group:
            for number in range(200):
                group.create_task(come_and_go(number))
        await eventually(lambda: up.open == 0 and not proxy.connections and not proxy.tasks)
        await proxy.counted(Outcome.CANCELLED, 201)
        await proxy.idle()
        await eventually(lambda: open_files() <= before)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_case_11_neighbour_one_who_leaves_at_the_marker_was_served() -> None:
    async def behave(talk: Conversation, _: Seen) -> None:
        await talk.send(SSE, chunk(event(CHAT)), chunk(marker(CHAT)))
        await talk.left()

    async with Upstream(behave) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        await client.post(CHAT, question(CHAT))
        await client.until(marker(CHAT))
        leave(client, "close")
        await eventually(lambda: up.open == 0, within=AT_ONCE)
        await proxy.counted(Outcome.SERVED)


async def test_case_11_neighbour_gone_in_the_middle_of_an_answer_that_is_no_stream() -> None:
    async def behave(talk: Conversation, _: Seen) -> None:
        await talk.send(whole(b"{}" + b" " * 100_000)[:-1000])
        await talk.left()

    async with Upstream(behave) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        await client.post(CHAT, ask())
        await client.until(b" " * 1000)
        leave(client, "close")
        await eventually(lambda: up.open == 0, within=AT_ONCE)
        await proxy.counted(Outcome.CANCELLED)


# ---------------------------------------------------------------------------------------------- 12: not reading

PIECE = 64 * 1024
BUFFERS = 48 * 1024 * 1024  # bytes; more than sockets hold between engine and client, far less than could be sent


class Pouring:
    """An engine that sends as fast as it can, for ever, and counts the bytes that somebody took."""

    def __init__(self, head: bytes = SSE) -> None:
        self.sent = 0
        self._head = head

    async def __call__(self, talk: Conversation, seen: Seen) -> None:
        if LEAVER not in seen.body:
            await talk.send(whole(b"{}"))
            return
        await talk.send(self._head)
        piece = chunk(b": " + b"x" * PIECE + b"\n\n") if self._head is SSE else b"x" * PIECE
        while self.sent < 40 * BUFFERS:
            await talk.send(piece)
            self.sent += len(piece)


@pytest.mark.parametrize(
    "head", [SSE, b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n"], ids=["stream", "no stream"]
)
async def test_case_12_a_client_that_does_not_read_is_ended_its_place_is_the_next_ones_and_memory_stays_flat(
    head: bytes,
) -> None:
    """Case 12: what was taken from the engine is all that anybody may hold."""
    pouring, patience = Pouring(head), Patience(write=1.0)
    async with (
        Upstream(pouring) as up,
        proxied(engine(up.url), patience=patience) as proxy,
        Client.at(proxy.port) as client,
        browser() as other,
    ):
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.post(CHAT, names_leaver())
        await eventually(lambda: pouring.sent > 0)
        assert (await other.post(proxy.url + CHAT, json=ask())).status_code == 200
        await eventually(lambda: proxy.outcomes.counts == {Outcome.CANCELLED: 1, Outcome.SERVED: 1})
        await eventually(lambda: up.open == 0 and len(proxy.connections) == 1, within=AT_ONCE)
    assert pouring.sent < BUFFERS


async def test_case_12_neighbour_a_client_that_reads_slowly_is_not_taken_for_one_that_does_not() -> None:
    size, limit = 12_000_000, 0.5
    body = b"x" * size
    async with (
        Upstream(saying(whole(body))) as up,
        proxied(engine(up.url), patience=Patience(write=limit)) as proxy,
        Client.at(proxy.port) as client,
    ):
        await client.post(CHAT, ask())
        began, got = asyncio.get_running_loop().time(), 0
        while got < size:
            data = await client.reader.read(1_000_000)
            assert data, f"it was cut after {got} bytes"
            got += len(data)
            await asyncio.sleep(len(data) / size * 4 * limit)
        assert asyncio.get_running_loop().time() - began > 2 * limit
        await proxy.counted(Outcome.SERVED)


async def test_case_12_neighbour_an_answer_that_the_engine_has_given_whole_keeps_no_place_unread_or_not() -> None:
    async with (
        Upstream(saying(whole(b"x" * 100_000))) as up,
        proxied(engine(up.url)) as proxy,
        Client.at(proxy.port) as client,
    ):
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await client.post(CHAT, ask())
        await proxy.counted(Outcome.SERVED)
        await proxy.idle()


# ------------------------------------------------------------------------------------------- 19: gone while held


@pytest.mark.parametrize("full", ["places of all", "places of its slot", "bytes"])
@pytest.mark.parametrize("way", WAYS)
async def test_case_19_gone_while_held_its_place_in_the_line_and_its_bytes_are_free_at_once(
    way: str, full: str
) -> None:
    body = json.dumps(ask(text="x" * 1000)).encode()
    limits = Limits(
        max_waiting=1 if full == "places of all" else 100,
        max_waiting_bytes=len(body) + 10 if full == "bytes" else 1_000_000,
    )
    slots = {"anonymous": SlotSettings("anonymous", max_waiting=1 if full == "places of its slot" else 100)}
    up = Upstream(saying(whole(b"{}")))
    async with (
        up,
        proxied(engine(up.url), limits=limits, slots=slots, opened=False) as proxy,
        Client.at(proxy.port) as gone,
        Client.at(proxy.port) as refused,
        Client.at(proxy.port) as next_one,
    ):
        await gone.post(CHAT, body)
        await eventually(lambda: proxy.gate.view().waiting == 1)
        await refused.post(CHAT, body)
        await refused.until(b"}}")
        assert refused.got.startswith(b"HTTP/1.1 429")
        leave(gone, way)
        await eventually(lambda: (proxy.gate.view().waiting, taken(proxy)) == (0, 0), within=AT_ONCE)
        await next_one.post(CHAT, body)
        await eventually(lambda: proxy.gate.view().waiting == 1)
        assert proxy.gate.view().waiting_bytes == len(body)
        proxy.gate.open("strata", 1)
        await next_one.until(b"\r\n\r\n{}")
    assert len(up.seen) == 1


async def test_case_19_neighbour_thirty_who_come_and_go_leave_the_line_as_it_was() -> None:
    slots = {"anonymous": SlotSettings("anonymous", max_waiting=10)}
    up = Upstream(saying(whole(b"{}")))
    async with up, proxied(engine(up.url), slots=slots, opened=False) as proxy, Client.at(proxy.port) as stays:
        await stays.post(CHAT, ask())
        await eventually(lambda: proxy.gate.view().waiting == 1)
        for number in range(30):
            async with Client.at(proxy.port) as client:
                await client.post(CHAT, names_leaver())
                await eventually(lambda: proxy.gate.view().waiting == 2)
                leave(client, WAYS[number % 3])
                await eventually(lambda: proxy.gate.view().waiting == 1)
        proxy.gate.open("strata", 1)
        await stays.until(b"\r\n\r\n{}")
    assert len(up.seen) == 1
