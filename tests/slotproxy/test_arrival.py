"""What is decided of a request while it arrives: its target, its body's size, and how it is refused."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket

import pytest

from engines.spec import CHAT
from slotproxy import linger
from slotproxy.app import ClientPort
from slotproxy.arrival import Room
from slotproxy.config import Limits, SlotSettings
from slotproxy.house import Patience
from slotproxy.keys import digests
from slotproxy.outcomes import Outcome
from tests.slotproxy.rig import (
    AT_ONCE,
    WITHIN,
    Client,
    Proxy,
    Upstream,
    ask,
    chunk,
    engine,
    eventually,
    proxied,
    saying,
    whole,
)


@pytest.mark.parametrize("target", [f"{CHAT}?a=1#b", f"{CHAT}?#", f"{CHAT}#b", "/v1/models?a#b"])
async def test_a_target_that_no_engine_could_be_asked_for_is_a_400_at_once(target: str) -> None:
    up = Upstream(saying(whole(b"{}")))
    async with up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        await client.post(target, ask())
        await client.until(b"}}")
        assert proxy.outcomes.counts[Outcome.FAILED] == 0
    assert client.got.startswith(b"HTTP/1.1 400")
    assert json.loads(client.body)["error"]["code"] == "bad_target"
    assert not up.seen


async def test_an_absolute_target_means_its_path() -> None:
    async with Upstream(saying(whole(b"{}"))) as up, proxied(engine(up.url)) as proxy:
        for target, says in (("/v1/models", b'"list"'), ("", b"there is no / here"), ("?a=b", b"there is no / here")):
            async with Client.at(proxy.port) as client:
                client.writer.write(b"GET HTTP://any.name:80%b HTTP/1.1\r\nhost: x\r\n\r\n" % target.encode())
                await client.until(says)
        async with Client.at(proxy.port) as client:
            await client.post(f"http://any.name{CHAT}?a=b", ask())
            await client.until(b"{}")
    assert up.seen[0].line == b"POST %b?a=b HTTP/1.1" % CHAT.encode()


# ------------------------------------------------------------------------------- refused before all of it has come


def write_first(port: int, version: int, path: str, headers: dict[str, str]) -> int:
    """The status that a simple client sees, one that reads only once it has written its 40 MB."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN)
    connection._http_vsn, connection._http_vsn_str = version, f"HTTP/1.{version - 10}"  # type: ignore[attr-defined]
    try:
        connection.request("POST", path, b"x" * 40_000_000, headers)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("key", "path", "status"), [("sesame", CHAT, 413), ("guess", CHAT, 401), ("sesame", "/nowhere", 404)]
)
@pytest.mark.parametrize(("version", "ends"), [(11, "close"), (10, "close"), (11, "keep-alive")])
async def test_a_client_that_writes_first_reads_why_it_was_refused(
    key: str, path: str, status: int, version: int, ends: str
) -> None:
    slots = {"voice": SlotSettings("voice", keys=digests("sesame"))}
    headers = {"connection": ends, "authorization": f"Bearer {key}"}
    async with proxied(engine("http://127.0.0.1:1"), slots=slots) as proxy:
        assert await asyncio.to_thread(write_first, proxy.port, version, path, headers) == status


@pytest.mark.parametrize("patience", [0.3, 1000.0])
async def test_a_refusal_waits_for_nothing_and_the_wait_for_the_rest_has_an_end(
    patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linger, "_PATIENCE", patience)
    limits = Limits(max_body=1000)
    async with proxied(engine("http://127.0.0.1:1"), limits=limits) as proxy, Client.at(proxy.port) as client:
        head = b"POST %b HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 99999\r\n\r\nx"
        client.writer.write(head % CHAT.encode())
        await client.until(b"body_too_large")
        assert client.got.endswith(b"}}")
        assert proxy.outcomes.counts[Outcome.REFUSED] == 1
        if patience < WITHIN:
            await client.rest()


async def test_what_nobody_wants_is_not_read_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linger, "_MOST", 1_000_000)
    async with proxied(engine("http://127.0.0.1:1"), limits=Limits(max_body=1000)) as proxy:

        def flood() -> None:
            with socket.create_connection(("127.0.0.1", proxy.port), WITHIN) as client:
                client.sendall(b"POST %b HTTP/1.0\r\ncontent-length: 999999999\r\n\r\n" % CHAT.encode())
                while True:
                    client.sendall(b"x" * 100_000)

        with pytest.raises(ConnectionError):
            async with asyncio.timeout(AT_ONCE):
                await asyncio.to_thread(flood)


# ------------------------------------------------------------------------------------------------ how much comes


async def upload(client: Client, announced: int, sent: int) -> None:
    """The first bytes of a body that goes on later."""
    head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
    client.writer.write(head % (CHAT.encode(), announced) + b"x" * sent)
    await client.writer.drain()


def room_of(proxy: Proxy) -> Room:
    assert isinstance(proxy.app, ClientPort)
    return proxy.app._house.room


async def test_bodies_that_are_still_coming_count_as_waiting_ones_do() -> None:
    limits = Limits(max_body=1000, max_waiting_bytes=2500)
    async with (
        Upstream(saying(whole(b"{}"))) as up,
        proxied(engine(up.url), limits=limits, opened=False) as proxy,
        Client.at(proxy.port) as waiting,
        Client.at(proxy.port) as coming,
        Client.at(proxy.port) as late,
    ):
        await waiting.post(CHAT, b"x" * 1000)
        await eventually(lambda: proxy.gate.view().waiting_bytes == 1000)
        await upload(coming, 1000, 900)
        await eventually(lambda: room_of(proxy).taken == 1900)
        await upload(late, 1000, 700)
        await late.until(b"}}")
        assert late.got.startswith(b"HTTP/1.1 429")
        assert b"\r\nretry-after: " in late.got
        coming.writer.write(b"x" * 100)  # what fits is let in, and isn't counted twice
        await eventually(lambda: proxy.gate.view().waiting_bytes == 2000)
        proxy.gate.open("strata", 1)
        await waiting.until(b"{}")
        await coming.until(b"{}")
        assert room_of(proxy).taken == 0


async def test_room_is_free_again_however_a_request_ends() -> None:
    limits = Limits(max_body=1000, max_waiting_bytes=1000)
    slots = {"anonymous": SlotSettings("anonymous", max_hold=0.2)}
    async with proxied(engine("http://127.0.0.1:1"), limits=limits, slots=slots, opened=False) as proxy:
        async with Client.at(proxy.port) as leaves:
            await upload(leaves, 1000, 600)
            await eventually(lambda: room_of(proxy).taken == 600)
        await eventually(lambda: room_of(proxy).taken == 0)
        async with Client.at(proxy.port) as expires:
            await expires.post(CHAT, b"x" * 1000)
            await expires.until(b"wait_expired")
        async with Client.at(proxy.port) as too_large:
            chunks = b"transfer-encoding: chunked\r\n\r\n" + chunk(b"x" * 600) * 2
            too_large.writer.write(b"POST %b HTTP/1.1\r\nhost: x\r\n%b" % (CHAT.encode(), chunks))
            await too_large.until(b"body_too_large")
            assert room_of(proxy).taken == 0, "what is refused was kept while its client was told"
        await eventually(lambda: not proxy.tasks)
        assert room_of(proxy).taken == 0


async def test_a_body_that_comes_drop_by_drop_is_given_up_in_the_end() -> None:
    patience = Patience(whole_body=0.5)
    async with proxied(engine("http://127.0.0.1:1"), patience=patience) as proxy, Client.at(proxy.port) as client:
        await upload(client, 1_000_000, 1)
        async with asyncio.timeout(WITHIN), asyncio.TaskGroup() as group:

            async def drip() -> None:
                while True:
                    client.writer.write(b"x")
                    await asyncio.sleep(0.05)

            dripping = group.create_task(drip())
            await client.until(b"body_timeout")
            dripping.cancel()
    assert client.got.startswith(b"HTTP/1.1 408")
