"""Case 23: each engine calls the model by another name; clients keep theirs, whatever is on the card."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import pytest

from engines.spec import CHAT, COMPLETIONS, COUNT_TOKENS, EMBEDDINGS, MESSAGES, RESPONSES
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
    proxied,
    saying,
    whole,
)

PATHS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, COUNT_TOKENS, EMBEDDINGS)
NAMES: Mapping[str, Mapping[str, str]] = {
    "qwen": {"ninfer": "qwen3.8-27b", "strata": "qwen3.8-flash-next"},
    "only-strata": {"strata": "s"},
    "same": {"ninfer": "same", "strata": "same"},
}


async def answering(talk: Conversation, seen: Seen) -> None:
    """It names the model as it calls it, with odd spacing."""
    await talk.send(whole(b'{ "model" :"%b" }' % seen.json["model"].encode()))


@pytest.mark.parametrize("path", PATHS)
async def test_case_23_one_who_was_held_in_a_swap_asks_the_new_engine_by_the_name_that_it_knows(path: str) -> None:
    """Case 23: in every protocol. What the answer says is the engine's own, byte for byte."""
    async with Upstream(answering) as one, Upstream(answering) as two:
        engines = engine(one.url), engine(two.url, name="ninfer")
        async with proxied(*engines, models=NAMES) as proxy, browser() as client, asyncio.TaskGroup() as group:

            async def send(name: str) -> tuple[bytes, str]:
                answer = await client.post(proxy.url + path, json=ask(model=name, seed=1))
                assert answer.status_code == 200
                return answer.content, answer.headers["x-slotproxy-engine"]

            assert await send("qwen") == (b'{ "model" :"qwen3.8-flash-next" }', "strata")
            proxy.gate.close()
            held = [group.create_task(send("qwen")) for _ in range(3)]
            await eventually(lambda: proxy.gate.view().waiting == 3)
            proxy.gate.open("ninfer", 1)
            assert [await one for one in held] == [(b'{ "model" :"qwen3.8-27b" }', "ninfer")] * 3
            assert await send("same") == (b'{ "model" :"same" }', "ninfer")
    assert {seen.json["model"] for seen in two.seen} == {"qwen3.8-27b", "same"}
    assert {seen.line.split()[1].decode() for seen in (*one.seen, *two.seen)} == {path}


@pytest.mark.parametrize("pinged", [False, True])
async def test_case_23_neighbour_one_who_was_held_for_a_name_that_the_new_engine_lacks_is_told_who_serves(
    pinged: bool,
) -> None:
    limits = Limits(first_ping=0.05, ping_every=0.05) if pinged else Limits()
    async with Upstream(saying()) as up:
        engines = engine("http://127.0.0.1:1"), engine(up.url, name="ninfer")
        async with (
            proxied(*engines, models=NAMES, limits=limits, opened=False) as proxy,
            Client.at(proxy.port) as client,
        ):
            await client.post(CHAT, ask(model="only-strata", stream=True), b"connection: close")
            if pinged:
                await client.until(b": keep-alive")
            await eventually(lambda: proxy.gate.view().waiting == 1)
            proxy.gate.open("ninfer", 1)
            await client.rest()
            await proxy.idle()
    told = json.loads(client.body.rpartition(b"data: ")[2])["error"]
    assert told["message"].startswith("ninfer is serving now and doesn't have 'only-strata'; strata does")
    assert client.got.startswith(b"HTTP/1.1 200 " if pinged else b"HTTP/1.1 503 ")
    assert pinged or b"\r\nretry-after: " in client.got
    assert not client.ended_whole
    assert not up.seen


async def test_case_23_the_list_of_models_has_the_same_bytes_whatever_the_gate_does() -> None:
    async with Upstream(saying(whole(b"{}"))) as up:
        engines = engine(up.url), engine(up.url, name="ninfer")
        async with proxied(*engines, models=NAMES) as proxy, browser(proxy.url) as client:
            gate = proxy.gate
            lists = []
            for change in (
                lambda: None,
                gate.close,
                lambda: gate.open("ninfer", 1),
                lambda: gate.hold(None),
                gate.release,
                lambda: gate.refuse("dark"),
                lambda: gate.open("strata", 1, "again"),
            ):
                change()
                lists += [(await client.get(path)).content for path in ("/v1/models", "/v1/models")]
    assert len(set(lists)) == 1
    assert [model["id"] for model in json.loads(lists[0])["data"]] == list(NAMES)
    assert not up.seen


async def test_case_23_neighbour_a_name_in_another_case_or_with_a_space_is_another_name() -> None:
    async with Upstream(answering) as up, proxied(engine(up.url), models=NAMES) as proxy, browser() as client:
        for name in ("Qwen", " qwen", "qwen ", "qwen3.8-flash-next", ""):
            answer = await client.post(proxy.url + CHAT, json=ask(model=name))
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found"), name
        await proxy.counted(Outcome.REFUSED, 5)
        escaped = b'{"model":"\\u0071wen","messages":[]}'
        assert (await client.post(proxy.url + CHAT, content=escaped)).status_code == 200
    assert [seen.json["model"] for seen in up.seen] == ["qwen3.8-flash-next"]
