"""What requests tell of the engine that answered them, and the place that is kept while it is examined."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time

import pytest

from engines.ninfer.profile import PROFILE as NINFER
from engines.spec import CHAT, COUNT_TOKENS, MESSAGES, RESPONSES, Settling
from slotproxy.config import Limits
from slotproxy.gate import SlotGate
from slotproxy.places import Place
from slotproxy.supervision import OURS, place_of_ours, taken
from swap.ends import Tried
from tests.slotproxy.rig import (
    ALL_APIS,
    ANYONE,
    DONE,
    RUN,
    SSE,
    Client,
    Conversation,
    Seen,
    Upstream,
    ask,
    browser,
    chunk,
    delta,
    engine,
    eventually,
    proxied,
    saying,
    whole,
)

BROKEN = dataclasses.replace(ALL_APIS, broken=NINFER.broken)
OK = b'{"choices":[{"message":{"content":"OK"},"finish_reason":"stop"}]}'
UNAVAILABLE = b'{"error":{"message":"the engine has failed","type":"server_error","code":"unavailable"}}'
IN_BAND = b'data: {"error":{"message":"the engine process is dead","type":"server_error"}}\n\n'
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'


class Heard:
    """Takes down what it is told; it examines until `well` is set. `dead`: had the run ended before the request?"""

    def __init__(self, *, dead: bool = False) -> None:
        self.told: list[str] = []
        self.well = asyncio.Event()
        self.dead = dead
        self.sent: list[float] = []  # when what was asked about was sent

    def answered(self, run: str) -> None:
        self.told.append(f"{run}: answered")

    def error(self, run: str, why: str) -> bool:
        self.told.append(f"{run}: {why}")
        return True

    def unreached(self, run: str) -> None:
        self.told.append(f"{run}: unreached")

    async def ended_before(self, engine: str, tried: Tried) -> bool:
        assert (engine, tried.run) == ("strata", RUN)
        assert tried.sent.steady < tried.closed.steady <= time.monotonic()
        self.sent.append(tried.sent.steady)
        return self.dead

    async def examine(self, run: str) -> None:
        self.told.append(f"{run}: examined")
        await self.well.wait()


def stream(*events: bytes) -> bytes:
    return SSE + b"".join(map(chunk, events)) + b"0\r\n\r\n"


STARTED = b'event: message_start\ndata: {"type":"message_start","message":{"content":[]}}\n\n'
OVERLOADED = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"later"}}\n\n'
DEAD = b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"dead"}}\n\n'
CREATED = b'event: response.created\ndata: {"type":"response.created","response":{"output":[]}}\n\n'
FAILED = (
    b'event: response.failed\ndata: {"type":"response.failed","response":{"error":{"code":"server_error",'
    b'"message":"dead"}}}\n\n'
)


@pytest.mark.parametrize(
    ("path", "answer", "told"),
    [
        (CHAT, whole(OK), "answered"),
        (CHAT, stream(delta(), DONE), "answered"),
        (CHAT, whole(UNAVAILABLE, status=b"503 X"), "HTTP 503 unavailable server_error"),
        (CHAT, whole(b"CUDA error: lost", status=b"500 X"), "HTTP 500"),
        (CHAT, whole(UNAVAILABLE.replace(b"unavailable", b"server_overloaded"), status=b"503 X"), ""),
        (CHAT, whole(UNAVAILABLE.replace(b"unavailable", b"request_queue_timeout"), status=b"503 X"), ""),
        (CHAT, whole(UNAVAILABLE, status=b"429 X"), ""),
        (CHAT, whole(UNAVAILABLE, status=b"400 X"), ""),  # nor is it an answer that takes anything back
        (CHAT, whole(UNAVAILABLE, status=b"501 X"), ""),
        (MESSAGES, whole(UNAVAILABLE, status=b"529 X"), ""),
        (MESSAGES, whole(UNAVAILABLE, status=b"504 X"), ""),
        (COUNT_TOKENS, whole(b'{"input_tokens": 1}'), ""),  # a broken engine can count
        (CHAT, stream(ROLE, IN_BAND, DONE), "in-band server_error"),
        (CHAT, stream(ROLE, delta(), IN_BAND, DONE), ""),  # it did work, for this request at least
        (CHAT, stream(ROLE), ""),  # forgotten in its queue
        (MESSAGES, stream(STARTED, DEAD), "in-band api_error"),
        (MESSAGES, stream(STARTED, OVERLOADED), ""),
        (RESPONSES, stream(CREATED, FAILED), "in-band server_error"),
        (CHAT, b"", "unreached"),
        (CHAT, whole(OK)[:-9], ""),
    ],
)
async def test_each_end_of_a_request_says_what_it_can_of_the_engine_and_no_more(
    path: str, answer: bytes, told: str
) -> None:
    heard = Heard()
    heard.well.set()
    async with Upstream(saying(answer)) as up, proxied(engine(up.url, profile=BROKEN), supervision=heard) as proxy:
        async with Client.at(proxy.port) as client:
            own = (b"connection: close", b"x-request-id: one")
            await client.post(path, ask(stream=answer.startswith(SSE)), *own)
            await client.rest()
        await proxy.idle()
    if told[:4] in ("HTTP", "in-b"):
        assert heard.told == [f"{RUN}: {told}, request one", f"{RUN}: examined"]
    else:
        assert heard.told == ([f"{RUN}: {told}"] if told else [])


async def test_an_error_after_pings_is_told_as_well() -> None:
    heard, answer, soon = Heard(), saying(whole(UNAVAILABLE, status=b"503 X")), Limits(first_ping=0.05)
    heard.well.set()
    async with Upstream(answer) as up, proxied(engine(up.url, profile=BROKEN), supervision=heard, limits=soon) as proxy:
        proxy.gate.hold(None)
        async with Client.at(proxy.port) as client:
            await client.post(CHAT, ask(stream=True), b"x-request-id: one")
            await client.until(b": keep-alive")
            proxy.gate.release()
            await client.until(b"unavailable")
        await proxy.idle()
    assert heard.told[0] == f"{RUN}: HTTP 503 unavailable server_error, request one"


async def test_while_the_engine_is_examined_its_client_is_told_and_nobody_else_runs_into_it() -> None:
    heard = Heard()

    async def behave(talk: Conversation, _: Seen) -> None:
        broken = not heard.well.is_set()
        await talk.send(whole(UNAVAILABLE, status=b"503 X") if broken else whole(OK))

    async with (
        Upstream(behave) as up,
        proxied(engine(up.url, profile=BROKEN), supervision=heard) as proxy,
        browser(proxy.url) as client,
        asyncio.TaskGroup() as tasks,
    ):
        assert (await client.post(CHAT, json=ask())).status_code == 503
        await eventually(lambda: proxy.gate.view().settling == 1)
        assert await proxy.gate.drained(0)  # a swap need not wait for it
        next_one = tasks.create_task(client.post(CHAT, json=ask()))
        await eventually(lambda: proxy.gate.view().waiting == 1)
        assert len(up.seen) == 1
        heard.well.set()
        assert (await next_one).status_code == 200
    assert len(up.seen) == 2  # who got the error isn't sent again


async def test_a_swap_that_cuts_ends_the_examination() -> None:
    heard = Heard()
    answer = saying(whole(UNAVAILABLE, status=b"503 X"))
    async with Upstream(answer) as up, proxied(engine(up.url, profile=BROKEN), supervision=heard) as proxy:
        async with browser(proxy.url) as client:
            await client.post(CHAT, json=ask())
        await eventually(lambda: proxy.gate.view().settling == 1)
        proxy.gate.cut()
        await proxy.idle()


async def test_a_place_whose_engine_is_broken_does_not_settle_for_minutes() -> None:
    """A client leaves, and what is asked whether the engine is free again says that it fails for ever."""
    slow = dataclasses.replace(BROKEN, settling=Settling.COMPLETION, settle_limit=300.0)

    async def behave(talk: Conversation, seen: Seen) -> None:
        if json.loads(seen.body or b"{}").get("stream"):
            await talk.left()
        await talk.send(whole(UNAVAILABLE, status=b"503 X"))

    async with Upstream(behave) as up, proxied(engine(up.url, profile=slow)) as proxy:
        async with Client.at(proxy.port) as client:
            await client.post(CHAT, ask(stream=True))
            await eventually(lambda: len(up.seen) == 1)
        await eventually(lambda: len(up.seen) > 1)
        await proxy.idle()


async def test_a_place_of_ours_is_the_next_one_and_no_drain_waits_for_it() -> None:
    gate, slot = SlotGate(max_waiting=10, max_waiting_bytes=100), ANYONE["anonymous"]
    gate.open("ninfer", 1, RUN)
    first = await gate.enter(slot, size=1)
    assert isinstance(first, Place)
    assert (first.run, taken(gate)) == (RUN, 1)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(gate.enter(slot, size=1))
        await asyncio.sleep(0)
        async with place_of_ours(gate, 0.05) as ours:
            assert not ours
        assert OURS.name not in gate.view().slots
        asyncio.get_running_loop().call_later(0.01, first.leave)
        async with place_of_ours(gate, 10) as ours:
            assert (ours, taken(gate), waiting.done()) == (True, 1, False)
            assert await gate.drained(0)
        second = await waiting
        assert isinstance(second, Place)
        second.leave()


# ------------------------------------------------------------------------------------------------- a dying engine


async def test_a_request_that_a_dead_engine_cannot_have_seen_waits_for_the_next_run_before_all_others() -> None:
    """Docker's proxy accepts for a dead container, and closes."""
    heard, answers = Heard(dead=True), [b"", b"", whole(OK), whole(OK)]

    async def behave(talk: Conversation, _: Seen) -> None:
        await talk.send(answers.pop(0))

    async with (
        Upstream(behave) as up,
        proxied(engine(up.url), supervision=heard) as proxy,
        browser(proxy.url) as client,
        asyncio.TaskGroup() as tasks,
    ):
        began = time.monotonic()
        first = tasks.create_task(client.post(CHAT, json=ask(n=1)))
        await eventually(lambda: len(up.seen) == 1)
        second = tasks.create_task(client.post(CHAT, json=ask(n=2)))
        assert ((await first).status_code, (await second).status_code) == (200, 200)
    assert [seen.json["n"] for seen in up.seen] == [1, 1, 1, 2]
    assert len(heard.sent) == 2
    assert began <= heard.sent[0] < heard.sent[1]


async def test_a_request_that_the_engine_may_have_seen_is_not_sent_again() -> None:
    heard = Heard(dead=False)
    async with Upstream(saying()) as up, proxied(engine(up.url), supervision=heard) as proxy:
        async with browser(proxy.url) as client:
            answer = await client.post(CHAT, json=ask())
        await proxy.idle()
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "no_answer")
    assert (len(up.seen), len(heard.sent)) == (1, 1)


@pytest.mark.parametrize("answer", [b"SSH-2.0-OpenSSH\r\n\r\n", SSE, whole(OK)[:-5]])
async def test_once_a_byte_of_an_answer_has_come_nobody_asks_whether_it_was_seen(answer: bytes) -> None:
    heard = Heard(dead=True)
    async with Upstream(saying(answer)) as up, proxied(engine(up.url), supervision=heard) as proxy:
        async with Client.at(proxy.port) as client:
            await client.post(CHAT, ask(stream=True), b"connection: close")
            await client.rest()
        await proxy.idle()
    assert len(up.seen) == 1


async def test_a_swap_does_not_wait_for_who_waits_to_try_again() -> None:
    heard = Heard(dead=True)
    async with (
        Upstream(saying()) as up,
        proxied(engine(up.url), supervision=heard) as proxy,
        Client.at(proxy.port) as client,
    ):
        await client.post(CHAT, ask())
        await eventually(lambda: proxy.gate.view().settling == 1)
        proxy.gate.close()
        assert await proxy.gate.drained(0)
        await eventually(lambda: proxy.gate.view().waiting == 1)
