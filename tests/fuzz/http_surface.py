"""Hostile HTTP at the client port: raw sockets, the real server, an engine that records what it saw.

Whatever a client sends: its connection is answered or ends in time, with answers that are HTTP; the engine sees the
requests that a strict reader finds in those bytes, in their order, whole, on allowed paths, each with its right length,
and no other; who else asks is served; nothing is left behind, and nothing of it is a fault of slotproxy's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from unittest.mock import patch

import hypothesis
import structlog

from slotproxy import linger, server
from slotproxy.house import Patience
from slotproxy.wire import PATHS
from tests.fuzz.http_reader import TOKEN, Read, read
from tests.fuzz.http_talks import Talk, talks
from tests.slotproxy.rig import Client, Conversation, Proxy, Seen, Upstream, engine, eventually, proxied, whole

_ROUND = 200  # examples between two looks at the clock
_SHORT = 0.2  # seconds in place of a minute
_QUIET = 0.02  # seconds without a byte after which a client ends what it began
_ANSWER = b'{"usage": 1}'
_STATUS = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) [ -~]*")
_FIELD = re.compile(TOKEN + rb": [\t -~\x80-\xff]*")
_ALLOWED = {path.encode() for path in PATHS}


def fuzz(minutes: float, seed: int) -> str:
    """Rounds until the time is over, or one has found something: what it is."""
    until = time.monotonic() + minutes * 60
    while time.monotonic() < until:
        try:
            examples(_ROUND, seed)
        except Exception as error:  # whatever it is, it was found
            return f"seed {seed}: {error!r}\n" + "\n".join(getattr(error, "__notes__", ()))
        seed += 1
    return ""


def examples(count: int, seed: int) -> None:
    """So many of them. Raises what an example has found, as small as it can be made."""
    with asyncio.Runner() as runner, _patient_for(_SHORT):
        standing = contextlib.AsyncExitStack()
        house = runner.run(standing.enter_async_context(_house()))

        @hypothesis.seed(seed)
        @hypothesis.settings(max_examples=count, database=None, deadline=None)
        @hypothesis.given(talks())
        def example(talk: Talk) -> None:
            runner.run(house.hears(talk))

        try:
            example()
        finally:
            runner.run(standing.aclose())


@contextlib.contextmanager
def _patient_for(seconds: float) -> Iterator[None]:
    """Limits that are minutes are short; for a client that ends by itself they are long enough."""
    with contextlib.ExitStack() as held:
        for name in ("_HEAD", "_KEEP_ALIVE", "_FLUSH"):
            held.enter_context(patch.object(server, name, seconds))
        held.enter_context(patch.object(linger, "_PATIENCE", seconds))
        yield


@contextlib.asynccontextmanager
async def _house() -> AsyncIterator[House]:
    house = House()
    patience = Patience(body=_SHORT, whole_body=_SHORT)
    async with Upstream(house.serve) as up, proxied(engine(up.url), patience=patience) as proxy:
        house.proxy, house.up = proxy, up
        with house.troubles.told():
            yield house


class _Troubles(logging.Handler):
    """What nobody may log, whatever a client does."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(self.format(record))

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        logging.getLogger().addHandler(self)
        try:
            with structlog.testing.capture_logs() as self.lines:
                yield
        finally:
            logging.getLogger().removeHandler(self)

    def none(self) -> None:
        bad = [line for line in self.lines if line["log_level"] not in ("debug", "info")]
        self.lines.clear()
        assert not bad, bad
        assert not self.seen, self.seen


@dataclass
class House:
    """The client port and its engine, for all examples of a run."""

    troubles: _Troubles = field(default_factory=_Troubles)
    extra: list[bytes] = field(default_factory=list)  # what came to the engine after a request
    proxy: Proxy = field(init=False)
    up: Upstream = field(init=False)

    async def serve(self, talk: Conversation, seen: Seen) -> None:
        """The engine: it answers, and reads on to see that nothing follows."""
        await talk.send(whole(_ANSWER))
        with contextlib.suppress(ConnectionError):
            if more := await talk.reader.read():
                self.extra.append(more)

    async def hears(self, talk: Talk) -> None:
        """One example. Raises AssertionError."""
        self.up.seen.clear()
        async with asyncio.TaskGroup() as group:
            good = group.create_task(self._good())
            got, left = await self._said(talk)
        await good
        await eventually(lambda: not self.proxy.tasks and not self.proxy.connections and not self.up.open)
        _check_answers(got, cut=left)
        self._check_engine(b"".join(talk.packets))
        await self._good()
        await eventually(lambda: not self.up.open)
        self.troubles.none()

    async def _said(self, talk: Talk) -> tuple[bytes, bool]:
        """What came back, and whether the client left by itself."""
        async with Client.at(self.proxy.port) as client:
            with contextlib.suppress(ConnectionError):
                for packet in talk.packets:
                    client.writer.write(packet)
                    await client.writer.drain()
                    await asyncio.sleep(0)
                if talk.end != "wait":
                    await _while_it_speaks(client)
                match talk.end:
                    case "half-close":
                        client.writer.write_eof()
                    case "close":
                        client.writer.close()
                        return client.got, True
                    case "reset":
                        client.writer.transport.abort()
                        return client.got, True
                await client.rest()
            return client.got, talk.end != "wait"

    async def _good(self) -> None:
        """Somebody else."""
        async with Client.at(self.proxy.port) as client:
            await client.post("/v1/messages", b'{"good": 1}', b"x-good: 1")
            await client.until(_ANSWER)

    def _check_engine(self, raw: bytes) -> None:
        """What it saw is what stood in these bytes."""
        meant = [request for request in read(raw) if _reaches_an_engine(request)]
        seen = [each for each in self.up.seen if not each.all(b"x-good")]
        assert not self.extra, self.extra
        for each in self.up.seen:
            _check_request(each)
        assert _fits([each.body for each in seen], meant), (seen, meant)


async def _while_it_speaks(client: Client) -> None:
    """Until nothing came for a moment, or the proxy has closed the connection."""
    with contextlib.suppress(TimeoutError):
        while True:
            async with asyncio.timeout(_QUIET):
                data = await client.reader.read(65536)
            client.got += data
            if not data:
                return


def _reaches_an_engine(request: Read) -> bool:
    upgrades = any(b"websocket" in value.lower() for value in request.all(b"upgrade"))
    return request.method == b"POST" and request.path in _ALLOWED and b"#" not in request.target and not upgrades


def _fits(seen: list[bytes], meant: list[Read]) -> bool:
    """Whether these bodies are those of the first requests, without some that may be refused."""
    if not seen or not meant:
        return not seen
    as_meant = seen[0] == meant[0].body and _fits(seen[1:], meant[1:])
    return as_meant or (_may_be_refused(meant[0]) and _fits(seen, meant[1:]))


def _may_be_refused(request: Read) -> bool:
    """It comes, or may come, from a web page: see `slotproxy.cors`."""
    return bool(request.all(b"origin")) or request.all(b"host") not in ([b"proxy"], [b"x"], [b"inner"])


def _check_request(seen: Seen) -> None:
    """One framing header, one path, nothing that is between the client and us."""
    method, target, version = seen.line.split(b" ")
    assert (method, version) == (b"POST", b"HTTP/1.1"), seen.line
    assert target.partition(b"?")[0] in _ALLOWED, seen.line
    assert seen.all(b"content-length") == [b"%d" % len(seen.body)], seen
    assert len(seen.all(b"host")) == 1, seen
    forbidden = (b"transfer-encoding", b"expect", b"upgrade", b"te", b"trailer", b"origin", b"keep-alive")
    assert not [name for name in forbidden if seen.all(name)], seen


def _check_answers(got: bytes, *, cut: bool) -> None:
    """Every answer is HTTP and whole (the last may be cut where the client left), and an error is JSON of ours."""
    while got:
        head, end, rest = got.partition(b"\r\n\r\n")
        if not end:
            assert cut, got
            return
        line, *lines = head.split(b"\r\n")
        match = _STATUS.fullmatch(line)
        assert match, line
        assert all(_FIELD.fullmatch(each) for each in lines), head
        fields = [(name.lower(), value.strip()) for name, _, value in (each.partition(b":") for each in lines)]
        got = _check_answer(int(match[1]), fields, rest, cut=cut)


def _check_answer(status: int, fields: list[tuple[bytes, bytes]], rest: bytes, *, cut: bool) -> bytes:
    """What follows this answer."""
    if status in (100, 204):
        return rest
    lengths = [int(value) for name, value in fields if name == b"content-length"]
    assert len(lengths) == 1, fields  # nothing that is asked for here comes in chunks
    assert cut or len(rest) >= lengths[0], rest
    body, rest = rest[: lengths[0]], rest[lengths[0] :]
    assert status != 500, body
    if status >= 400 and len(body) == lengths[0]:
        assert json.loads(body)["error"]["message"], body
        assert [name for name, _ in fields].count(b"x-request-id") == 1, fields
    return rest
