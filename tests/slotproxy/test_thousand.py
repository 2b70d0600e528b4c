"""1,000 clients that wait: through a swap, for an engine with one place, or until all of them leave."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import yaml

from engines.spec import CHAT
from slotproxy.files import raise_limit
from tests.bench import waiting as crowd
from tests.bench.house import House
from tests.bench.upstream import upstream
from tests.slotproxy.programs import LIMIT, Json, Serve, chat, ended_engines, get, quick_house, until

CLIENTS = 1000
WITHIN = 110.0  # seconds for what takes about ten: the machine may be busy


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """NInfer serves. Strata is proven, answers at once and keeps a log of what it was asked."""
    limits = {"max_waiting": 2 * CLIENTS, "first_ping": "500ms", "ping_every": "1s"}
    slots = {"anonymous": {"max_waiting": CLIENTS, "max_hold": "100s"}}
    path = quick_house(tmp_path, limits=limits, slots=slots, drain="100s")
    house = yaml.safe_load(path.read_text())
    knobs = {"REQUEST_LOG": str(tmp_path / "asked"), "DECODE": "0", "THINKING": "0", "PREFILL": "1000000"}
    house["engines"]["strata"]["env"] |= {f"STRATA_SIM_{name}": value for name, value in knobs.items()}
    path.write_text(yaml.safe_dump(house, sort_keys=False))
    with ended_engines(tmp_path), Serve(path, PYTHONASYNCIODEBUG="") as serve:  # which takes ten times as long
        serve.event("slotproxy is up")
        for engine in ("strata", "ninfer"):
            assert serve.slotctl("swap", f"to-{engine}", "--trial").returncode == 0
        yield serve


def asked(folder: Path) -> list[Json]:
    """What the engine says of our clients' requests, in the order in which it happened."""
    lines = [json.loads(line) for line in (folder / "asked").read_text().splitlines()]
    return [line for line in lines if (line["id"] or "").startswith("client-")]


class Clients:
    """Their sockets. Each asks once; every second one for a stream."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}

    async def come(self, port: int) -> None:
        for n in range(CLIENTS):
            body = json.dumps(chat(1, messages=[{"role": "user", "content": f"I am number {n}"}], stream=n % 2 == 1))
            name = f"client-{n:04}"
            head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nx-request-id: {name}\r\ncontent-length: {len(body)}\r\n\r\n"
            _, writer = self._open[name] = await asyncio.open_connection("127.0.0.1", port)
            writer.write((head + body).encode())

    async def answers(self) -> dict[str, bytes]:
        """All that each was sent; after its answer each says that it has no more to ask."""
        async with asyncio.timeout(WITHIN):
            answers = await asyncio.gather(*(_answer(*pair) for pair in self._open.values()))
        return dict(zip(self._open, answers, strict=True))

    async def leave(self) -> None:
        for _, writer in self._open.values():
            writer.close()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    if length := re.search(rb"content-length: (\d+)", head):
        body = await reader.readexactly(int(length[1]))
    else:
        body = await reader.readuntil(b"\r\n0\r\n\r\n")
    writer.write_eof()
    return head + body + await reader.read()


def at_most_one(serve: Serve) -> bool:
    gate = serve.status()["gate"]
    assert gate["in_flight"] + gate["settling"] <= 1, "the engine has one place"
    return True


def line(control: Path) -> list[str]:
    """Who waits, in the order of the slot's line."""
    waiting = [each for each in get(control, "/slots")["requests"] if each["position"] is not None]
    return [each["id"] for each in sorted(waiting, key=lambda each: each["position"])]


def check_answer(answer: bytes, stream: bool) -> None:
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    assert answer.count(b"HTTP/1.1 ") == 1, answer
    if stream:
        assert answer.count(b"data: [DONE]") == 1, answer
        assert answer.endswith(b"\r\n0\r\n\r\n"), answer
        assert b": keep-alive" in answer, "it has waited, and wasn't told"
    else:
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["choices"]


def check_engine(asked: list[Json], order: list[str]) -> None:
    """It was asked for each, once, in that order, and all of them were begun and finished."""
    assert len(order) == len(set(order)) == CLIENTS
    for event in ("received", "started", "finished"):
        assert [each["id"] for each in asked if each["event"] == event] == order
    assert len(asked) == 3 * CLIENTS


def test_1000_clients_that_wait_through_a_swap_are_answered_in_order_and_none_twice(
    serve: Serve, tmp_path: Path
) -> None:
    raise_limit()
    clients, port = Clients(), int(serve.url.rpartition(":")[2])
    with ThreadPoolExecutor(2) as pool, asyncio.Runner() as runner:
        with httpx.stream("POST", serve.url + CHAT, json=chat(10_000, stream=True), timeout=LIMIT) as busy:
            assert busy.headers["x-slotproxy-engine"] == "ninfer"
            swap = pool.submit(serve.slotctl, "swap", "to-strata")
            until(lambda: serve.status()["gate"]["state"] == "closed")
            runner.run(clients.come(port))
            until(lambda: serve.status()["gate"]["waiting"] == CLIENTS)
            order = line(serve.control)
        answered = pool.submit(runner.run, clients.answers())
        until(lambda: at_most_one(serve) and answered.done(), WITHIN)
        answers = answered.result()
        runner.run(clients.leave())
        assert swap.result().returncode == 0
    for name, answer in answers.items():
        check_answer(answer, stream=int(name[-1]) % 2 == 1)
    told = asked(tmp_path)
    check_engine(told, order)
    logging.getLogger(__name__).info("from the first answer to the last: %.1f s", told[-1]["time"] - told[0]["time"])
    assert serve.status()["gate"]["waiting_bytes"] == 0
    assert [each for each in serve.log if each["level"] == "error"] == []


async def test_1000_clients_that_leave_at_once_free_their_places_and_bytes_and_are_never_sent() -> None:
    """Real sockets; the proxy and its engine are processes of their own."""
    raise_limit()
    async with upstream() as port, House.at(f"http://127.0.0.1:{port}", "1") as house:
        await house.tell("close")
        clients = [crowd.Client(house.port, crowd.asking(stream=n % 2 == 1)) for n in range(CLIENTS)]
        for client in clients:
            await client.come()
        assert (await crowd.until_waiting(house, CLIENTS)).waiting_bytes > CLIENTS
        await house.mark()
        for client in clients:
            client.leave()
        async with asyncio.timeout(LIMIT):
            while (left := await house.read()).waiting:  # noqa: ASYNC110  (it is another process)
                await asyncio.sleep(0.05)
        assert left.waiting_bytes == 0
        await house.tell("open")
        last = crowd.Client(house.port, crowd.asking(stream=False))
        await last.come()
        await asyncio.wait_for(last.answered(), LIMIT)
        last.leave()
        async with asyncio.timeout(LIMIT):
            while not (read := await house.read()).served:  # noqa: ASYNC110  (it is another process)
                await asyncio.sleep(0.05)
        assert read.served == 1, "none of those who left was sent"
