"""The SDKs of OpenAI and Anthropic, sync and async: what each can ask, and what it makes of the answer."""

from __future__ import annotations

import asyncio
import functools
import operator
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import anthropic
import openai

from tests.clients.answers import Json
from tests.clients.house import Target
from tests.realengine.tiny_gguf import CALLS

WAIT = 60.0  # seconds
USER = [{"role": "user", "content": "Grüße, 車!"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Köln", "Bonn"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION = {"name": "weather", "description": "what it is like", "parameters": SCHEMA}
DEMANDED = {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required", "logit_bias": CALLS}
ASKED_OF_RESPONSES = {
    "tools": [{"type": "function", **FUNCTION}],
    "tool_choice": "required",
    "extra_body": {"logit_bias": CALLS},
}
USED = {"tools": [{"name": "weather", "input_schema": SCHEMA}], "tool_choice": {"type": "any"}}
SHORT = {"max_tokens": 9, "temperature": 0}
GREEDY = {"extra_body": {"temperature": 0}}
ROOM = {"max_tokens": 200, "temperature": 0}  # for a call of llama.cpp's, a byte a token


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A method of an SDK's client, by its name, and what it is given beside the model."""

    name: str
    sdk: str
    method: str
    asks: Mapping[str, Any]

    def __str__(self) -> str:
        return self.name

    @property
    def streams(self) -> bool:
        return bool(self.asks.get("stream"))


CHAT, RESPONSES, MESSAGES = "chat.completions.create", "responses.create", "messages.create"
STREAM = {"stream": True}
CALLS_OF_OPENAI = [
    Call("chat", "openai", CHAT, {"messages": USER, **SHORT}),
    Call(
        "chat-stream", "openai", CHAT, {"messages": USER, **SHORT, **STREAM, "stream_options": {"include_usage": True}}
    ),
    Call("chat-tools", "openai", CHAT, {"messages": USER, **ROOM, **DEMANDED}),
    Call("chat-tools-stream", "openai", CHAT, {"messages": USER, **ROOM, **DEMANDED, **STREAM}),
    Call("responses", "openai", RESPONSES, {"input": "hello", "max_output_tokens": 9, "temperature": 0}),
    Call("responses-stream", "openai", RESPONSES, {"input": "hi", "max_output_tokens": 9, "temperature": 0, **STREAM}),
    Call("responses-tools", "openai", RESPONSES, {"input": "hello", "temperature": 0, **ASKED_OF_RESPONSES}),
    Call(
        "responses-tools-stream", "openai", RESPONSES, {"input": "hi", "temperature": 0, **ASKED_OF_RESPONSES, **STREAM}
    ),
    Call("completions", "openai", "completions.create", {"prompt": "hello", **SHORT}),
    Call("completions-stream", "openai", "completions.create", {"prompt": "hello", **SHORT, **STREAM}),
    Call("embeddings", "openai", "embeddings.create", {"input": ["hello", "Köln"]}),
]
CALLS_OF_ANTHROPIC = [
    Call("messages", "anthropic", MESSAGES, {"messages": USER, "max_tokens": 9, **GREEDY}),
    Call("messages-stream", "anthropic", MESSAGES, {"messages": USER, "max_tokens": 9, **GREEDY, **STREAM}),
    Call("messages-tools", "anthropic", MESSAGES, {"messages": USER, "max_tokens": 24, **GREEDY, **USED}),
    Call(
        "messages-tools-stream",
        "anthropic",
        MESSAGES,
        {"messages": USER, "max_tokens": 24, **GREEDY, **USED, **STREAM},
    ),
    Call("count-tokens", "anthropic", "messages.count_tokens", {"messages": USER}),
]
ALL = [*CALLS_OF_OPENAI, *CALLS_OF_ANTHROPIC]
BY_NAME = {call.name: call for call in ALL}

_TRUST = ssl.create_default_context()  # once: each client would read the certificates anew


def sync_client(sdk: str, target: Target, retries: int = 0, **more: Any) -> Any:
    """Used as `with sync_client(…) as client`."""
    return _made(sdk, "", target, retries, **more)


def async_client(sdk: str, target: Target, retries: int = 0, **more: Any) -> Any:
    return _made(sdk, "Async", target, retries, **more)


def _made(sdk: str, kind: str, target: Target, retries: int, **more: Any) -> Any:
    module: Any = {"openai": openai, "anthropic": anthropic}[sdk]
    http = getattr(module, f"Default{kind or ''}HttpxClient")(verify=_TRUST, trust_env=False, **more)
    url = target.url + ("/v1" if sdk == "openai" else "")
    make: Callable[..., Any] = getattr(module, kind + ("OpenAI" if sdk == "openai" else "Anthropic"))
    return make(
        base_url=url,
        api_key=target.key,
        max_retries=retries,
        timeout=WAIT,
        http_client=http,
        default_headers=target.headers,
    )


def ask(call: Call, target: Target, client: Any = None) -> list[Json]:
    """The answer as the SDK's own objects say it, a stream event by event."""
    if client is None:
        with sync_client(call.sdk, target) as made:
            return ask(call, target, made)
    answer = operator.attrgetter(call.method)(client)(model=target.model, **call.asks)
    if not call.streams:
        return [answer.to_dict(mode="json")]
    with answer:
        return [event.to_dict(mode="json") for event in answer]


def ask_async(call: Call, target: Target) -> list[Json]:
    return asyncio.run(asked(call, target))


async def asked(call: Call, target: Target, client: Any = None) -> list[Json]:
    if client is None:
        async with async_client(call.sdk, target) as made:
            return await asked(call, target, made)
    answer = await operator.attrgetter(call.method)(client)(model=target.model, **call.asks)
    if not call.streams:
        return [answer.to_dict(mode="json")]
    async with answer:
        return [event.to_dict(mode="json") async for event in answer]


ASKED_BY = {"sync": ask, "async": ask_async}


def client_of(name: str, kind: str) -> Callable[[Target], list[Json]]:
    """`kind`: sync or async."""
    return functools.partial(ASKED_BY[kind], BY_NAME[name])
