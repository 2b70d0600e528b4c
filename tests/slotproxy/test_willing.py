"""How long a client would wait itself: told by our header, or announced by its library."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import time
from typing import Any

import anthropic
import openai
import pytest

from engines.spec import CHAT, EMBEDDINGS, MESSAGES, RESPONSES
from slotproxy.config import Limits, SlotSettings
from slotproxy.headers import Headers
from slotproxy.outcomes import Outcome
from slotproxy.protocols import ApiError
from slotproxy.willing import Willing, willing
from tests.slotproxy.rig import (
    DONE,
    SSE,
    Client,
    Seen,
    Upstream,
    ask,
    browser,
    chunk,
    delta,
    engine,
    proxied,
    saying,
    whole,
)

gc.freeze()  # as in test_app: the SDKs' many objects

ANSWER = b'{"id":"x","object":"chat.completion","created":0,"model":"m","choices":[]}'
PATIENT = {"anonymous": SlotSettings("anonymous", max_hold=1000.0)}


def hold(*values: bytes) -> Headers:
    return [(b"X-Slotproxy-Max-Hold", value) for value in values]


# ------------------------------------------------------------------------------------------------------ what is said


@pytest.mark.parametrize(
    ("said", "seconds"),
    [(b"5", 5), (b"5s", 5), (b" 250ms ", 0.25), (b"0", 0), (b"1.5", 1.5), (b"2m", 120), (b"1 h", 3600), (b"0.0", 0)],
)
def test_a_wait_is_asked_for_in_seconds_or_with_a_unit(said: bytes, seconds: float) -> None:
    assert willing(hold(said)) == Willing(hold=seconds, from_first=True)


def test_of_several_waits_the_shortest_counts() -> None:
    assert willing(hold(b"9", b"200ms", b"5s")).hold == 0.2


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"-1",
        b"soon",
        b"5 parsecs",
        b"5s, 3s",
        b"inf",
        b"nan",
        b"1e3",
        b"+5",
        b"0x5",
        b"\xd9\xa5",
        b"\xff",
        b"9" * 500,
    ],
)
def test_a_wait_that_says_nothing_is_a_400_that_says_what_to_write(said: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        willing(hold(said))
    assert refused.value.status == 400
    assert "write seconds, such as 5, or 250ms, 5s, 2m" in refused.value.message
    assert len(refused.value.message) < 200


@pytest.mark.parametrize(
    ("said", "silence"),
    [
        (b"600", 600),
        (b"600.0", 600),
        (b" 20 ", 20),
        (b"1", 1),
        (b"0.5", math.inf),
        (b"0", math.inf),
        (b"-3", math.inf),
        (b"None", math.inf),
        (b"NOT_GIVEN", math.inf),
        (b"inf", math.inf),
        (b"nan", math.inf),
        (b"1e-05", math.inf),
        (b"", math.inf),
        (b"\xff", math.inf),
        (b"9" * 500, math.inf),
    ],
)
@pytest.mark.parametrize("name", [b"X-Stainless-Timeout", b"x-stainless-read-timeout"])
def test_what_a_library_announces_counts_where_it_is_a_time(name: bytes, said: bytes, silence: float) -> None:
    assert willing([(name, said)]).silence == silence


def test_a_read_timeout_counts_from_the_last_byte_and_a_total_one_from_the_first() -> None:
    read = willing([(b"x-stainless-read-timeout", b"30"), (b"x-stainless-timeout", b"7")])
    assert [read.in_time(sending) for sending in (0, 25, 100)] == [28, 28, 28]
    total = willing([(b"x-stainless-timeout", b"30")])
    assert [total.in_time(sending) for sending in (0, 25, 100)] == [28, 3, 0.5]
    assert Willing().in_time(5) == math.inf
    assert [Willing(silence=seconds).in_time(0) for seconds in (1, 5, 10, 600)] == [0.8, 4, 8, 598]


# ------------------------------------------------------------------------------------------------------ at the port


@pytest.mark.parametrize("more", [{}, {"stream": True}])
@pytest.mark.parametrize(("asked", "max_hold"), [("0.2", 1000.0), ("200ms", 1000.0), ("1h", 0.2), ("0", 1000.0)])
async def test_a_client_may_shorten_its_slots_longest_wait_and_never_lengthen_it(
    asked: str, max_hold: float, more: dict[str, Any]
) -> None:
    slots = {"anonymous": SlotSettings("anonymous", max_hold=max_hold)}
    async with proxied(engine("http://127.0.0.1:1"), slots=slots, opened=False) as proxy, browser(proxy.url) as client:
        answer = await client.post(CHAT, json=ask(**more), headers={"x-slotproxy-max-hold": asked})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "wait_expired")
        assert answer.headers["retry-after"]
        await proxy.counted(Outcome.EXPIRED)


@pytest.mark.parametrize(
    ("max_hold", "headers"),
    [
        (0.5, {"x-slotproxy-max-hold": "1h"}),
        (1000.0, {"x-slotproxy-max-hold": "0.5"}),
        (1000.0, {"x-stainless-read-timeout": "1"}),
    ],
)
async def test_the_shortest_wait_holds_also_while_an_engine_cannot_be_reached(
    max_hold: float, headers: dict[str, str]
) -> None:
    slots = {"anonymous": SlotSettings("anonymous", max_hold=max_hold)}
    async with proxied(engine("http://127.0.0.1:1"), slots=slots) as proxy, browser(proxy.url) as client:
        answer = await client.post(CHAT, json=ask(), headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "unreachable")


async def test_who_would_not_wait_at_all_is_served_where_there_is_a_place() -> None:
    async with Upstream(saying(whole(ANSWER))) as up, proxied(engine(up.url)) as proxy, browser(proxy.url) as client:
        answer = await client.post(CHAT, json=ask(), headers={"x-slotproxy-max-hold": "0"})
    assert answer.status_code == 200


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_a_wrong_wait_is_refused_before_the_body_is_read_in_the_clients_protocol(path: str) -> None:
    async with proxied(engine("http://127.0.0.1:1")) as proxy, Client.at(proxy.port) as client:
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\nx-slotproxy-max-hold: soon\r\n\r\n"
        client.writer.write(head.encode())
        await client.until(b"}}")
    assert client.got.startswith(b"HTTP/1.1 400")
    assert (json.loads(client.body).get("type") == "error") is (path == MESSAGES)


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES, EMBEDDINGS])
async def test_a_client_that_announces_when_it_gives_up_is_answered_before(path: str) -> None:
    """Embeddings have no stream: there `stream` means nothing, and pings are no way."""
    more = {"stream": True} if path == EMBEDDINGS else {}
    async with (
        proxied(engine("http://127.0.0.1:1"), slots=PATIENT, opened=False) as proxy,
        browser(proxy.url) as client,
    ):
        began = time.monotonic()
        answer = await client.post(path, json=ask(**more), headers={"x-stainless-read-timeout": "1.0"})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert time.monotonic() - began > 0.75


@pytest.mark.parametrize("header", ["x-stainless-read-timeout", "x-stainless-timeout"])
async def test_a_stream_is_pinged_before_its_client_gives_up_and_then_waits_on(header: str) -> None:
    limits = Limits(first_ping=1000.0, ping_every=1000.0)
    up = Upstream(saying(SSE, chunk(delta()), chunk(DONE), b"0\r\n\r\n"))
    async with (
        up,
        proxied(engine(up.url), slots=PATIENT, limits=limits, opened=False) as proxy,
        Client.at(proxy.port) as client,
    ):
        await client.post(CHAT, ask(stream=True), f"{header}: 1".encode())
        await client.until(b": keep-alive\n\n")
        await client.until(b": keep-alive\n\n\r\ne\r\n: keep-alive")  # not one alone
        proxy.gate.open("strata", 1)
        await client.until(b"0\r\n\r\n")
    assert client.body.endswith(DONE)


# ------------------------------------------------------------------------------------------------------ the real ones


async def test_sdks_read_why_they_were_not_served_and_do_not_run_into_their_own_limit() -> None:
    limits: list[tuple[str, Any]] = [
        ("openai", 5.0),
        ("openai", openai.Timeout(60.0, read=5.0)),
        ("anthropic", 5.0),
        ("anthropic", anthropic.Timeout(60.0, read=5.0)),
    ]
    async with proxied(engine("http://127.0.0.1:1"), slots=PATIENT, opened=False) as proxy:
        asked = (_ask_by(kind, proxy.url, timeout) for kind, timeout in limits)
        for told in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(told, openai.InternalServerError | anthropic.InternalServerError), told
            assert (told.status_code, told.response.headers["retry-after"]) == (503, "5")
            assert "waited" in told.message


async def test_what_the_sdks_announce_by_themselves_is_what_is_read() -> None:
    async with Upstream(saying(whole(ANSWER))) as up:
        for kind in ("openai", "anthropic"):
            await _ask_by(kind, up.url, 123.0)
    assert [willing(_lowered(seen)) for seen in up.seen] == [Willing(silence=123.0)] * 2


def _lowered(seen: Seen) -> Headers:
    return [(name.lower(), value) for name, value in seen.headers]


async def _ask_by(kind: str, url: str, timeout: Any) -> None:
    message: Any = {"role": "user", "content": "hi"}
    if kind == "openai":
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="x", max_retries=0, timeout=timeout) as sdk:
            await sdk.chat.completions.create(model="m", messages=[message])
    else:
        async with anthropic.AsyncAnthropic(base_url=url, api_key="x", max_retries=0, timeout=timeout) as other:
            await other.messages.create(model="m", max_tokens=5, messages=[message])
