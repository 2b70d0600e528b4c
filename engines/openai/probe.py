"""The tiny chat completion that proves an OpenAI-compatible server: the shape of it, and what counts as an answer."""

from __future__ import annotations

import json
from typing import Any

from engines.spec import CHAT, Probe


def chat_probe(model: str, tokens: int, **extra: Any) -> Probe:
    """A chat completion of `tokens` tokens at most, not streamed; `extra` are fields that this kind of engine wants."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Say OK."}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": False,
        **extra,
    }
    return Probe(CHAT, json.dumps(body).encode(), completed)


def completed(status: int, body: bytes) -> bool:
    """Whether a chat completion really came: 200, no error in it, at least one token, and a reason why it ended.

    The token may be of the reasoning only: a few tokens need not reach the answer itself. An error in a 200 is no
    answer, and neither is an empty one.
    """
    if status != 200:
        return False
    try:
        answer = json.loads(body)
        choice = answer["choices"][0]
        message = choice["message"]
        said = message.get("content") or message.get("reasoning_content") or message.get("tool_calls")
        counted = (answer.get("usage") or {}).get("completion_tokens")
        return not answer.get("error") and choice.get("finish_reason") is not None and bool(said or counted)
    except (ValueError, LookupError, TypeError, AttributeError):
        return False
