"""Is there room on the card, and in the host's memory? And who takes it, in words."""

from __future__ import annotations

import asyncio

from engines.spec import GiB
from swap.hostmemory import available
from swap.ports import Card, CardProcess, Fault


async def lacking(card: Card, need: int, host_need: int | None) -> str:
    """What isn't free of these bytes, and who holds the card; empty when all is. Raises Fault: unknown host memory."""
    try:
        memory = await card.memory()
    except Fault as fault:
        return str(fault)
    if memory.free < need:
        who = _holders(await card.processes())
        return f"only {_gib(memory.free)} of the card are free, {_gib(need)} are needed; held by {who}"
    if host_need is not None and (free := await asyncio.to_thread(available)) < host_need:
        return f"only {_gib(free)} of host memory are available, {_gib(host_need)} are needed"
    return ""


def _gib(size: int) -> str:
    return f"{size / GiB:.1f} GiB"


def _holders(processes: tuple[CardProcess, ...]) -> str:
    if not processes:
        return "somebody whom the driver doesn't name (see nvidia-smi)"
    return ", ".join(_holder(process) for process in processes)


def _holder(process: CardProcess) -> str:
    size = "" if process.bytes is None else f", {_gib(process.bytes)}"
    where = f", container {process.container[:12]}" if process.container else ", in no container"
    return f"pid {process.pid} ({process.name or 'unknown'}{size}{where})"
