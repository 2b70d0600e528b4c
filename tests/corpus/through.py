"""An answer's way through the real proxy, from one real socket to another, and whether it came unharmed."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import structlog
from structlog.typing import EventDict

from tests.corpus.answer import Ending, Header
from tests.corpus.odd import PASSED
from tests.corpus.sending import Sending
from tests.fuzz.event_streams import read
from tests.slotproxy.rig import WITHIN, Conversation, Seen, Upstream, engine, proxied

_HOP_BY_HOP = (b"connection", b"keep-alive", b"trailer", b"transfer-encoding")
_OURS = (b"x-request-id", b"request-id", b"x-slotproxy-engine", b"x-slotproxy-held-ms")
_OF_STREAMS = (b"cache-control", b"x-accel-buffering")
_REQUEST = (
    b"POST %b HTTP/%b\r\nhost: proxy\r\nconnection: close\r\naccept-encoding: gzip, br\r\ncontent-length: 2\r\n\r\n{}"
)


@dataclass(frozen=True, slots=True)
class Got:
    """What the client's socket was sent. `ended`: by the last chunk, or with all of the announced length."""

    code: int
    headers: list[Header]
    body: bytes
    ended: bool


class Road:
    """The engine's socket, the proxy, and what it logs."""

    def __init__(self, port: int, log: list[EventDict]) -> None:
        self._port = port
        self._log = log
        self.sent = 0  # answers

    async def go(self, sending: Sending, *, version: bytes = b"1.1") -> None:
        """Raises AssertionError where anything came that the engine didn't send, or didn't come."""
        self._log.clear()
        self.sent += 1
        self.sending = sending
        async with asyncio.timeout(WITHIN):
            got = await self._ask(sending.answer.path, version)
        try:
            _compare(sending, got, version)
            self._compare_log(sending, got)
        except AssertionError as error:
            raise AssertionError(f"{sending}: {error}") from error

    async def answer(self, talk: Conversation, _: Seen) -> None:
        for piece in self.sending.writes:
            talk.writer.write(piece)
            await asyncio.sleep(0)  # the proxy's socket has it
            await asyncio.sleep(0)  # and the proxy has read it

    async def _ask(self, path: str, version: bytes) -> Got:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(_REQUEST % (path.encode(), version))
            return parsed(await reader.read(-1))
        finally:
            writer.close()

    def _compare_log(self, sending: Sending, got: Got) -> None:
        (line,) = self._log
        assert line["outcome"] == sending.answer.outcome.value, line
        # What is said after it of a stream that broke off isn't counted: the line is written first.
        assert (line["status"], line["bytes_out"]) == (got.code, len(sending.answer.body)), line


@contextlib.asynccontextmanager
async def road() -> AsyncIterator[Road]:
    built: list[Road] = []

    async def behave(talk: Conversation, seen: Seen) -> None:
        upstream.seen.clear()
        await built[0].answer(talk, seen)

    async with Upstream(behave) as upstream:
        served = engine(upstream.url, passthrough=frozenset((PASSED,)))
        async with proxied(served) as proxy:
            with structlog.testing.capture_logs() as log:
                built.append(Road(proxy.port, log))
                yield built[0]


def parsed(raw: bytes) -> Got:
    head, _, rest = raw.partition(b"\r\n\r\n")
    line, *lines = head.split(b"\r\n")
    pairs = [each.partition(b":") for each in lines]
    headers = [(name.lower(), value.strip()) for name, _, value in pairs]
    told = dict(headers)
    if b"transfer-encoding" in told:
        assert b"content-length" not in told
        body, ended = _unchunked(rest)
    else:
        body, ended = rest, len(rest) == int(told.get(b"content-length", len(rest)))
    return Got(int(line.split()[1]), headers, body, ended)


def _unchunked(rest: bytes) -> tuple[bytes, bool]:
    parts, at = [], 0
    while at < len(rest):
        end = rest.index(b"\r\n", at)
        size = int(rest[at:end], 16)
        parts.append(rest[end + 2 : end + 2 + size])
        at = end + 2 + size + 2
        assert rest[at - 2 : at] == b"\r\n"
        if size == 0:
            assert at == len(rest)
            return b"".join(parts), True
    return b"".join(parts), False


def _compare(sending: Sending, got: Got, version: bytes) -> None:
    answer = sending.answer
    assert got.code == answer.code
    body, added = got.body[: len(answer.body)], got.body[len(answer.body) :]
    assert _sum(body) == _sum(answer.body), f"{body!r} came of {answer.body!r}"
    _compare_headers(sending, got, version)
    match answer.ending:
        case Ending.AS_IT_IS:
            assert got.ended
            assert added == b"", f"{added!r} was added"
        case Ending.TOLD:
            assert not got.ended or version == b"1.0"
            _stands_alone(got.body, added)


def _stands_alone(body: bytes, added: bytes) -> None:
    """What was added is an event of its own for whoever reads the stream, and its data is an error."""
    *_, (_, data) = read(body).events
    assert json.loads(data)["error"]["message"]
    assert data in added


def _compare_headers(sending: Sending, got: Got, version: bytes) -> None:
    answer = sending.answer
    own = {*_HOP_BY_HOP, *_OURS, *(_OF_STREAMS if answer.events else ())}
    expected = [(name.lower(), value.strip()) for name, value in answer.all_headers]
    if sending.length and not answer.events:
        expected.append((b"content-length", b"%d" % len(answer.body)))
    came = [(name, value) for name, value in got.headers if name not in own]
    assert came == expected
    assert {name for name, _ in got.headers} & {*_HOP_BY_HOP} <= {b"connection", b"transfer-encoding"}
    framing = [name for name, _ in got.headers if name in (b"content-length", b"transfer-encoding")]
    assert len(framing) <= 1
    assert framing or version == b"1.0" or answer.code == 204


def _sum(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
