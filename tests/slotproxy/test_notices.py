"""What people are told by `notify:`, and when; in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from slotproxy import notices
from slotproxy.notices import LIMIT, QUIET, Channel, Notice, NotTold, Quiet
from swap.decisions import Decision, Decisions, Kind
from tests.simulated_time import in_simulated_time

PAUSES = (2.0, 10.0)


def decided(text: str, kind: Kind = Kind.DARK, why: str = "") -> Decision:
    return Decisions().add(kind, text, why=why)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


class Post:
    """Who is told: does what `answers` says, try by try, then takes everything."""

    def __init__(self, *answers: Callable[[], object]) -> None:
        self.answers = list(answers)
        self.tried: list[tuple[float, str]] = []
        self.decisions = Decisions()

    async def send(self, notice: Notice) -> None:
        self.tried.append((asyncio.get_running_loop().time(), notice.decision.text))
        if self.answers:
            await asyncio.sleep(0)
            self.answers.pop(0)()

    @asynccontextmanager
    async def channel(self, pauses: tuple[float, ...] = PAUSES) -> AsyncIterator[Channel]:
        channel = Channel("webhook", self.send, self.decisions, pauses)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(channel.run())
            yield channel
            await channel.told()
            task.cancel()

    @property
    def notes(self) -> list[tuple[str, str]]:
        return [(one.text, one.why) for one in self.decisions.last() if one.kind is Kind.NOTICE]


def no(*, again: bool) -> Callable[[], object]:
    def answer() -> None:
        raise NotTold("it said no", again=again)

    return answer


def breaks() -> None:
    raise RuntimeError("broken")


# ------------------------------------------------------------------------------------------------- a channel


@in_simulated_time
async def test_what_may_work_the_next_time_is_tried_again_after_longer_and_longer_pauses() -> None:
    post = Post(no(again=True), no(again=True))
    async with post.channel() as channel:
        channel.add(Notice(decided("dark")))
    assert post.tried == [(0.0, "dark"), (2.0, "dark"), (12.0, "dark")]
    assert post.notes == []


@in_simulated_time
async def test_what_cant_be_told_is_an_event_and_the_next_is_told() -> None:
    post = Post(*[no(again=True)] * 3, no(again=False), breaks)
    async with post.channel() as channel:
        for text in ("one", "two", "three", "four"):
            channel.add(Notice(decided(text)))
    assert [text for _, text in post.tried] == ["one", "one", "one", "two", "three", "four"]
    assert post.notes == [
        ("the webhook wasn't told: one", "it said no"),
        ("the webhook wasn't told: two", "it said no"),
    ]


@in_simulated_time
async def test_who_takes_too_long_is_given_up() -> None:
    post = Post()

    async def hangs(notice: Notice) -> None:
        await post.send(notice)
        await asyncio.Event().wait()

    channel = Channel("command", hangs, post.decisions)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(channel.run())
        channel.add(Notice(decided("one")))
        channel.add(Notice(decided("two")))
        await channel.told()
        task.cancel()
    assert post.tried == [(0.0, "one"), (LIMIT, "two")], "one at a time"
    assert post.notes[0] == ("the command wasn't told: one", "it didn't end within 10 s")


@in_simulated_time
async def test_of_too_many_that_wait_the_oldest_are_dropped_and_that_is_an_event() -> None:
    post = Post()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(notices, "WAITING", 3)
        async with post.channel() as channel:
            for count in range(10):
                channel.add(Notice(decided(f"news {count}")))
    assert [text for _, text in post.tried] == ["news 7", "news 8", "news 9"]
    assert post.notes == [("7 notices were dropped", "more happened than the webhook could be told of")]


# ------------------------------------------------------------------------------------------------- what flaps


@in_simulated_time
async def test_what_flaps_is_told_at_once_and_then_once_a_minute_with_how_often() -> None:
    told: list[tuple[float, str, int]] = []
    loop = asyncio.get_running_loop()
    quiet = Quiet(lambda notice: told.append((loop.time(), notice.decision.why, notice.repeated)))
    for count in range(10):
        quiet.hear(decided("it failed", why=f"reason {count}"))
        await asyncio.sleep(QUIET / 8)
    await asyncio.sleep(3 * QUIET)
    assert told == [(0.0, "reason 0", 0), (QUIET, "reason 7", 7), (2 * QUIET, "reason 9", 2)]
    quiet.hear(decided("it failed", why="much later"))
    assert told[-1][1:] == ("much later", 0)
    quiet.end()


@in_simulated_time
async def test_another_text_or_kind_is_told_at_once_and_nothing_is_held_back_at_the_end() -> None:
    told: list[tuple[str, int]] = []
    quiet = Quiet(lambda notice: told.append((notice.decision.text, notice.repeated)))
    for text, kind in (("a", Kind.DARK), ("b", Kind.DARK), ("a", Kind.FAILED), ("a", Kind.FAILED)):
        quiet.hear(decided(text, kind))
    assert told == [("a", 0), ("b", 0), ("a", 0)]
    quiet.end()
    assert told[3:] == [("a", 1)]
