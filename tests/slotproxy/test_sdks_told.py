"""What the clients' own libraries make of errors: by status, in a stream that has begun, and behind pings."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest

from slotproxy.config import Limits
from tests.slotproxy.rig import SSE, Proxy, Upstream, chunk, delta, engine, eventually, proxied, saying, whole

# The SDKs bring so many objects that looking through them for garbage stops the event loop for most of a second.
gc.freeze()

MESSAGES: Any = [{"role": "user", "content": "hi"}]
STARTED = b'event: message_start\ndata: {"type": "message_start", "message": {"content": [], "usage": {}}}\n\n'
CREATED = b'event: response.created\ndata: {"type": "response.created", "sequence_number": 0, "response": {}}\n\n'
OURS = "what came so far is not a whole answer"


def chat(url: str) -> Iterable[Any]:
    with openai.OpenAI(base_url=url + "/v1", api_key="x", max_retries=0) as sdk:
        yield from sdk.chat.completions.create(model="m", messages=MESSAGES, stream=True)


def completions(url: str) -> Iterable[Any]:
    with openai.OpenAI(base_url=url + "/v1", api_key="x", max_retries=0) as sdk:
        yield from sdk.completions.create(model="m", prompt="hi", stream=True)


def responses(url: str) -> Iterable[Any]:
    with openai.OpenAI(base_url=url + "/v1", api_key="x", max_retries=0) as sdk:
        yield from sdk.responses.create(model="m", input="hi", stream=True)


def messages(url: str) -> Iterable[Any]:
    with anthropic.Anthropic(base_url=url, api_key="x", max_retries=0) as sdk:
        yield from sdk.messages.create(model="m", messages=MESSAGES, max_tokens=9, stream=True)


def embeddings(url: str) -> Iterable[Any]:
    with openai.OpenAI(base_url=url + "/v1", api_key="x", max_retries=0) as sdk:
        yield sdk.embeddings.create(model="m", input="hi")


def count_tokens(url: str) -> Iterable[Any]:
    with anthropic.Anthropic(base_url=url, api_key="x", max_retries=0) as sdk:
        yield sdk.messages.count_tokens(model="m", messages=MESSAGES)


Call = Callable[[str], Iterable[Any]]
STREAMS: list[tuple[Call, bytes]] = [
    (chat, delta()),
    (completions, b'data: {"choices": [{"index": 0, "text": "hi"}]}\n\n'),
    (responses, CREATED),
    (messages, STARTED),
]
ALL: list[Call] = [chat, completions, responses, messages, embeddings, count_tokens]


@asynccontextmanager
async def before(said: bytes, **more: Any) -> AsyncIterator[Proxy]:
    async with Upstream(saying(said)) as up, proxied(engine(up.url), **more) as proxy:
        yield proxy


async def met(call: Call, proxy: Proxy) -> tuple[list[Any], Exception]:
    """What an SDK gave before it raised, and what it raised."""

    def asked() -> tuple[list[Any], Exception]:
        given: list[Any] = []
        try:
            given.extend(call(proxy.url))
        except (openai.APIError, anthropic.APIError) as error:
            return given, error
        raise AssertionError(f"no error, but {given}")

    return await asyncio.to_thread(asked)


def kind(error: Exception) -> str:
    return type(error).__name__


@pytest.mark.parametrize("call", ALL)
async def test_our_own_refusal_is_the_sdks_exception_for_its_status_with_words_and_id(call: Call) -> None:
    async with before(whole(b"{}"), models={"another": {"strata": "x"}}) as proxy:
        _, unknown = await met(call, proxy)
    async with before(whole(b"{}")) as proxy:
        proxy.gate.refuse("the operator is at lunch")
        _, refused = await met(call, proxy)
    assert kind(unknown) == "NotFoundError"
    assert kind(refused) in ("InternalServerError", "ServiceUnavailableError")
    for error, words in ((unknown, "no model is called 'm' here"), (refused, "the operator is at lunch")):
        assert words in str(error)
        assert isinstance(error, openai.APIStatusError | anthropic.APIStatusError)
        assert error.request_id == error.response.headers["x-request-id"]


@pytest.mark.parametrize(("call", "first"), STREAMS)
async def test_a_stream_that_breaks_off_raises_after_what_had_come_and_says_why(call: Call, first: bytes) -> None:
    async with before(SSE + chunk(first) + b"0\r\n\r\n") as proxy:
        given, error = await met(call, proxy)
    assert len(given) == 1
    assert OURS in str(error)
    if isinstance(error, openai.APIError):
        assert (kind(error), error.code, error.type) == ("APIError", "cut_short", "server_error")


@pytest.mark.parametrize(("call", "first"), STREAMS)
async def test_pings_are_not_shown_and_an_error_behind_them_raises(call: Call, first: bytes) -> None:
    said = SSE + chunk(first) + b"0\r\n\r\n"
    limits = Limits(first_ping=0.05, ping_every=0.05)
    async with before(said, limits=limits, opened=False) as proxy, asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(met(call, proxy))
        await eventually(lambda: proxy.gate.view().waiting == 1)
        await asyncio.sleep(0.3)
        proxy.gate.open("strata", 1)
        given, error = await asked
    assert len(given) == 1
    assert OURS in str(error)


@pytest.mark.parametrize(("call", "first"), STREAMS)
async def test_who_is_cut_off_in_the_middle_is_told(call: Call, first: bytes) -> None:
    async def stalls(talk: Any, _: Any) -> None:
        await talk.send(SSE, chunk(first))
        await talk.left()

    async with Upstream(stalls) as up, proxied(engine(up.url)) as proxy, asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(met(call, proxy))
        await eventually(lambda: len(up.seen) == 1)
        await asyncio.sleep(0.2)
        assert proxy.gate.cut() == 1
        given, error = await asked
    assert len(given) <= 1
    assert "ended by the operator" in str(error)


async def test_an_engines_own_error_behind_pings_keeps_its_words_and_its_code() -> None:
    said = whole(b'{"error": {"message": "too long for me", "code": "context_length_exceeded"}}', status=b"400 Bad")
    limits = Limits(first_ping=0.05, ping_every=0.05)
    async with before(said, limits=limits, opened=False) as proxy, asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(met(chat, proxy))
        await eventually(lambda: proxy.gate.view().waiting == 1)
        await asyncio.sleep(0.2)
        proxy.gate.open("strata", 1)
        _, error = await asked
    assert isinstance(error, openai.APIError)
    assert (error.code, error.type) == ("context_length_exceeded", "invalid_request_error")
    assert "too long for me" in error.message


async def test_an_sdk_that_asks_for_a_path_nobody_has_gets_the_engines_own_404() -> None:
    async with before(whole(b'{"error": {"message": "File Not Found"}}', status=b"404 Not")) as proxy:
        _, error = await met(embeddings, proxy)
    assert kind(error) == "NotFoundError"
    assert "File Not Found" in str(error)
