"""HTTPS at the client port, on real sockets: what broke stays visible, nothing lasts for ever, certificates change."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import socket
import ssl
import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import pytest

from engines.spec import CHAT
from slotproxy.config import Limits
from slotproxy.house import Patience
from slotproxy.outcomes import Outcome
from tests.slotproxy.certificates import shown, tls, trusting
from tests.slotproxy.rig import (
    AT_ONCE,
    DONE,
    SSE,
    WITHIN,
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
    whole,
)

SERVER, RENEWED, TRUSTING = tls(), tls("renewed"), trusting()
MiB = 1024 * 1024


def secure(port: int) -> Any:
    return Client.at(port, ssl=TRUSTING, server_hostname="localhost")


async def until_it_is_closed(client: Client) -> bytes:
    """All that still comes; a reset is an end, too."""
    with contextlib.suppress(ConnectionError):
        await client.rest()
    return client.got


def get(path: str = "/health") -> bytes:
    return b"GET %b HTTP/1.1\r\nhost: localhost\r\n\r\n" % path.encode()


# ------------------------------------------------------------------------------------------------ as without


async def test_the_port_speaks_https_with_the_whole_chain_and_http_1_1() -> None:
    async with Upstream(saying(whole(b'{"n":1}'))) as up, proxied(engine(up.url), tls=SERVER) as proxy:
        async with httpx.AsyncClient(verify=TRUSTING, base_url=f"https://localhost:{proxy.port}") as client:
            answer = await client.post(CHAT, json=ask())
        async with secure(proxy.port) as raw:
            talk = raw.writer.get_extra_info("ssl_object")
            assert (talk.selected_alpn_protocol(), talk.version()) == ("http/1.1", "TLSv1.3")
    assert (answer.json(), answer.http_version) == ({"n": 1}, "HTTP/1.1")


async def test_nothing_older_than_tls_1_2_is_spoken() -> None:
    old = trusting()
    old.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    async with proxied(engine("http://127.0.0.1:1"), tls=SERVER) as proxy:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", proxy.port, ssl=old, server_hostname="localhost")
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        _, writer = await asyncio.open_connection("127.0.0.1", proxy.port, ssl=old, server_hostname="localhost")
        assert writer.get_extra_info("ssl_object").version() == "TLSv1.2"
        writer.close()


async def test_large_bodies_go_through_whole_both_ways_and_a_connection_is_kept() -> None:
    filling = os.urandom(1 * MiB).hex()

    async def echo(talk: Conversation, seen: Seen) -> None:
        await talk.send(whole(seen.body))

    sums = []
    async with Upstream(echo) as up, proxied(engine(up.url), tls=SERVER) as proxy, secure(proxy.port) as client:
        for turn in range(2):
            body = json.dumps(ask(user=f"{turn}{filling}")).encode()
            await client.post(CHAT, body)
            head = await client.reader.readuntil(b"\r\n\r\n")
            assert b"content-length: %d\r\n" % len(body) in head.lower()
            answer = await client.reader.readexactly(len(body))
            sums += [hashlib.sha256(body).digest(), hashlib.sha256(answer).digest()]
    assert sums[0] == sums[1]
    assert sums[2] == sums[3]


async def test_a_client_that_pauses_gets_the_whole_stream_all_the_same() -> None:
    large = [chunk(b": " + b"x" * 60_000 + b"\n\n") for _ in range(300)]
    flood = saying(SSE, *large, chunk(DONE), b"0\r\n\r\n")
    async with Upstream(flood) as up, proxied(engine(up.url), tls=SERVER) as proxy, secure(proxy.port) as client:
        client.writer.transport.pause_reading()
        await client.post(CHAT, ask(stream=True))
        await eventually(lambda: len(up.seen) == 1)
        await asyncio.sleep(0.2)  # it has filled what lies between
        assert proxy.gate.view().in_flight == 1
        client.writer.transport.resume_reading()
        pieces: list[bytes] = []
        async with asyncio.timeout(WITHIN):
            while not b"".join(pieces[-2:]).endswith(b"\r\n0\r\n\r\n"):
                pieces.append(await client.reader.read(MiB))
                assert pieces[-1]
        client.got = b"".join(pieces)
        assert client.got.partition(b"\r\n\r\n")[2].count(b"x") == 300 * 60_000
        assert DONE in client.got


async def test_of_a_client_that_never_stops_asking_only_so_much_is_read_ahead() -> None:
    nobody = engine("http://127.0.0.1:1")
    async with proxied(nobody, tls=SERVER, opened=False) as proxy, secure(proxy.port) as client:
        await client.post(CHAT, ask())
        await eventually(lambda: proxy.gate.view().waiting == 1)
        client.writer.write(get() * 500_000)
        await asyncio.sleep(0.3)
        (connection,) = proxy.connections
        assert connection.conn.ahead < 1 * MiB
        client.writer.transport.abort()


# ------------------------------------------------------------------------------------------------ how it ends


def read_to_the_end(port: int, request: bytes) -> tuple[bytes, bool]:
    """What a client gets that reads until the end, and whether TLS says that this was all."""
    strict = trusting()
    strict.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF  # which Python sets, unlike others
    wrap = partial(strict.wrap_socket, server_hostname="localhost", suppress_ragged_eofs=False)
    with socket.create_connection(("127.0.0.1", port), WITHIN) as raw, wrap(raw) as client:
        client.sendall(request)
        got = b""
        try:
            while data := client.recv(65536):
                got += data
        except ssl.SSLError as error:  # SSLEOFError, in newer Pythons
            return got, "EOF" not in str(error).upper()
        return got, True


def post(*, version: bytes = b"1.1", **more: Any) -> bytes:
    body = json.dumps(ask(**more)).encode()
    head = b"POST %b HTTP/%b\r\nhost: localhost\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    return head % (CHAT.encode(), version, len(body)) + body


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
async def test_a_whole_answer_ends_with_tls_closing_word_and_a_broken_one_without(version: bytes) -> None:
    good, broken = saying(SSE, chunk(delta()), chunk(DONE), b"0\r\n\r\n"), saying(SSE, chunk(delta()))
    for behave, ends in ((good, True), (broken, False)):
        async with Upstream(behave) as up, proxied(engine(up.url), tls=SERVER) as proxy:
            got, closed = await asyncio.to_thread(read_to_the_end, proxy.port, post(version=version, stream=True))
        assert delta()[:-1] in got
        assert closed is ends
        assert got.endswith(b"0\r\n\r\n") is (ends and version == b"1.1")
        assert (b'"cut_short"' in got) is not ends


@pytest.mark.parametrize("politely", [True, False])
async def test_a_client_that_leaves_frees_the_engine_at_once(politely: bool) -> None:
    left = asyncio.Event()

    async def prefill(talk: Conversation, _: Seen) -> None:
        await talk.left()
        left.set()

    async with Upstream(prefill) as up, proxied(engine(up.url), tls=SERVER) as proxy:
        async with secure(proxy.port) as client:
            await client.post(CHAT, ask(stream=True))
            await eventually(lambda: len(up.seen) == 1)
            if politely:
                client.writer.close()
            else:
                client.writer.transport.abort()
            async with asyncio.timeout(AT_ONCE):
                await left.wait()
        await proxy.counted(Outcome.CANCELLED)
        await proxy.idle()
        await eventually(lambda: not proxy.connections)


async def test_a_client_that_leaves_while_it_waits_is_gone_at_once() -> None:
    async with proxied(engine("http://127.0.0.1:1"), tls=SERVER, opened=False) as proxy:
        async with secure(proxy.port) as client:
            await client.post(CHAT, ask())
            await eventually(lambda: proxy.gate.view().waiting == 1)
        await eventually(lambda: proxy.gate.view().waiting == 0, AT_ONCE)
        await proxy.counted(Outcome.CANCELLED)


async def test_a_client_that_takes_nothing_holds_the_engine_no_longer_than_it_may() -> None:
    async def flood(talk: Conversation, _: Seen) -> None:
        await talk.send(SSE)
        while True:
            await talk.send(chunk(b": " + b"x" * 60_000 + b"\n\n"))

    impatient = Patience(write=0.3)
    async with (
        Upstream(flood) as up,
        proxied(engine(up.url), tls=SERVER, patience=impatient) as proxy,
        secure(proxy.port) as client,
    ):
        client.writer.transport.pause_reading()
        await client.post(CHAT, ask(stream=True))
        await proxy.counted(Outcome.CANCELLED)
        await proxy.idle()
        await eventually(lambda: not proxy.connections)


async def test_a_stream_begun_by_pings_goes_on_and_ends_over_tls() -> None:
    limits = Limits(first_ping=0.05, ping_every=0.05)
    good = saying(SSE, chunk(delta()), chunk(DONE), b"0\r\n\r\n")
    async with (
        Upstream(good) as up,
        proxied(engine(up.url), tls=SERVER, limits=limits, opened=False) as proxy,
        secure(proxy.port) as client,
    ):
        await client.post(CHAT, ask(stream=True))
        await client.until(b": keep-alive\n\n")
        proxy.gate.open("strata", 1, "a run")
        await client.until(b"0\r\n\r\n")
        assert client.body.endswith(delta() + DONE)


# ------------------------------------------------------------------------------------------------ handshakes


async def test_who_speaks_plain_http_is_told_so_with_a_clean_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotproxy.secured._FLUSH", 2 * WITHIN)  # the end comes first, and what is sent still is read
    async with proxied(engine("http://127.0.0.1:1"), tls=SERVER) as proxy, Client.at(proxy.port) as client:
        await client.post(CHAT, ask())
        async with asyncio.timeout(AT_ONCE):
            got = await client.rest()
    head, _, body = got.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"connection: close" in head
    assert json.loads(body)["error"]["code"] == "https_only"


@pytest.mark.parametrize(
    "sent", [b"\x16\x03\x01\x00\x05hello", b"\x16" + b"\xff" * 1000, b"\x00" * 10, b"\x80\x2e\x01"]
)
async def test_bytes_that_are_no_handshake_end_at_once(sent: bytes) -> None:
    async with proxied(engine("http://127.0.0.1:1"), tls=SERVER) as proxy, Client.at(proxy.port) as client:
        client.writer.write(sent)
        async with asyncio.timeout(AT_ONCE):
            got = await until_it_is_closed(client)
        assert got[:1] in (b"", b"\x15", b"H")  # nothing, an alert, or the words for those who speak no TLS
        await eventually(lambda: not proxy.connections)


@pytest.mark.parametrize("sent", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"])
async def test_a_handshake_that_does_not_end_is_ended(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotproxy.secured._HANDSHAKE_LIMIT", 0.2)
    async with (
        proxied(engine("http://127.0.0.1:1"), tls=SERVER) as proxy,
        Client.at(proxy.port) as slow,
        secure(proxy.port) as quick,
    ):
        slow.writer.write(sent)
        assert await until_it_is_closed(slow) == b""
        quick.writer.write(get())  # the limit was for its handshake alone
        await quick.until(b'"status"')


async def test_handshakes_that_hang_count_as_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotproxy.server.for_clients", lambda: 2)
    monkeypatch.setattr("slotproxy.server._TOLD", 1)
    async with proxied(engine("http://127.0.0.1:1"), tls=SERVER) as proxy, contextlib.AsyncExitStack() as clients:

        async def hang(count: int) -> None:
            for _ in range(count):
                before = len(proxy.connections)
                await clients.enter_async_context(Client.at(proxy.port))
                await eventually(lambda before=before: len(proxy.connections) > before)  # type: ignore[misc]

        await hang(2)
        told = await clients.enter_async_context(secure(proxy.port))
        assert (await told.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 503 ")
        await eventually(lambda: len(proxy.connections) == 2)
        await hang(1)
        turned_away = await clients.enter_async_context(Client.at(proxy.port))
        async with asyncio.timeout(AT_ONCE):
            assert await until_it_is_closed(turned_away) == b""


async def test_the_servers_end_waits_for_no_handshake() -> None:
    async with proxied(engine("http://127.0.0.1:1"), tls=SERVER) as proxy:
        client = await asyncio.open_connection("127.0.0.1", proxy.port)
        await eventually(lambda: len(proxy.connections) == 1)
    async with asyncio.timeout(AT_ONCE):
        with contextlib.suppress(ConnectionError):
            assert await client[0].read() == b""
    client[1].close()


async def test_what_comes_after_the_handshake_and_is_no_tls_ends_the_connection() -> None:
    async with proxied(engine("http://127.0.0.1:1"), tls=SERVER) as proxy:
        talk, said = TRUSTING, ssl.MemoryBIO()
        heard = ssl.MemoryBIO()
        tls_side = talk.wrap_bio(heard, said, server_hostname="localhost")
        async with Client.at(proxy.port) as client:
            while True:
                try:
                    tls_side.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    client.writer.write(said.read())
                    heard.write(await client.reader.read(65536))
            client.writer.write(said.read() + b"\x17\x03\x03\x00\x20" + b"x" * 32)
            async with asyncio.timeout(AT_ONCE):
                await until_it_is_closed(client)
        await eventually(lambda: not proxy.connections)


# ------------------------------------------------------------------------------------------------ certificates change


async def test_new_connections_are_shown_the_renewed_certificate_and_old_ones_go_on() -> None:
    async with proxied(engine("http://127.0.0.1:1"), tls=SERVER) as proxy:
        held = proxy.in_force
        async with secure(proxy.port) as old:
            held.settings = replace(held.settings, tls=RENEWED)
            async with secure(proxy.port) as new:
                assert shown(old.writer.get_extra_info("ssl_object")) == "server"
                assert shown(new.writer.get_extra_info("ssl_object")) == "renewed"
            held.settings = replace(held.settings, tls=None)
            async with Client.at(proxy.port) as plain:
                plain.writer.write(get())
                await plain.until(b'"status"')
            old.writer.write(get())
            await old.until(b'"status"')


@pytest.mark.parametrize("secured", [False, True])
async def test_the_servers_end_does_not_stumble_over_one_who_was_just_turned_away(secured: bool) -> None:
    async with contextlib.AsyncExitStack() as clients:  # they outlive the server
        async with proxied(engine("http://127.0.0.1:1"), tls=SERVER if secured else None) as proxy:
            client = await clients.enter_async_context(secure(proxy.port) if secured else Client.at(proxy.port))
            client.writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nexpect: more\r\n\r\n")
            await client.until(b"}}")
        assert not proxy.connections
