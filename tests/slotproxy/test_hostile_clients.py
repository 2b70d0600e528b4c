"""Clients that are slow, silent, greedy or in a hurry: each is bounded, and nobody else notices."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import time
from typing import Any

import pytest

from engines.spec import CHAT
from slotproxy import server
from slotproxy.config import Limits, SlotSettings
from tests.slotproxy.rig import (
    AT_ONCE,
    WITHIN,
    Client,
    Conversation,
    Proxy,
    Seen,
    Upstream,
    browser,
    chunk,
    engine,
    eventually,
    proxied,
    saying,
    whole,
)

SHORT = 0.3  # seconds in place of a minute
NOBODY = "http://127.0.0.1:1"


def post(number: int, *more: bytes) -> bytes:
    body = json.dumps({"model": "m", "number": number}).encode()
    lines = [b"POST %b HTTP/1.1" % CHAT.encode(), b"host: x", b"content-length: %d" % len(body), *more]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


async def numbered(talk: Conversation, seen: Seen) -> None:
    """An engine that says which request it answers."""
    await talk.send(whole(b'{"number": %d}' % seen.json["number"]))


async def is_well(proxy: Proxy) -> None:
    async with browser(proxy.url) as other:
        assert (await other.get("/health")).json()["status"] == "ok"


# ---------------------------------------------------------------------------------------------- silent and slow


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_HEAD", "_KEEP_ALIVE", "_STUCK", "_FLUSH"):
        monkeypatch.setattr(server, name, SHORT)


@pytest.mark.usefixtures("impatient")
async def test_a_connection_on_which_nothing_comes_is_closed_without_a_word() -> None:
    async with proxied(engine(NOBODY)) as proxy, Client.at(proxy.port) as client:
        assert await client.rest() == b""
        await eventually(lambda: not proxy.connections)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "begin", [b"P", b"POST /", b"GET /health HTTP/1.1\r\n", b"GET /health HTTP/1.1\r\nhost: x\r\n", b"\r\n"]
)
async def test_a_head_that_is_begun_and_not_ended_is_a_408(begin: bytes) -> None:
    async with proxied(engine(NOBODY)) as proxy, Client.at(proxy.port) as client:
        client.writer.write(begin)
        got = await client.rest()
        assert got.startswith(b"HTTP/1.1 408 ")
        assert json.loads(client.body)["error"]["code"] == "header_timeout"
        await eventually(lambda: not proxy.connections)


@pytest.mark.usefixtures("impatient")
async def test_a_head_that_comes_drop_by_drop_gets_no_more_time_by_that() -> None:
    async with proxied(engine(NOBODY)) as proxy, Client.at(proxy.port) as client:
        async with asyncio.timeout(WITHIN), asyncio.TaskGroup() as group:

            async def drip() -> None:
                while True:
                    client.writer.write(b"G")
                    await asyncio.sleep(SHORT / 10)

            dripping = group.create_task(drip())
            await client.until(b"header_timeout")
            dripping.cancel()
        await is_well(proxy)


@pytest.mark.usefixtures("impatient")
async def test_the_same_holds_for_the_second_request_of_a_connection() -> None:
    async with Upstream(numbered) as up, proxied(engine(up.url)) as proxy:
        for begin in (b"POST /", b"", b"\r\n"):
            async with Client.at(proxy.port) as client:
                client.writer.write(post(1) + begin)
                await client.until(b'{"number": 1}')
                await client.rest()
            assert client.got.count(b"HTTP/1.1 ") == (2 if begin == b"POST /" else 1)
        async with Client.at(proxy.port) as client:
            client.writer.write(post(2))
            await client.until(b'{"number": 2}')
            client.writer.write(b"POST /")
            await client.until(b"header_timeout")


@pytest.mark.usefixtures("impatient")
async def test_a_request_that_waits_longer_than_all_these_limits_is_served() -> None:
    up = Upstream(numbered)
    async with up, proxied(engine(up.url), opened=False) as proxy, Client.at(proxy.port) as client:
        client.writer.write(post(1)[:30])
        await asyncio.sleep(SHORT / 10)
        client.writer.write(post(1)[30:])
        await asyncio.sleep(4 * SHORT)
        proxy.gate.open("strata", 1)
        await client.until(b'{"number": 1}')


@pytest.mark.usefixtures("impatient")
async def test_a_body_that_nobody_wants_is_not_read_for_ever() -> None:
    async with proxied(engine(NOBODY)) as proxy, Client.at(proxy.port) as client:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("slotproxy.linger._PATIENCE", SHORT)
            client.writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\ncontent-length: 99999\r\n\r\n")
            async with asyncio.timeout(WITHIN), asyncio.TaskGroup() as group:

                async def drip() -> None:
                    while True:
                        client.writer.write(b"x")
                        await asyncio.sleep(SHORT / 10)

                dripping = group.create_task(drip())
                await eventually(lambda: not proxy.connections)
                dripping.cancel()


@pytest.mark.usefixtures("impatient")
async def test_a_client_that_reads_none_of_many_answers_is_ended() -> None:
    models: dict[str, dict[str, str]] = {f"model-{number}": {} for number in range(1000)}
    async with proxied(engine(NOBODY), models=models) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port)) as greedy:
            greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            greedy.setblocking(False)
            sending = asyncio.get_running_loop().sock_sendall
            with contextlib.suppress(ConnectionError):
                async with asyncio.timeout(WITHIN):
                    while True:
                        await sending(greedy, b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n" * 1000)
        await eventually(lambda: not proxy.connections and not proxy.tasks)
        await is_well(proxy)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("ends", [b"connection: close", b"connection: keep-alive"])
async def test_an_answer_that_is_not_taken_keeps_no_connection_once_it_is_whole(ends: bytes) -> None:
    """Its last bytes are in the server's buffer, where no write waits for them any more."""
    async with Upstream(saying(whole(b"x" * 3_000_000))) as up, proxied(engine(up.url)) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await asyncio.to_thread(client.sendall, post(1, ends))
            await eventually(lambda: len(up.seen) == 1)
            await eventually(lambda: not proxy.connections and not proxy.tasks and not up.open)


async def test_who_leaves_as_it_is_turned_away_is_no_fault_of_ours() -> None:
    """What it is told makes its machine say that nobody is there any more, in the middle of the telling."""
    async with proxied(engine(NOBODY)) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port)):
            await eventually(lambda: len(proxy.connections) == 1)
        [connection] = proxy.connections
        connection._turn_away(b"words")
        await eventually(lambda: not proxy.connections)


def small_buffers(connection: Any, most: int) -> None:
    """The kernel takes next to nothing of what is sent there, and uvicorn hears of it past so many bytes."""
    connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    connection.transport.set_write_buffer_limits(high=most)


MANY: dict[str, dict[str, str]] = {f"model-{number}": {} for number in range(3000)}
LIST = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: %b\r\n\r\n"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("ends", [b"close", b"keep-alive"])
async def test_the_last_bytes_that_nobody_takes_keep_no_connection(ends: bytes) -> None:
    """They are in the server's buffer, too few for anybody to wait for them."""
    async with proxied(engine(NOBODY), models=MANY) as proxy:
        with socket.create_connection(("127.0.0.1", proxy.port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await eventually(lambda: len(proxy.connections) == 1)
            [connection] = proxy.connections
            small_buffers(connection, 100_000_000)
            client.sendall(LIST % ends)
            await eventually(lambda: not proxy.connections)


@pytest.mark.parametrize("sent", [b"", b"GET /", b"BAD\r\n\r\n"])
@pytest.mark.parametrize("resets", [False, True])
async def test_nothing_is_kept_of_a_connection_that_is_gone(sent: bytes, resets: bool) -> None:
    async with proxied(engine(NOBODY)) as proxy:
        async with Client.at(proxy.port) as client:
            client.writer.write(sent)
            await eventually(lambda: len(proxy.connections) == 1)
            [connection] = proxy.connections
            await eventually(lambda: bool(connection._timers) if sent else True)
            if resets:
                never = struct.pack("ii", 1, 0)
                client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, never)
        await eventually(lambda: not proxy.connections)
        assert not connection._timers
        assert connection.timeout_keep_alive_task is None


async def test_who_has_paused_and_reads_on_is_not_ended_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_STUCK", SHORT)
    async with proxied(engine(NOBODY), models=MANY) as proxy, Client.at(proxy.port) as client:
        await eventually(lambda: len(proxy.connections) == 1)
        [connection] = proxy.connections
        small_buffers(connection, 4096)
        client.writer.write(LIST % b"keep-alive")
        await client.until(b"model-2999")
        await asyncio.sleep(2 * SHORT)
        client.writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        await client.until(b'"status":"ok"')


@pytest.mark.parametrize("sent", [b"TRACE / HTTP/1.1\r\nhost: x\r\n\r\n", b"BAD\r\n\r\n", b"GET /hea", b""])
async def test_the_end_of_the_server_is_no_trouble_whatever_a_connection_has_come_to(sent: bytes) -> None:
    async with proxied(engine(NOBODY)) as proxy, Client.at(proxy.port) as client:
        client.writer.write(sent)
        if sent.endswith(b"\r\n"):
            await client.until(b"}}")
        await eventually(lambda: len(proxy.connections) == 1)
        [connection] = proxy.connections
        connection.shutdown()
        await eventually(lambda: not proxy.connections)


# -------------------------------------------------------------------------------------------------- in a hurry


async def test_requests_in_one_packet_are_answered_in_order_and_none_is_lost() -> None:
    async with Upstream(numbered) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        client.writer.write(b"".join(map(post, range(50))))
        await client.until(b'{"number": 49}')
    found = [
        json.loads(part.partition(b"\r\n\r\n")[2])["number"] for part in client.got.split(b"HTTP/1.1 200 OK\r\n")[1:]
    ]
    assert found == list(range(50))
    assert [seen.json["number"] for seen in up.seen] == found


async def test_answers_of_all_kinds_on_one_connection_are_not_mixed() -> None:
    slots = {"anonymous": SlotSettings("anonymous")}
    limits = Limits(max_body=100)
    sent = (
        b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n",
        post(1),
        b"POST /nowhere HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(b"x" * 10) + b"0\r\n\r\n",
        b"HEAD /v1/models HTTP/1.1\r\nhost: x\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n",
        post(2),
        b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 200\r\n\r\n" % CHAT.encode() + b"x" * 200,
        post(3),
        b"BAD\r\n\r\n",
        post(4),
    )
    for size in (1, 7, 100_000):
        up, raw = Upstream(numbered), b"".join(sent)
        async with up, proxied(engine(up.url), slots=slots, limits=limits) as proxy, Client.at(proxy.port) as client:
            for start in range(0, len(raw), size):
                client.writer.write(raw[start : start + size])
                await asyncio.sleep(0)
            await client.rest()
            statuses = [int(part[:3]) for part in client.got.split(b"HTTP/1.1 ")[1:]]
            assert statuses == [200, 200, 404, 200, 204, 200, 413, 200, 400]
            assert [seen.json["number"] for seen in up.seen] == [1, 2, 3]


async def test_the_second_waits_for_the_first_that_waits_for_the_card() -> None:
    async with (
        Upstream(numbered) as up,
        proxied(engine(up.url), opened=False) as proxy,
        Client.at(proxy.port) as client,
    ):
        client.writer.write(post(1) + post(2) + b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        await eventually(lambda: proxy.gate.view().waiting == 1)
        client.writer.write(post(3))
        await asyncio.sleep(0.1)
        assert proxy.gate.view().waiting == 1
        assert client.got == b""
        await is_well(proxy)
        proxy.gate.open("strata", 1)
        await client.until(b'{"number": 3}')
        assert [seen.json["number"] for seen in up.seen] == [1, 2, 3]


async def test_who_leaves_with_requests_sent_ahead_is_out_of_the_line_at_once() -> None:
    async with Upstream(numbered) as up, proxied(engine(up.url), opened=False) as proxy:
        async with Client.at(proxy.port) as client:
            client.writer.write(post(1) + post(2))
            await eventually(lambda: proxy.gate.view().waiting == 1)
            client.writer.write(post(3))
            await asyncio.sleep(0.1)
        await eventually(lambda: proxy.gate.view().waiting == 0, within=AT_ONCE)
        proxy.gate.open("strata", 1)
        await asyncio.sleep(0.1)
        assert not up.seen


@pytest.mark.parametrize("more", [b"\r\n", b"BAD\r\n\r\n", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"])
async def test_what_comes_after_a_last_request_doesnt_disturb_it(more: bytes) -> None:
    async with (
        Upstream(numbered) as up,
        proxied(engine(up.url), opened=False) as proxy,
        Client.at(proxy.port) as client,
    ):
        client.writer.write(post(1, b"connection: close"))
        await eventually(lambda: proxy.gate.view().waiting == 1)
        client.writer.write(more)
        await asyncio.sleep(0.1)
        proxy.gate.open("strata", 1)
        got = await client.rest()
    assert got.startswith(b"HTTP/1.1 200 ")
    assert got.count(b"HTTP/1.1 ") == 1


async def test_who_writes_on_reads_why_the_body_was_refused() -> None:
    def write_first(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), WITHIN) as client:
            head = b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" % CHAT.encode()
            client.sendall(head + chunk(b"first") + b"zz\r\n" + b"x" * 5_000_000)
            time.sleep(0.2)
            return client.recv(65536)

    async with proxied(engine(NOBODY)) as proxy:
        assert (await asyncio.to_thread(write_first, proxy.port)).startswith(b"HTTP/1.1 400 ")


async def test_what_is_sent_ahead_without_end_is_not_read_without_end() -> None:
    async with proxied(engine(NOBODY), opened=False) as proxy, Client.at(proxy.port) as client:
        client.writer.write(post(1))
        await eventually(lambda: proxy.gate.view().waiting == 1)
        client.writer.write(post(2) * 100_000)
        await asyncio.sleep(0.3)
        [connection] = proxy.connections
        assert connection.conn.ahead < 1_000_000
        await is_well(proxy)
        client.writer.transport.abort()


# ------------------------------------------------------------------------------------------------------ and more


async def test_a_client_that_waits_to_continue_is_told_to_and_who_is_refused_is_not() -> None:
    async with Upstream(numbered) as up, proxied(engine(up.url)) as proxy:
        async with Client.at(proxy.port) as client:
            head, _, body = post(1, b"Expect: 100-Continue").partition(b"\r\n\r\n")
            client.writer.write(head + b"\r\n\r\n")
            await client.until(b"HTTP/1.1 100 Continue\r\n\r\n")
            client.writer.write(body)
            await client.until(b'{"number": 1}')
        async with Client.at(proxy.port) as client:
            client.writer.write(
                b"POST /nowhere HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n"
            )
            await client.until(b"}}")
        assert client.got.startswith(b"HTTP/1.1 404 ")
        assert not up.seen[0].all(b"expect")


async def test_a_body_in_tiny_chunks_keeps_nobody_waiting() -> None:
    """A quarter of a megabyte of them, read at once, took the event loop a third of a second."""
    async with Upstream(saying(whole(b"{}"))) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        head = b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" % CHAT.encode()
        text = b'{"model": "m", "x": "%b"}' % (b"x" * 10_000)
        client.writer.write(head + b"".join(chunk(b"%c" % byte) for byte in text) + b"0\r\n\r\n")
        await client.until(b"{}")
        assert up.seen[0].body == text
        [connection] = proxy.connections
        assert connection.transport.max_size <= 64 * 1024
