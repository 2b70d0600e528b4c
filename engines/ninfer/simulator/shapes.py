"""What requests and answers look like on the wire: Chat Completions, Responses, Messages. Pure."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from engines.ninfer.simulator.engine import Timing, count_tokens

NAME = "ninfer-sim"


class BadRequest(Exception):
    """A request that isn't understood, or names what isn't there."""

    def __init__(self, message: str, status: int = 400, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass(frozen=True, slots=True)
class Ask:
    """What a client asks for, whatever protocol it speaks."""

    model: str
    prompt: str
    max_tokens: int | None
    stream: bool
    thinking: bool | None = None
    previous: str = ""
    store: bool = False  # keep it for a later `previous`
    tool: str = ""  # what the answer calls; empty: it is words
    arguments: Sequence[str] = ()  # that call's, in pieces: a token each

    @property
    def prompt_tokens(self) -> int:
        return count_tokens(self.prompt)


@dataclass(slots=True)
class Answer:
    """What the engine has said so far. `cut` is true when it ended because of max_tokens."""

    id: str
    model: str
    prompt_tokens: int
    cut: bool = False
    thoughts: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    tool: str = ""
    arguments: list[str] = field(default_factory=list)
    timing: Timing = field(default_factory=Timing)
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def said(self) -> str:
        return "".join(self.text)

    @property
    def given(self) -> str:
        """The call's arguments as far as they go."""
        return "".join(self.arguments)

    @property
    def thought(self) -> str:
        return "".join(self.thoughts)


def texts(value: Any) -> str:
    """All text in a prompt, however deep its parts are nested; images count nothing."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return " ".join(filter(None, map(texts, value)))
    if isinstance(value, dict):
        return " ".join(filter(None, (texts(value[key]) for key in ("text", "content") if key in value)))
    return ""


def timings(answer: Answer) -> dict[str, Any]:
    """llama.cpp's names: `prompt_n` are the tokens that weren't in the cache."""
    prefill, decode, count = answer.timing.prefill * 1000, answer.timing.decode * 1000, answer.timing.tokens
    fresh = answer.prompt_tokens - answer.timing.cached
    return {
        "cache_n": answer.timing.cached,
        "prompt_n": fresh,
        "prompt_ms": prefill,
        "prompt_per_token_ms": prefill / fresh,
        "prompt_per_second": 1000 * fresh / prefill if prefill else 0.0,
        "predicted_n": count,
        "predicted_ms": decode,
        "predicted_per_token_ms": decode / count if count else 0.0,
        "predicted_per_second": 1000 * count / decode if decode else 0.0,
    }


def dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def openai_error(status: int, code: str, message: str) -> dict[str, Any]:
    kind = {401: "invalid_request_error", 429: "rate_limit_error"}.get(status)
    return {"error": {"message": message, "type": kind or _blame(status), "param": None, "code": code}}


def anthropic_error(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


def _blame(status: int) -> str:
    return "invalid_request_error" if status < 500 else "server_error"


class Shape(ABC):
    """One request and its answer in one protocol. Events come ready for the wire.

    The order: read, begin, then `whole`, or opening, thought…, piece…, and closing or failure.
    """

    statuses: ClassVar[Mapping[str, tuple[int, str]]]  # why the engine refused -> HTTP status and error code
    model_matters: ClassVar[bool] = True
    answer: Answer

    @abstractmethod
    def read(self, body: Mapping[str, Any]) -> Ask:
        """Raises BadRequest."""

    def begin(self, answer: Answer) -> None:
        """The answer that grows while the events are made."""
        self.answer = answer

    @abstractmethod
    def error(self, status: int, code: str, message: str) -> dict[str, Any]: ...

    @abstractmethod
    def whole(self) -> dict[str, Any]: ...

    @abstractmethod
    def opening(self) -> list[bytes]: ...

    @abstractmethod
    def piece(self, text: str) -> list[bytes]: ...

    def thought(self, text: str) -> list[bytes]:
        return self.piece(text)

    @abstractmethod
    def argument(self, text: str) -> list[bytes]:
        """A piece of a tool call's arguments; it is in the answer already."""

    @abstractmethod
    def closing(self) -> list[bytes]: ...

    @abstractmethod
    def failure(self, message: str) -> bytes: ...


OPENAI_STATUSES = {
    "overloaded": (429, "server_overloaded"),
    "timeout": (503, "request_queue_timeout"),
    "unavailable": (503, "unavailable"),
    "lost": (500, "internal_error"),
    "failed": (500, "internal_error"),
}


def flag(body: Mapping[str, Any], key: str) -> bool:
    return body.get(key) is True


def whole_number(body: Mapping[str, Any], *keys: str) -> int | None:
    for key in keys:
        value = body.get(key)
        if value is not None:
            if type(value) is not int or value < 1:
                raise BadRequest(f"{key} must be a positive integer")
            return value
    return None


def required(body: Mapping[str, Any], key: str) -> Any:
    if key not in body:
        raise BadRequest(f"{key} is required")
    return body[key]


def event(data: Any, name: str = "") -> bytes:
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + dump(data) + b"\n\n"


def events(named: Sequence[dict[str, Any]]) -> list[bytes]:
    """Events whose name stands in their `type`."""
    return [event(data, data["type"]) for data in named]
