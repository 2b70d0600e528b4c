"""Offers of another protocol (case 6): WebSockets are refused in every form and over TLS, others are ignored."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest

from engines.spec import CHAT, MESSAGES
from slotproxy.config import SlotSettings
from slotproxy.keys import digests
from slotproxy.outcomes import Outcome
from tests.slotproxy.certificates import tls, trusting
from tests.slotproxy.rig import (
    ANYONE,
    AT_ONCE,
    Client,
    Conversation,
    Proxy,
    Seen,
    Upstream,
    ask,
    engine,
    eventually,
    proxied,
    saying,
    whole,
)

KEYED = {**ANYONE, "voice": SlotSettings("voice", keys=digests("sesame"))}
SERVER, TRUSTING = tls(), trusting()
H2C = (b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AAMAAABkAAQCAAAAAAIAAAAA")


@contextlib.asynccontextmanager
async def client_of(proxy: Proxy) -> AsyncIterator[Client]:
    more = {"ssl": TRUSTING, "server_hostname": "localhost"} if proxy.url.startswith("https") else {}
    async with Client.at(proxy.port, **more) as client:
        yield client


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "offer",
    [
        (b"Connection: Upgrade", b"Upgrade: websocket"),
        (b"CONNECTION: keep-alive, uPGRADE", b"UPGRADE: WebSocket"),
        (b"upgrade: websocket",),
        (b"connection: upgrade", b"upgrade: h2c", b"upgrade: websocket/13"),
    ],
)
async def test_case_6_a_websocket_is_refused_in_every_form_with_a_key_on_inference_paths_and_over_tls(
    secure: bool, method: str, offer: tuple[bytes, ...]
) -> None:
    own = SERVER if secure else None
    async with Upstream(saying(whole(b"{}"))) as up, proxied(engine(up.url), slots=KEYED, tls=own) as proxy:
        for path in (CHAT, MESSAGES, "/v1/realtime", "/v1/models"):
            async with client_of(proxy) as client, asyncio.timeout(AT_ONCE):
                lines = (b"authorization: Bearer sesame", b"sec-websocket-version: 13", *offer, b"host: localhost")
                head = f"{method} {path} HTTP/1.1".encode()
                client.writer.write(b"\r\n".join((head, *lines, b"content-length: 0")) + b"\r\n\r\n")
                await client.until(b"}}")
                assert client.got.startswith(b"HTTP/1.1 400 ")
                assert "no WebSockets here" in json.loads(client.body)["error"]["message"]
        assert not up.seen
        assert proxy.gate.view().in_flight == proxy.gate.view().waiting == 0


@pytest.mark.parametrize("secure", [False, True])
async def test_an_offer_of_http_2_is_ignored_and_the_connection_goes_on_as_it_is(secure: bool) -> None:
    async with (
        Upstream(saying(whole(b'{"n":1}'))) as up,
        proxied(engine(up.url), tls=SERVER if secure else None) as proxy,
        client_of(proxy) as client,
    ):
        for _ in range(2):
            await client.post(CHAT, ask(), *H2C)
            await client.until(b'{"n":1}')
            assert client.got.startswith(b"HTTP/1.1 200 OK\r\n")
            client.got = b""
    assert len(up.seen) == 2
    assert [seen.all(name) for seen in up.seen for name in (b"upgrade", b"http2-settings")] == [[]] * 4


@pytest.mark.parametrize("ahead", [b"", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"])
async def test_a_client_that_offers_another_protocol_and_leaves_is_gone_at_once(ahead: bytes) -> None:
    left = asyncio.Event()

    async def prefill(talk: Conversation, _: Seen) -> None:
        await talk.left()
        left.set()

    async with Upstream(prefill) as up, proxied(engine(up.url)) as proxy:
        async with Client.at(proxy.port) as client, Client.at(proxy.port) as waiting:
            await client.post(CHAT, ask(stream=True), *H2C)
            await eventually(lambda: len(up.seen) == 1)
            await waiting.post(CHAT, ask(), *H2C)
            await eventually(lambda: proxy.gate.view().waiting == 1)
            waiting.writer.write(ahead)
            client.writer.write(ahead)
            await asyncio.sleep(0.05)
            waiting.writer.close()
            await eventually(lambda: proxy.gate.view().waiting == 0, AT_ONCE)
            client.writer.close()
            async with asyncio.timeout(AT_ONCE):
                await left.wait()
        await proxy.counted(Outcome.CANCELLED, 2)
        await proxy.idle()
