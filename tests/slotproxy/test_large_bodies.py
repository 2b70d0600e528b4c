"""Case 5: prompts with images in them, of 12 and of 64 MiB, many at once: bounded, told in JSON, nobody stalled."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from engines.spec import CHAT, MESSAGES, MiB
from slotproxy.config import Limits
from slotproxy.outcomes import Outcome
from tests.slotproxy.rig import WITHIN, browser, eventually, proxied
from tests.slotproxy.rig import engine as an_engine

LONGEST = 0.1  # seconds that the event loop may be at one thing
TRIES = 3  # another program may cost it its cache; what is done in one go takes as long every time
LATE = 60.0  # seconds for hundreds of MiB on a busy machine
MODELS = {"m": {"strata": "a-longer-name"}}
START = b'{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:;base64,'
END = b'"}}]}]}'


def prompt(size: int, model: bytes = b"m") -> bytes:
    """A chat of one base64 image, so many bytes in all where the model is `m`."""
    image = b"iVBOR+/=" * ((size - len(START) - len(END)) // 8)
    return START.replace(b'"m"', b'"%b"' % model, 1) + image + END


class Swallowing:
    """An engine that keeps nothing of what it reads but its sha256."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            self.seen.append(await self._read(reader, int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    async def _read(self, reader: asyncio.StreamReader, left: int) -> str:
        digest = hashlib.sha256()
        while left and (data := await reader.read(min(left, 65536))):
            digest.update(data)
            left -= len(data)
        return digest.hexdigest()


class Stall:
    """What the event loop was at without a pause, at most. In seconds of CPU: on a busy machine it waits for others."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def watch(self) -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0.005)
            now = time.thread_time()
            self.longest, last = max(self.longest, now - last), now


@contextlib.asynccontextmanager
async def watched() -> AsyncIterator[Stall]:
    async with asyncio.TaskGroup() as group:
        stall = Stall()
        watching = group.create_task(stall.watch())
        yield stall
        watching.cancel()


def post(port: int, path: str, body: bytes, *, chunked: bool = False) -> bytes:
    """The whole answer of one request, by a client in a thread that writes all before it reads."""
    framing = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % len(body)
    with socket.create_connection(("127.0.0.1", port), LATE) as client:
        client.sendall(b"POST %b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n%b\r\n\r\n" % (path.encode(), framing))
        if chunked:
            client.sendall(b"%x\r\n" % len(body))
        client.sendall(body)
        if chunked:
            client.sendall(b"\r\n0\r\n\r\n")
        return b"".join(iter(lambda: client.recv(65536), b""))


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(24) as pool:
        yield pool


@pytest.mark.parametrize(("size", "count"), [(12 * MiB, 16), (64 * MiB, 4)])
async def test_case_5_many_are_held_at_once_within_a_budget_and_nobody_else_waits_for_them(
    size: int, count: int, threads: ThreadPoolExecutor
) -> None:
    """Case 5: sixteen of 12 MiB, and as many of 64 MiB as the usual budget holds; one more is a 429 at once."""
    for left in reversed(range(TRIES)):
        stalled = await held_and_served(size, count, threads)
        if stalled < LONGEST:
            break
        assert left, f"the event loop was at one thing for {stalled:.3f} s"


async def held_and_served(size: int, count: int, threads: ThreadPoolExecutor) -> float:
    """How long everybody else stood still, in seconds."""
    body, loop, engine = prompt(size), asyncio.get_running_loop(), Swallowing()
    limits = Limits(max_body=size, max_waiting_bytes=count * len(body))
    async with (
        await asyncio.start_server(engine, "127.0.0.1", 0) as server,
        proxied(
            an_engine(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"),
            models=MODELS,
            limits=limits,
            opened=False,
        ) as proxy,
        watched() as stall,
    ):
        held = [loop.run_in_executor(threads, post, proxy.port, CHAT, body) for _ in range(count)]
        await eventually(lambda: proxy.gate.view().waiting == count, within=LATE)
        assert proxy.gate.view().waiting_bytes == count * len(body)
        one_more = await loop.run_in_executor(threads, post, proxy.port, CHAT, body)
        assert one_more.startswith(b"HTTP/1.1 429 ")
        assert b"\r\nretry-after: " in one_more
        assert json.loads(one_more.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_many_requests"
        proxy.gate.open("strata", 1)
        assert {(await one)[:12] for one in held} == {b"HTTP/1.1 200"}
        assert proxy.outcomes.counts == {Outcome.SERVED: count, Outcome.REFUSED: 1}
    assert set(engine.seen) == {hashlib.sha256(prompt(size, b"a-longer-name")).hexdigest()}
    assert len(engine.seen) == count
    return stall.longest


@pytest.mark.parametrize(
    ("path", "chunked"), [(CHAT, False), (MESSAGES, True)], ids=["chat, announced", "messages, in chunks"]
)
async def test_case_5_past_the_limit_is_a_413_in_json_and_others_are_served_meanwhile(
    path: str, chunked: bool, threads: ThreadPoolExecutor
) -> None:
    """Case 5: 64 MiB where 32 are accepted, as it is without a word in the configuration."""
    body, loop, engine = prompt(64 * MiB), asyncio.get_running_loop(), Swallowing()
    async with (
        await asyncio.start_server(engine, "127.0.0.1", 0) as server,
        proxied(an_engine(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")) as proxy,
        watched() as stall,
        browser() as client,
    ):
        refused = loop.run_in_executor(threads, lambda: post(proxy.port, path, body, chunked=chunked))
        assert (await client.post(proxy.url + CHAT, json={"model": "m", "messages": []})).status_code == 200
        said = await asyncio.wait_for(refused, WITHIN)
        head, _, told = said.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 413 ")
        assert b"\r\ncontent-type: application/json" in head
        assert "33554432 bytes" in json.loads(told)["error"]["message"]
    assert stall.longest < LONGEST
    assert len(engine.seen) == 1
