"""Hostile HTTP at the client port: raw sockets, the real server, an engine that records what it saw."""

from __future__ import annotations

import asyncio
import time

import hypothesis
from hypothesis import strategies as st

from tests.slotproxy.rig import Client, engine, proxied

_ROUND = 200  # examples between two looks at the clock


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

    @hypothesis.seed(seed)
    @hypothesis.settings(max_examples=count, database=None)
    @hypothesis.given(st.binary(max_size=200))
    def example(sent: bytes) -> None:
        asyncio.run(_answered(sent))

    example()


async def _answered(sent: bytes) -> None:
    async with proxied(engine("http://127.0.0.1:1")) as proxy, Client.at(proxy.port) as client:
        client.writer.write(sent)
        client.writer.write_eof()
        got = await client.rest()
    assert not got or got.startswith(b"HTTP/1.1 "), got
