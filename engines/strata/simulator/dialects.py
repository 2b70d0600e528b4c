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
    arguments: str = ""
    tokens: int = 0
    finish: str = "length"

    def add(self, kind: str, text: str) -> None:
        self.tokens += 1
        if kind == "reasoning":
            self.reasoning += text
        elif kind == "arguments":
            self.arguments += text
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
    calling: bool = False

    def opening(self) -> bytes:
        return _data(self._chunk({"role": "assistant", "content": ""}))

    def piece(self, kind: str, text: str) -> bytes:
        if kind == "arguments":
            call = {"function": {"arguments": text}} if self.calling else self._call(text)
            self.calling = True
            return _data(self._chunk({"tool_calls": [{"index": 0, **call}]}))
        return _data(self._chunk({"reasoning_content" if kind == "reasoning" else "content": text}))

    def closing(self, output: Output) -> bytes:
        events = _data(self._chunk({}, self._finish(output)))
        if self.ask.include_usage:
            events += _data(self._frame("chat.completion.chunk") | {"choices": [], "usage": self._usage(output)})
        return events + b"data: [DONE]\n\n"

    def broken(self, message: str) -> bytes:
        return _data(self.failure(message, "server_error")) + b"data: [DONE]\n\n"

    def whole(self, output: Output) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": output.content}
        if output.reasoning:
            message["reasoning_content"] = output.reasoning
        if self.ask.tool:
            message |= {"content": None, "tool_calls": [self._call(output.arguments)]}
        choice = {"index": 0, "message": message, "finish_reason": self._finish(output)}
        return self._frame("chat.completion") | {"choices": [choice], "usage": self._usage(output)}

    def failure(self, message: str, kind: str) -> dict[str, Any]:
        return {"error": {"message": message, "type": kind, "code": None}}

    def _call(self, arguments: str) -> dict[str, Any]:
        function = {"name": self.ask.tool, "arguments": arguments}
        return {"id": f"call-strata-{self.n}", "type": "function", "function": function}

    def _finish(self, output: Output) -> str:
        return "tool_calls" if self.ask.tool and output.finish == "stop" else output.finish

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
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
        deltas = {
            "reasoning": {"type": "thinking_delta", "thinking": text},
            "arguments": {"type": "input_json_delta", "partial_json": text},
        }
        delta = deltas.get(kind, {"type": "text_delta", "text": text})
        events = self._open(kind) if kind != self.kind else b""
        return events + _named({"type": "content_block_delta", "index": self.block, "delta": delta})

    def closing(self, output: Output) -> bytes:
        delta = {"stop_reason": self._stop_reason(output), "stop_sequence": None}
        usage = {"output_tokens": output.tokens}
        return (
            self._close()
            + _named({"type": "message_delta", "delta": delta, "usage": usage})
            + _named({"type": "message_stop"})
        )

    def broken(self, message: str) -> bytes:
        return _named(self.failure(message, "api_error"))

    def whole(self, output: Output) -> dict[str, Any]:
        blocks: list[dict[str, Any]] = []
        if output.reasoning:
            blocks.append({"type": "thinking", "thinking": output.reasoning, "signature": ""})
        if self.ask.tool:
            blocks.append(self._call(json.loads(output.arguments) if output.finish == "stop" else {}))
        else:
            blocks.append({"type": "text", "text": output.content})
        return self._frame(blocks, self._stop_reason(output), output.tokens)

    def failure(self, message: str, kind: str) -> dict[str, Any]:
        return {"type": "error", "error": {"type": kind, "message": message}}

    def _open(self, kind: str) -> bytes:
        events = self._close()
        self.block, self.kind = self.block + 1, kind
        begun = {"reasoning": {"type": "thinking", "thinking": "", "signature": ""}, "arguments": self._call({})}
        block = begun.get(kind, {"type": "text", "text": ""})
        return events + _named({"type": "content_block_start", "index": self.block, "content_block": block})

    def _call(self, given: Any) -> dict[str, Any]:
        return {"type": "tool_use", "id": f"toolu-strata-{self.n}", "name": self.ask.tool, "input": given}

    def _stop_reason(self, output: Output) -> str:
        if output.finish != "stop":
            return "max_tokens"
        return "tool_use" if self.ask.tool else "end_turn"

    def _close(self) -> bytes:
        return _named({"type": "content_block_stop", "index": self.block}) if self.kind else b""

    def _frame(self, blocks: list[dict[str, Any]], stop: str | None, tokens: int) -> dict[str, Any]:
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


def seed_of(ask: Ask) -> int:
    """The same conversation gives the same text, whenever it is asked."""
    return zlib.crc32(ask.prompt.encode())
