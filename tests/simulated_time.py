"""An event loop whose clock jumps: real asyncio, but no test waits for the time to pass nor depends on it.

Where the loop would sleep until its next timer, the clock moves there at once. Where it would sleep with no timer set,
nothing can ever happen again: the test fails with `Deadlock` right there, which is how a lost wake-up shows. While a
thread works (`asyncio.to_thread`) the clock stands still.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

FOR_EVER = 1e8  # seconds; a clock that gets here is being moved by nothing but timers that never come


class Deadlock(AssertionError):
    """Everybody waits and nobody will come."""


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.threads = 0  # that work for somebody on the loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(None if self.threads and timeout != 0 else 0)
        if not ready:
            if timeout is None or self.now > FOR_EVER:
                raise Deadlock("every task waits for something that will never happen")
            self.now += timeout
        return ready


class SimulatedTimeLoop(asyncio.SelectorEventLoop):
    """For code that does no I/O of its own but in threads."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        work = super().run_in_executor(executor, func, *args)
        self._jumping.threads += 1
        work.add_done_callback(self._end_of_thread)
        return work

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        self._jumping.threads += 1
        await super().shutdown_default_executor()

    def _end_of_thread(self, _: object) -> None:
        self._jumping.threads -= 1


def in_simulated_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an asynchronous test on a loop of simulated time: no task may be left behind, no callback may fail."""

    async def watched(*args: Any, **kwargs: Any) -> None:
        failures: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        await test(*args, **kwargs)
        assert not failures, f"callbacks failed: {failures}"
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"the test left tasks behind: {', '.join(repr(task) for task in left)}"

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=SimulatedTimeLoop) as runner:
            runner.run(watched(*args, **kwargs))

    return run
