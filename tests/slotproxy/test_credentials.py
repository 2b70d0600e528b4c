"""An engine gets its own key and never a client's, wherever a client may have put one. On real sockets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.spec import CHAT, MESSAGES
from slotproxy.config import SlotSettings
from slotproxy.credentials import HEADERS, without_keys
from slotproxy.keys import digests
from tests.slotproxy.rig import Client, Upstream, ask, engine, proxied, saying, whole

KEY = "sk-clients-own"
SLOTS = {"voice": SlotSettings("voice", keys=digests(KEY)), "anonymous": SlotSettings("anonymous")}
EVERYWHERE = [
    *(b"%b: Bearer %b" % (name, KEY.encode()) for name in sorted(HEADERS)),
    b"X-API-KEY: " + KEY.encode(),
    b"Api-Key: " + KEY.encode(),
    b"x-goog-api-key: " + KEY.encode(),
    b"x-litellm-api-key: " + KEY.encode(),
    b"Cookie: session=%b; other=1" % KEY.encode(),
    b"Proxy-Authorization: Basic %b" % KEY.encode(),
]


@pytest.mark.parametrize("path", [CHAT, MESSAGES, "/metrics"])
@pytest.mark.parametrize("own", ["engines-key", None])
@pytest.mark.parametrize("key", [KEY, "of-another-service"])
async def test_the_clients_key_never_reaches_the_engine_by_any_way(path: str, own: str | None, key: str) -> None:
    more: Any = {"api_key": own, "passthrough": frozenset(("/metrics",))}
    headers = [line.replace(KEY.encode(), key.encode()) for line in EVERYWHERE]
    async with (
        Upstream(saying(whole(b"{}"))) as up,
        proxied(engine(up.url, **more), slots=SLOTS) as proxy,
        Client.at(proxy.port) as client,
    ):
        await client.post(f"{path}?key={key}&a=1&api_key={key}&%6bey={key}&b", ask(), *headers, b"x-mine: kept")
        await client.until(b"{}")
    (seen,) = up.seen
    assert seen.line == f"POST {path}?a=1&b HTTP/1.1".encode()
    assert not [name for name, value in seen.headers if key.encode() in value]
    assert seen.all(b"x-mine") == [b"kept"]
    sent = {name: seen.all(name) for name in HEADERS if seen.all(name)}
    ours = {b"authorization": [b"Bearer engines-key"]}
    if path == MESSAGES:
        ours[b"x-api-key"] = [b"engines-key"]
    assert sent == (ours if own else {})


async def test_what_a_client_says_to_slotproxy_is_not_told_to_the_engine() -> None:
    up = Upstream(saying(whole(b"{}")))
    async with up, proxied(engine(up.url)) as proxy, Client.at(proxy.port) as client:
        await client.post(CHAT, ask(), b"X-Slotproxy-Max-Hold: 5s", b"X-SLOTPROXY-ANY: x", b"x-slotproxyx: kept")
        await client.until(b"{}")
    assert [name for name, _ in up.seen[0].headers if name.startswith(b"x-slotproxy")] == [b"x-slotproxyx"]


@pytest.mark.parametrize(
    ("query", "kept"),
    [
        (b"", b""),
        (b"key=x", b""),
        (b"a=%20+&KEY=x&&b=%C3%BC", b"a=%20+&&b=%C3%BC"),
        (b"api-key=x&apikey=y&access_token=z&monkey=1&keys=2", b"monkey=1&keys=2"),
        (b"%6B%65%79=x&a", b"a"),
        (b"a=key&key", b"a=key"),
        (b"a=%zz&=&%", b"a=%zz&=&%"),
    ],
)
def test_a_query_loses_its_keys_and_no_other_byte(query: bytes, kept: bytes) -> None:
    assert without_keys(query) == kept


@given(st.text(alphabet="abky=&%6e_.+-", max_size=40).map(str.encode))
def test_any_query_without_a_key_keeps_its_bytes(query: bytes) -> None:
    left = without_keys(query)
    assert without_keys(left) == left
    if b"key" not in query.replace(b"%6", b"").lower() and b"%" not in query:
        assert left == query
