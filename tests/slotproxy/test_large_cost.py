"""What large bodies cost: memory for themselves alone, and no turn of the event loop. The proxy is a process alone."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from engines.spec import MiB
from tests.bench.bodies import body
from tests.bench.house import House, Reading
from tests.bench.large import send
from tests.bench.upstream import upstream
from tests.bench.waiting import until_waiting
from tests.slotproxy.rig import WITHIN

A_COPY = 0.5  # bytes for a byte, beyond the body itself: where a copy is made of the whole it is 1 at least
A_TURN = 0.1  # seconds of computing: what takes a few ms, measured without what other programs take


def decoding(raw: bytes) -> float:
    """Seconds of computing that a decoder takes on it in one go."""
    began = time.thread_time()
    msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    return time.thread_time() - began


async def given_back(house: House, all_but: float) -> Reading:
    """Once it has given back all but so many bytes."""
    async with asyncio.timeout(WITHIN):
        while (read := await house.read()).now - read.before >= all_but:  # noqa: ASYNC110  (it is another process)
            await asyncio.sleep(0.05)
    return read


@pytest.mark.parametrize("kind", ["image", "numbers"])
async def test_a_large_body_takes_memory_once_and_no_turn_of_the_loop_and_gives_it_back(kind: str) -> None:
    raw = body(kind, 32 * MiB)
    async with upstream() as port, House.at(f"http://127.0.0.1:{port}", "1") as house:
        await asyncio.to_thread(send, house.port, body("image", MiB))  # what is only ever needed once
        await house.mark()
        await asyncio.to_thread(send, house.port, raw)
        read = await given_back(house, A_COPY * len(raw))
        assert read.peak - read.before < (1 + A_COPY) * len(raw)
        assert read.busy < max(A_TURN, decoding(raw)) / 2


async def test_sixteen_bodies_of_12_mib_that_wait_take_their_bytes_and_no_more_and_give_them_back() -> None:
    raw, many = body("image", 12 * MiB), 16
    async with upstream() as port, House.at(f"http://127.0.0.1:{port}", "1") as house:
        await asyncio.to_thread(send, house.port, body("image", MiB))
        await house.tell("close")
        await house.mark()
        with ThreadPoolExecutor(many) as threads:
            sent = [threads.submit(send, house.port, raw) for _ in range(many)]
            waiting = await until_waiting(house, many)
            await house.tell("open")
            await asyncio.gather(*map(asyncio.wrap_future, sent))
        read = await given_back(house, A_COPY * len(raw) * many)
        assert len(raw) * many < waiting.now - read.before < (1 + A_COPY) * len(raw) * many
        assert read.peak - read.before < (1 + A_COPY) * len(raw) * many
        assert read.busy < A_TURN
