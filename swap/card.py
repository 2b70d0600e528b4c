"""What both cards share: asking one that may hang, and saying what NVML's error codes mean to an operator."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from swap.ports import CardUnknown
from swap.threads import NoThread, daemon_thread

T = TypeVar("T")

BOUND = 5.0  # seconds that a card may take to answer

NOT_SUPPORTED = 3
# code: (what it means, what to do, whether time may mend it)
_ADVICE = {
    2: ("there is no such card", "correct `card.gpu`: `nvidia-smi -L` lists the UUIDs", False),
    3: (
        "this card doesn't tell that (NOT_SUPPORTED)",
        "swaps need a card with memory of its own that NVML reads",
        False,
    ),
    4: ("no permission", "let this user open /dev/nvidia*", True),
    6: ("there is no such card", "correct `card.gpu`: `nvidia-smi -L` lists the UUIDs", False),
    9: ("the NVIDIA driver is not loaded", "load it (`modprobe nvidia`), or install it", True),
    12: ("the library libnvidia-ml.so.1 is missing", "install the NVIDIA driver's libraries", True),
    15: ("the card has fallen off the bus", "reboot", True),
    16: ("the card wants a reset", "reboot, or `nvidia-smi --gpu-reset` with nothing running on it", True),
    18: (
        "the NVIDIA driver and its library differ in version, as after an upgrade",
        "reboot, or reload the nvidia kernel module with nothing running on the card, then restart slotproxy",
        True,
    ),
    999: ("the NVIDIA driver answers with an unknown error", "see the kernel's log (`dmesg`); a reboot may help", True),
}


def unknown(call: str, code: int, text: str = "") -> CardUnknown:
    """What an NVML return code means for `call`, and what to do about it."""
    meaning, mend, passing = _ADVICE.get(code, (text or "an error", "see `nvidia-smi` and the kernel's log", True))
    return CardUnknown(f"NVML can't tell the card's {call}: {meaning} (code {code})", mend, passing=passing)


def no_memory() -> CardUnknown:
    """The card reports a total of 0 bytes."""
    what = "the card reports no memory of its own (a total of 0 bytes)"
    return CardUnknown(what, "swaps need a card with memory of its own that NVML reads")


class OneAtATime:
    """Asks blocking questions one at a time, each in a daemon thread: a call that hangs can't be cancelled.

    While one hangs, the next is answered CardUnknown at once, and no second thread hangs beside it; nor does a hung
    call keep the process from ending, as a thread pool's would.
    """

    def __init__(self, bound: float) -> None:
        self._bound = bound
        self._turn = asyncio.Lock()
        self._last: Future[Any] | None = None
        self._deadline = 0.0

    async def ask(self, question: Callable[[], T]) -> T:
        """The answer, or what the question raised. Raises CardUnknown when it takes too long."""
        async with self._turn:  # whoever holds it has a bound
            await self._end_of_last()
            answer: Future[T] = Future()
            answer.set_running_or_notify_cancel()
            self._last, self._deadline = answer, asyncio.get_running_loop().time() + self._bound
            try:
                daemon_thread(partial(_answer, answer, question), "card")
            except NoThread as fault:
                self._last = None
                raise CardUnknown(fault.what, fault.mend, passing=True) from fault
            return await self._within_bound(answer)

    async def _end_of_last(self) -> None:
        """Wait for a question whose asker has gone, as long as it may still take."""
        if self._last is not None and not self._last.done():
            with contextlib.suppress(Exception):  # its answer is nobody's any more
                await self._within_bound(self._last)
            if not self._last.done():
                raise self._hung()

    async def _within_bound(self, answer: Future[T]) -> T:
        try:
            async with asyncio.timeout_at(self._deadline):
                return await asyncio.wrap_future(answer)
        except TimeoutError:
            raise self._hung() from None

    def _hung(self) -> CardUnknown:
        what = f"the card's driver hasn't answered in {self._bound:g} s"
        return CardUnknown(what, "see `nvidia-smi` and the kernel's log (`dmesg`); a reboot may help", passing=True)


def _answer(answer: Future[T], question: Callable[[], T]) -> None:
    try:
        answer.set_result(question())
    except Exception as error:  # it belongs to the asker, whatever it is
        answer.set_exception(error)
