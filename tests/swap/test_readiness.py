"""Is it ready? Asked of small real HTTP servers that misbehave as engines do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from engines.llamacpp.profile import PROFILE as LLAMACPP
from engines.openai.profile import PROFILE as OPENAI
from engines.spec import Engine, Profile, Sign
from engines.strata.profile import PROFILE as STRATA
from swap import readiness as readiness_module
from swap.ports import Fault
from swap.readiness import Answered, Readiness

SOON = 0.3  # seconds that a sign may take here
SURE = 20.0  # seconds within which every question has ended, however busy the machine

Reply = Callable[[asyncio.StreamWriter], Awaitable[None]]


def http(status: int, body: bytes | dict[str, Any]) -> Reply:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def reply(writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)

    return reply


def raw(data: bytes) -> Reply:
    async def reply(writer: asyncio.StreamWriter) -> None:
        writer.write(data)

    return reply


async def silent(_: asyncio.StreamWriter) -> None:
    """Accepts and says nothing, as NInfer does while it loads."""
    await asyncio.sleep(SURE)


async def trickle(writer: asyncio.StreamWriter) -> None:
    """Always one more byte, never the last."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.02)


async def flood(writer: asyncio.StreamWriter) -> None:
    """Far more than any engine has to say, and no end."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
    for _ in range(64):
        writer.write(bytes(65536))
        await writer.drain()
    await asyncio.sleep(SURE)


COMPLETION = {
    "choices": [{"message": {"content": "OK"}, "finish_reason": "stop"}],
    "usage": {"completion_tokens": 3},
}
MODELS = {"data": [{"id": "qwen3.8-27b"}, {"id": "other"}]}


@dataclass
class Server:
    """A small server: what it answers by path, and what it was sent. Each connection is one exchange."""

    replies: dict[str, Reply]
    heads: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            length = next((line for line in head.lower().splitlines() if line.startswith("content-length:")), ":0")
            if size := int(length.partition(":")[2]):
                self.bodies.append(json.loads(await reader.readexactly(size)))
            await self.replies.get(head.split()[1], http(404, b"no such path"))(writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # it has left
        finally:
            writer.close()

    def engine(self, profile: Profile = LLAMACPP, patience: float = SOON, **more: Any) -> Engine:
        """An engine at this address, whose sign may take so long."""
        if profile.sign is not None:
            profile = replace(profile, sign=replace(profile.sign, timeout=patience))
        return Engine(name="engine", profile=profile, url=self.url, vram=0, pairs={}, deployed="", **more)


@asynccontextmanager
async def serving(**replies: Reply) -> AsyncIterator[Server]:
    """`health`, `models` and `chat` by name."""
    paths = {"health": "/health", "models": "/v1/models", "chat": "/v1/chat/completions"}
    ready = {"health": http(200, {}), "models": http(200, MODELS), "chat": http(200, COMPLETION)}
    server = Server({paths[name]: reply for name, reply in {**ready, **replies}.items()})
    async with asyncio.TaskGroup() as tasks:
        clients: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            clients.add(tasks.create_task(server.serve(reader, writer)))

        listening = await asyncio.start_server(accept, "127.0.0.1", 0)
        server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        yield server
        listening.close()
        for client in clients:
            client.cancel()


@pytest.fixture(scope="module")
def shared() -> Iterator[Readiness]:
    """One for all tests: reading the certificates of the world takes longer than any of them."""
    readiness = Readiness()
    yield readiness
    asyncio.run(readiness.close())


@pytest.fixture
async def readiness(shared: Readiness) -> AsyncIterator[Readiness]:
    async with asyncio.timeout(SURE):
        yield shared


# ------------------------------------------------------------------------------------------------- an engine that is


async def test_a_ready_engine_gives_its_sign_and_a_completion_with_as_many_tokens_as_it_counted(
    readiness: Readiness,
) -> None:
    async with serving() as server:
        assert await readiness.sign(server.engine())
        assert await readiness.completes(server.engine()) == Answered(3)


async def test_tokens_that_the_engine_doesnt_count_are_those_asked_for(readiness: Readiness) -> None:
    for usage in ({}, {"usage": None}, {"usage": {"completion_tokens": "many"}}):
        answer = {"choices": COMPLETION["choices"], **usage}
        async with serving(chat=http(200, answer)) as server:
            assert await readiness.generates(server.engine(), 2) == Answered(2)
            assert await readiness.completes(server.engine(probe_tokens=5)) == Answered(5)
            assert [body["max_tokens"] for body in server.bodies] == [2, 5]


async def test_the_first_model_that_the_engine_names_is_asked_for_or_the_configured_one(readiness: Readiness) -> None:
    async with serving() as server:
        await readiness.completes(server.engine())
        await readiness.completes(server.engine(probe_model="mine"))
        assert [body["model"] for body in server.bodies] == ["qwen3.8-27b", "mine"]


async def test_speed_is_what_the_engine_measured_or_else_tokens_by_the_time_that_the_answer_took(
    readiness: Readiness,
) -> None:
    async def slow(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(SOON)
        await http(200, COMPLETION)(writer)

    async with serving(chat=slow) as server:
        answered = await readiness.generates(server.engine(), 64)
        assert answered.tokens == 3  # fewer than asked for: its text had come to an end
        assert SOON <= answered.seconds < SURE
        assert answered.tokens_per_second == 3 / answered.seconds
    for timings, speed in (({"predicted_per_second": 161.5}, 161.5), ({"predicted_per_second": 0}, None), ([], None)):
        async with serving(chat=http(200, {**COMPLETION, "timings": timings})) as server:
            answered = await readiness.generates(server.engine(), 64)
            assert answered.measured == speed
            assert answered.tokens_per_second == (speed or 3 / answered.seconds)


async def test_what_came_in_place_of_a_completion_is_told_and_in_time(
    readiness: Readiness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness_module, "COMPLETION_LIMIT", SOON)
    monkeypatch.setattr(readiness_module, "SLOWEST", 0.001)
    out_of_memory = http(500, {"error": "CUDA out of memory"})
    for reply, said in ((out_of_memory, r"HTTP 500: .*CUDA out of memory"), (silent, "no whole answer in")):
        async with serving(chat=reply) as server:
            with pytest.raises(Fault, match=said):
                await readiness.generates(server.engine(), 64)


@pytest.mark.parametrize("models", [http(404, b""), http(200, b"[]"), http(200, {"data": []}), raw(b"")])
async def test_an_engine_that_names_no_model_is_asked_all_the_same(readiness: Readiness, models: Reply) -> None:
    async with serving(models=models) as server:
        assert await readiness.completes(server.engine()) == Answered(3)
        assert server.bodies[0]["model"] == "engine"


async def test_each_question_is_a_connection_of_its_own_with_the_engines_key_and_no_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    readiness = Readiness()
    async with serving() as server:
        engine = server.engine(api_key="k3y")
        assert await readiness.sign(engine)
        assert await readiness.completes(engine)
        assert len(server.heads) == 3
        for head in server.heads:
            assert "connection: close" in head.lower()
            assert "accept-encoding: identity" in head.lower()
            assert "Authorization: Bearer k3y" in head
    await readiness.close()


async def test_a_profile_without_a_sign_asks_nothing(readiness: Readiness) -> None:
    async with serving() as server:
        assert await readiness.sign(server.engine(OPENAI))
        assert server.heads == []


# ------------------------------------------------------------------------------------------------- engines that aren't


WRONG: dict[str, Reply] = {
    "503": http(503, {"error": {"message": "Loading model"}}),
    "401": http(401, b"no"),
    "a redirect": raw(b"HTTP/1.1 302 Found\r\nLocation: /health\r\nContent-Length: 0\r\n\r\n"),
    "no answer at all": silent,
    "a closed connection": raw(b""),
    "garbage": raw(b"\x16\x03\x01\x02\x00garbage\r\n\r\n"),
    "half an answer": raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"),
    "a broken chunk": raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
    "garbage that claims to be compressed": raw(
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope"
    ),
    "a trickle": trickle,
    "a flood": flood,
}


@pytest.mark.parametrize("reply", WRONG.values(), ids=WRONG)
async def test_what_isnt_an_answer_is_not_ready_and_ends_in_time(
    readiness: Readiness, reply: Reply, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness_module, "COMPLETION_LIMIT", SOON)
    async with serving(health=reply, chat=reply) as server:
        assert not await readiness.sign(server.engine())
        assert await readiness.completes(server.engine(probe_model="m")) is None


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "engine died"}},
        {"choices": []},
        {"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]},
        b"OK",
        b"",
        b"\xff\xfe",
    ],
)
async def test_a_200_without_a_completion_in_it_is_not_ready(
    readiness: Readiness, body: bytes | dict[str, Any]
) -> None:
    async with serving(chat=http(200, body)) as server:
        assert await readiness.completes(server.engine()) is None


@pytest.mark.parametrize("health", [{"status": "ok", "loaded": False}, {"status": "ok"}, [], b"ok"])
async def test_healthy_and_not_loaded_is_not_ready(readiness: Readiness, health: Any) -> None:
    async with serving(
        health=http(200, health if isinstance(health, bytes) else json.dumps(health).encode())
    ) as server:
        assert not await readiness.sign(server.engine(STRATA))


async def test_where_nobody_listens_nobody_is_ready(readiness: Readiness) -> None:
    async with serving() as server:
        engine = server.engine()
    assert not await readiness.sign(engine)
    assert await readiness.completes(engine) is None


async def test_a_slow_sign_has_its_own_short_time_and_a_slow_completion_a_long_one(readiness: Readiness) -> None:
    async def slow(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(3 * SOON)
        await http(200, COMPLETION)(writer)

    async with serving(health=slow, chat=slow) as server:
        assert not await readiness.sign(server.engine())
        assert await readiness.completes(server.engine()) == Answered(3)


async def test_who_says_too_much_isnt_listened_to_till_his_time_is_up(readiness: Readiness) -> None:
    async with serving(health=flood, chat=flood) as server:
        patient = replace(LLAMACPP, sign=Sign("/health", lambda *_: True))
        async with asyncio.timeout(SURE / 2):
            assert not await readiness.sign(server.engine(patient, patience=SURE))
            assert await readiness.completes(server.engine(probe_model="m")) is None


async def test_the_sign_is_judged_by_its_profile(readiness: Readiness) -> None:
    odd = replace(LLAMACPP, sign=Sign("/health", lambda status, body: (status, body) == (418, b"ready")))
    async with serving(health=http(418, b"ready")) as server:
        assert await readiness.sign(server.engine(odd))
