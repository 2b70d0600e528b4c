"""POST /v1/chat/completions on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.ninfer.simulator import shapes
from engines.ninfer.simulator.shapes import NAME, Answer, Ask, Shape, event


class Chat(Shape):
    statuses = shapes.OPENAI_STATUSES

    def __init__(self) -> None:
        self._include_usage = False

    def read(self, body: Mapping[str, Any]) -> Ask:
        messages = shapes.required(body, "messages")
        if not isinstance(messages, list) or not messages:
            raise shapes.BadRequest("messages must be a non-empty array")
        template = body.get("chat_template_kwargs")
        thinking = template.get("enable_thinking") if isinstance(template, dict) else None
        options = body.get("stream_options")
        self._include_usage = isinstance(options, dict) and shapes.flag(options, "include_usage")
        return Ask(
            model=str(shapes.required(body, "model")),
            prompt=shapes.texts(messages),
            max_tokens=shapes.whole_number(body, "max_completion_tokens", "max_tokens"),
            stream=shapes.flag(body, "stream"),
            thinking=thinking if isinstance(thinking, bool) else None,
        )

    def error(self, status: int, code: str, message: str) -> dict[str, Any]:
        return shapes.openai_error(status, code, message)

    def whole(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self.answer.said}
        if self.answer.tool:
            message |= {"content": None, "tool_calls": [_call(self.answer, self.answer.given)]}
        if self.answer.thoughts:
            message["reasoning_content"] = self.answer.thought
        return {
            **self._head("chat.completion"),
            "choices": [{"index": 0, "message": message, "finish_reason": _reason(self.answer), "logprobs": None}],
            "usage": _usage(self.answer),
            "timings": shapes.timings(self.answer),
        }

    def opening(self) -> list[bytes]:
        return [self._chunk({"role": "assistant", "content": ""})]

    def piece(self, text: str) -> list[bytes]:
        return [self._chunk({"content": text})]

    def thought(self, text: str) -> list[bytes]:
        return [self._chunk({"reasoning_content": text})]

    def argument(self, text: str) -> list[bytes]:
        first = len(self.answer.arguments) == 1
        call = _call(self.answer, text) if first else {"function": {"arguments": text}}
        return [self._chunk({"tool_calls": [{"index": 0, **call}]})]

    def closing(self) -> list[bytes]:
        last = [self._chunk({}, _reason(self.answer), timings=shapes.timings(self.answer))]
        if self._include_usage:
            head = self._head("chat.completion.chunk")
            last.append(
                event({**head, "choices": [], "usage": _usage(self.answer), "timings": shapes.timings(self.answer)})
            )
        return [*last, b"data: [DONE]\n\n"]

    def failure(self, message: str) -> bytes:
        return event(self.error(500, "internal_error", message))

    def _chunk(self, delta: dict[str, Any], reason: str | None = None, **extra: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
        usage = {"usage": None} if self._include_usage else {}
        return event({**self._head("chat.completion.chunk"), "choices": [choice], **usage, **extra})

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self.answer.id}",
            "object": kind,
            "created": self.answer.created,
            "model": self.answer.model,
            "system_fingerprint": NAME,
        }


def _call(answer: Answer, arguments: str) -> dict[str, Any]:
    return {
        "id": f"call_{answer.id}",
        "type": "function",
        "function": {"name": answer.tool, "arguments": arguments},
    }


def _reason(answer: Answer) -> str:
    if answer.cut:
        return "length"
    return "tool_calls" if answer.tool else "stop"


def _usage(answer: Answer) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.timing.tokens,
        "total_tokens": answer.prompt_tokens + answer.timing.tokens,
        "prompt_tokens_details": {"cached_tokens": answer.timing.cached},
    }
