"""What a request asks for: read from its body, whatever protocol it speaks. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engines.simtools import call_of
from engines.strata.simulator.knobs import Knobs

EFFORTS = {"none": 0.0, "minimal": 0.125, "low": 0.25, "medium": 0.5, "high": 1.0}


class BadRequest(Exception):
    """The body can't be served; the message goes to the client with a 400."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `thinking` and `answer` are the tokens it would get, `limit` (None: none) cuts both together.

    A body's own `sim_tokens` sets how long the answer is: tests want long and short ones from one server.
    """

    model: str
    stream: bool
    prompt: str
    thinking: int
    answer: int
    limit: int | None
    include_usage: bool
    tool: str = ""  # what the answer calls; empty: it is words
    arguments: Sequence[str] = ()  # that call's, in pieces: a token each

    @property
    def prompt_tokens(self) -> int:
        return max(1, len(self.prompt) // 4)


def read_json(body: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(body or b"{}")
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise BadRequest("the body is not a JSON object")
    return parsed


def read_ask(body: dict[str, Any], knobs: Knobs, effort: str = "high") -> Ask:
    """Any `model` is accepted; `effort` holds where the body says nothing.

    Raises BadRequest without messages, or with a limit that is no positive number.
    """
    if not isinstance(body.get("messages"), list) or not body["messages"]:
        raise BadRequest("'messages' is missing")
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise BadRequest("'max_tokens' must be a positive number")
    options = body.get("stream_options") or {}
    tool, arguments = call_of(body)
    return Ask(
        model=str(body.get("model") or "strata"),
        stream=bool(body.get("stream")),
        prompt=prompt_of(body),
        thinking=int(knobs.thinking * _effort(body, effort)),
        answer=int(body.get("sim_tokens") or knobs.tokens),
        limit=limit,
        include_usage=bool(options.get("include_usage")),
        tool=tool,
        arguments=arguments,
    )


def prompt_of(body: dict[str, Any]) -> str:
    """All text of the conversation, the system prompt first."""
    messages = body.get("messages")
    contents = [m.get("content") for m in messages if isinstance(m, dict)] if isinstance(messages, list) else []
    return "\n".join(_text(content) for content in [body.get("system"), *contents])


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return ""


def _effort(body: dict[str, Any], default: str) -> float:
    """The share of full thinking."""
    template = body.get("chat_template_kwargs") or {}
    if template.get("enable_thinking") is False or (body.get("thinking") or {}).get("type") == "disabled":
        return 0.0
    return EFFORTS.get(str(body.get("reasoning_effort", default)), 1.0)
