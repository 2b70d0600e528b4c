"""What clients reach and what they are told, with the SDKs that they use."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Mapping
from typing import Any

import anthropic
import httpx
import openai
import pytest
import structlog

from engines.spec import CHAT, MESSAGES
from slotproxy.config import Limits, SlotSettings
from slotproxy.house import Patience
from slotproxy.keys import digests
from slotproxy.outcomes import Outcome
from tests.slotproxy.rig import (
    AT_ONCE,
    Client,
    Upstream,
    ask,
    browser,
    engine,
    eventually,
    proxied,
    saying,
    whole,
)

# The SDKs bring so many objects that looking through them for garbage stops the event loop for most of a second.
gc.freeze()

NAMES: Mapping[str, Mapping[str, str]] = {
    "qwen": {"ninfer": "qwen3", "strata": "qwen-next"},
    "only-strata": {"strata": "s"},
}


def keyed(**more: Any) -> dict[str, SlotSettings]:
    return {"voice": SlotSettings("voice", keys=digests("sesame"), **more)}


# ------------------------------------------------------------------------------------------------ at once, always


async def test_the_list_of_models_is_the_configurations_also_while_the_gate_is_closed() -> None:
    async with proxied(engine("http://127.0.0.1:1"), models={**NAMES, "*": {}}, opened=False) as proxy:
        async with browser(proxy.url) as client:
            listed = await client.get("/v1/models")
            one = await client.get("/v1/models/qwen")
            none = await client.get("/v1/models/gpt")
            health = await client.get("/health")
            head = await client.head("/health")
        assert [model["id"] for model in listed.json()["data"]] == ["qwen", "only-strata"]
        assert one.json() == listed.json()["data"][0]
        assert none.status_code == 404
        assert none.json()["error"]["code"] == "model_not_found"
        assert (health.status_code, health.json()["gate"]) == (200, "closed")
        assert (head.status_code, head.content) == (200, b"")
        with openai.OpenAI(base_url=proxy.url + "/v1", api_key="x") as sdk:
            assert [model.id for model in await asyncio.to_thread(lambda: list(sdk.models.list()))] == list(NAMES)
        with anthropic.Anthropic(base_url=proxy.url, api_key="x") as other:
            assert [model.id for model in await asyncio.to_thread(lambda: list(other.models.list()))] == list(NAMES)


async def test_options_says_what_may_be_called_and_lets_no_other_origin_in() -> None:
    async with proxied(engine("http://127.0.0.1:1"), opened=False) as proxy, browser() as client:
        answer = await client.options(proxy.url + CHAT, headers={"origin": "http://evil.example"})
    assert (answer.status_code, answer.headers["allow"]) == (204, "POST, OPTIONS")
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", CHAT, 405),
        ("HEAD", CHAT, 405),
        ("POST", "/unload", 404),
        ("POST", "/v1/messages/batches", 404),
        ("GET", "/slots", 404),
        ("POST", "/health", 405),
        ("POST", "/v1/chat/completions/", 404),
        ("GET", "/v1/../unload", 404),
    ],
)
async def test_everything_else_is_our_own_refusal(method: str, path: str, status: int) -> None:
    async with Upstream(saying(whole(b"{}"))) as up, proxied(engine(up.url)) as proxy, browser() as client:
        answer = await client.request(method, httpx.URL(proxy.url, raw_path=path.encode()))
    assert answer.status_code == status
    assert answer.headers["x-request-id"]
    if method != "HEAD":
        told = answer.json()
        assert told["error"]["message"]
        assert (told.get("type") == "error") is path.startswith(MESSAGES)
    assert not up.seen


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_path_that_the_configuration_passes_through_reaches_the_engine(method: str) -> None:
    up = Upstream(saying(whole(b'{"n":1}')))
    async with up, proxied(engine(up.url, passthrough=frozenset(("/metrics",)))) as proxy, browser() as client:
        answer = await client.request(method, proxy.url + "/metrics?a=b")
        assert answer.json() == {"n": 1}
        proxy.gate.refuse("dark")
        assert (await client.get(proxy.url + "/metrics")).status_code == 503
    assert up.seen[0].line == b"%b /metrics?a=b HTTP/1.1" % method.encode()


async def test_a_path_passed_through_to_an_engine_that_cannot_be_reached_is_a_502() -> None:
    metrics = engine("http://127.0.0.1:1", passthrough=frozenset(("/metrics",)))
    async with proxied(metrics) as proxy, browser(proxy.url) as client:
        answer = await client.get("/metrics")
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "unreachable")


async def test_a_websocket_is_refused_with_json_and_takes_no_place() -> None:
    async with Upstream(saying()) as up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        upgrade = b"upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-key: x\r\nsec-websocket-version: 13"
        client.writer.write(b"GET /v1/realtime HTTP/1.1\r\nhost: x\r\n" + upgrade + b"\r\n\r\n")
        async with asyncio.timeout(AT_ONCE):
            await client.until(b"}}")
    assert client.got.startswith(b"HTTP/1.1 400")
    assert json.loads(client.body)["error"]["code"] == "no_websockets"
    assert not up.seen


async def test_an_offer_of_http_2_is_ignored_and_the_request_served() -> None:
    async with Upstream(saying(whole(b"{}"))) as up, proxied(engine(up.url)) as proxy, browser() as client:
        offer = {"upgrade": "h2c", "connection": "Upgrade, HTTP2-Settings", "http2-settings": "AAMAAABk"}
        assert (await client.post(proxy.url + CHAT, json=ask(), headers=offer)).status_code == 200
    assert not up.seen[0].all(b"http2-settings")


async def test_the_application_takes_part_in_a_lifespan_and_closes_websockets() -> None:
    said: list[Any] = []
    asked = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}, {"type": "websocket.connect"}])

    async def receive() -> Any:
        return next(asked)

    async def send(message: Any) -> None:
        said.append(message["type"])

    async with proxied(engine("http://127.0.0.1:1")) as proxy:
        await proxy.app({"type": "lifespan"}, receive, send)
        await proxy.app({"type": "websocket", "path": CHAT}, receive, send)
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]


# ---------------------------------------------------------------------------------------------- who, what, how much


async def test_without_the_key_of_a_slot_nothing_reaches_the_engine() -> None:
    async with (
        Upstream(saying(whole(b"{}"))) as up,
        proxied(engine(up.url), slots=keyed()) as proxy,
        browser(proxy.url) as client,
    ):
        chat = await client.post(CHAT, json=ask(), headers={"authorization": "Bearer guess"})
        messages = await client.post(MESSAGES, json=ask())
        assert (await client.get("/v1/models")).status_code == 401
        assert (await client.get("/health")).status_code == 200
        assert chat.status_code == messages.status_code == 401
        assert chat.json()["error"]["code"] == "invalid_api_key"
        assert messages.json()["error"]["type"] == "authentication_error"
        assert not up.seen
        let_in = await client.post(CHAT, json=ask(), headers={"authorization": "Bearer sesame"})
        assert let_in.status_code == 200


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_past_the_limit_is_a_413_in_json(announced: bool) -> None:
    body = b'{"x":"' + b"A" * 3_000_000 + b'"}'

    async def pieces() -> Any:
        for start in range(0, len(body), 100_000):
            yield body[start : start + 100_000]

    limits = Limits(max_body=1_000_000)
    async with (
        Upstream(saying(whole(b"{}"))) as up,
        proxied(engine(up.url), limits=limits) as proxy,
        browser() as client,
    ):
        answer = await client.post(proxy.url + MESSAGES, content=body if announced else pieces())
        assert answer.status_code == 413
        assert answer.json()["error"]["type"] == "request_too_large"
        await proxy.counted(Outcome.REFUSED)
        assert (await client.post(proxy.url + CHAT, json=ask())).status_code == 200
    assert len(up.seen) == 1


async def test_a_body_that_is_announced_as_too_large_is_refused_before_it_comes() -> None:
    async with proxied(engine("http://127.0.0.1:1")) as proxy, Client.at(proxy.port) as client:
        head = b"POST %b HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 999999999\r\n\r\n"
        client.writer.write(head % CHAT.encode())
        await client.until(b"body_too_large")
    assert client.got.startswith(b"HTTP/1.1 413")


async def test_a_body_that_stops_coming_is_given_up() -> None:
    async with (
        proxied(engine("http://127.0.0.1:1"), patience=Patience(body=0.3)) as proxy,
        Client.at(proxy.port) as client,
    ):
        client.writer.write(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{" % CHAT.encode())
        await client.until(b"body_timeout")
    assert client.got.startswith(b"HTTP/1.1 408")


async def test_case_23_a_model_keeps_its_name_over_a_swap_and_the_list_of_models_stays_as_it_is() -> None:
    async with Upstream(saying(whole(b"{}"))) as one, Upstream(saying(whole(b"{}"))) as two:
        engines = engine(one.url), engine(two.url, name="ninfer")
        async with proxied(*engines, models=NAMES) as proxy, browser() as client:
            lists = [(await client.get(f"{proxy.url}/v1/models")).content]
            await client.post(proxy.url + CHAT, json=ask(model="qwen"))
            proxy.gate.close()
            lists.append((await client.get(f"{proxy.url}/v1/models")).content)
            proxy.gate.open("ninfer", 1)
            await client.post(proxy.url + CHAT, json=ask(model="qwen"))
            lists.append((await client.get(f"{proxy.url}/v1/models")).content)
            other = await client.post(proxy.url + CHAT, json=ask(model="only-strata"))
            unknown = await client.post(proxy.url + CHAT, json=ask(model="gpt-4"))
    assert (one.seen[0].json["model"], two.seen[0].json["model"]) == ("qwen-next", "qwen3")
    assert lists[0] == lists[1] == lists[2]
    assert len(two.seen) == 1
    assert (other.status_code, unknown.status_code) == (503, 404)
    assert int(other.headers["retry-after"]) > 0
    assert "ninfer is serving" in other.json()["error"]["message"]
    assert "qwen, only-strata" in unknown.json()["error"]["message"]


@pytest.mark.parametrize("models", [NAMES, {"*": {}}])
async def test_a_name_of_any_length_is_told_and_logged_in_short(models: Mapping[str, Mapping[str, str]]) -> None:
    name = "m" * 100_000
    async with Upstream(saying(whole(b"{}"))) as up, proxied(engine(up.url), models=models) as proxy:
        with structlog.testing.capture_logs() as lines:
            async with browser(proxy.url) as client:
                answers = [
                    await client.post(CHAT, json=ask(model=name)),
                    await client.get(f"/v1/models/{name[:9000]}"),
                    await client.get(f"/{name[:9000]}"),
                ]
            await eventually(lambda: len(lines) == 1)
    assert [answer.status_code for answer in answers] == [200 if "*" in models else 404, 404, 404]
    assert all(len(answer.content) < 500 for answer in answers)
    assert len(str(lines)) < 1000
    assert [len(seen.json["model"]) for seen in up.seen] == ([len(name)] if "*" in models else [])


async def test_a_body_that_cannot_be_read_is_refused_where_its_model_counts_and_passed_on_where_not() -> None:
    async with Upstream(saying(whole(b"{}"))) as up, browser() as client:
        async with proxied(engine(up.url), models=NAMES) as proxy:
            strict = await client.post(proxy.url + CHAT, content=b"{oops")
        async with proxied(engine(up.url)) as proxy:
            easy = await client.post(proxy.url + CHAT, content=b"{oops")
    assert (strict.status_code, easy.status_code) == (400, 200)
    assert [seen.body for seen in up.seen] == [b"{oops"]


@pytest.mark.parametrize(("given", "kept"), [("abc-123", True), ("two words", False), ("x" * 200, False)])
async def test_a_request_has_one_id_everywhere(given: str, kept: bool) -> None:
    async with Upstream(saying(whole(b"{}", b"x-request-id: engines"))) as up, proxied(engine(up.url)) as proxy:
        with structlog.testing.capture_logs() as lines:
            async with browser() as client:
                answer = await client.post(proxy.url + CHAT, json=ask(), headers={"x-request-id": given})
            await proxy.counted(Outcome.SERVED)
    used = answer.headers["x-request-id"]
    assert (used == given) is kept
    assert up.seen[0].all(b"x-request-id") == [used.encode()]
    assert [(line["id"], line["outcome"], line["engine"]) for line in lines] == [(used, "served", "strata")]
