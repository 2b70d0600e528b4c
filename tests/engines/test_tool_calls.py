"""The simulators' tool calls, by the clients that real agents use: streamed and whole, in each protocol they have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from engines.simtools import call_of
from tests.engines.ninfer_child import MODEL, child
from tests.engines.strata_sim import started

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
GIVEN = {"city": "Köln 車 🚚", "days": 7}
WEATHER = {"name": "weather", "description": "what it will be like", "parameters": SCHEMA}
OPENAI: Any = [{"type": "function", "function": {"name": "clock"}}, {"type": "function", "function": WEATHER}]
ANTHROPIC: Any = [{"name": "clock", "input_schema": {}}, {"name": "weather", "input_schema": SCHEMA}]
USER: Any = [{"role": "user", "content": "what is the weather in Köln?"}]


@pytest.fixture(scope="module", params=["ninfer", "strata"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp(request.param)
    with child(folder, decode_ms=1) if request.param == "ninfer" else started(folder) as engine:
        yield engine.url


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as made:
        yield made


def test_a_chat_calls_the_tool_that_it_has_to_and_a_stream_says_the_same_in_pieces(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": USER, "tools": OPENAI, "tool_choice": OPENAI[1]}
    whole = client.chat.completions.create(**asked).choices[0]
    (call,) = whole.message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", GIVEN)
    assert (whole.finish_reason, whole.message.content) == ("tool_calls", None)
    with client.chat.completions.stream(**asked) as stream:
        pieces = [one for one in stream if one.type == "tool_calls.function.arguments.delta"]
        final = stream.get_final_completion().choices[0]
    assert len(pieces) > 5
    assert (final.message.tool_calls or [])[0].function.arguments == call.function.arguments
    assert final.finish_reason == "tool_calls"


def test_messages_use_the_tool_and_a_stream_says_the_same_in_pieces(url: str) -> None:
    used: Any
    asked: Any = {"model": "any", "max_tokens": 200, "messages": USER, "tools": ANTHROPIC}
    with anthropic.Anthropic(base_url=url, api_key="any", max_retries=0) as client:
        whole = client.messages.create(tool_choice={"type": "tool", "name": "weather"}, **asked)
        with client.messages.stream(tool_choice={"type": "tool", "name": "weather"}, **asked) as stream:
            pieces = [one for one in stream if one.type == "input_json"]
            final = stream.get_final_message()
        first = client.messages.create(tool_choice={"type": "any"}, **asked)
        cut = client.messages.create(**asked | {"max_tokens": 3})
    for message in (whole, final):
        used = message.content[-1]
        assert used.type == "tool_use"
        assert (used.name, used.input, message.stop_reason) == ("weather", GIVEN, "tool_use")
    assert len(pieces) > 5
    used = first.content[-1]
    assert (used.type, used.name) == ("tool_use", "clock")
    assert cut.stop_reason == "max_tokens"


def test_what_a_tool_has_said_is_answered_in_words(client: openai.OpenAI) -> None:
    call = client.chat.completions.create(model=MODEL, messages=USER, tools=OPENAI).choices[0].message
    told = [*USER, call.to_dict(), {"role": "tool", "tool_call_id": "x", "content": "weather: it rains"}]
    answer = client.chat.completions.create(model=MODEL, messages=told, tools=OPENAI).choices[0]
    assert answer.message.tool_calls is None
    assert answer.message.content


def test_a_response_calls_a_function(tmp_path_factory: pytest.TempPathFactory) -> None:
    tools: Any = [{"type": "function", **WEATHER}]
    asked: Any = {"model": MODEL, "input": "hello", "tools": tools, "tool_choice": "required"}
    with (
        child(tmp_path_factory.mktemp("responses"), decode_ms=1) as engine,
        openai.OpenAI(base_url=f"{engine.url}/v1", api_key="any", max_retries=0) as client,
    ):
        whole: Any
        final: Any
        (whole,) = client.responses.create(**asked).output
        with client.responses.stream(**asked) as stream:
            pieces = [one for one in stream if one.type == "response.function_call_arguments.delta"]
            (final,) = stream.get_final_response().output
    for item in (whole, final):
        assert item.type == "function_call"
        assert (item.name, json.loads(item.arguments)) == ("weather", GIVEN)
    assert len(pieces) > 5


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"tools": OPENAI}, ""),
        ({"tools": OPENAI, "messages": USER}, "weather"),
        ({"tools": OPENAI, "messages": USER, "tool_choice": "none"}, ""),
        ({"tools": OPENAI, "messages": USER, "tool_choice": {"type": "none"}}, ""),
        ({"tools": OPENAI, "tool_choice": "required"}, "clock"),
        ({"tools": [{"type": "function", **WEATHER}], "input": "the weather"}, "weather"),
        ({"tools": ANTHROPIC, "messages": [{"role": "user", "content": [{"type": "text", "text": "clock"}]}]}, "clock"),
        ({"tools": ANTHROPIC, "messages": [{"role": "user", "content": [{"type": "tool_result"}, "clock"]}]}, ""),
        ({"tools": OPENAI, "tool_choice": {"type": "function", "function": {"name": "other"}}}, ""),
        ({"tool_choice": "required"}, ""),
        ({"tools": [7, {"type": "web_search"}], "tool_choice": "required"}, ""),
    ],
)
def test_which_tool_is_called(body: dict[str, Any], name: str) -> None:
    assert call_of(body)[0] == name


def test_arguments_follow_the_schema() -> None:
    kinds = ("string", "integer", "number", "boolean", "array", "object", "null")
    properties = {kind: {"type": kind} for kind in kinds} | {"unit": {"enum": ["°C", "°F"]}, "odd": True}
    tool = {"name": "all", "input_schema": {"properties": properties}}
    given = json.loads("".join(call_of({"tools": [tool], "tool_choice": "required"})[1]))
    assert given.keys() == properties.keys()
    assert (given["unit"], given["boolean"], given["object"], given["null"]) == ("°C", True, {}, None)
