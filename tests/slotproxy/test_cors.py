"""Web pages at the client port: what browsers are told, and who isn't let in. Raw requests, as browsers send them."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Any

import pytest

from engines.spec import CHAT, MESSAGES
from slotproxy.config import Limits, SlotSettings
from slotproxy.config_cors import ANY, OPAQUE, CorsSettings
from slotproxy.keys import digests
from tests.slotproxy.rig import (
    ANYONE,
    AT_ONCE,
    DONE,
    SSE,
    Client,
    Proxy,
    Upstream,
    chunk,
    delta,
    engine,
    proxied,
    saying,
    whole,
)

PAGE, OTHER = "https://chat.example", "https://evil.example"
CORS = CorsSettings(frozenset({PAGE, "app://obsidian.md"}))
KEYED = {"voice": SlotSettings("voice", keys=digests("sesame"))}
KEY = b"authorization: Bearer sesame"
STREAM = saying(SSE, chunk(delta()), chunk(DONE), b"0\r\n\r\n")


class Answer:
    """One answer, as a browser looks at it."""

    def __init__(self, got: bytes) -> None:
        head, _, self.body = got.partition(b"\r\n\r\n")
        line, *rest = head.split(b"\r\n")
        self.status = int(line.split()[1])
        self.headers = [(name.lower(), value.strip()) for name, _, value in (each.partition(b":") for each in rest)]

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key == name]

    @property
    def allowed(self) -> list[bytes]:
        return self.all(b"access-control-allow-origin")

    @property
    def told(self) -> set[bytes]:
        """The names of what it is told about web pages."""
        return {name for name, _ in self.headers if name.startswith(b"access-control-")}


async def asked(proxy: Proxy, method: str, path: str, *headers: bytes, body: bytes = b"") -> Answer:
    """With a Host as the address bar would have it, where none is given."""
    host = () if any(each.lower().startswith(b"host:") for each in headers) else (b"host: 127.0.0.1",)
    length = b"content-length: %d" % len(body)
    lines = [f"{method} {path} HTTP/1.1".encode(), *host, *headers, length, b"connection: close"]
    async with Client.at(proxy.port) as client, asyncio.timeout(AT_ONCE):
        client.writer.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        return Answer(await client.rest())


def origin(page: str) -> bytes:
    return b"origin: " + page.encode()


CHATTING = b'{"model":"m","messages":[]}'


# ------------------------------------------------------------------------------------------------ preflights


def preflight(page: str, *more: bytes) -> tuple[bytes, ...]:
    asks = (b"access-control-request-method: POST", b"access-control-request-headers: authorization,x-stainless-os")
    return (origin(page), *asks, *more)


async def test_a_preflight_of_a_page_that_may_ask_is_answered_at_once_with_what_it_asks_for() -> None:
    async with proxied(engine("http://127.0.0.1:1"), cors=CORS, slots=KEYED, opened=False) as proxy:
        answer = await asked(proxy, "OPTIONS", CHAT, *preflight(PAGE))
    assert answer.status == 204
    assert answer.allowed == [PAGE.encode()]
    assert answer.all(b"access-control-allow-methods") == [b"POST, OPTIONS"]
    assert answer.all(b"access-control-allow-headers") == [b"authorization,x-stainless-os"]
    assert answer.all(b"access-control-max-age") == [b"600"]
    assert b"Origin" in answer.all(b"vary")
    assert not {b"access-control-allow-credentials", b"access-control-allow-private-network"} & answer.told


async def test_a_preflight_from_a_public_page_to_a_private_address_is_answered_where_it_asks() -> None:
    async with proxied(engine("http://127.0.0.1:1"), cors=replace(CORS, max_age=60)) as proxy:
        answer = await asked(
            proxy, "OPTIONS", "/v1/models", *preflight(PAGE, b"access-control-request-private-network: true")
        )
    assert answer.all(b"access-control-allow-private-network") == [b"true"]
    assert answer.all(b"access-control-allow-methods") == [b"GET, HEAD, OPTIONS"]
    assert answer.all(b"access-control-max-age") == [b"60"]


@pytest.mark.parametrize(
    "page", [OTHER, "https://chat.example.evil.example", "http://chat.example", "null", PAGE + ":1"]
)
@pytest.mark.parametrize("cors", [CORS, CorsSettings()])
async def test_a_preflight_of_any_other_page_is_told_which_key_names_pages(page: str, cors: CorsSettings) -> None:
    async with proxied(engine("http://127.0.0.1:1"), cors=cors, slots=KEYED) as proxy:
        answer = await asked(proxy, "OPTIONS", CHAT, *preflight(page))
    assert (answer.status, answer.told) == (403, set())
    assert b"cors.origins" in answer.body
    assert page.encode() in answer.body


async def test_header_names_that_are_none_are_not_told_back() -> None:
    asks = (origin(PAGE), b"access-control-request-method: POST", b'access-control-request-headers: a"b')
    async with proxied(engine("http://127.0.0.1:1"), cors=CORS) as proxy:
        answer = await asked(proxy, "OPTIONS", CHAT, *asks)
    assert b"access-control-allow-headers" not in answer.told


# ------------------------------------------------------------------------------------------------ answers


LEAKY = saying(whole(b'{"n":1}', b"Access-Control-Allow-Origin: *", b"access-control-allow-credentials: true"))


async def test_an_answer_to_a_page_that_may_ask_says_so_in_place_of_what_the_engine_says() -> None:
    async with Upstream(LEAKY) as up, proxied(engine(up.url), cors=CORS) as proxy:
        answer = await asked(proxy, "POST", CHAT, origin(PAGE), body=CHATTING)
        nobody = await asked(proxy, "POST", CHAT, body=CHATTING)
    assert (answer.status, answer.body, answer.allowed) == (200, b'{"n":1}', [PAGE.encode()])
    assert answer.told == {b"access-control-allow-origin", b"access-control-expose-headers"}
    (exposed,) = answer.all(b"access-control-expose-headers")
    named = set(exposed.split(b", "))
    assert {b"x-request-id", b"retry-after"} | {
        name for name, _ in answer.headers if name[:12] == b"x-slotproxy-"
    } <= named
    assert (nobody.told, nobody.all(b"vary")) == (set(), [b"Origin"])


async def test_without_cors_nobody_is_told_anything_whatever_the_engine_says() -> None:
    async with Upstream(LEAKY) as up, proxied(engine(up.url)) as proxy:
        answer = await asked(proxy, "POST", CHAT, origin("http://localhost:3000"), body=CHATTING)
    assert (answer.status, answer.told, answer.all(b"vary")) == (200, set(), [])


async def test_pages_are_told_in_streams_too_also_those_that_began_with_pings() -> None:
    limits = Limits(first_ping=0.05, ping_every=0.05)
    stream = b'{"model":"m","messages":[],"stream":true}'
    async with Upstream(STREAM) as up, proxied(engine(up.url), cors=CORS, limits=limits) as proxy:
        plain = await asked(proxy, "POST", CHAT, origin(PAGE), body=stream)
    async with Upstream(STREAM) as up, proxied(engine(up.url), cors=CORS, limits=limits, opened=False) as proxy:
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(asked(proxy, "POST", CHAT, origin(PAGE), body=stream))
            await asyncio.sleep(0.2)
            proxy.gate.open("strata", 1, "a run")
        pinged = asking.result()
    assert b": keep-alive" in pinged.body
    for answer in (plain, pinged):
        assert (answer.status, answer.allowed) == (200, [PAGE.encode()])
        assert DONE in answer.body


@pytest.mark.parametrize(
    ("status", "method", "path", "headers", "body"),
    [
        (200, "GET", "/v1/models", (KEY,), b""),
        (200, "GET", "/health", (), b""),
        (204, "OPTIONS", CHAT, (), b""),
        (400, "GET", CHAT, (b"upgrade: websocket", b"connection: upgrade"), b""),
        (400, "POST", CHAT, (KEY,), b"[]"),
        (401, "POST", CHAT, (b"x-api-key: no",), CHATTING),
        (401, "GET", "/v1/models", (), b""),
        (404, "POST", "/unload", (), b""),
        (405, "GET", CHAT, (), b""),
        (413, "POST", CHAT, (KEY,), b" " * 101),
        (503, "POST", MESSAGES, (KEY,), CHATTING),
    ],
)
async def test_every_answer_of_ours_is_for_the_page_that_may_ask_and_for_no_other(
    status: int, method: str, path: str, headers: tuple[bytes, ...], body: bytes
) -> None:
    more: dict[str, Any] = {"cors": CORS, "slots": KEYED, "limits": Limits(max_body=100), "models": {"m": {}}}
    async with proxied(engine("http://127.0.0.1:1"), **more) as proxy:
        proxy.gate.refuse("dark")
        told = await asked(proxy, method, path, origin(PAGE), *headers, body=body)
        other = await asked(proxy, method, path, origin(OTHER), *headers, body=body)
    assert (told.status, told.allowed) == (status, [PAGE.encode()])
    assert (other.status, other.told) == (status, set())
    assert b"Origin" in told.all(b"vary")
    assert b"Origin" in other.all(b"vary")


@pytest.mark.parametrize(
    ("status", "line"), [(431, b"x: " + b"y" * 70_000), (400, b"transfer-encoding: chunked"), (417, b"expect: more")]
)
async def test_what_is_refused_before_it_is_read_is_for_the_page_that_may_ask_too(status: int, line: bytes) -> None:
    async with proxied(engine("http://127.0.0.1:1"), cors=CORS) as proxy:
        told = await asked(proxy, "POST", CHAT, origin(PAGE), line)
        other = await asked(proxy, "POST", CHAT, origin(OTHER), line)
    assert (told.status, told.allowed) == (status, [PAGE.encode()])
    assert (other.status, other.told, other.all(b"vary")) == (status, set(), [b"Origin"])


@pytest.mark.parametrize(("origins", "allowed"), [({ANY}, {OTHER, "null"}), ({OPAQUE}, {"null"})])
async def test_who_lets_everybody_in_has_them_all_told(origins: set[str], allowed: set[str]) -> None:
    async with Upstream(LEAKY) as up, proxied(engine(up.url), cors=CorsSettings(frozenset(origins))) as proxy:
        for page in (OTHER, "null"):
            answer = await asked(proxy, "POST", CHAT, origin(page), body=CHATTING)
            assert (answer.status, answer.allowed) == ((200, [page.encode()]) if page in allowed else (403, []))


# ------------------------------------------------------------------------------------------------ who isn't let in

FOREIGN = [
    OTHER,
    "null",
    "http://192.168.1.9",  # an address, and another than the one that is asked
    "http://127.0.0.1.evil.example",
    "http://localhost.evil.example",
    "http://evil.example:8080",  # as after DNS rebinding: it is its own Host
    "chrome-extension://abcdefghijklmnop",
    "moz-extension://0f0a",
    "http://[",
    "what is this",
]
OURS = [
    "http://localhost:3000",
    "https://127.0.0.1",
    "http://[::1]:8080",
    "http://app.localhost",
    "tauri://localhost",
    "app://-",
    "file://",
    "vscode-webview://0f0a",
    "http://192.168.1.5:8080",  # the address that is asked
]


@pytest.mark.parametrize("page", FOREIGN)
async def test_a_page_that_nobody_named_does_not_get_the_slot_without_a_key(page: str) -> None:
    host = b"host: evil.example:8080" if "8080" in page else b"host: 127.0.0.1:8080"
    async with Upstream(LEAKY) as up, proxied(engine(up.url), slots={**ANYONE, **KEYED}) as proxy:
        for method, path in (("POST", CHAT), ("GET", "/v1/models"), ("GET", "/health")):
            answer = await asked(proxy, method, path, host, origin(page), b"content-type: text/plain", body=CHATTING)
            assert answer.status == 403
            assert b"cors.origins" in answer.body
        assert not up.seen
        assert sum(proxy.outcomes.counts.values()) == 0
        wrong = await asked(proxy, "POST", CHAT, host, origin(page), b"x-api-key: guessed", body=CHATTING)
        right = await asked(proxy, "POST", CHAT, host, origin(page), KEY, body=CHATTING)
    assert (wrong.status, right.status) == (403, 200)


@pytest.mark.parametrize("page", OURS)
async def test_what_no_web_page_can_be_is_let_in(page: str) -> None:
    async with Upstream(LEAKY) as up, proxied(engine(up.url)) as proxy:
        answer = await asked(proxy, "POST", CHAT, b"host: 192.168.1.5:8080", origin(page), body=CHATTING)
    assert answer.status == 200


async def test_a_page_that_is_named_is_let_in_without_a_key() -> None:
    async with Upstream(LEAKY) as up, proxied(engine(up.url), cors=CORS) as proxy:
        assert (await asked(proxy, "POST", CHAT, origin(PAGE), body=CHATTING)).status == 200
        assert (await asked(proxy, "POST", CHAT, origin("app://obsidian.md"), body=CHATTING)).status == 200


async def test_of_two_origins_each_must_be_let_in() -> None:
    async with Upstream(LEAKY) as up, proxied(engine(up.url), cors=CORS) as proxy:
        answer = await asked(proxy, "POST", CHAT, origin(PAGE), origin(OTHER), body=CHATTING)
    assert answer.status == 403


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200),
        ("[::1]:8080", 200),
        ("[::ffff:127.0.0.1]", 200),
        ("localhost", 200),
        ("LocalHost.:8080", 200),
        ("llm", 200),
        ("box.local:8080", 200),
        ("host.docker.internal:8080", 200),
        ("chat.example", 200),  # one of the pages that are named is there
        ("llm.example.com", 403),
        ("evil.example:8080", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example.", 403),
    ],
)
async def test_without_a_key_nobody_asks_by_a_name_that_anybody_can_make_mean_us(host: str, status: int) -> None:
    named = b"host: " + host.encode()
    everybody = {"anonymous": SlotSettings("anonymous", allow_remote=True), **KEYED}
    async with proxied(engine("http://127.0.0.1:1"), cors=CORS, slots={**ANYONE, **KEYED}) as proxy:
        answer = await asked(proxy, "GET", "/v1/models", named)
        assert (await asked(proxy, "GET", "/v1/models", named, KEY)).status == 200
        proxy.in_force.settings = replace(proxy.in_force.settings, slots=everybody)
        proxy.app.configure()
        assert (await asked(proxy, "GET", "/v1/models", named)).status == 200
    assert answer.status == status
    if status == 403:
        assert re.search(rb"not as [a-z0-9.-]+: a web page could", answer.body)


async def test_who_has_no_origin_is_never_in_the_way() -> None:
    async with Upstream(LEAKY) as up, proxied(engine(up.url)) as proxy:
        assert (await asked(proxy, "POST", CHAT, b"user-agent: curl/8", body=CHATTING)).status == 200
        async with Client.at(proxy.port) as old:
            old.writer.write(b"GET /v1/models HTTP/1.0\r\n\r\n")
            assert (await old.rest()).startswith(b"HTTP/1.1 200 ")


async def test_a_reload_takes_pages_over() -> None:
    async with proxied(engine("http://127.0.0.1:1"), slots=KEYED) as proxy:
        before = await asked(proxy, "OPTIONS", CHAT, *preflight(PAGE))
        proxy.in_force.settings = replace(proxy.in_force.settings, cors=CORS)
        proxy.app.configure()
        after = await asked(proxy, "OPTIONS", CHAT, *preflight(PAGE))
    assert (before.status, after.status, after.allowed) == (403, 204, [PAGE.encode()])


async def test_a_request_that_a_page_sent_reaches_the_engine_without_its_origin() -> None:
    async with Upstream(LEAKY) as up, proxied(engine(up.url), cors=CORS) as proxy:
        await asked(proxy, "POST", CHAT, origin(PAGE), body=CHATTING)
    assert up.seen[0].all(b"origin") == []
