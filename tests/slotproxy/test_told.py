"""An answer that takes long: signs of life, what is under way, and the answer last."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any

import pytest

from slotproxy import told
from slotproxy.ending import Stopping
from slotproxy.refusal import Refusal
from slotproxy.told import Told
from swap.ports import Fault
from swap.reading import Say
from tests.swap.world import until

SOON = 20.0  # seconds that anything here may take on a busy machine


class Listener:
    """The client's side of one answer."""

    def __init__(self) -> None:
        self.sent: list[MutableMapping[str, Any]] = []
        self.left = asyncio.Event()

    async def receive(self) -> MutableMapping[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        self.sent.append(message)

    @property
    def lines(self) -> list[dict[str, Any]]:
        bodies = b"".join(one.get("body", b"") for one in self.sent)
        return [json.loads(line) for line in bodies.splitlines()]

    async def listen(self, answer: Told) -> list[dict[str, Any]]:
        async with asyncio.timeout(SOON):
            await answer({"type": "http"}, self.receive, self.send)
        return self.lines

    async def hears(self, key: str) -> None:
        await until(lambda: any(key in line for line in self.lines))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told, "TICK", 0.02)


async def test_what_is_answered_at_once_is_one_line() -> None:
    async def work(say: Say) -> dict[str, Any]:
        say("begun")
        return {"code": 0}

    assert await Listener().listen(Told(work, asyncio.Event())) == [{"done": True, "code": 0}]


async def test_each_word_is_told_once_between_signs_of_life() -> None:
    listener = Listener()

    async def work(say: Say) -> dict[str, Any]:
        say("hashing a: 1.0 of 2.0 GiB")
        await listener.hears("phase")
        await listener.hears("tick")
        return {"code": 0}

    lines = await listener.listen(Told(work, asyncio.Event()))
    assert [line["text"] for line in lines if "phase" in line] == ["hashing a: 1.0 of 2.0 GiB"]
    assert lines[-1] == {"done": True, "code": 0}
    assert [message["type"] for message in listener.sent].count("http.response.start") == 1
    assert listener.sent[-1]["more_body"] is False


@pytest.mark.parametrize("error", [Refusal("no", "do this", 3), Fault("no", "do this")])
async def test_a_no_is_an_error_at_once_and_the_last_line_later(error: Exception) -> None:
    listener = Listener()

    async def at_once(_: Say) -> dict[str, Any]:
        raise error

    with pytest.raises(type(error)):
        await listener.listen(Told(at_once, asyncio.Event()))
    assert listener.sent == []

    async def later(_: Say) -> dict[str, Any]:
        await listener.hears("tick")
        raise error

    lines = await listener.listen(Told(later, asyncio.Event()))
    assert lines[-1] == {"done": True, "code": 3, "text": "no", "mend": "do this"}


@pytest.mark.parametrize("goes_on", [False, True])
async def test_when_nobody_listens_any_more_it_ends_unless_it_changes_something(*, goes_on: bool) -> None:
    listener, begun, let_go, ended = Listener(), asyncio.Event(), asyncio.Event(), []

    async def work(_: Say) -> dict[str, Any]:
        begun.set()
        await let_go.wait()
        ended.append("to the end")
        return {"code": 0}

    async with asyncio.TaskGroup() as tasks:
        answering = tasks.create_task(listener.listen(Told(work, asyncio.Event(), goes_on=goes_on)))
        await begun.wait()
        listener.left.set()
        await asyncio.wait([answering], timeout=0.2 if goes_on else SOON)
        assert answering.done() is not goes_on
        let_go.set()
    assert ended == (["to the end"] if goes_on else [])


async def test_when_the_daemon_stops_a_stream_ends_without_its_last_line() -> None:
    stop, listener = asyncio.Event(), Listener()

    async def work(_: Say) -> dict[str, Any]:
        await listener.hears("tick")
        stop.set()
        await asyncio.sleep(SOON)
        return {"code": 0}

    lines = await listener.listen(Told(work, stop))
    assert not any("done" in line for line in lines)
    assert listener.sent[-1]["more_body"] is False
    with pytest.raises(Stopping):
        await Listener().listen(Told(work, stop))
