"""What SDKs make of slotproxy's errors: their own classes, and their own retries, which heed Retry-After."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.clients.answers import model
from tests.clients.commands import BY_NAME as COMMANDS
from tests.clients.commands import READERS, needs
from tests.clients.house import MODEL, NAMES, House, Target
from tests.clients.sdks import BY_NAME, CALLS_OF_OPENAI, Call, ask, sync_client
from tests.slotproxy.programs import engines

PROMPT = 20.0  # seconds
LONG = {"max_tokens": 4000}
CHAT, STREAM, MESSAGES, MESSAGES_STREAM = (
    BY_NAME[name] for name in ("chat", "chat-stream", "messages", "messages-stream")
)
BOTH: Any = {"openai": openai, "anthropic": anthropic}


@pytest.fixture
def quiet(house: House) -> Iterator[House]:
    house.serve("ninfer")
    yield house
    house.until(lambda: house.at_rest)


@pytest.mark.parametrize("call", [*CALLS_OF_OPENAI[:1], MESSAGES, MESSAGES_STREAM, BY_NAME["responses"]], ids=str)
def test_a_key_that_no_slot_has_is_an_authentication_error(call: Call, house: House) -> None:
    with pytest.raises(BOTH[call.sdk].AuthenticationError, match="no slot has this key"):
        ask(call, replace(house.through, key="nobody's"))


@pytest.mark.parametrize("call", [CHAT, STREAM, BY_NAME["embeddings"], BY_NAME["completions"]], ids=str)
def test_a_model_that_nobody_has_is_not_found(call: Call, house: House) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        ask(call, replace(house.through, model="gpt-5"))
    assert raised.value.code == "model_not_found"


def test_who_finds_no_room_gets_a_rate_limit_error_and_an_sdk_comes_again_when_it_was_told_to(quiet: House) -> None:
    """The slot lets one request wait. Others are refused with Retry-After; SDKs ask again by themselves after that."""
    narrow = replace(quiet.through, key="narrow")
    quiet.serve("strata")
    with ThreadPoolExecutor(3) as pool:
        with quiet.changing_to("ninfer"):
            first = pool.submit(ask, CHAT, narrow)
            quiet.until(lambda: quiet.gate["waiting"] == 1)
            after = min(refused_for(CHAT, narrow), refused_for(MESSAGES, narrow))
            seen: dict[Call, list[tuple[float, int]]] = {CHAT: [], MESSAGES: []}
            stubborn = {call: pool.submit(ask_again_and_again, call, narrow, seen[call]) for call in seen}
            quiet.until(lambda: all(seen.values()))
        answers = [first.result(PROMPT), *(each.result(PROMPT + after) for each in stubborn.values())]
    assert {model(answer) for answer in answers} == {MODEL}
    for answered in seen.values():
        assert [status for _, status in answered] == [*[429] * (len(answered) - 1), 200]
        assert all(later[0] - sooner[0] >= after for sooner, later in itertools.pairwise(answered))


def refused_for(call: Call, target: Target) -> float:
    """Retry-After, in seconds."""
    with pytest.raises(BOTH[call.sdk].RateLimitError) as raised:
        ask(call, target)
    return float(raised.value.response.headers["retry-after"])


def ask_again_and_again(call: Call, target: Target, seen: list[tuple[float, int]]) -> Any:
    """By the SDK's own retries; `seen` gets when each answer came, and its status."""

    def saw(answer: httpx.Response) -> None:
        seen.append((time.monotonic(), answer.status_code))

    with sync_client(call.sdk, target, retries=8, event_hooks={"response": [saw]}) as client:
        return ask(call, target, client)


def test_who_waited_too_long_is_told_503_or_where_a_stream_was_begun_by_an_error_in_it(quiet: House) -> None:
    calls = [CHAT, MESSAGES, STREAM, MESSAGES_STREAM, BY_NAME["responses-stream"]]
    hasty = replace(quiet.through, key="hasty")
    quiet.serve("strata")
    with ThreadPoolExecutor(len(calls)) as pool, quiet.changing_to("ninfer"):
        errors: list[Any] = list(pool.map(lambda call: error_of(call, hasty), calls))
    for call, error in zip(calls, errors, strict=True):
        assert isinstance(error, BOTH[call.sdk].APIError), error
        assert "waited" in str(error)
        if not call.streams:
            assert isinstance(error, BOTH[call.sdk].InternalServerError)
            assert error.status_code == 503
            assert int(error.response.headers["retry-after"]) >= 1


def error_of(call: Call, target: Target) -> BaseException | None:
    try:
        ask(call, target)
    except (openai.APIError, anthropic.APIError) as error:
        return error
    return None


STREAMS = [
    Call("chat", "openai", CHAT.method, {**STREAM.asks, **LONG}),
    Call("responses", "openai", "responses.create", {"input": "hi", "stream": True, "max_output_tokens": 4000}),
    Call("messages", "anthropic", MESSAGES.method, {**MESSAGES_STREAM.asks, **LONG}),
]


@needs("curl")
@needs("wget")
@needs("node")
def test_an_engine_that_dies_is_an_error_to_everyone_in_the_middle_of_its_answer(quiet: House) -> None:
    """The SDKs raise their APIError; programs are told in the stream, and that it isn't whole: no end mark, no end."""
    with ThreadPoolExecutor(len(STREAMS) + len(READERS)) as pool:
        asked = {call: replace(quiet.through, id=f"dies-{call}") for call in STREAMS}
        raising = {call: pool.submit(ask, call, target) for call, target in asked.items()}
        aside = {name: replace(quiet.through, id=f"dies-{name}") for name in READERS}
        told = {name: pool.submit(COMMANDS[name].ask, aside[name], stream=True, **LONG) for name in READERS}
        quiet.until(lambda: all(quiet.received(str(one.id)) for one in [*asked.values(), *aside.values()]))
        time.sleep(0.2)  # some tokens
        for pid in engines(quiet.folder):
            os.kill(pid, signal.SIGKILL)
        for call, answer in raising.items():
            assert isinstance(error := answer.exception(PROMPT), BOTH[call.sdk].APIError), error
            assert "not a whole answer" in str(error)
        assert all(broke_off(answer) for answer in told.values())
    quiet.until(lambda: quiet.status()["serving"])


def broke_off(answer: Future[bytes]) -> bool:
    """However each program says that the connection was cut: an exit code, an exception of its library."""
    return answer.exception(PROMPT) is not None


def test_an_engines_own_error_in_its_stream_raises_although_the_end_mark_follows(quiet: House) -> None:
    """Strata's engine process dies: an error event, then `[DONE]`, as if all were well."""
    quiet.serve("strata")
    quiet.fault("crash:3")
    try:
        with pytest.raises(openai.APIError, match="died"):
            ask(STREAM, quiet.through)
    finally:
        quiet.fault("")
    with sync_client("openai", quiet.through, retries=9) as client:  # it is started again once it has failed wholly
        assert model(ask(CHAT, quiet.through, client)) == NAMES["strata"]
