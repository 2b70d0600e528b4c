"""What goes over the wire: OpenAI chat completions and Anthropic messages, streamed and whole. Pure."""

from __future__ import annotations

import json
import time
import zlib
from dataclasses import dataclass, field
from typing import Any, Protocol

from engines.strata.simulator.asking import Ask

FINGERPRINT = "strata-sim"
KEEP_ALIVE = b": keep-alive\n\n"


@dataclass(slots=True)
class Output:
    """What one generation has said so far."""

    reasoning: str = ""
    content: str = ""
    tokens: int = 0
    finish: str = "length"

    def add(self, kind: str, text: str) -> None:
        self.tokens += 1
        if kind == "reasoning":
            self.reasoning += text
        else:
            self.content += text


class Dialect(Protocol):
    """One answer in one protocol. All but `whole` and `failure` give the bytes of a stream's events."""

    def opening(self) -> bytes: ...

    def piece(self, kind: str, text: str) -> bytes: ...

    def closing(self, output: Output) -> bytes: ...

    def broken(self, message: str) -> bytes: ...

    def whole(self, output: Output) -> dict[str, Any]: ...

    def failure(self, message: str, kind: str) -> dict[str, Any]: ...


def _data(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def _named(event: dict[str, Any]) -> bytes:
    return b"event: " + str(event["type"]).encode() + b"\n" + _data(event)


@dataclass(slots=True)
class Chat:
    """`/v1/chat/completions`. A dead engine's stream ends with an error event *and then* `[DONE]`."""

    ask: Ask
    n: int
    created: int = field(default_factory=lambda: int(time.time()))

    def opening(self) -> bytes:
        return _data(self._chunk({"role": "assistant", "content": ""}))

    def piece(self, kind: str, text: str) -> bytes:
        return _data(self._chunk({"reasoning_content" if kind == "reasoning" else "content": text}))

    def closing(self, output: Output) -> bytes:
        events = _data(self._chunk({}, output.finish))
        if self.ask.include_usage:
            events += _data(self._frame("chat.completion.chunk") | {"choices": [], "usage": self._usage(output)})
        return events + b"data: [DONE]\n\n"

    def broken(self, message: str) -> bytes:
        return _data(self.failure(message, "server_error")) + b"data: [DONE]\n\n"

    def whole(self, output: Output) -> dict[str, Any]:
        message = {"role": "assistant", "content": output.content}
        if output.reasoning:
            message["reasoning_content"] = output.reasoning
        choice = {"index": 0, "message": message, "finish_reason": output.finish}
        return self._frame("chat.completion") | {"choices": [choice], "usage": self._usage(output)}

    def failure(self, message: str, kind: str) -> dict[str, Any]:
        return {"error": {"message": message, "type": kind, "code": None}}

    def _chunk(self, delta: dict[str, str], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return self._frame("chat.completion.chunk") | {"choices": [choice]}

    def _frame(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-strata-{self.n}",
            "object": kind,
            "created": self.created,
            "model": self.ask.model,
            "system_fingerprint": FINGERPRINT,
        }

    def _usage(self, output: Output) -> dict[str, int]:
        prompt = self.ask.prompt_tokens
        return {"prompt_tokens": prompt, "completion_tokens": output.tokens, "total_tokens": prompt + output.tokens}


@dataclass(slots=True)
class Messages:
    """`/v1/messages`: blocks open and close; a broken stream ends with `event: error`."""

    ask: Ask
    n: int
    block: int = -1
    kind: str = ""

    def opening(self) -> bytes:
        return _named({"type": "message_start", "message": self._frame([], None, 0)})

    def piece(self, kind: str, text: str) -> bytes:
        delta = (
            {"type": "thinking_delta", "thinking": text}
            if kind == "reasoning"
            else {"type": "text_delta", "text": text}
        )
        events = self._open(kind) if kind != self.kind else b""
        return events + _named({"type": "content_block_delta", "index": self.block, "delta": delta})

    def closing(self, output: Output) -> bytes:
        delta = {"stop_reason": _stop_reason(output), "stop_sequence": None}
        usage = {"output_tokens": output.tokens}
        return (
            self._close()
            + _named({"type": "message_delta", "delta": delta, "usage": usage})
            + _named({"type": "message_stop"})
        )

    def broken(self, message: str) -> bytes:
        return _named(self.failure(message, "api_error"))

    def whole(self, output: Output) -> dict[str, Any]:
        blocks: list[dict[str, str]] = []
        if output.reasoning:
            blocks.append({"type": "thinking", "thinking": output.reasoning, "signature": ""})
        blocks.append({"type": "text", "text": output.content})
        return self._frame(blocks, _stop_reason(output), output.tokens)

    def failure(self, message: str, kind: str) -> dict[str, Any]:
        return {"type": "error", "error": {"type": kind, "message": message}}

    def _open(self, kind: str) -> bytes:
        events = self._close()
        self.block, self.kind = self.block + 1, kind
        block = (
            {"type": "thinking", "thinking": "", "signature": ""}
            if kind == "reasoning"
            else {"type": "text", "text": ""}
        )
        return events + _named({"type": "content_block_start", "index": self.block, "content_block": block})

    def _close(self) -> bytes:
        return _named({"type": "content_block_stop", "index": self.block}) if self.kind else b""

    def _frame(self, blocks: list[dict[str, str]], stop: str | None, tokens: int) -> dict[str, Any]:
        return {
            "id": f"msg-strata-{self.n}",
            "type": "message",
            "role": "assistant",
            "model": self.ask.model,
            "content": blocks,
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": {"input_tokens": self.ask.prompt_tokens, "output_tokens": tokens},
            "system_fingerprint": FINGERPRINT,
        }


def _stop_reason(output: Output) -> str:
    return "end_turn" if output.finish == "stop" else "max_tokens"


def seed_of(ask: Ask) -> int:
    """The same conversation gives the same text, whenever it is asked."""
    return zlib.crc32(ask.prompt.encode())
