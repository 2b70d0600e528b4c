"""Is there room? Nothing starts before its need is free, and who holds it is named."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from engines.spec import GiB
from swap import room as room_module
from swap.hostmemory import User
from swap.moves import Done, Free
from swap.ports import CardProcess, CardUnknown, Memory
from tests.simulated_time import in_simulated_time
from tests.swap.world import World, do, failed, now, unit


@in_simulated_time
async def test_memory_must_be_free_twice_in_a_row(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It dips, then another process fills it."""
    v2 = await unit(world)
    frees = iter([31, 5, 31, 31, 5])
    asked: list[int] = []

    async def memory() -> Memory:
        asked.append(next(frees))
        return Memory(32 * GiB, asked[-1] * GiB, (32 - asked[-1]) * GiB)

    monkeypatch.setattr(world.card, "memory", memory)
    assert await do(world, Free(7, v2)) == Done(7)
    assert asked == [31, 5, 31, 31]


@in_simulated_time
async def test_the_need_and_the_headroom_must_be_free(world: World) -> None:
    v2 = await unit(world)
    world.card.foreign["desktop"] = world.card.total - 30 * GiB - GiB // 4
    assert await do(world, Free(7, v2)) == Done(7)
    world.card.foreign["desktop"] += 1
    assert failed(await do(world, Free(7, v2))).passing


@in_simulated_time
async def test_who_holds_the_memory_is_named_as_far_as_the_driver_tells(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    world.hands.say = said.append
    v2 = await unit(world)
    world.card.foreign["game"] = 10 * GiB
    who: list[tuple[CardProcess, ...]] = [
        (CardProcess(4711, 10 * GiB, "python train.py", "0123456789abcdef"), CardProcess(12)),
        (),
    ]

    async def processes() -> tuple[CardProcess, ...]:
        return who[0] if now() < 60 else who[1]

    monkeypatch.setattr(world.card, "processes", processes)
    why = failed(await do(world, Free(7, v2))).why
    assert said[0] == (
        "only 22.0 GiB of the card are free, 30.2 GiB are needed; held by "
        "pid 4711 (python train.py, 10.0 GiB, container 0123456789ab), pid 12 (no such process is seen from here)"
    )
    assert why.endswith("held by somebody whom the driver doesn't name (see nvidia-smi) after 60 s")


@in_simulated_time
async def test_a_card_that_comes_back_in_time_is_asked_again(world: World) -> None:
    v2 = await unit(world)
    world.card.unknown = CardUnknown("the driver hasn't answered in 5 s", "see `dmesg`")
    asyncio.get_running_loop().call_later(20, setattr, world.card, "unknown", None)
    assert await do(world, Free(7, v2)) == Done(7)
    assert now() >= 20


@in_simulated_time
async def test_host_memory_is_waited_for_where_the_engine_needs_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room_module, "available", lambda: 10 * GiB)
    assert await do(world, Free(7, await unit(world))) == Done(7)
    world.engines["ninfer"] = replace(world.engines["ninfer"], host_memory=40 * GiB)
    world.rebuild()
    monkeypatch.setattr(room_module, "biggest", tuple)
    why = failed(await do(world, Free(7, await unit(world)))).why
    assert why == "only 10.0 GiB of host memory are available, 40.0 GiB are needed after 60 s"


@in_simulated_time
async def test_pinned_memory_that_comes_back_40_s_after_the_exit_is_waited_for_and_its_likely_users_are_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    world.hands.say = said.append
    free = [10 * GiB]
    monkeypatch.setattr(room_module, "available", lambda: free[0])
    monkeypatch.setattr(room_module, "biggest", lambda: (User(4711, "python train.py", 33 * GiB),))
    world.engines["ninfer"] = replace(world.engines["ninfer"], host_memory=40 * GiB)
    world.rebuild()
    world.hands.say = said.append
    asyncio.get_running_loop().call_later(40, free.__setitem__, 0, 50 * GiB)
    assert await do(world, Free(7, await unit(world))) == Done(7)
    assert 40 <= now() < 41
    assert said[0] == (
        "only 10.0 GiB of host memory are available, 40.0 GiB are needed; "
        "most is used by pid 4711 (python train.py, 33.0 GiB)"
    )


# ------------------------------------------------------------------------------------------------- a desktop


@in_simulated_time
async def test_what_a_desktop_takes_is_told_with_the_key_that_says_so(world: World) -> None:
    v2 = await unit(world)
    world.hands.baseline = GiB
    world.card.foreign["Xorg"] = 2 * GiB
    why = failed(await do(world, Free(7, v2))).why
    assert why == (
        "only 30.0 GiB of the card are free, 30.2 GiB are needed; held by pid 2000 (Xorg, 2.0 GiB, in no container); "
        "if 2.0 GiB are always in use, as by a desktop, say so by card.baseline (now 1.0 GiB) and run the engine with "
        "less after 60 s"
    )


@in_simulated_time
async def test_what_is_too_much_for_a_desktop_is_not_called_one(world: World) -> None:
    v2 = await unit(world)
    world.card.foreign["train.py"] = 20 * GiB
    assert "baseline" not in failed(await do(world, Free(7, v2))).why
