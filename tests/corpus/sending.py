"""How an answer goes over the wire: how its length is told, and where it is cut."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.corpus.answer import Answer

LENGTH, CHUNKED, CLOSE, CLOSE_1_0 = "length", "chunked", "close", "close, HTTP/1.0"
TRANSPORTS = (LENGTH, CHUNKED, CLOSE, CLOSE_1_0)
_BY_THE_BYTE = 3000  # bytes of a body up to which it is sent so: each costs a turn of the loop
_EACH_OFFSET = 48  # bytes of a body that is cut at each of its offsets, a request each


@dataclass(frozen=True, slots=True)
class Sending:
    """`writes`: what is written at once, one after the other."""

    answer: Answer
    name: str
    writes: Sequence[bytes]
    length: bool = False  # the engine says how long the answer is

    def __str__(self) -> str:
        return f"{self.answer.name} / {self.name}"


def whole(answer: Answer, transport: str) -> Sending:
    return Sending(answer, transport, [_wire(answer, transport)], _says_length(answer, transport))


def in_writes(answer: Answer, transport: str, cuts: Sequence[int], name: str) -> Sending:
    """Cut as TCP pieces, head and framing included."""
    parts = cut(_wire(answer, transport), cuts)
    return Sending(answer, f"{transport}, {name}", parts, _says_length(answer, transport))


def in_chunks(answer: Answer, cuts: Sequence[int], name: str, *, one_write: bool = True, odd: bool = False) -> Sending:
    """Cut as HTTP chunks. `odd`: sizes with zeros before and an extension behind, and headers after the last."""
    chunks = [_chunk(part, odd=odd) for part in cut(answer.body, cuts) if part]
    last = b"000;last\r\nX-Sum: 1\r\n\r\n" if odd else b"0\r\n\r\n"
    writes = [_head(answer, CHUNKED), *chunks, last]
    return Sending(answer, f"chunks, {name}", [b"".join(writes)] if one_write else writes)


def cut(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = [0, *sorted(set(cuts)), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(places) if start < end]


def every(answer: Answer, chance: random.Random) -> Iterator[Sending]:
    """All transports and all kinds of cuts; each offset for a short body."""
    size = len(answer.body)
    for transport in TRANSPORTS:
        yield whole(answer, transport)
        yield in_writes(answer, transport, *_some(size, chance))
    yield in_chunks(answer, *_some(size, chance))
    yield in_chunks(answer, *_some(size, chance), odd=True)
    if size <= _BY_THE_BYTE:
        yield from by_the_byte(answer)
    if size <= _EACH_OFFSET:
        yield from at_each_offset(answer)


def by_the_byte(answer: Answer) -> Iterator[Sending]:
    each = range(len(answer.body) + 300)
    yield in_chunks(answer, each, "a byte each")
    yield in_chunks(answer, each, "a byte each, written one by one", one_write=False)
    for transport in TRANSPORTS:
        yield in_writes(answer, transport, each, "a byte each")


def at_each_offset(answer: Answer, transport: str = CLOSE_1_0) -> Iterator[Sending]:
    head = len(_head(answer, transport))
    for offset in range(1, len(answer.body)):
        yield in_writes(answer, transport, [head + offset], f"cut at {offset}")
        yield in_chunks(answer, [offset], f"cut at {offset}")


def some(answer: Answer, chance: random.Random) -> Iterator[Sending]:
    """One in a transport by chance, and one with cuts of a kind by chance."""
    size, transport = len(answer.body), chance.choice(TRANSPORTS)
    yield whole(answer, transport)
    kinds = [in_writes(answer, transport, *_some(size, chance)), in_chunks(answer, *_some(size, chance), odd=True)]
    yield chance.choice([*by_the_byte(answer), *kinds] if size <= _EACH_OFFSET * 10 else kinds)


def _some(size: int, chance: random.Random) -> tuple[list[int], str]:
    cuts = sorted(chance.randrange(size + 200) for _ in range(8))
    return cuts, f"cut at {cuts}"


def _wire(answer: Answer, transport: str) -> bytes:
    body = answer.body
    if transport == CHUNKED and answer.code != 204:
        body = (_chunk(body) if body else b"") + b"0\r\n\r\n"
    return _head(answer, transport) + body


def _chunk(part: bytes, *, odd: bool = False) -> bytes:
    return (b'00%X;ext="a;b"\r\n%b\r\n' if odd else b"%x\r\n%b\r\n") % (len(part), part)


def _head(answer: Answer, transport: str) -> bytes:
    version = b"HTTP/1.0" if transport == CLOSE_1_0 else b"HTTP/1.1"
    lines = [version + b" " + answer.status, *(name + b": " + value for name, value in answer.all_headers)]
    if answer.code != 204:
        lines += _framing(answer, transport)
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _framing(answer: Answer, transport: str) -> list[bytes]:
    match transport:
        case "length":
            return [b"Content-Length: %d" % len(answer.body), b"Keep-Alive: timeout=5, max=100"]
        case "chunked":
            return [b"Transfer-Encoding: Chunked", b"Trailer: X-Sum", b"Connection: keep-alive"]
        case "close":
            return [b"Connection: Close"]
    return []


def _says_length(answer: Answer, transport: str) -> bool:
    return transport == LENGTH and answer.code != 204
