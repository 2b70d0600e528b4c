"""The client port under a real server, in front of engines that misbehave on purpose."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from engines.openai.profile import PROFILE
from engines.spec import COUNT_TOKENS, MESSAGES, Api, Engine, Pair, Profile
from slotproxy.app import ClientPort, build_app
from slotproxy.config import CardSettings, Limits, Settings, SlotSettings
from slotproxy.forward import engine_client
from slotproxy.gate import SlotGate
from slotproxy.house import Patience
from slotproxy.in_force import InForce
from slotproxy.outcomes import Outcome, Outcomes
from slotproxy.server import Context, Server, config
from slotproxy.supervision import Supervision

WITHIN = 10.0  # seconds for what takes milliseconds: the machine may be busy
AT_ONCE = 3.0  # seconds for what must be done within one
RUN = "the first run"
MODELS: Mapping[str, Mapping[str, str]] = {"*": {}}
ANYONE = {"anonymous": SlotSettings("anonymous")}
ALL_APIS = dataclasses.replace(
    PROFILE, client_paths={**PROFILE.client_paths, MESSAGES: Api.MESSAGES, COUNT_TOKENS: Api.COUNT_TOKENS}
)

SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def delta(text: str = "hi") -> bytes:
    """One event of a chat stream."""
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    """A complete JSON answer."""
    lines = [b"HTTP/1.1 " + status, b"content-type: application/json", b"content-length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


# ---------------------------------------------------------------------------------------------------- upstreams


@dataclass
class Seen:
    """One request as the engine's socket saw it."""

    line: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def all(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Conversation:
    """One connection to the engine, as its code sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def request(self) -> Seen:
        head = await self.reader.readuntil(b"\r\n\r\n")
        line, *rest = head[:-4].split(b"\r\n")
        headers = [(name, value.strip()) for name, _, value in (each.partition(b":") for each in rest)]
        length = next((int(value) for name, value in headers if name.lower() == b"content-length"), 0)
        return Seen(line, headers, await self.reader.readexactly(length))

    async def send(self, *parts: bytes, pause: float = 0.0) -> None:
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()
            if pause:
                await asyncio.sleep(pause)

    async def left(self) -> None:
        """Returns when the other side has closed its connection."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass

    def reset(self) -> None:
        self.writer.transport.abort()


Behaviour = Callable[[Conversation, Seen], Awaitable[None]]


class Upstream:
    """An engine's socket. Each connection is one request, answered by `behave` and then closed."""

    def __init__(self, behave: Behaviour) -> None:
        self._behave = behave
        self._tasks: set[asyncio.Task[Any]] = set()
        self.seen: list[Seen] = []
        self.open = 0  # connections now
        self.most = 0  # connections at once
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            talk = Conversation(reader, writer)
            seen = await talk.request()
            self.seen.append(seen)
            await self._behave(talk, seen)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            writer.close()


def saying(*parts: bytes, pause: float = 0.0) -> Behaviour:
    """An engine that sends these pieces, and closes the connection."""

    async def behave(talk: Conversation, _: Seen) -> None:
        await talk.send(*parts, pause=pause)

    return behave


# ---------------------------------------------------------------------------------------------------- the proxy


@dataclass
class Proxy:
    """The client port as it runs now."""

    url: str
    port: int
    gate: SlotGate
    outcomes: Outcomes
    app: ClientPort
    tasks: set[asyncio.Task[Any]]  # of the requests that are under way
    connections: set[Any]  # of clients
    in_force: InForce

    async def counted(self, outcome: Outcome, times: int = 1) -> None:
        """Waits until exactly so many requests ended that way, and no other way."""
        await eventually(lambda: sum(self.outcomes.counts.values()) >= times)
        assert dict(self.outcomes.counts) == {outcome: times}

    async def idle(self) -> None:
        """Waits until every place is left."""
        await eventually(lambda: (self.gate.view().in_flight, self.gate.view().settling) == (0, 0))


def impatient(seconds: float) -> Profile:
    """An engine that may be silent for so long."""
    return dataclasses.replace(ALL_APIS, stream_idle_limit=seconds)


def engine(url: str, *, name: str = "strata", profile: Profile = ALL_APIS, **more: Any) -> Engine:
    pair = Pair(engine=name, name="v1", image="test", artifacts=())
    return Engine(name=name, profile=profile, url=url, vram=0, pairs={"v1": pair}, deployed="v1", **more)


@contextlib.asynccontextmanager
async def proxied(
    *engines: Engine,
    models: Mapping[str, Mapping[str, str]] = MODELS,
    slots: Mapping[str, SlotSettings] = ANYONE,
    limits: Limits | None = None,
    patience: Patience | None = None,
    supervision: Supervision | None = None,
    opened: bool = True,
    **more: Any,
) -> AsyncIterator[Proxy]:
    """The real application under the real server on a free port; the gate is open to the first engine.

    `more` goes into the settings.
    """
    limits = limits or Limits()
    settings = Settings(
        path=Path("slotproxy.yml"),
        host="127.0.0.1",
        port=0,
        control=Path("control.sock"),
        state=Path("state"),
        card=CardSettings(simulated=1),
        engines={each.name: each for each in engines},
        default=None,
        models=models,
        slots=slots,
        limits=limits,
        **more,
    )
    gate = SlotGate(
        max_waiting=limits.max_waiting,
        max_waiting_bytes=limits.max_waiting_bytes,
        warm_turns=limits.warm_turns,
        warm_wait=limits.warm_wait,
        prefixes={each.name: each.prefixes for each in engines},
    )
    if opened:
        gate.open(engines[0].name, engines[0].concurrency, RUN)
    outcomes = Outcomes()
    async with engine_client() as client:
        in_force = InForce(settings)
        app = build_app(in_force, gate, client, outcomes=outcomes, patience=patience, supervision=supervision)
        scheme = "https" if settings.tls else "http"
        async with serving(app, in_force.certificate) as (state, port):
            try:
                url, open_now = f"{scheme}://127.0.0.1:{port}", state.connections
                yield Proxy(url, port, gate, outcomes, app, state.tasks, open_now, in_force)
            finally:
                gate.end("the test is over")
                gate.cut()


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, context: Context = lambda: None) -> AsyncIterator[tuple[ServerState, int]]:
    """What uvicorn's `serve()` does, without its signal handlers and the tenths of a second that it sleeps."""
    server = Server(config(app, context))
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        await server.startup(sockets=[listener])
        try:
            yield server.server_state, listener.getsockname()[1]
        finally:
            for each in server.servers:
                each.close()
            for connection in list(server.server_state.connections):
                connection.shutdown()
            state = server.server_state
            await eventually(lambda: not state.connections and not state.tasks)


# ---------------------------------------------------------------------------------------------------- clients


class Client:
    """A client at its socket: it sees every byte, and how the connection ends."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.got = b""

    @classmethod
    @contextlib.asynccontextmanager
    async def at(cls, port: int, **more: Any) -> AsyncIterator[Client]:
        """`more` is about the connection, such as `ssl`."""
        client = cls(*await asyncio.open_connection("127.0.0.1", port, **more))
        try:
            yield client
        finally:
            client.writer.close()

    async def post(self, path: str, body: Any, *headers: bytes) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [b"POST %b HTTP/1.1" % path.encode(), b"host: proxy", b"content-length: %d" % len(raw), *headers]
        self.writer.write(b"\r\n".join(lines) + b"\r\n\r\n" + raw)
        await self.writer.drain()

    async def until(self, end: bytes) -> bytes:
        """Read until `end` has come; all that came so far."""
        async with asyncio.timeout(WITHIN):
            while end not in self.got:
                data = await self.reader.read(65536)
                assert data, f"the connection ended after {self.got!r}"
                self.got += data
        return self.got

    async def rest(self) -> bytes:
        """Read until the proxy closes the connection; all that came."""
        async with asyncio.timeout(WITHIN):
            while data := await self.reader.read(65536):
                self.got += data
        return self.got

    @property
    def body(self) -> bytes:
        """The body so far, without its chunks' framing."""
        head, _, rest = self.got.partition(b"\r\n\r\n")
        if b"transfer-encoding: chunked" not in head.lower():
            return rest
        body = b""
        while found := re.match(rb"([0-9a-f]+)\r\n", rest):
            size = int(found[1], 16)
            body += rest[found.end() : found.end() + size]
            rest = rest[found.end() + size + 2 :]
        return body

    @property
    def ended_whole(self) -> bool:
        return self.got.endswith(b"0\r\n\r\n")


def browser(url: str = "") -> httpx.AsyncClient:
    """A client that speaks HTTP as libraries do. (Certificates, which nothing here has, would take it long to read.)"""
    return httpx.AsyncClient(base_url=url, timeout=WITHIN, verify=False, trust_env=False)


def ask(**more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], **more}


async def eventually(true: Callable[[], bool], within: float = WITHIN) -> None:
    async with asyncio.timeout(within):
        while not true():  # noqa: ASYNC110  (what it waits for has no event to offer)
            await asyncio.sleep(0.01)
