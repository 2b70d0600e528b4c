"""The tool calls of the simulated engines: which one a request gets, and what it says. Pure, standard library only.

A request is answered with a call where `tool_choice` demands one (`required`, `any`, or a tool by its name), and where
the choice is the engine's and the user's last words name one of the `tools`. The arguments are made from the tool's
schema: always the same, with characters of two and four bytes, in small pieces as a model's tokens are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

_SIZE = 3  # characters of a piece
_SAMPLES = {"integer": 7, "number": 2.5, "boolean": True, "array": [], "object": {}, "null": None}


def call_of(body: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The tool's name and its arguments in pieces; without a name the answer is words. Any of the three protocols."""
    tools = dict(_tools(body.get("tools")))
    name = _demanded(body.get("tool_choice"), tools) or _named(body, tools)
    return (name, _pieces(json.dumps(_arguments(tools[name]), ensure_ascii=False))) if name else ("", [])


def _tools(given: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for tool in given if isinstance(given, list) else []:
        described = tool.get("function", tool) if isinstance(tool, dict) else {}
        schema = described.get("parameters") or described.get("input_schema")
        if isinstance(name := described.get("name"), str):
            yield name, schema if isinstance(schema, dict) else {}


def _demanded(choice: Any, tools: Mapping[str, Any]) -> str:
    if choice in ("required", {"type": "any"}):
        return next(iter(tools), "")
    if isinstance(choice, dict):
        name = choice.get("function", choice).get("name")
        return name if name in tools else ""
    return ""


def _named(body: Mapping[str, Any], tools: Mapping[str, Any]) -> str:
    """The tool that the user's last words name; what a tool has answered isn't the user's."""
    free = body.get("tool_choice") in (None, "auto", {"type": "auto"})
    said = body.get("messages") or body.get("input")
    last = said[-1] if isinstance(said, list) and said else {"role": "user", "content": said}
    if not free or not isinstance(last, dict) or last.get("role") != "user":
        return ""
    text = json.dumps(last.get("content"), ensure_ascii=False)
    return "" if '"tool_result"' in text else next((name for name in tools if name in text), "")


def _arguments(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _value(each) for name, each in (schema.get("properties") or {}).items()}


def _value(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return None
    if schema.get("enum"):
        return schema["enum"][0]
    return _SAMPLES.get(str(schema.get("type")), "Köln 車 🚚")


def _pieces(text: str) -> list[str]:
    return [text[start : start + _SIZE] for start in range(0, len(text), _SIZE)]
