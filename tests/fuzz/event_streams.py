"""Streams of events at random, cut at random, to the observer: it must see what a slow and simple reader sees.

The reader here takes the whole stream at once and does what the HTML standard says, line after line ("9.2.6
Interpreting an event stream"). The observer's one exception is its, too: see `slotproxy/observer.py`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import hypothesis
from hypothesis import strategies as st

from engines.spec import Api
from slotproxy.observer import Observer
from tests.fuzz.rounds import EXAMPLES, rounds

Event = tuple[bytes, bytes]  # its name, which is empty where it has none, and its data

# ------------------------------------------------------------------------------------------------ the simple reader


@dataclass
class Read:
    """What came up to some place in a stream. `begun`: of an event that isn't closed, `between`: there is none."""

    events: list[Event] = field(default_factory=list)
    begun: Event | None = None
    between: bool = True


def read(stream: bytes) -> Read:
    if stream.startswith(b"\xef\xbb\xbf"):
        stream = stream[3:]
    *lines, last = re.split(rb"\r\n|\r|\n", stream)
    result, name, data, nothing = Read(), b"", list[bytes](), True
    for line in lines:
        if line == b"":
            if data:
                result.events.append((name, b"\n".join(data)))
            name, data, nothing = b"", [], True
            continue
        nothing = False
        name, data = _field(line, name, data)
    result.between = nothing and last == b""
    name, data = _field(last, name, data)
    result.begun = (name, b"\n".join(data)) if data else None
    return result


def _field(line: bytes, name: bytes, data: list[bytes]) -> tuple[bytes, list[bytes]]:
    what, value = line, b""
    if b":" in line:
        what, value = line[: line.index(b":")], line[line.index(b":") + 1 :]
        if value[:1] == b" ":
            value = value[1:]
    if what == b"event":
        return value, data
    return name, [*data, value] if what == b"data" else data


def at_end(stream: bytes) -> list[Event]:
    """All events of a stream that has ended. One that wasn't closed counts where its data isn't cut."""
    result = read(stream)
    if result.begun and (result.begun[1].strip() == b"[DONE]" or _object(result.begun[1]) is not None):
        return [*result.events, result.begun]
    return result.events


def verdict(api: Api, events: list[Event]) -> tuple[bool, bool]:
    """Whether the end marker has come, and whether an error has."""
    complete = failed = False
    for name, data in events:
        said = _object(data) or {}
        kind = said.get("type") if name in (b"", b"message") else name.decode(errors="replace")
        failed |= said.get("error") is not None
        match api:
            case Api.RESPONSES:
                failed |= kind in ("error", "response.failed")
                complete |= kind in ("response.completed", "response.failed", "response.incomplete")
            case Api.MESSAGES:
                failed |= kind == "error"
                complete |= kind == "message_stop"
            case _:
                failed |= name == b"error"
                complete |= data.strip() == b"[DONE]"
    return complete, failed


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(data.decode(errors="replace"), strict=False)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


# ---------------------------------------------------------------------------------------------------- what is drawn

_DATA = [
    "[DONE]",
    " [DONE] ",
    "[DONE",
    "",
    '{"choices":[{"delta":{"content":"€🦙"}}]}',
    '{"choices":[{"delta":{"content":"say \\"error\\": 1"}}],"error":null}',
    '{"error":{"message":"out of memory"}}',
    '{"error":{"message":"half a pair: \\ud800"}}',
    '{"error" : "text", "n":NaN}',
    '{"error":{"message":"cut',
    '{"type":"message_stop"}',
    '{"type":"error","error":{"type":"overloaded_error"}}',
    '{"type": "response.completed","response":{"error":null}}',
    '{"n":1e400,"type":"response.failed"}',
    '{"type":"response.incomplete"',
    '{"type":',
    '"message_stop"}',
    '{"type":5}',
    '{"type":null,"error":false}',
    '["error"]',
    '"error"',
]
_NAMES = ["", "message", "error", "message_stop", "message_delta", "response.completed", "response.failed", " error"]
_ENDS = [b"\n", b"\r\n", b"\r"]
_noise = st.one_of(
    st.binary(max_size=6), st.sampled_from([b"\xef\xbb\xbf", b"\xef\xbb", b"data", b"\x00", b"::", b" "])
)
_values = st.one_of(st.sampled_from([text.encode() for text in _DATA]), _noise)
_names = st.one_of(st.sampled_from([text.encode() for text in _NAMES]), _noise)


def _line(field: bytes, values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.tuples(st.just(field), st.sampled_from([b": ", b":", b":  "]), values).map(b"".join)


_lines = st.one_of(
    _line(b"data", _values),
    _line(b"event", _names),
    st.sampled_from(
        [b"", b"data", b"event", b"id: 1", b"id", b"retry: 5", b": keep-alive", b":", b" data: x", b"Data: x"]
    ),
    _noise,
)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Mostly well made events, whole or not, with one kind of line end or all of them, noise in between."""
    ends = draw(st.sampled_from([[end] for end in _ENDS] + [_ENDS]))
    end = st.sampled_from(ends)
    parts = [draw(st.sampled_from([b"", b"", b"\xef\xbb\xbf", b"\xef\xbb\xbf\xef\xbb\xbf", b"\xef"]))]
    for _ in range(draw(st.integers(0, 6))):
        for line in draw(st.lists(_lines, max_size=4)):
            parts += [line, draw(end)]
        parts += draw(st.sampled_from([[], [draw(end)], [draw(end), draw(end)]]))
    parts.append(draw(st.one_of(st.just(b""), _lines)))
    return b"".join(parts)


# ------------------------------------------------------------------------------------------------------ the comparing


class Recorder(Observer):
    """The observer, and every event that it has judged."""

    def __init__(self, api: Api) -> None:
        super().__init__(api)
        self.seen: list[Event] = []

    def _judge(self, name: bytes, data: bytes) -> None:
        self.seen.append((name, data))
        super()._judge(name, data)


def compare(api: Api, stream: bytes, cuts: list[int]) -> None:
    """Raises AssertionError where the observer sees something else than the simple reader, at any cut or at the end."""
    recorder, begin = Recorder(api), 0
    for cut in sorted({*cuts, len(stream)}):
        recorder.feed(stream[begin:cut])
        begin, known = cut, read(stream[:cut])
        assert recorder.seen == known.events, (stream[:cut], recorder.seen, known.events)
        assert recorder.at_boundary is known.between, (stream[:cut], recorder.at_boundary)
        assert (recorder.complete, recorder.failed) == verdict(api, known.events), stream[:cut]
        _stands_alone(stream[:cut], recorder.at_boundary)
    boundary = recorder.at_boundary
    recorder.end()
    assert recorder.at_boundary is boundary, "it isn't the end that closes an event"
    assert recorder.seen == at_end(stream), (stream, recorder.seen)
    assert recorder.events == len(recorder.seen)
    assert (recorder.complete, recorder.failed) == verdict(api, recorder.seen), stream


def _stands_alone(stream: bytes, boundary: bool) -> None:
    """What is said at the end of a stream that broke off is an event of its own to whoever reads it."""
    said = read(stream + (b"" if boundary else b"\n\n") + b"event: error\ndata: died\n\n")
    assert said.events[-1:] == [(b"error", b"died")], stream


def examples(count: int, seed: int) -> None:
    """So many of them. Raises what an example has found, as small as it can be made."""

    @hypothesis.seed(seed)
    @hypothesis.settings(max_examples=count, **EXAMPLES)
    @hypothesis.given(st.sampled_from(list(Api)), streams(), st.data())
    def example(api: Api, stream: bytes, data: st.DataObject) -> None:
        each = list(range(len(stream) + 1))
        compare(api, stream, each)
        compare(api, stream, data.draw(st.lists(st.sampled_from(each), max_size=4), label="cuts"))

    example()


def fuzz(minutes: float, seed: int) -> str:
    """What rounds of them have found; empty: nothing."""
    return rounds(examples, 1000, minutes, seed)
