"""POST /v1/responses on the wire. What was said before lives in the process: after a swap it is gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.ninfer.simulator import shapes
from engines.ninfer.simulator.shapes import NAME, Answer, Ask, Shape, events


class Responses(Shape):
    statuses = shapes.OPENAI_STATUSES

    def __init__(self) -> None:
        self._sequence = 0
        self._previous: str | None = None

    def read(self, body: Mapping[str, Any]) -> Ask:
        previous = body.get("previous_response_id")
        self._previous = previous if isinstance(previous, str) else None
        given = (shapes.texts(body.get("instructions")), shapes.texts(shapes.required(body, "input")))
        return Ask(
            model=str(shapes.required(body, "model")),
            prompt=" ".join(filter(None, given)),
            max_tokens=shapes.whole_number(body, "max_output_tokens"),
            stream=shapes.flag(body, "stream"),
            thinking=False,
            previous=self._previous or "",
            store=body.get("store") is not False,
        )

    def error(self, status: int, code: str, message: str) -> dict[str, Any]:
        return shapes.openai_error(status, code, message)

    def whole(self) -> dict[str, Any]:
        return self._response("completed", [_item(self.answer, "completed")])

    def opening(self) -> list[bytes]:
        empty = self._response("in_progress", [])
        part = {"type": "output_text", "text": "", "annotations": []}
        said: dict[str, Any] = {} if self.answer.tool else {"content": []}
        item = {**_item(self.answer, "in_progress"), **said}
        opened = {"type": "response.content_part.added", **_where(self.answer), "content_index": 0, "part": part}
        return self._events(
            {"type": "response.created", "response": empty},
            {"type": "response.in_progress", "response": empty},
            {"type": "response.output_item.added", "output_index": 0, "item": item},
            *([] if self.answer.tool else [opened]),
        )

    def piece(self, text: str) -> list[bytes]:
        return self._events(
            {
                "type": "response.output_text.delta",
                **_where(self.answer),
                "content_index": 0,
                "delta": text,
                "logprobs": [],
            }
        )

    def argument(self, text: str) -> list[bytes]:
        return self._events({"type": "response.function_call_arguments.delta", **_where(self.answer), "delta": text})

    def closing(self) -> list[bytes]:
        item = _item(self.answer, "completed")
        return self._events(
            *(self._call_done() if self.answer.tool else self._text_done(item)),
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": self.whole()},
        )

    def _text_done(self, item: dict[str, Any]) -> list[dict[str, Any]]:
        where = {**_where(self.answer), "content_index": 0}
        return [
            {"type": "response.output_text.done", **where, "text": self.answer.said, "logprobs": []},
            {"type": "response.content_part.done", **where, "part": item["content"][0]},
        ]

    def _call_done(self) -> list[dict[str, Any]]:
        done = {"name": self.answer.tool, "arguments": self.answer.given}
        return [{"type": "response.function_call_arguments.done", **_where(self.answer), **done}]

    def failure(self, message: str) -> bytes:
        response = self._response("failed", [_item(self.answer, "incomplete")])
        response["error"] = {"code": "server_error", "message": message}
        return self._events({"type": "response.failed", "response": response})[0]

    def _events(self, *named: dict[str, Any]) -> list[bytes]:
        numbered = []
        for one in named:
            numbered.append({**one, "sequence_number": self._sequence})
            self._sequence += 1
        return events(numbered)

    def _response(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        total = self.answer.prompt_tokens + self.answer.timing.tokens
        return {
            "id": f"resp_{self.answer.id}",
            "object": "response",
            "created_at": self.answer.created,
            "status": status,
            "model": self.answer.model,
            "output": output,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": False,
            "previous_response_id": self._previous,
            "tool_choice": "auto",
            "tools": [],
            "usage": {
                "input_tokens": self.answer.prompt_tokens,
                "input_tokens_details": {"cached_tokens": self.answer.timing.cached},
                "output_tokens": self.answer.timing.tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": total,
            },
            "system_fingerprint": NAME,
        }


def _where(answer: Answer) -> dict[str, Any]:
    return {"item_id": f"item_{answer.id}", "output_index": 0}


def _item(answer: Answer, status: str) -> dict[str, Any]:
    if answer.tool:
        call = {"call_id": f"call_{answer.id}", "name": answer.tool, "arguments": answer.given}
        return {"id": f"item_{answer.id}", "type": "function_call", "status": status, **call}
    part = {"type": "output_text", "text": answer.said, "annotations": []}
    return {"id": f"item_{answer.id}", "type": "message", "role": "assistant", "status": status, "content": [part]}
