"""The shapes in which engines answer: field by field as their own servers write them, the texts invented.

The text has characters of one to four bytes, so that a cut at every offset cuts each of them.
"""

from __future__ import annotations

import json
from typing import Any

from engines.spec import CHAT, COMPLETIONS, COUNT_TOKENS, EMBEDDINGS, MESSAGES, RESPONSES
from slotproxy.outcomes import Outcome
from tests.corpus.answer import Answer, Ending, stream

TEXT = ("Grüß", "e, ", "世界", " 🦙", " \\o/", "\n", '"quoted"')
DONE = b"data: [DONE]\n\n"
FAILED, TRUNCATED = Outcome.FAILED, Outcome.TRUNCATED


def close(value: Any) -> bytes:
    """As C++ and Rust servers write JSON: no spaces, characters as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def spaced(value: Any) -> bytes:
    """As Python servers write it: spaces, and characters escaped."""
    return json.dumps(value).encode()


def data(value: bytes, name: bytes = b"") -> bytes:
    return (b"event: " + name + b"\n" if name else b"") + b"data: " + value + b"\n\n"


def _named(value: dict[str, Any]) -> bytes:
    return data(close(value), value["type"].encode())


# ------------------------------------------------------------------------------------------------- chat, completions


def _chunk(engine: str, delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    head = {"id": f"chatcmpl-{engine}-1", "object": "chat.completion.chunk", "created": 1767225600, "model": "m"}
    return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


_USAGE = {"prompt_tokens": 9, "completion_tokens": 7, "total_tokens": 16}
_TIMINGS = {"cache_n": 0, "prompt_n": 9, "prompt_ms": 12.5, "predicted_per_second": 184.20000000000002}
_LAST = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1767225600, "model": "m", "choices": []}


def _tool(id: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments} if name else {"arguments": arguments}
    call = {"index": 0, "id": id, "type": "function"} if id else {"index": 0}
    return {"tool_calls": [{**call, "function": function}]}


def _chat_stream(engine: str, write: Any) -> list[bytes]:
    """Role, reasoning, text, a tool's arguments in pieces, finish, usage."""
    thoughts = [{"reasoning_content": part} for part in TEXT[:3]]
    said = [{"content": part} for part in TEXT]
    tool = [_tool("call_1", "find", ""), _tool(None, None, '{"q": "caf'), _tool(None, None, 'é"}')]
    chunks = [_chunk(engine, delta) for delta in ({"role": "assistant", "content": ""}, *thoughts, *said, *tool)]
    chunks += [_chunk(engine, {}, "tool_calls", timings=_TIMINGS), {**_LAST, "usage": _USAGE}]
    return [data(write(chunk)) for chunk in chunks]


def _chat(write: Any, **more: Any) -> bytes:
    message = {"role": "assistant", "content": "".join(TEXT), "reasoning_content": TEXT[2], **more}
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    return bytes(write({**_LAST, "object": "chat.completion", "choices": [choice], "usage": _USAGE}))


_ERROR = {"error": {"message": "out of memory", "type": "server_error", "param": None, "code": None}}


def ninfer() -> list[Answer]:
    events = _chat_stream("ninfer", close)
    keep = b": keep-alive\n\n"
    return [
        stream("ninfer chat stream", CHAT, events[0], keep, *events[1:], DONE),
        stream("ninfer chat, error mid-stream", CHAT, *events[:4], data(close(_ERROR)), outcome=FAILED),
        stream("ninfer chat, queued and forgotten", CHAT, outcome=TRUNCATED, ending=Ending.TOLD),
        Answer("ninfer chat", CHAT, _chat(close)),
        Answer("ninfer busy", CHAT, close(_ERROR), status=b"429 Too Many Requests", outcome=FAILED),
        Answer(
            "ninfer messages, overloaded",
            MESSAGES,
            b'{"type":"error","error":{"type":"overloaded_error","message":"server_overloaded"}}',
            status=b"529 Site is overloaded",
            outcome=FAILED,
        ),
        Answer("ninfer count_tokens", COUNT_TOKENS, b'{"input_tokens":9}'),
    ]


def strata() -> list[Answer]:
    events = _chat_stream("strata", close)
    return [
        stream("strata chat stream", CHAT, *events, DONE),
        stream("strata chat, dead engine", CHAT, *events[:3], data(close(_ERROR)), DONE, outcome=FAILED),
        stream("strata chat, the process died", CHAT, *events[:5], outcome=TRUNCATED, ending=Ending.TOLD),
        Answer("strata chat", CHAT, _chat(spaced)),
        Answer("strata chat without content", CHAT, spaced({"error": "bad"}), status=b"400 Bad Request"),
    ]


def llamacpp() -> list[Answer]:
    events = _chat_stream("llama", close)
    text = [
        {
            "index": 0,
            "content": part,
            "tokens": [1],
            "stop": False,
            "object": "text_completion",
            "choices": [{"text": part}],
        }
        for part in TEXT
    ]
    vector = [[0.1, -0.0, 1e-45, 3.4028234663852886e38, 1.0]]
    embedding = {
        "object": "list",
        "data": [{"embedding": vector[0], "index": 0, "object": "embedding"}],
        "usage": _USAGE,
    }
    return [
        stream("llama.cpp chat stream", CHAT, *events, DONE),
        stream(
            "llama.cpp chat, an older build's error",
            CHAT,
            b"error: " + close(_ERROR) + b"\n\n",
            outcome=TRUNCATED,
            ending=Ending.TOLD,
        ),
        stream("llama.cpp completions stream", COMPLETIONS, *(data(close(each)) for each in text), DONE),
        stream("llama.cpp responses, bare error", RESPONSES, data(close(_ERROR)), outcome=FAILED),
        Answer("llama.cpp chat", CHAT, _chat(close, tool_calls=[]), b"application/json; charset=utf-8"),
        Answer("llama.cpp embeddings", EMBEDDINGS, close(embedding)),
        Answer("llama.cpp loading", CHAT, close(_ERROR), status=b"503 Service Unavailable", outcome=FAILED),
    ]


def vllm() -> list[Answer]:
    events = _chat_stream("vllm", spaced)
    logprobs = (
        b'{"choices": [{"index": 0, "delta": {"content": "x"}, "logprobs": {"content": [{"logprob": -Infinity}]}}]}'
    )
    broken = b'{"error": {"message": "half a pair: \\ud83e", "type": "BadRequestError", "code": 400}}'
    return [
        stream("vllm chat stream", CHAT, *events, data(logprobs), DONE),
        stream("vllm chat, error then done", CHAT, events[0], data(broken), DONE, outcome=FAILED),
        stream("vllm completions stream", COMPLETIONS, data(b'{"choices": [{"text": "\\u4e16", "index": 0}]}'), DONE),
        Answer("vllm chat", CHAT, _chat(spaced)),
        Answer("vllm embeddings", EMBEDDINGS, b'{"object":"list","data":[{"embedding":"AACAPw==","index":0}]}'),
        Answer(
            "vllm not found", CHAT, b'{"object": "error", "message": "no model", "code": 404}', status=b"404 Not Found"
        ),
    ]


# ------------------------------------------------------------------------------------------------ responses, messages


def _response(status: str, text: str = "", **more: Any) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": status, "content": [part]}
    head = {"id": "resp_1", "object": "response", "created_at": 1767225600.5, "status": status, "error": None}
    return {**head, "output": [item], "temperature": 1.0, "metadata": {}, **more}


def _response_events(*last: tuple[str, dict[str, Any]]) -> list[bytes]:
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("created", {"response": _response("in_progress")}),
        ("output_item.added", {"output_index": 0, "item": {"type": "reasoning", "id": "rs_1", "summary": []}}),
        ("reasoning_summary_text.delta", {"item_id": "rs_1", "delta": TEXT[2]}),
        *[("output_text.delta", {"item_id": "msg_1", "delta": part, "logprobs": []}) for part in TEXT],
        ("function_call_arguments.delta", {"item_id": "fc_1", "delta": '{"q":"é"}'}),
        *last,
    ]
    return [_named({"type": f"response.{kind}", "sequence_number": n, **more}) for n, (kind, more) in enumerate(kinds)]


def openai() -> list[Answer]:
    whole = _response("completed", "".join(TEXT), usage=_USAGE)
    error = {"code": "server_error", "message": "failed"}
    failed = {"response": _response("failed", error=error)}
    limited = {"response": _response("incomplete", incomplete_details={"reason": "max_output_tokens"})}
    flat = {"type": "error", "code": "server_error", "message": "failed", "param": None, "sequence_number": 9}
    cut = _response_events(("completed", {"response": whole}))
    padded = _chunk("o", {"content": "x"}, obfuscation="Zk3")
    return [
        stream("openai responses stream", RESPONSES, *cut),
        stream("openai responses, failed", RESPONSES, *_response_events(("failed", failed)), outcome=FAILED),
        stream("openai responses, incomplete", RESPONSES, *_response_events(("incomplete", limited))),
        stream("openai responses, error event", RESPONSES, *cut[:3], _named(flat), outcome=FAILED),
        stream(
            "openai responses, last event cut", RESPONSES, b"".join(cut)[:-200], outcome=TRUNCATED, ending=Ending.TOLD
        ),
        stream("openai chat stream", CHAT, data(close(padded)), data(close({**_LAST, "usage": _USAGE})), DONE),
        Answer("openai responses", RESPONSES, json.dumps(whole, indent=2).encode()),
    ]


def anthropic() -> list[Answer]:
    message: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
    }
    block: dict[str, Any] = {"type": "thinking", "thinking": "", "signature": ""}
    thought = {"type": "thinking_delta", "thinking": TEXT[2]}
    tool = {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {}}
    kinds: list[dict[str, Any]] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "ping"},
        {"type": "content_block_delta", "index": 0, "delta": thought},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "RXI="}},
        {"type": "content_block_stop", "index": 0},
        *[{"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": part}} for part in TEXT],
        {"type": "content_block_start", "index": 2, "content_block": tool},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"q":"é"}'}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 7}},
        {"type": "message_stop"},
    ]
    events = [data(spaced(kind), kind["type"].encode()) for kind in kinds]
    error = _named({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
    whole = {**message, "content": [{"type": "text", "text": "".join(TEXT)}], "stop_reason": "end_turn"}
    return [
        stream("anthropic messages stream", MESSAGES, *events),
        stream("anthropic messages, error", MESSAGES, *events[:8], error, outcome=FAILED),
        stream("anthropic messages, cut", MESSAGES, *events[:-1], outcome=TRUNCATED, ending=Ending.TOLD),
        stream("anthropic messages without names", MESSAGES, *(data(close(kind)) for kind in kinds)),
        Answer("anthropic messages", MESSAGES, spaced(whole)),
    ]


def answers() -> list[Answer]:
    return [*ninfer(), *strata(), *llamacpp(), *vllm(), *openai(), *anthropic()]
