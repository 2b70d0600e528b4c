"""Is there room on the card, and in the host's memory? And who takes it, in words: whatever is told of processes is
for people alone, and nothing is decided by it.
"""

from __future__ import annotations

from engines.spec import Engine, GiB
from swap.hostmemory import User, available, biggest
from swap.ports import Card, CardProcess, Fault, Memory
from swap.threads import HOST

DESKTOP = 4 * GiB  # bytes in use that may well be a desktop, which never gives them back
PROC_LIMIT = 5.0  # seconds that /proc may take


async def lacking(card: Card, need: int, host_need: int | None, baseline: int = 0) -> str:
    """What isn't free of these bytes, and who holds the card; empty when all is. Raises Fault: unknown host memory.

    `baseline`: bytes that are configured to be always in use.
    """
    try:
        memory = await card.memory()
    except Fault as fault:
        return str(fault)
    if memory.free < need:
        who = _holders(await card.processes()) + _desktop(memory, baseline)
        return f"only {_gib(memory.free)} of the card are free, {_gib(need)} are needed; held by {who}"
    if host_need is None:
        return ""
    free = await HOST.run(available, "/proc/meminfo", PROC_LIMIT)
    if free < host_need:
        users = _users(await HOST.run(biggest, "/proc", PROC_LIMIT))
        return f"only {_gib(free)} of host memory are available, {_gib(host_need)} are needed{users}"
    return ""


def _gib(size: int) -> str:
    return f"{size / GiB:.1f} GiB"


async def beside(card: Card, engine: Engine, memory: Memory, headroom: int, baseline: int) -> str:
    """What is to be said where a desktop leaves the engine too little of the card; empty: it doesn't, or nobody knows.

    A desktop is whoever is in no container and holds little: an engine, or a training, holds more.
    """
    held = [one for one in await card.processes() if not one.container and 0 < (one.bytes or 0) <= DESKTOP]
    taken = sum(one.bytes or 0 for one in held)
    if taken <= baseline or engine.vram + headroom + taken <= memory.total - memory.reserved:
        return ""
    room, name = memory.total - memory.reserved, engine.name
    return (
        f"{_holders(tuple(held))} would leave {name} too little of the card: {_gib(engine.vram)} and {_gib(headroom)} "
        f"headroom don't fit beside {_gib(taken)} of {_gib(room)}; if that is a desktop, say so by card.baseline "
        f"(now {_gib(baseline)}) and run {name} with less"
    )


def _desktop(memory: Memory, baseline: int) -> str:
    """What is to be done where little is in use, and it won't go away. Empty where it is more than a desktop takes."""
    used = memory.total - memory.reserved - memory.free
    if not 0 < used <= DESKTOP:
        return ""
    return (
        f"; if {_gib(used)} are always in use, as by a desktop, say so by card.baseline (now {_gib(baseline)}) and run "
        "the engine with less"
    )


def _holders(processes: tuple[CardProcess, ...]) -> str:
    if not processes:
        return "somebody whom the driver doesn't name (see nvidia-smi)"
    return ", ".join(_holder(process) for process in processes)


def _holder(process: CardProcess) -> str:
    size = "" if process.bytes is None else f", {_gib(process.bytes)}"
    if not process.name and not process.container:  # another pid namespace, or it has just ended
        return f"pid {process.pid} (no such process is seen from here{size})"
    where = f", container {process.container[:12]}" if process.container else ", in no container"
    return f"pid {process.pid} ({process.name or 'unknown'}{size}{where})"


def _users(users: tuple[User, ...]) -> str:
    """Likely ones only: what an engine had pinned comes back late after its end, and is nobody's until then."""
    each = ", ".join(f"pid {user.pid} ({user.name}, {_gib(user.bytes)})" for user in users)
    return f"; most is used by {each}" if each else ""
