"""Blocking calls off the event loop: each in a daemon thread of its own, with a bound, counted by what it may hang at.

A thread can't be cancelled, and a disk that hangs holds whoever asks it for good. In a pool that all share (asyncio's
own) a hung model disk would take every thread, and then no journal could be written either. So each call has a thread
of its own, which never keeps the process from ending, and a `Lane` counts those at one outside thing:

- while a call hangs, the next about the same is answered at once, and no second thread hangs beside it;
- a lane has a most; past it, too, the answer comes at once. Other lanes don't notice.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar

from swap.ports import Fault

T = TypeVar("T")
P = ParamSpec("P")


class Hangs(Fault):
    """What was asked doesn't answer. The call may still be under way."""


class NoThread(Fault):
    """Nothing was begun."""


def daemon_thread(body: Callable[[], object], name: str) -> threading.Thread:
    """Run `body` in a thread that never keeps the process from ending. Raises NoThread; nothing was run then."""
    thread = threading.Thread(target=body, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        what = f"this machine gives slotproxy no more threads ({error})"
        mend = "raise the limit: `ulimit -u`, `TasksMax=` of its unit, or the pids limit of its container"
        raise NoThread(what, mend, passing=True) from error
    return thread


class _OwnThread(Executor):
    """What the event loop takes for a pool; nobody waits for its threads."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        answer: Future[T] = Future()
        answer.set_running_or_notify_cancel()

        def body() -> None:
            try:
                answer.set_result(fn(*args, **kwargs))
            except BaseException as error:  # it belongs to whoever asked
                answer.set_exception(error)

        daemon_thread(body, "off-loop")
        return answer


@dataclass(eq=False)
class Call(Generic[T]):
    """One that is under way until it has ended, whoever still waits for it. `about` names what it asks, for people."""

    about: str
    answer: asyncio.Future[T] = field(init=False)
    hangs: bool = False
    since: float = field(default_factory=time.monotonic)

    def give_up(self) -> None:
        """Nobody waits for its answer any more."""
        self.hangs = True
        self.answer.cancel()


class Lane:
    """The calls at one outside thing. `mend` is what to do when it hangs; `most` calls are under way at once."""

    def __init__(self, mend: str, most: int) -> None:
        self._mend, self._most = mend, most
        self._calls: set[Call[Any]] = set()

    async def run(self, work: Callable[[], T], about: str, limit: float) -> T:
        """What `work` returns or raises. Raises Hangs when it takes longer than `limit` seconds; NoThread."""
        call = self.begin(work, about)
        try:
            await asyncio.wait({call.answer}, timeout=limit)
        except asyncio.CancelledError:
            call.answer.cancel()
            raise
        if not call.answer.done():
            call.give_up()
            raise Hangs(f"{about} hasn't answered in {limit:g} s", self._mend, passing=True)
        return call.answer.result()

    def begin(self, work: Callable[[], T], about: str) -> Call[T]:
        """The call, under way. Raises Hangs where an earlier one about the same hangs, or too many do; NoThread."""
        self._expect_answers(about)
        call: Call[T] = Call(about)
        self._calls.add(call)

        def body() -> T:
            try:
                return work()
            finally:
                self._calls.discard(call)

        try:
            call.answer = asyncio.get_running_loop().run_in_executor(_OwnThread(), body)
        except NoThread:
            self._calls.discard(call)
            raise
        call.answer.add_done_callback(lambda late: late.cancelled() or late.exception())  # nobody may be left to hear
        return call

    def _expect_answers(self, about: str) -> None:
        calls = tuple(self._calls)  # threads end meanwhile
        if hung := [call for call in calls if call.hangs and call.about == about]:
            asked = time.monotonic() - min(call.since for call in hung)
            raise Hangs(f"{about} was asked {asked:.0f} s ago and still hasn't answered", self._mend, passing=True)
        if len(calls) >= self._most:
            others = ", ".join(sorted({call.about for call in calls})[:3])
            raise Hangs(f"{len(calls)} calls haven't been answered ({others})", self._mend, passing=True)


MODELS = Lane("look after it", most=32)  # the operator's files: models, configurations, source trees
STATE = Lane("look after it", most=32)  # the state folder
HOST = Lane("see the kernel's log (`dmesg`)", most=16)  # /proc, names of hosts
