"""What is decided of a request while it arrives: its target, its body's size, and how it is refused."""

from __future__ import annotations

import json

import pytest

from engines.spec import CHAT
from slotproxy.outcomes import Outcome
from tests.slotproxy.rig import Client, Upstream, ask, engine, proxied, saying, whole


@pytest.mark.parametrize(
    "target", [f"{CHAT}?a=1#b", f"{CHAT}?#", f"{CHAT}#b", "/v1/models?a#b", f"{CHAT}?{'x' * 70_000}"]
)
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
