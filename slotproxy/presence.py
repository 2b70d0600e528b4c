"""Doing something for a client only as long as it is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")
Alarm = Coroutine[Any, Any, Exception]


class ClientGone(Exception):
    """The client has closed its connection (`left`), or takes no bytes any more (`not_reading`)."""

    def __init__(self, how: str = "left") -> None:
        super().__init__(how)
        self.how = how


class Cut(Exception):
    """The operator asked every request in flight to end now."""


@dataclass(frozen=True, slots=True)
class Beat:
    """Something to be done again and again meanwhile: after `first` seconds, then every `every` seconds."""

    first: float
    every: float
    do: Callable[[], Awaitable[None]]


async def gone(receive: Receive) -> Exception:
    """Returns when the client has left; a request that is sent on top of this one changes nothing."""
    while (await receive())["type"] != "http.disconnect":
        pass
    return ClientGone()


async def cut_off(cut: asyncio.Event) -> Exception:
    """Returns when `cut` is set."""
    await cut.wait()
    return Cut()


async def unless(work: Coroutine[Any, Any, T], *alarms: Alarm, beat: Beat | None = None) -> T:
    """The result of `work`; the first alarm cancels it, and what the alarm returns is raised.

    `work` has ended when this returns, however it ends. Work that finished at the very moment of an alarm counts as
    finished: its result may be something that must be given back.
    """
    trouble: Exception | None = None
    async with asyncio.TaskGroup() as group:
        main = group.create_task(_caught(work))
        watchers = [group.create_task(alarm) for alarm in alarms]
        try:
            trouble = await _first_alarm(main, watchers, beat)
        except Exception as error:  # raised below: from in here it would come out as a group
            trouble = error
        for task in (main, *watchers):
            task.cancel()
    if not main.cancelled():
        result, error_of_work = main.result()
        if error_of_work is None:
            return result[0]
        raise error_of_work
    raise trouble or ClientGone()


async def _first_alarm(
    main: asyncio.Task[Any], watchers: Iterable[asyncio.Task[Exception]], beat: Beat | None
) -> Exception | None:
    """Wait until one of them ends, with `beat` meanwhile. Returns what the alarm said, None if `main` ended."""
    pause = beat.first if beat else None
    while True:
        done, _ = await asyncio.wait((main, *watchers), timeout=pause, return_when=asyncio.FIRST_COMPLETED)
        if main in done:
            return None
        for watcher in watchers:
            if watcher in done:
                return watcher.result()
        if beat:
            await beat.do()
            pause = beat.every


async def _caught(work: Coroutine[Any, Any, T]) -> tuple[tuple[T, ...], Exception | None]:
    try:
        return (await work,), None
    except Exception as error:  # a failing task would end its group, and come out as a group
        return (), error
