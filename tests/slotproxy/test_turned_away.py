"""What is told, logged and counted of who isn't let in: a refusal is one, and what may be a secret isn't repeated."""

from __future__ import annotations

import json
from typing import Any

import pytest
import structlog

from engines.spec import CHAT
from slotproxy.config_slots import SlotSettings
from slotproxy.keys import digest
from slotproxy.outcomes import Outcome
from tests.slotproxy.rig import ANYONE, Client, Upstream, ask, browser, engine, proxied, saying, whole

KEY = "sk-voice-0123456789"
KEYED = {"voice": SlotSettings("voice", keys=frozenset((digest(KEY.encode()),)))}
GARBAGE = b"transfer-encoding: chunked\r\n\r\n5\r\n{hush\r\nhush-hush\r\n"


@pytest.mark.parametrize("path", [CHAT, f"/slot/anonymous{CHAT}"])
async def test_a_request_whose_body_stops_being_http_is_refused_and_no_client_that_left(path: str) -> None:
    with structlog.testing.capture_logs() as lines:
        async with Upstream(saying(whole(b"{}"))) as up, proxied(engine(up.url), slots=ANYONE) as proxy:
            async with Client.at(proxy.port) as client:
                client.writer.write(b"POST %b HTTP/1.1\r\nhost: x\r\nx-request-id: one\r\n" % path.encode() + GARBAGE)
                answer = await client.rest()
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert b"x-request-id: one" in answer.lower()
            await proxy.counted(Outcome.REFUSED)
            assert up.seen == []
    (line,) = (line for line in lines if line["event"] == "request")
    assert (line["id"], line["outcome"], line["how"], line["status"]) == ("one", "refused", "bad_http", 400)
    assert "hush" not in json.dumps(line)


@pytest.mark.parametrize("models", [{"m": {"strata": "m"}}, {"*": {}}])
@pytest.mark.parametrize("model", [KEY, "MY PROMPT: and the password", "x" * 101])
async def test_what_stands_in_a_models_place_is_logged_only_if_it_can_be_a_name(
    model: str, models: dict[str, dict[str, str]]
) -> None:
    with structlog.testing.capture_logs() as lines:
        async with (
            Upstream(saying(whole(b"{}"))) as up,
            proxied(engine(up.url), slots=KEYED, models=models) as proxy,
            browser(proxy.url) as client,
        ):
            body = {**ask(), "model": model}
            await client.post(CHAT, json=body, headers={"authorization": f"Bearer {KEY}"})
            await client.post(CHAT, json=ask(), headers={"x-api-key": KEY, "x-request-id": KEY})
    said: list[dict[str, Any]] = [dict(line) for line in lines if line["event"] == "request"]
    assert [line["model"] for line in said] == ["", "m"]
    assert model not in json.dumps(said)
    assert KEY not in json.dumps(said)


async def test_health_tells_why_nobody_is_let_in_to_those_alone_who_may_ask() -> None:
    async with proxied(engine("http://127.0.0.1:9"), slots=KEYED) as proxy, browser(proxy.url) as client:
        proxy.gate.refuse("cannot read /srv/strata/strata.json")
        assert (await client.get("/health")).json() == {"status": "ok", "gate": "refusing"}
        mine = (await client.get("/health", headers={"x-api-key": KEY})).json()
    assert (mine["reason"], mine["waiting"]) == ("cannot read /srv/strata/strata.json", 0)


@pytest.mark.parametrize(("site", "status"), [("cross-site", 403), ("same-origin", 200), ("none", 200)])
async def test_a_picture_in_a_page_of_another_site_takes_no_place(site: str, status: int) -> None:
    """Browsers name no origin with it."""
    own = engine("http://127.0.0.1:9", passthrough=frozenset(("/v1/audio",)))
    async with Upstream(saying(whole(b"{}"))) as up:
        reached = engine(up.url, passthrough=own.passthrough)
        async with proxied(reached) as proxy, browser(proxy.url) as client:
            answer = await client.get("/v1/audio", headers={"sec-fetch-site": site})
        assert (answer.status_code, len(up.seen)) == (status, int(status == 200))
