"""A slot named in the path: what it opens, what it doesn't, and that nothing gets round it. On real sockets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml

from engines.spec import CHAT, MESSAGES
from slotproxy.app import ClientPort
from slotproxy.config import ConfigError, SlotSettings, load
from slotproxy.keys import digests
from slotproxy.outcomes import Outcome
from tests.slotproxy.rig import Client, Upstream, ask, browser, engine, proxied, saying, whole

VOICE = SlotSettings("voice", keys=digests("sk-voice"))
AGENTS = SlotSettings("agents", keys=digests("sk-agents"))
PHONE = SlotSettings("phone", by_path=True, defaults={"n": 7})
BOTH = SlotSettings("both", keys=digests("sk-both"), by_path=True)
KEYED = {slot.name: slot for slot in (VOICE, AGENTS, PHONE, BOTH)}
OPEN = {**KEYED, "anonymous": SlotSettings("anonymous")}
MODELS: Mapping[str, Mapping[str, str]] = {"m": {"strata": "mm"}}


def bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    ("name", "key", "status"),
    [
        ("voice", "sk-voice", 200),
        ("voice", None, 401),
        ("voice", "guess", 401),
        ("voice", "sk-agents", 403),
        ("phone", None, 200),
        ("phone", "any", 200),
        ("phone", "sk-voice", 403),
        ("both", None, 200),
        ("both", "sk-both", 200),
        ("both", "sk-agents", 403),
        ("anonymous", None, 401),
        ("nobody", None, 401),
        ("nobody", "guess", 401),
        ("nobody", "sk-voice", 403),
        ("Voice", "sk-voice", 403),
        ("", None, 401),
    ],
)
@pytest.mark.parametrize("path", [CHAT, MESSAGES, "/v1/models", "/v1/models/m"])
async def test_a_name_opens_its_slot_to_its_key_and_without_one_only_where_that_is_said(
    path: str, name: str, key: str | None, status: int
) -> None:
    up = Upstream(saying(whole(b"{}")))
    async with up, proxied(engine(up.url), slots=KEYED, models=MODELS) as proxy, browser(proxy.url) as client:
        method = "GET" if path.startswith("/v1/models") else "POST"
        json = ask() if method == "POST" else None
        answer = await client.request(method, f"/slot/{name}{path}", json=json, headers=bearer(key))
    assert answer.status_code == status
    if status != 200:
        assert not up.seen
        told = answer.json()
        assert (told.get("type") == "error") is (path == MESSAGES)
        assert answer.headers["x-request-id"]
        if path == CHAT:
            assert told["error"]["code"] == ("wrong_slot" if status == 403 else "invalid_api_key")
    elif method == "POST":
        assert up.seen[0].line == f"POST {path} HTTP/1.1".encode()


async def test_a_slot_that_needs_its_key_is_refused_in_the_words_for_one_that_is_not_there() -> None:
    async with proxied(engine("http://127.0.0.1:1"), slots=OPEN) as proxy, browser(proxy.url) as client:
        for path, key in (
            (CHAT, None),
            (CHAT, "sk-agents"),
            ("/v1/models", None),
            ("/nowhere", None),
            ("/health", None),
        ):
            said = [
                (await client.post(f"/slot/{name}{path}", headers=bearer(key))).text for name in ("voice", "nobody")
            ]
            assert said[0] == said[1]
        assert (await client.get("/slot/phone/health")).status_code == 200
        assert (await client.get("/slot/phone/nowhere")).status_code == 404
        assert (await client.get(f"/slot/phone{CHAT}")).status_code == 405


async def test_the_slot_of_the_path_is_the_one_whose_limits_and_defaults_count() -> None:
    up = Upstream(saying(whole(b"{}")))
    slots = {**OPEN, "phone": SlotSettings("phone", by_path=True, defaults={"n": 7}, max_hold=0.1)}
    async with up, proxied(engine(up.url), slots=slots) as proxy, browser(proxy.url) as client:
        await client.post(f"/slot/phone{CHAT}?beta=true", json=ask())
        assert up.seen[0].line == f"POST {CHAT}?beta=true HTTP/1.1".encode()
        assert up.seen[0].json == ask(n=7)
        proxy.gate.close()
        answer = await client.post(f"/slot/phone{CHAT}", json=ask())
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "wait_expired")


async def test_anonymous_may_be_named_by_whoever_has_no_key_of_another() -> None:
    async with proxied(engine("http://127.0.0.1:1"), slots=OPEN) as proxy, browser(proxy.url) as client:
        for key, status in ((None, 200), ("guess", 200), ("sk-voice", 403)):
            answer = await client.get("/slot/anonymous/v1/models", headers=bearer(key))
            assert answer.status_code == status


async def test_of_two_keys_one_must_be_the_named_slots() -> None:
    async with proxied(engine("http://127.0.0.1:1"), slots=OPEN) as proxy, browser(proxy.url) as client:
        for key, status in (("sk-agents", 200), ("sk-both", 403)):
            headers = {"x-api-key": "sk-voice", **bearer(key)}
            answer = await client.get("/slot/agents/v1/models", headers=headers)
            assert answer.status_code == status


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/slot/v%6fice/v1/models", 401),
        ("/slot/ph%6Fne/v1/models", 200),
        ("/slot/phone%2Fv1/models", 401),
        ("/slot/phone%2F..%2Fvoice/v1/models", 401),
        ("/slot/phone/../voice/v1/models", 404),
        ("/slot/phone/..%2fvoice/v1/models", 404),
        ("/slot/phone/%2e%2e/voice/v1/models", 404),
        ("/slot/phone/slot/voice/v1/models", 404),
        ("/slot/phone//v1/models", 404),
        ("/slot/phone/./v1/models", 404),
        ("/slot//phone/v1/models", 401),
        ("//slot/phone/v1/models", 404),
        ("/slot%2fphone/v1/models", 404),
        ("/sl%6ft/phone/v1/models", 404),
        ("/SLOT/phone/v1/models", 404),
        ("/slots/phone/v1/models", 404),
        ("/slot/../v1/models", 401),
        ("/v1/../slot/phone/v1/models", 404),
        ("/slot/phone;x/v1/models", 401),
        ("/slot/phone%00/v1/models", 401),
        ("/slot/%ff%fe/v1/models", 401),
        ("/slot/phone?x=/v1/models", 404),
        ("/slot/phone", 404),
        ("/slot/phone/", 404),
        ("/slot/", 401),
        ("/slot", 404),
        ("http://any.host/slot/phone/v1/models", 200),
        ("http://any.host/slot/voice/v1/models", 401),
        ("/slot/" + "x" * 5000 + "/v1/models", 401),
    ],
)
async def test_nothing_gets_round_the_name_in_a_path(target: str, status: int) -> None:
    up = Upstream(saying(whole(b"{}")))
    paths = frozenset(("/metrics",))
    async with up, proxied(engine(up.url, passthrough=paths), slots=KEYED) as proxy, Client.at(proxy.port) as client:
        client.writer.write(f"GET {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        answer = await client.rest()
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert json.loads(client.body)
    assert len(client.body) < 1000
    assert not up.seen


@pytest.mark.parametrize(("name", "status"), [("phone", 200), ("voice", 401)])
async def test_what_is_passed_through_is_under_a_slots_name_too(name: str, status: int) -> None:
    up = Upstream(saying(whole(b'{"n":1}')))
    paths = frozenset(("/metrics",))
    async with up, proxied(engine(up.url, passthrough=paths), slots=KEYED) as proxy, browser(proxy.url) as client:
        assert (await client.get(f"/slot/{name}/metrics?a=b")).status_code == status
    assert [seen.line for seen in up.seen] == [b"GET /metrics?a=b HTTP/1.1"] * (status == 200)


async def test_options_is_answered_under_any_name_as_a_browser_sends_it_without_a_key() -> None:
    async with proxied(engine("http://127.0.0.1:1"), slots=KEYED) as proxy, browser(proxy.url) as client:
        for name in ("voice", "nobody"):
            answer = await client.options(f"/slot/{name}{CHAT}")
            assert (answer.status_code, answer.headers["allow"]) == (204, "POST, OPTIONS")


async def test_a_refused_name_is_counted_as_any_refusal() -> None:
    async with proxied(engine("http://127.0.0.1:1"), slots=KEYED) as proxy, browser(proxy.url) as client:
        await client.post(f"/slot/voice{CHAT}", json=ask())
        await proxy.counted(Outcome.REFUSED)


@pytest.mark.parametrize("key", ["sk-voice", "sk-nobodys", "sk-odd\\x00'"])
async def test_no_key_is_logged_or_told_back_wherever_it_stands(key: str) -> None:
    up = Upstream(saying(whole(b"{}")))
    async with up, proxied(engine(up.url), slots=OPEN) as proxy, browser(proxy.url) as client:
        with structlog.testing.capture_logs() as logged:
            told = [
                await client.post(path, json=ask(), headers={name: key, "x-slotproxy-max-hold": wait})
                for path in (
                    f"{CHAT}?key={key}",
                    f"/slot/{key}{CHAT}",
                    f"/slot/voice{CHAT}?a={key}",
                    f"/slot/phone{CHAT}",
                )
                for name in ("x-api-key", "cookie")
                for wait in ("5", key)
            ]
    assert len(logged) == len(told) == 16
    assert "sk-" not in str(logged)
    assert not [answer for answer in told if "sk-" in answer.text + str(answer.headers)]


async def test_a_reload_changes_keys_and_names_for_the_next_request() -> None:
    up = Upstream(saying(whole(b"{}")))
    async with up, proxied(engine(up.url), slots=KEYED) as proxy, browser(proxy.url) as client:
        assert isinstance(proxy.app, ClientPort)

        async def statuses() -> list[int]:
            asked = (("voice", "sk-voice"), ("voice", "sk-next"), ("phone", None), ("agents", None))
            return [
                (await client.post(f"/slot/{name}{CHAT}", json=ask(), headers=bearer(key))).status_code
                for name, key in asked
            ]

        def reload(**slots: SlotSettings) -> None:
            held = proxy.app._house.in_force
            held.settings = replace(held.settings, slots=slots)
            proxy.app.configure()

        assert await statuses() == [200, 401, 200, 401]
        reload(voice=replace(VOICE, keys=digests("sk-voice", "sk-next")), phone=replace(PHONE, by_path=False))
        assert await statuses() == [200, 200, 401, 401]
        reload(voice=replace(VOICE, keys=digests("sk-next")), agents=replace(AGENTS, by_path=True, defaults={"n": 9}))
        assert await statuses() == [401, 200, 401, 200]
    assert up.seen[-1].json["n"] == 9


async def test_a_websocket_under_a_name_is_refused_as_without() -> None:
    async with proxied(engine("http://127.0.0.1:1"), slots=KEYED) as proxy, browser(proxy.url) as client:
        headers = {"upgrade": "websocket", "connection": "upgrade"}
        assert (await client.get("/slot/phone/v1/realtime", headers=headers)).status_code == 400


# ------------------------------------------------------------------------------------------------ what may be written


def read(folder: Path, listen: str, engine: Mapping[str, Any] | None = None, **slots: Mapping[str, Any]) -> Any:
    (folder / "key").write_text("sk-voice")
    pairs = {"p": {"image": "x", "artifact": []}}
    x = {"profile": "openai", "container": "x", "vram": "1GiB", "pairs": pairs, **(engine or {})}
    document = {"listen": listen, "card": {"simulated": "32GiB"}, "engines": {"x": x}, "slots": slots}
    (folder / "slotproxy.yml").write_text(yaml.safe_dump(document, sort_keys=False))
    return load(folder / "slotproxy.yml")


@pytest.mark.parametrize("slot", [{"by_path": True}, {"by_path": True, "key_file": "key"}])
def test_a_slot_by_path_needs_no_key_and_on_an_open_port_these_words(tmp_path: Path, slot: dict[str, Any]) -> None:
    assert read(tmp_path, "127.0.0.1:1", phone=slot).slots["phone"].by_path
    with pytest.raises(ConfigError, match=r"slots\.phone\.by_path: listen is 0\.0\.0\.0, so everyone on the network"):
        read(tmp_path, "0.0.0.0:1", phone=slot)
    assert read(tmp_path, "[::]:1", phone={**slot, "allow_remote": True}).slots["phone"].by_path


def test_what_is_written_of_a_slot_is_taken(tmp_path: Path) -> None:
    voice = read(tmp_path, "127.0.0.1:1", voice={"key_file": "key", "id_slot": 0}, other={"by_path": True}).slots
    assert [(slot.id_slot, slot.by_path, slot.keys) for slot in voice.values()] == [
        (0, False, digests("sk-voice")),
        (None, True, frozenset()),
    ]


@pytest.mark.parametrize(
    ("name", "slot", "words"),
    [
        ("phone", {"by_path": False}, "slots.phone.key_file: is missing"),
        ("phone", {"by_path": False, "key_file": "key", "allow_remote": True}, "slots.phone.allow_remote: belongs to"),
        ("anonymous", {"by_path": True}, "slots.anonymous.by_path: anonymous needs no key by its name either"),
        ("phone", {"by_path": "yes", "key_file": "key"}, "slots.phone.by_path: 'yes' is not true or false"),
        ("phone", {"id_slot": -1, "key_file": "key"}, "slots.phone.id_slot: -1 is too small"),
    ],
)
def test_what_is_written_wrong_is_refused(tmp_path: Path, name: str, slot: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read(tmp_path, "127.0.0.1:1", **{name: slot})


def test_a_path_of_an_engine_that_would_name_a_slot_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"engines.x.passthrough: '/slot/x': what begins with /slot/ names a slot"):
        read(tmp_path, "127.0.0.1:1", {"passthrough": ["/slot/x"]}, phone={"by_path": True})
    assert read(tmp_path, "127.0.0.1:1", {"passthrough": ["/slots"]}, phone={"by_path": True})
