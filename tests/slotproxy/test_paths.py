"""Which paths reach an engine, who says that one isn't there, and what goes through untouched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from engines.spec import CHAT, COMPLETIONS, COUNT_TOKENS, EMBEDDINGS, MESSAGES, RESPONSES
from engines.strata.profile import PROFILE as STRATA
from slotproxy.config_slots import SlotSettings
from slotproxy.outcomes import Outcome
from slotproxy.wire import PATHS
from tests.slotproxy.rig import (
    AT_ONCE,
    Client,
    Conversation,
    Proxy,
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

SPEECH, IMAGE, METRICS = "/v1/audio/speech", "/v1/images/edits", "/metrics"
NOTHING = (
    b"HTTP/1.0 404 Not Found\r\nContent-Type: text/html;odd\r\nX-Its-Own: yes\r\nConnection: close\r\n\r\n<h1>no</h1>\n"
)


@asynccontextmanager
async def passing(up: Upstream, *paths: str, opened: bool = True) -> AsyncIterator[tuple[Proxy, httpx.AsyncClient]]:
    slots = {"anonymous": SlotSettings("anonymous", defaults={"temperature": 0})}
    models = {"m": {"strata": "another"}}
    served = engine(up.url, passthrough=frozenset(paths))
    async with proxied(served, models=models, slots=slots, opened=opened) as proxy, browser(proxy.url) as client:
        yield proxy, client


# ------------------------------------------------------------------------------------------------ who says 404


def test_the_paths_of_every_protocol_are_known() -> None:
    assert list(PATHS) == [CHAT, COMPLETIONS, RESPONSES, MESSAGES, COUNT_TOKENS, EMBEDDINGS]


@pytest.mark.parametrize("path", PATHS)
async def test_an_engines_own_404_comes_through_byte_for_byte_whatever_its_profile_knows(path: str) -> None:
    async with Upstream(saying(NOTHING)) as up, proxied(engine(up.url, profile=STRATA)) as proxy:
        async with Client.at(proxy.port) as client:
            await client.post(path, ask(), b"connection: close")
            await client.rest()
        await proxy.counted(Outcome.SERVED)
    head, _, _ = client.got.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 404 ")
    assert b"x-its-own: yes" in head
    assert b"content-type: text/html;odd" in head
    assert (client.body, client.ended_whole) == (b"<h1>no</h1>\n", True)
    assert [seen.line for seen in up.seen] == [b"POST %b HTTP/1.1" % path.encode()]


async def test_a_path_that_only_another_engine_passes_through_is_our_own_404_which_names_who_serves() -> None:
    async with Upstream(saying(whole(b"{}"))) as up:
        engines = engine(up.url), engine(up.url, name="llama", passthrough=frozenset((SPEECH,)))
        async with proxied(*engines) as proxy, browser() as client:
            refused = await client.post(proxy.url + SPEECH, json=ask())
    assert refused.status_code == 404
    assert refused.json()["error"]["message"] == f"strata is serving now and has no {SPEECH}"
    assert not up.seen


@pytest.mark.parametrize(("method", "rest"), [("GET", "resp_1"), ("DELETE", "resp_1"), ("POST", "resp_1/cancel")])
async def test_what_an_engine_keeps_of_earlier_answers_is_nobodys_to_fetch(method: str, rest: str) -> None:
    """They are gone with the next swap, and no engine asks whose they are."""
    async with Upstream(saying(whole(b"{}"))) as up, passing(up) as (_, client):
        answer = await client.request(method, f"{RESPONSES}/{rest}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert not up.seen


# -------------------------------------------------------------------------------------------- who takes a place


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_what_may_change_something_waits_for_a_place(method: str) -> None:
    up = Upstream(saying(whole(b"{}")))
    async with up, passing(up, IMAGE, opened=False) as (proxy, client), asyncio.TaskGroup() as tasks:
        answer = tasks.create_task(client.request(method, IMAGE))
        await eventually(lambda: proxy.gate.view().waiting == 1)
        proxy.gate.open("strata", 1)
        assert (await answer).status_code == 200
    assert up.seen[0].line == b"%b %b HTTP/1.1" % (method.encode(), IMAGE.encode())


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_what_only_looks_is_answered_while_every_place_is_taken_and_503_while_nothing_serves(method: str) -> None:
    free = asyncio.Event()

    async def behave(talk: Conversation, seen: Seen) -> None:
        if seen.line.startswith(b"POST"):
            await free.wait()
        await talk.send(whole(b"" if seen.line.startswith(b"HEAD") else b"{}"))

    async with Upstream(behave) as up, passing(up, METRICS) as (proxy, client), asyncio.TaskGroup() as tasks:
        busy = tasks.create_task(client.post(CHAT, json=ask()))
        await eventually(lambda: proxy.gate.view().in_flight == 1)
        async with asyncio.timeout(AT_ONCE):
            assert (await client.request(method, METRICS)).status_code == 200
        free.set()
        await busy
        proxy.gate.close()
        async with asyncio.timeout(AT_ONCE):
            closed = await client.request(method, METRICS)
    assert (closed.status_code, closed.headers["retry-after"]) == (503, "5")


# ------------------------------------------------------------------------------------------- what isn't touched


async def test_a_form_with_files_passes_as_it_is_also_where_it_names_a_model() -> None:
    """A `model` in a form is the engine's own name for it: to change it would mean to write the form anew."""
    form = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--x\r\n\xff\x00\r\n--x--\r\n'
    up = Upstream(saying(whole(b"{}")))
    async with up, passing(up, IMAGE) as (_, client):
        answer = await client.post(IMAGE, content=form, headers={"content-type": 'multipart/form-data; boundary="x"'})
    (seen,) = up.seen
    assert (answer.status_code, seen.body) == (200, form)
    assert seen.all(b"content-type") == [b'multipart/form-data; boundary="x"']
    assert seen.all(b"content-length") == [b"%d" % len(form)]


async def test_json_for_a_path_that_is_passed_through_is_nobodys_business() -> None:
    raw = b'{"model": "m",  "model": 7, "stream": true}'
    async with Upstream(saying(whole(b"{}"))) as up, passing(up, SPEECH) as (_, client):
        assert (await client.post(SPEECH, content=raw)).status_code == 200
    assert up.seen[0].body == raw


async def test_a_binary_answer_arrives_as_it_is() -> None:
    sound = bytes(range(256)) * 1000 + b"data: [DONE]\n\n"
    said = whole(sound).replace(b"application/json", b"audio/mpeg")
    async with Upstream(saying(said)) as up, passing(up, SPEECH) as (proxy, client):
        answer = await client.post(SPEECH, json={"input": "x"})
        await proxy.counted(Outcome.SERVED)
    assert (answer.content, answer.headers["content-type"]) == (sound, "audio/mpeg")


async def test_conditions_ranges_and_their_answers_pass() -> None:
    partial = whole(
        b"bcd", b'etag: "v1"', b"content-range: bytes 1-3/9", b"accept-ranges: bytes", status=b"206 Partial"
    )
    async with Upstream(saying(partial)) as up, passing(up, METRICS) as (_, client):
        sent = {"range": "bytes=1-3", "if-range": '"v1"', "if-none-match": '"v0"', "if-modified-since": "yesterday"}
        answer = await client.get(METRICS, headers=sent)
    assert (answer.status_code, answer.content, answer.headers["etag"]) == (206, b"bcd", '"v1"')
    assert (answer.headers["content-range"], answer.headers["accept-ranges"]) == ("bytes 1-3/9", "bytes")
    assert {name: up.seen[0].all(name.encode())[0].decode() for name in sent} == sent


EARLIER = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
BODILESS = [
    ("HEAD", b"HTTP/1.1 200 OK\r\ncontent-length: 12345\r\netag: a\r\n\r\n", b"content-length: 12345"),
    ("GET", b'HTTP/1.1 304 Not Modified\r\netag: "a"\r\n\r\n', b'etag: "a"'),
    ("GET", b'HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\netag: "a"\r\n\r\n', b'etag: "a"'),
    ("DELETE", b"HTTP/1.1 204 No Content\r\nx-a: b\r\n\r\n", b"x-a: b"),
    ("POST", EARLIER + b"HTTP/1.1 204 No\r\nx-a: b\r\n\r\n", b"x-a: b"),
    ("POST", b"HTTP/1.1 205 Reset\r\ncontent-length: 0\r\nx-a: b\r\n\r\n", b"content-length: 0"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "said", "kept"), BODILESS)
async def test_an_answer_without_a_body_has_none_and_its_connection_goes_on(
    method: str, said: bytes, kept: bytes
) -> None:
    async with Upstream(saying(said)) as up, passing(up, METRICS) as (proxy, _), Client.at(proxy.port) as client:
        line = b"%b %b HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n" % (method.encode(), METRICS.encode())
        client.writer.write(line)
        first = await client.until(b"\r\n\r\n")
        client.got = b""
        client.writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        await client.until(b"}")
        assert client.got.startswith(b"HTTP/1.1 200"), client.got
    assert kept in first
    assert first.endswith(b"\r\n\r\n")
    assert b"transfer-encoding" not in first


async def test_an_engine_that_switches_protocols_on_its_own_gives_no_answer() -> None:
    said = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nbytes"
    async with Upstream(saying(said)) as up, passing(up, METRICS) as (proxy, client):
        answer = await client.get(METRICS)
        await proxy.counted(Outcome.FAILED)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "no_answer")
