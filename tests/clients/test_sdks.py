"""The SDKs get from slotproxy what they get from the engine, whichever it is: the same objects, the same errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest

from tests.clients.answers import Json, same
from tests.clients.house import MODEL, NAMES, House, Target
from tests.clients.sdks import ALL, ASKED_BY, Call, sync_client

HAS_NOT = {
    "llama": (),
    "ninfer": ("completions", "embeddings"),
    "strata": ("completions", "embeddings", "responses"),
}
ASYNC = ("chat", "chat-tools-stream", "responses-stream", "messages-tools", "messages-stream")
ASKED = [("sync", call) for call in ALL] + [("async", call) for call in ALL if call.name in ASYNC]


@pytest.fixture(scope="module", params=NAMES)
def serving(request: pytest.FixtureRequest, house: House) -> House:
    house.serve(request.param)
    return house


def said(ask: Callable[[Call, Target], list[Json]], call: Call, target: Target) -> Json:
    """The answer, or what the SDK raised."""
    try:
        return same(ask(call, target))
    except (openai.APIStatusError, anthropic.APIStatusError) as error:
        return f"{type(error).__name__} {error.status_code}"


@pytest.mark.parametrize(("kind", "call"), ASKED, ids=str)
def test_an_sdk_is_told_the_same_by_slotproxy_as_by_the_engine(call: Call, kind: str, serving: House) -> None:
    ask = ASKED_BY[kind]
    if serving.holder == "llama":
        said(ask, call, serving.direct)  # its next answer to the same says how much of the prompt was cached
    direct, through = said(ask, call, serving.direct), said(ask, call, serving.through)
    assert through == direct
    assert (direct == "NotFoundError 404") == call.name.startswith(HAS_NOT[serving.holder] or "-")


def test_tools_are_called_by_the_real_engine_too_in_a_stream_and_whole(serving: House) -> None:
    """The test above would be content with words on both sides."""
    by_name = {call.name: call for call in ALL}
    (whole,) = ASKED_BY["sync"](by_name["chat-tools"], serving.through)
    pieces = ASKED_BY["async"](by_name["chat-tools-stream"], serving.through)
    (call,) = whole["choices"][0]["message"]["tool_calls"]
    deltas: list[Any] = [chunk["choices"][0]["delta"].get("tool_calls") or [] for chunk in pieces]
    arguments = [delta[0]["function"]["arguments"] for delta in deltas if delta]
    assert "".join(arguments) == call["function"]["arguments"]
    assert len(arguments) > 3
    assert "Köln" in call["function"]["arguments"]


def test_the_list_of_models_is_the_same_whoever_serves_and_in_both_protocols(serving: House) -> None:
    with sync_client("openai", serving.through) as client:
        assert [one.id for one in client.models.list()] == [MODEL]
        assert client.models.retrieve(MODEL).id == MODEL
    with sync_client("anthropic", serving.through) as client:
        assert [one.id for one in client.models.list()] == [MODEL]
        assert client.models.retrieve(MODEL).display_name == MODEL
