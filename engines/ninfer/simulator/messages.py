"""POST /v1/messages on the wire: any model name is accepted, refusals have Anthropic's statuses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from engines.ninfer.simulator import shapes
from engines.ninfer.simulator.shapes import NAME, Answer, Ask, Shape, events

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class Messages(Shape):
    model_matters = False
    statuses: ClassVar = {
        "overloaded": (529, "server_overloaded"),
        "timeout": (504, "request_queue_timeout"),
        "unavailable": (503, "unavailable"),
        "lost": (500, "internal_error"),
        "failed": (500, "internal_error"),
    }

    def __init__(self) -> None:
        self._block = ""
        self._blocks = 0

    def read(self, body: Mapping[str, Any]) -> Ask:
        messages = shapes.required(body, "messages")
        if not isinstance(messages, list) or not messages:
            raise shapes.BadRequest("messages must be a non-empty array")
        thinking = body.get("thinking")
        return Ask(
            model=str(body.get("model", "")),
            prompt=" ".join(filter(None, (shapes.texts(body.get("system")), shapes.texts(messages)))),
            max_tokens=shapes.whole_number(body, "max_tokens"),
            stream=shapes.flag(body, "stream"),
            thinking=isinstance(thinking, dict) and thinking.get("type") == "enabled",
        )

    def error(self, status: int, code: str, message: str) -> dict[str, Any]:
        return shapes.anthropic_error(_KINDS.get(status, "api_error"), f"{code}: {message}")

    def whole(self) -> dict[str, Any]:
        content: list[dict[str, Any]] = (
            [{"type": "thinking", "thinking": self.answer.thought, "signature": NAME}] if self.answer.thoughts else []
        )
        if self.answer.tool:
            given = {} if self.answer.cut else json.loads(self.answer.given)
            content.append(_tool_use(self.answer, given))
        else:
            content.append({"type": "text", "text": self.answer.said})
        usage = {"input_tokens": self.answer.prompt_tokens, "output_tokens": self.answer.timing.tokens}
        return {**_message(self.answer), "content": content, "stop_reason": _reason(self.answer), "usage": usage}

    def opening(self) -> list[bytes]:
        return events([{"type": "message_start", "message": _message(self.answer)}])

    def piece(self, text: str) -> list[bytes]:
        return self._delta("text", text)

    def thought(self, text: str) -> list[bytes]:
        return self._delta("thinking", text)

    def argument(self, text: str) -> list[bytes]:
        return self._piece("tool_use", _tool_use(self.answer, {}), {"type": "input_json_delta", "partial_json": text})

    def _delta(self, kind: str, text: str) -> list[bytes]:
        block = {"type": kind, kind: "", **({"signature": ""} if kind == "thinking" else {})}
        return self._piece(kind, block, {"type": f"{kind}_delta", kind: text})

    def _piece(self, kind: str, block: dict[str, Any], delta: dict[str, Any]) -> list[bytes]:
        """`block`: how one of this kind begins, where that isn't open yet."""
        found = []
        if kind != self._block:
            found += self._end_block()
            self._block = kind
            found.append({"type": "content_block_start", "index": self._blocks, "content_block": block})
        return events([*found, {"type": "content_block_delta", "index": self._blocks, "delta": delta}])

    def closing(self) -> list[bytes]:
        delta = {"stop_reason": _reason(self.answer), "stop_sequence": None}
        usage = {"output_tokens": self.answer.timing.tokens}
        return events(
            [*self._end_block(), {"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}]
        )

    def failure(self, message: str) -> bytes:
        return events([shapes.anthropic_error("api_error", message)])[0]

    def _end_block(self) -> list[dict[str, Any]]:
        if not self._block:
            return []
        self._block = ""
        self._blocks += 1
        return [{"type": "content_block_stop", "index": self._blocks - 1}]


def _message(answer: Answer) -> dict[str, Any]:
    return {
        "id": f"msg_{answer.id}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": answer.prompt_tokens, "output_tokens": 0},
        "system_fingerprint": NAME,
    }


def _tool_use(answer: Answer, given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{answer.id}", "name": answer.tool, "input": given}


def _reason(answer: Answer) -> str:
    if answer.cut:
        return "max_tokens"
    return "tool_use" if answer.tool else "end_turn"
