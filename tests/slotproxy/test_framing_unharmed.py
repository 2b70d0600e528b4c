"""Headers, framing and coding of what goes through, each way. Cases 3, 4 and 6."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib

import pytest

from engines.spec import CHAT, MESSAGES
from slotproxy.outcomes import Outcome
from tests.slotproxy.rig import (
    AT_ONCE,
    SSE,
    Client,
    Conversation,
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
from tests.slotproxy.streams import LAST, event, marker

BODY = b'{"choices": [{"message": {"content": "caf\xc3\xa9"}}]}'
LONGER = {"m": {"strata": "a-name-that-is-much-longer-than-the-clients"}}


def fields(client: Client) -> list[tuple[bytes, bytes]]:
    """The headers of the answer that it got."""
    lines = client.got.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
    return [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]


def values(client: Client, name: bytes) -> list[bytes]:
    return [value for found, value in fields(client) if found == name]


def framing(headers: list[tuple[bytes, bytes]]) -> list[bytes]:
    return [name.lower() for name, _ in headers if name.lower() in (b"content-length", b"transfer-encoding")]


# ------------------------------------------------------------------------------------------- 3: compressed answers


@pytest.mark.parametrize(
    ("accepts", "asked"),
    [
        ((), [b"identity"]),
        ((b"accept-encoding: gzip",), [b"gzip"]),
        ((b"Accept-Encoding: gzip;q=0.5, br , *;q=0",), [b"gzip;q=0.5, br , *;q=0"]),
        ((b"accept-encoding: br", b"accept-encoding: gzip"), [b"br", b"gzip"]),
        ((b"accept-encoding:",), [b""]),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
async def test_case_3_a_compressed_answer_with_its_length_is_not_touched_and_only_what_was_asked_for_is_asked_for(
    streams: bool, accepts: tuple[bytes, ...], asked: list[bytes]
) -> None:
    packed = gzip.compress(BODY * 50)
    said = whole(packed, b"content-encoding: gzip", b"vary: accept-encoding", b'etag: "x"')
    async with Upstream(saying(said)) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        await client.post(CHAT, ask(stream=streams), *accepts)
        await client.until(packed)
        await proxy.counted(Outcome.SERVED)
    assert client.body == packed
    assert framing(fields(client)) == [b"content-length"]
    assert values(client, b"content-length") == [b"%d" % len(packed)]
    assert values(client, b"content-encoding") == [b"gzip"]
    assert values(client, b"vary") == [b"accept-encoding"]
    assert values(client, b"etag") == [b'"x"']
    assert up.seen[0].all(b"accept-encoding") == asked


@pytest.mark.parametrize("coding", [b"gzip", b"deflate", b"br", b"zstd", b"gzip, gzip"])
async def test_case_3_neighbour_any_coding_in_any_framing_and_an_event_stream_too(coding: bytes) -> None:
    packed = zlib.compress(event(CHAT) * 30 + marker(CHAT))  # what nobody decodes may be anything
    for head in (SSE, b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"):
        coded = head[:-2] + b"content-encoding: %b\r\n\r\n" % coding
        halves = chunk(packed[:20]), chunk(packed[20:]), LAST
        async with (
            Upstream(saying(coded, *halves)) as up,
            proxied(engine(up.url)) as proxy,
            Client.at(proxy.port) as client,
        ):
            await client.post(CHAT, ask(stream=True), b"accept-encoding: " + coding)
            await client.until(LAST)
        assert client.body == packed
        assert values(client, b"content-encoding") == [coding]


async def test_case_3_neighbour_a_library_that_decodes_gets_what_the_engine_said() -> None:
    said = whole(gzip.compress(BODY), b"content-encoding: gzip")
    async with Upstream(saying(said)) as up, proxied(engine(up.url)) as proxy, browser() as client:
        answer = await client.post(proxy.url + CHAT, json=ask())
    assert answer.content == BODY
    assert up.seen[0].all(b"accept-encoding") == [answer.request.headers["accept-encoding"].encode()]


# --------------------------------------------------------------------------------------- 4: framing and hop by hop

HOP_BY_HOP = (
    b"connection: keep-alive, X-Foo",
    b"X-Foo: of this hop",
    b"keep-alive: timeout=5, max=100",
    b"trailer: x-sum",
    b"proxy-authenticate: Basic",
    b"upgrade: h2c",
    b"x-kept: yes",
)
STAYS = (b"x-foo", b"keep-alive", b"trailer", b"proxy-authenticate", b"upgrade")


def answers() -> dict[str, bytes]:
    """One answer in each framing, with everything in it that isn't meant for the client."""
    start = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n" + b"\r\n".join(HOP_BY_HOP) + b"\r\n"
    chunks = b"".join((chunk(BODY[:7]), chunk(BODY[7:]), b"0\r\nx-sum: 1\r\n\r\n"))
    return {
        "length": start + b"content-length: %d\r\n\r\n" % len(BODY) + BODY,
        "chunked, with trailers": start + b"transfer-encoding: chunked\r\n\r\n" + chunks,
        "both": start + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n" + chunks,
        "until it closes": start.replace(b"HTTP/1.1", b"HTTP/1.0") + b"\r\n" + BODY,
    }


async def post_chunked(client: Client, raw: bytes, *headers: bytes) -> None:
    lines = [b"POST %b HTTP/1.1" % CHAT.encode(), b"host: x", b"transfer-encoding: chunked", *headers]
    pieces = [chunk(raw[start : start + 9]) for start in range(0, len(raw), 9)]
    client.writer.write(b"\r\n".join(lines) + b"\r\n\r\n" + b"".join(pieces) + b"0\r\nx-end: 1\r\n\r\n")
    await client.writer.drain()


@pytest.mark.parametrize("how", answers())
async def test_case_4_all_of_it_at_once_one_framing_header_each_way_and_lengths_right(how: str) -> None:
    raw = b'{"model" :"m", "messages" : [ {"role":"user", "content":"caf\\u00e9 \xe2\x82\xac"} ] }'
    up = Upstream(saying(answers()[how]))
    async with up, proxied(engine(up.url), models=LONGER) as proxy, Client.at(proxy.port) as client:
        theirs = (b"connection: keep-alive, X-Bar", b"X-Bar: 1", b"keep-alive: timeout=9", b"te: trailers")
        await post_chunked(client, raw, *theirs, b"trailer: x-end", b"proxy-authorization: Basic eDp5")
        await client.until(LAST if framing_is_chunked(how) else BODY)
        await proxy.counted(Outcome.SERVED)
    seen = check_request(up.seen, raw)
    assert b'[ {"role":"user", "content":"caf\\u00e9 \xe2\x82\xac"} ]' in seen.body
    for gone in (b"x-bar", b"keep-alive", b"te", b"trailer", b"x-end", b"proxy-authorization"):
        assert not seen.all(gone)
    assert client.body == BODY
    assert len(framing(fields(client))) == 1
    assert values(client, b"content-length") in ([], [b"%d" % len(BODY)])
    assert [name for name, _ in fields(client) if name in STAYS] == []
    assert values(client, b"x-kept") == [b"yes"]


def framing_is_chunked(how: str) -> bool:
    return how != "length"


def check_request(requests: list[Seen], raw: bytes) -> Seen:
    """It came once, with a length that is right, and everything but the model as its client wrote it."""
    (seen,) = requests
    assert framing(seen.headers) == [b"content-length"]
    assert seen.all(b"content-length") == [b"%d" % len(seen.body)]
    assert seen.json == {**json.loads(raw), "model": LONGER["m"]["strata"]}
    return seen


async def test_case_4_neighbour_a_connection_serves_one_request_after_the_other_in_every_framing() -> None:
    said = list(answers().values())

    async def behave(talk: Conversation, seen: Seen) -> None:
        await saying(said[len(up.seen) - 1])(talk, seen)

    up = Upstream(behave)
    async with up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        for how in answers():
            client.got = b""
            await post_chunked(client, json.dumps(ask()).encode())
            await client.until(LAST if framing_is_chunked(how) else BODY)
            assert client.body == BODY
    assert len(up.seen) == len(said)


@pytest.mark.parametrize(
    ("line", "headers"),
    [
        (b"HTTP/1.1", b"host: x\r\nconnection: close\r\n"),
        (b"HTTP/1.0", b""),
        (b"HTTP/1.0", b"connection: keep-alive\r\n"),
    ],
)
@pytest.mark.parametrize("how", answers())
async def test_case_4_neighbour_a_client_that_closes_or_speaks_http_1_0_has_the_whole_answer_and_then_the_end(
    how: str, line: bytes, headers: bytes
) -> None:
    raw = json.dumps(ask()).encode()
    up = Upstream(saying(answers()[how]))
    async with up, proxied(engine(up.url), models=LONGER) as proxy, Client.at(proxy.port) as client:
        head = b"POST %b %b\r\n%bcontent-length: %d\r\n\r\n" % (CHAT.encode(), line, headers, len(raw))
        client.writer.write(head + raw)
        await client.rest()
        await proxy.counted(Outcome.SERVED)
    check_request(up.seen, raw)
    assert client.body == BODY
    if line == b"HTTP/1.0":
        assert b"transfer-encoding" not in client.got.lower()


@pytest.mark.parametrize("early", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"])
async def test_case_4_neighbour_what_an_engine_says_before_its_answer_is_not_taken_for_it(early: bytes) -> None:
    async with Upstream(saying(early, whole(BODY))) as up, proxied(engine(up.url)) as proxy, browser() as client:
        answer = await client.post(proxy.url + CHAT, json=ask())
    assert (answer.status_code, answer.content) == (200, BODY)


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_case_4_neighbour_an_answer_without_a_body_leaves_the_connection_good(status: bytes) -> None:
    async def behave(talk: Conversation, seen: Seen) -> None:
        said = whole(BODY) if len(up.seen) > 1 else b"HTTP/1.1 %b\r\nx-kept: yes\r\n\r\n" % status
        await saying(said)(talk, seen)

    up = Upstream(behave)
    async with up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        await client.post(CHAT, ask())
        await client.until(b"\r\n\r\n")
        assert client.got.startswith(b"HTTP/1.1 " + status[:3])
        await client.post(CHAT, ask())
        await client.until(BODY)


# ------------------------------------------------------------------------------------------------- 6: WebSockets

HANDSHAKE = b"connection: Upgrade\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n"


@pytest.mark.parametrize("opened", [True, False], ids=["open", "closed"])
@pytest.mark.parametrize("offer", [b"websocket", b"WebSocket", b"h2c, websocket"])
@pytest.mark.parametrize("path", ["/v1/realtime", CHAT, MESSAGES, "/v1/models", "/metrics"])
async def test_case_6_a_websocket_is_refused_in_json_within_a_second_and_takes_no_place(
    path: str, offer: bytes, opened: bool
) -> None:
    """Case 6: on any path, one that is passed through included, and whether somebody serves or not."""
    async with Upstream(saying()) as up:
        through = engine(up.url, passthrough=frozenset(("/metrics",)))
        async with proxied(through, opened=opened) as proxy, Client.at(proxy.port) as client:
            head = b"GET %b HTTP/1.1\r\nhost: x\r\nupgrade: %b\r\n%b\r\n" % (path.encode(), offer, HANDSHAKE)
            client.writer.write(head + b"\x81\x05hello")
            async with asyncio.timeout(AT_ONCE):
                await client.until(b"}}" if path != MESSAGES else b"}")
                assert values(client, b"content-type") == [b"application/json"]
                told, _ = json.JSONDecoder().raw_decode(client.body.decode())  # its frame may have an answer of its own
                assert "no WebSockets here" in told["error"]["message"]
            assert client.got.startswith(b"HTTP/1.1 400 ")
            view = proxy.gate.view()
            assert (view.waiting, view.in_flight, view.settling) == (0, 0, 0)
            assert up.open == 0
    assert not up.seen


async def test_case_6_neighbour_the_frames_that_follow_are_no_request_and_the_connection_ends() -> None:
    async with Upstream(saying()) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        client.writer.write(b"GET /v1/realtime HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\n%b\r\n" % HANDSHAKE)
        await client.until(b"}}")
        client.writer.write(b"\x81\x85\x00\x00\x00\x00hello\r\n\r\n")
        await client.rest()
        await eventually(lambda: not proxy.connections)
    assert not up.seen
