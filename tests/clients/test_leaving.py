"""Clients that leave, each in its own way: the place is free at once, and the engine's work ends."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import httpx
import pytest

from tests.clients.commands import CHAT, body_of, curl_command, fetch_command, head, needs, wget_command
from tests.clients.house import House, Target
from tests.clients.sdks import USER, async_client, sync_client

ENDLESS = 4000  # tokens
Leaving = Callable[[Target, House], AbstractContextManager[None]]


def endless(target: Target) -> dict[str, Any]:
    return body_of(target, max_tokens=ENDLESS, stream=True)


@contextmanager
def openai_closes(target: Target, house: House) -> Iterator[None]:
    with sync_client("openai", target) as client:
        asks: Any = {"model": target.model, "messages": USER, "max_tokens": ENDLESS, "stream": True}
        stream = client.chat.completions.create(**asks)
        next(iter(stream))
        stream.close()
        yield


@contextmanager
def anthropic_breaks_off(target: Target, house: House) -> Iterator[None]:
    with sync_client("anthropic", target) as client:
        with client.messages.stream(model=target.model, max_tokens=ENDLESS, messages=USER) as stream:
            next(iter(stream.text_stream))
        yield


@contextmanager
def task_is_cancelled(target: Target, house: House) -> Iterator[None]:
    """An asynchronous caller that gives up in the middle of the answer, and one that does before it began."""

    async def asked(reading: asyncio.Event) -> None:
        async with async_client("openai", target) as client:
            asks: Any = {"model": target.model, "messages": USER, "max_tokens": ENDLESS, "stream": True}
            async for _ in await client.chat.completions.create(**asks):
                reading.set()

    async def left() -> None:
        reading = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(asked(reading))
            await reading.wait()
            task.cancel()

    asyncio.run(left())
    yield


@contextmanager
def httpx_closes(target: Target, house: House) -> Iterator[None]:
    with httpx.Client(timeout=30, trust_env=False) as client:
        with client.stream("POST", target.url + CHAT, json=endless(target), headers=head(target)) as answer:
            next(answer.iter_lines())
        yield


@contextmanager
def aiohttp_times_out(target: Target, house: House) -> Iterator[None]:
    async def asked() -> None:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(0.6)) as session,
            session.post(target.url + CHAT, json=endless(target), headers=head(target)) as answer,
        ):
            async for _ in answer.content:
                pass

    with pytest.raises(TimeoutError):
        asyncio.run(asked())
    yield


@contextmanager
def running(command: Sequence[str], stdin: bytes = b"") -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        try:
            if stdin:
                process.stdin.write(stdin)
                process.stdin.close()
            assert process.stdout.read(20)
            yield process
        finally:
            process.kill()


@contextmanager
def curl_is_killed(target: Target, house: House) -> Iterator[None]:
    command = curl_command(target, "-N", "--data-binary", json.dumps(endless(target)))
    with running(command):
        pass
    yield


@contextmanager
def wget_is_killed(target: Target, house: House) -> Iterator[None]:
    with running(wget_command(target, endless(target))):
        pass
    yield


@contextmanager
def fetch_aborts(target: Target, house: House) -> Iterator[None]:
    """The process lives on: it's the AbortController that ends the request."""
    with running(fetch_command(target, endless(target), leave=100)) as process:
        assert process.stderr
        assert process.stderr.readline().startswith(b"AbortError")
        yield
        assert process.poll() is None


WAYS = [
    openai_closes,
    anthropic_breaks_off,
    task_is_cancelled,
    httpx_closes,
    aiohttp_times_out,
    pytest.param(curl_is_killed, marks=needs("curl")),
    pytest.param(wget_is_killed, marks=needs("wget")),
    pytest.param(fetch_aborts, marks=needs("node")),
]


@pytest.mark.parametrize("leaves", WAYS)
def test_who_leaves_in_the_middle_of_an_answer_frees_its_place(leaves: Leaving, house: House) -> None:
    house.serve("ninfer")
    before = house.count("over", how="cancelled")
    with leaves(house.through, house):
        house.until(lambda: house.at_rest)
        assert house.count("over", how="cancelled") == before + 1


@needs("curl")
@needs("node")
def test_who_leaves_while_it_waits_for_the_card_is_never_sent_to_an_engine(house: House) -> None:
    house.serve("strata")
    targets = {name: replace(house.through, id=f"gone-{name}") for name in ("curl", "fetch")}
    curl = curl_command(targets["curl"], "-N", "-d", json.dumps(endless(targets["curl"])))
    fetch = fetch_command(targets["fetch"], endless(targets["fetch"]))
    with house.changing_to("ninfer"):
        with running(curl), running(fetch):  # their first ping has come
            assert house.gate["waiting"] == 2
        house.until(lambda: house.gate["waiting"] == 0)
    assert [house.received(str(one.id)) for one in targets.values()] == [0, 0]
