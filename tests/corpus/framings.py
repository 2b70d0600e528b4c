"""One stream of events in all ways in which the HTML standard allows to write it, and in some that it forgives."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from engines.spec import CHAT, MESSAGES, RESPONSES
from slotproxy.outcomes import Outcome
from tests.corpus.answer import Answer, Ending, stream
from tests.corpus.engines import DONE, data

_MARK = b"\xef\xbb\xbf"
_FIRST = data('{"choices":[{"delta":{"content":"é€🦙"}}]}'.encode())


def short() -> list[Answer]:
    """Streams of some dozen bytes: each is cut at every offset."""
    return [stream(f"short, {name}", CHAT, body) for name, body in _written("data: é€🦙\n\ndata: [DONE]\n\n".encode())]


def long() -> list[Answer]:
    """The same of streams that look like an engine's, in three protocols."""
    responses = data(b'{"delta":"x"}', b"response.output_text.delta") + data(b"{}", b"response.completed")
    messages = data(b'{"type":"ping"}', b"ping") + data(b'{"type":"message_stop"}', b"message_stop")
    bodies = ((CHAT, _FIRST * 3 + DONE), (RESPONSES, responses), (MESSAGES, messages))
    return [stream(f"{path}, {name}", path, each) for path, body in bodies for name, each in _written(body)]


def _written(body: bytes) -> Iterator[tuple[str, bytes]]:
    """`body` is well made, with LF, and ends with its end marker."""
    ends = itertools.cycle((b"\n", b"\r\n", b"\r"))
    lines = body.split(b"\n")[:-1]
    yield "LF", body
    yield "CR LF", body.replace(b"\n", b"\r\n")
    yield "CR", body.replace(b"\n", b"\r")
    yield "mixed line ends", b"".join(line + next(ends) for line in lines) + b"\n\n"
    yield "byte order mark", _MARK + body
    yield "byte order mark and CR LF", _MARK + body.replace(b"\n", b"\r\n")
    yield "comments", b": hello\n\n:\n" + body.replace(b"\n\n", b"\n:in between\n\n")
    yield "no space after the colon", body.replace(b"data: ", b"data:").replace(b"event: ", b"event:")
    yield "id and retry", b"retry: 3000\n\nid: 7\n" + body.replace(b"\n\n", b"\nid\n\n", 1)
    yield "data without a colon", b"data\n\n" + body
    yield "empty data", b"data:\n\ndata: \n\n" + body
    yield "many empty lines", b"\n\n\n" + body + b"\n\n\n\n"
    yield "unknown fields", b"foo: bar\nbar\n Data: x\n\n" + body
    yield "only the last empty line is missing", body[:-1]
    yield "the last line end is missing", body[:-2]
    yield "last CR LF without its empty line", body.replace(b"\n", b"\r\n")[:-2]
    yield "after the end marker", body + b": bye\n\ndata: more\n\n"
    yield "an event's data in several lines", b'data: {"choices":\ndata:  []\ndata: }\n\n' + body


def broken() -> list[Answer]:
    """Streams that end before they should, wherever that is: in a character, a line end, a field, an event."""
    whole = "data: é🦙\r\n\r\ndata: [DONE]".encode()
    kinds = {"outcome": Outcome.TRUNCATED, "ending": Ending.TOLD}
    return [stream(f"broken off after {n} bytes", CHAT, whole[:n], **kinds) for n in range(1, len(whole))]
