"""Streams leave as they come: at once, event by event, byte by byte. Cases 1 and 2."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time

import pytest

from engines.spec import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from slotproxy.outcomes import Outcome
from tests.slotproxy.rig import (
    SSE,
    WITHIN,
    Client,
    Conversation,
    Proxy,
    Seen,
    Upstream,
    ask,
    browser,
    chunk,
    engine,
    proxied,
    saying,
    whole,
)
from tests.slotproxy.streams import ENDS, LAST, PLAIN_SSE, Lockstep, event, marker

SPACE = 0.2  # seconds between two events
WIDEST = 0.25  # seconds between two events at the client
TRIES = 5  # a busy machine may stretch a gap now and then; who holds events back stretches them every time
FRAMINGS = {
    "chunked": SSE,
    "until it closes": PLAIN_SSE,
    "length": b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncontent-length: %d\r\n\r\n",
}


# ------------------------------------------------------------------------------------------- 1: as soon as they come


async def slowly(talk: Conversation, seen: Seen) -> None:
    path = seen.line.split()[1].decode()
    await talk.send(SSE, *[chunk(event(path))] * 4, chunk(marker(path)), LAST, pause=SPACE)


async def gaps(proxy: Proxy, path: str) -> list[float]:
    """Seconds between the events of one stream, as its client gets them."""
    async with browser() as client, client.stream("POST", proxy.url + path, json=ask(stream=True)) as answer:
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-slotproxy-engine"] == "strata"
        assert int(answer.headers["x-slotproxy-held-ms"]) < 1000
        arrivals = [time.monotonic() async for _ in answer.aiter_raw()]
    assert len(arrivals) == 5
    return [late - early for early, late in itertools.pairwise(arrivals)]


async def test_an_answer_on_a_kept_connection_waits_for_no_acknowledgement() -> None:
    """Clients acknowledge late, after 40 ms, once a connection has been used for a while."""
    async with Upstream(saying(whole(b"{}"))) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        took = []
        for n in range(1, 41):
            began = time.monotonic()
            await client.post(CHAT, ask())
            while client.got.count(b"{}") < n:
                client.got += await asyncio.wait_for(client.reader.read(65536), WITHIN)
            took.append(time.monotonic() - began)
    assert min(took[-20:]) < 0.03, "each of them is late"


async def test_case_1_events_200_ms_apart_leave_200_ms_apart_in_every_protocol() -> None:
    paths = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
    async with Upstream(slowly) as up, proxied(engine(up.url, concurrency=len(paths))) as proxy:
        for left in reversed(range(TRIES)):
            found = [gap for one in await asyncio.gather(*(gaps(proxy, path) for path in paths)) for gap in one]
            if max(found) <= WIDEST and min(found) >= SPACE / 2:
                break
            assert left, f"never were all gaps near {SPACE} s: {found}"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, MESSAGES])
@pytest.mark.parametrize("framing", FRAMINGS)
async def test_case_1_no_event_waits_for_the_next_whatever_frames_the_stream(framing: str, path: str) -> None:
    """Case 1: no clock in this one, the engine sends the next event when the client has this one."""
    pieces = (event(path, "one"), event(path, "two"), b": comment\n\n", marker(path))
    head = FRAMINGS[framing]
    lockstep = Lockstep(head % len(b"".join(pieces)) if b"%d" in head else head, pieces)
    async with Upstream(lockstep) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        await client.post(path, ask(stream=True))
        assert await lockstep.read_by(client) == b"".join(pieces)
        await proxy.counted(Outcome.SERVED)
    head = client.got.partition(b"\r\n\r\n")[0].lower()
    assert b"\r\nx-accel-buffering: no" in head
    assert b"\r\ncache-control: no-cache" in head


async def test_case_1_neighbour_headers_come_before_the_first_event_and_a_length_is_no_licence_to_wait() -> None:
    """Case 1: also of an answer that is no stream, sent in pieces."""
    body = b'{"choices": []}'
    lockstep = Lockstep(whole(body)[: -len(body)], [body[at : at + 4] for at in range(0, len(body), 4)])
    async with Upstream(lockstep) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        await client.post(CHAT, ask())
        assert await lockstep.read_by(client) == body


async def test_case_1_neighbour_a_client_of_http_1_0_gets_each_event_at_once_and_no_chunks() -> None:
    pieces = (event(CHAT, "one"), event(CHAT, "two"), marker(CHAT))
    lockstep, body = Lockstep(SSE, pieces), b'{"model":"m","stream":true}'
    async with Upstream(lockstep) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        client.writer.write(b"POST %b HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body))
        assert await lockstep.read_by(client) == b"".join(pieces)
        await client.rest()
    assert b"transfer-encoding" not in client.got.lower()
    assert client.got.endswith(marker(CHAT))


# --------------------------------------------------------------------------------------- 2: characters of many bytes


def text_of(path: str) -> bytes:
    return event(path, "€🦙é") + marker(path)


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize("framing", ["chunked", "until it closes"])
async def test_case_2_a_byte_a_chunk_arrives_byte_by_byte_and_unharmed(framing: str, path: str) -> None:
    stream = text_of(path)
    lockstep = Lockstep(FRAMINGS[framing], [bytes([byte]) for byte in stream])
    async with Upstream(lockstep) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        await client.post(path, ask(stream=True))
        got = await lockstep.read_by(client)
        await proxy.counted(Outcome.SERVED)
    assert hashlib.sha256(got).digest() == hashlib.sha256(stream).digest()


@pytest.mark.parametrize("path", ENDS)
async def test_case_2_cut_at_every_offset_of_its_characters(path: str) -> None:
    stream = text_of(path)
    first, last = stream.index("€".encode()) - 1, stream.index("é".encode()) + 3
    for offset in range(first, last):
        lockstep = Lockstep(SSE, (stream[:offset], stream[offset:]))
        async with Upstream(lockstep) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
            await client.post(path, ask(stream=True))
            assert await lockstep.read_by(client) == stream
            await proxy.counted(Outcome.SERVED)


async def test_case_2_neighbour_an_answer_that_is_no_stream_and_bytes_that_are_no_characters_at_all() -> None:
    body = '{"x":"€🦙"}'.encode() + b"\xff\xfe\xe2\x82"  # the last character is cut for good
    for head in (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n"):
        lockstep = Lockstep(head, [bytes([byte]) for byte in body])
        async with Upstream(lockstep) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
            await client.post(CHAT, ask())
            assert await lockstep.read_by(client) == body
            await proxy.counted(Outcome.SERVED)


async def test_case_2_neighbour_bytes_that_are_no_characters_pass_through_a_stream_as_they_are() -> None:
    stream = b'data: {"x":"\xe2\x82"}\n\ndata: \xff\xf0\x9f\n\n' + marker(CHAT)
    lockstep = Lockstep(SSE, (stream[:13], stream[13:20], stream[20:]))
    async with Upstream(lockstep) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        await client.post(CHAT, ask(stream=True))
        assert await lockstep.read_by(client) == stream
        await proxy.counted(Outcome.SERVED)
