"""Case 13: what an engine may have seen is never sent again, whatever becomes of it. Some pay for each time."""

from __future__ import annotations

import asyncio
import json
import socket
import struct

import pytest

from engines.spec import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES
from slotproxy.config import Limits
from slotproxy.outcomes import Outcome
from tests.slotproxy.rig import (
    Client,
    Conversation,
    Seen,
    Upstream,
    ask,
    browser,
    engine,
    eventually,
    impatient,
    proxied,
    saying,
    whole,
)
from tests.slotproxy.streams import question

SILENCE = 0.5  # seconds
BAD = b'{"error":{"message":"x"}}'


def refusing(status: bytes, *headers: bytes) -> bytes:
    return whole(BAD, *headers, status=status)


SAYS = {
    "502": refusing(b"502 Bad Gateway"),
    "503": refusing(b"503 Later", b"retry-after: 0"),
    "429": refusing(b"429 Busy", b"retry-after: 0"),
    "408": refusing(b"408 Request Timeout", b"connection: close"),
    "425": refusing(b"425 Too Early"),
    "500": refusing(b"500 Oops"),
    "401": refusing(b"401 Who", b"www-authenticate: Bearer"),
    "307": refusing(b"307 Elsewhere", b"location: /v1/chat/completions"),
    "308": refusing(b"308 Elsewhere", b"location: /v1/chat/completions"),
    "no HTTP": b"SSH-2.0-OpenSSH\r\n\r\n",
    "half a status": b"HTTP/1.1 2",
    "half a head": b"HTTP/1.1 200 OK\r\ncontent-le",
    "only that it may go on": b"HTTP/1.1 100 Continue\r\n\r\n",
    "a status of its own": b"HTTP/1.1 999 Odd\r\ncontent-length: 0\r\n\r\n",
}
STATUS = {"closes": 502, "resets": 502, "stalls": 504, "no HTTP": 502, "a status of its own": 502}


def reset(talk: Conversation) -> None:
    """A real one: closing alone ends the connection in peace where everything was read."""
    sock: socket.socket = talk.writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    talk.reset()


async def then(how: str, talk: Conversation) -> None:
    match how:
        case "closes":
            pass
        case "resets":
            reset(talk)
        case "stalls":
            await talk.left()
        case said:
            await talk.send(SAYS[said])


@pytest.mark.parametrize("how", ["closes", "resets", "stalls", *SAYS])
async def test_case_13_an_engine_that_has_read_the_request_has_seen_it_once_whatever_it_does_then(how: str) -> None:
    """Case 13: in every protocol, and the client is told what is true in that protocol's shape."""

    async def behave(talk: Conversation, _: Seen) -> None:
        await then(how, talk)

    profile = impatient(SILENCE if how == "stalls" else 60.0)
    expected = STATUS.get(how) or (int(how) if how.isdigit() else 502)
    for path in (CHAT, COMPLETIONS, RESPONSES, MESSAGES, EMBEDDINGS) if how != "stalls" else (CHAT, MESSAGES):
        async with Upstream(behave) as up, proxied(engine(up.url, profile=profile)) as proxy, browser() as client:
            answer = await client.post(proxy.url + path, json=question(path))
            assert answer.status_code == expected
            assert answer.json()["error"]["message"]
            assert answer.json().get("type") == ("error" if path == MESSAGES and how not in passed_on() else None)
            await proxy.idle()
            assert len(up.seen) == 1, path


def passed_on() -> list[str]:
    """What the client gets as the engine said it."""
    return [how for how in SAYS if how.isdigit()]


async def test_case_13_a_client_that_hears_pings_is_told_in_band_and_the_engine_asked_once() -> None:
    limits = Limits(first_ping=0.05, ping_every=0.05)
    for how in ("closes", "resets", "502", "half a head"):

        async def behave(talk: Conversation, _: Seen, how: str = how) -> None:
            await then(how, talk)

        async with (
            Upstream(behave) as up,
            proxied(engine(up.url), limits=limits, opened=False) as proxy,
            Client.at(proxy.port) as client,
        ):
            await client.post(CHAT, question(CHAT))
            await client.until(b": keep-alive")
            proxy.gate.open("strata", 1)
            await client.rest()
            await proxy.counted(Outcome.FAILED)
        assert b'"error"' in client.body
        assert not client.ended_whole
        assert len(up.seen) == 1


class Cutting:
    """An engine's socket that reads so many bytes of each connection and then resets it."""

    def __init__(self, after: int) -> None:
        self._after = after
        self.connections = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self._after:
            await reader.readexactly(self._after)
        reset(Conversation(reader, writer))


@pytest.mark.parametrize("after", [0, 1, 20, 5000])
async def test_case_13_neighbour_a_connection_reset_anywhere_in_the_request_counts_as_seen(after: int) -> None:
    """Case 13: once it was made nobody can tell how much of the request was read."""
    cutting = Cutting(after)
    server = await asyncio.start_server(cutting, "127.0.0.1", 0)
    async with server, proxied(engine(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")) as proxy:
        async with browser() as client:
            answer = await client.post(proxy.url + CHAT, json=ask(text="x" * 20_000_000))
        assert answer.status_code == 502
        await proxy.counted(Outcome.FAILED)
    assert cutting.connections == 1


async def test_case_13_neighbour_one_that_refused_the_connection_twice_sees_the_request_once() -> None:
    async with Upstream(saying(whole(b"{}"))) as up:
        port = int(up.url.rpartition(":")[2])
        up._server.close()
        await up._server.wait_closed()
        async with proxied(engine(up.url)) as proxy, browser() as client, asyncio.TaskGroup() as group:
            answer = group.create_task(client.post(proxy.url + CHAT, json=ask()))
            await eventually(lambda: proxy.gate.view().settling == 1)
            up._server = await asyncio.start_server(up._serve, "127.0.0.1", port)
            assert (await answer).status_code == 200
            await proxy.counted(Outcome.SERVED)
    assert len(up.seen) == 1


async def test_case_13_neighbour_an_answer_that_broke_off_before_its_first_byte_of_body_is_not_fetched_again() -> None:
    async def behave(talk: Conversation, _: Seen) -> None:
        await talk.send(whole(json.dumps({"choices": []}).encode())[:-15])

    async with Upstream(behave) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        await client.post(CHAT, ask())
        await client.rest()
        await proxy.counted(Outcome.TRUNCATED)
    assert len(up.seen) == 1
