"""Card on NVML. The only file that imports pynvml (of the package nvidia-ml-py; the one called pynvml is another).

Each call opens NVML, asks and closes it again, so that a driver that was reloaded, or came late, is seen at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import pynvml

from swap import card, proc
from swap.ports import CardIdentity, CardProcess, CardUnknown, Memory

T = TypeVar("T")

# What a driver too old for the second version of the memory call answers; it is then asked for the first.
_NO_V2 = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
)


class NvmlCard:
    """One NVML device: `gpu` is its UUID or its index. `bound`: seconds that NVML may take to answer."""

    def __init__(self, gpu: str, *, bound: float = card.BOUND) -> None:
        self._gpu = gpu
        self._turns = card.OneAtATime(bound)

    async def memory(self) -> Memory:
        return await self._ask("memory", _memory)

    async def processes(self) -> tuple[CardProcess, ...]:
        try:
            return await self._ask("processes", _processes)
        except CardUnknown:
            return ()  # for messages only: a poorer message

    async def identity(self) -> CardIdentity:
        return await self._ask("identity", _identity)

    async def _ask(self, call: str, question: Callable[[Any], T]) -> T:
        return await self._turns.ask(partial(self._asked_afresh, call, question))

    def _asked_afresh(self, call: str, question: Callable[[Any], T]) -> T:
        try:
            pynvml.nvmlInit()
            try:
                return question(self._handle())
            finally:
                with contextlib.suppress(pynvml.NVMLError):
                    pynvml.nvmlShutdown()
        except pynvml.NVMLError as error:
            raise card.unknown(call, error.value, str(error)) from error

    def _handle(self) -> Any:
        if self._gpu.isdecimal():
            return pynvml.nvmlDeviceGetHandleByIndex(int(self._gpu))
        return pynvml.nvmlDeviceGetHandleByUUID(self._gpu)


def _memory(handle: Any) -> Memory:
    try:
        now = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError as error:
        if error.value not in _NO_V2:
            raise
        now = pynvml.nvmlDeviceGetMemoryInfo(handle)
    if not now.total:
        raise card.no_memory()
    return Memory(now.total, now.free, now.used, getattr(now, "reserved", 0))


def _processes(handle: Any) -> tuple[CardProcess, ...]:
    """Those that compute and those that draw, each once: a desktop is told by the second kind alone."""
    found = {one.pid: one for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    with contextlib.suppress(pynvml.NVMLError):
        found = {one.pid: one for one in pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)} | found
    return tuple(
        CardProcess(one.pid, one.usedGpuMemory, proc.name(one.pid), proc.container(one.pid)) for one in found.values()
    )


def _identity(handle: Any) -> CardIdentity:
    return CardIdentity(
        name=pynvml.nvmlDeviceGetName(handle),
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        driver=pynvml.nvmlSystemGetDriverVersion(),
    )
