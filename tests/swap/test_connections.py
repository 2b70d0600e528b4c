"""Who is cancelled while a connection is made leaves none behind, whenever it is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from swap.connections import OwnConnections
from swap.readiness import Readiness
from tests.swap.test_readiness import SURE, serving
from tests.swap.world import until

TURNS = 40  # of the event loop, more than a connection and a request take to be made


class Door:
    """A server that answers nobody, and how many connections to it are open."""

    def __init__(self) -> None:
        self.open, self.ever = 0, 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open, self.ever = self.open + 1, self.ever + 1
        with contextlib.suppress(ConnectionError):
            await reader.read()  # until the other side closes it
        self.open -= 1
        writer.close()


@asynccontextmanager
async def door() -> AsyncIterator[Door]:
    one = Door()
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    one.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield one
    server.close()


async def test_a_request_that_is_cancelled_at_any_moment_leaves_no_connection_behind() -> None:
    async with asyncio.timeout(SURE), door() as one:
        async with httpx.AsyncClient(transport=OwnConnections()) as client:
            for turns in range(TURNS):
                await cancelled(client, one.url, turns)
            await until(lambda: not one.open)
        assert one.ever > TURNS // 2


async def cancelled(client: httpx.AsyncClient, url: str, turns: int) -> None:
    """After so many turns of the loop."""
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(client.get(url))
        for _ in range(turns):
            await asyncio.sleep(0)
        asking.cancel()


async def test_readiness_asks_that_way() -> None:
    readiness = Readiness()
    async with asyncio.timeout(SURE), serving() as server:
        assert await readiness.completes(server.engine(patience=SURE))
    await readiness.close()
