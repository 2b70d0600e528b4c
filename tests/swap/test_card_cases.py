"""What a card does to those who share it: memory that comes late or goes to another, figures that mean little.

A swap goes by the bytes that are free, and by nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engines.spec import GiB
from swap.moves import Code, Done, Free
from swap.ports import CardProcess, CardUnknown, Memory
from swap.tickets import Progress
from swap.wish import Wish
from tests.simulated_time import in_simulated_time
from tests.swap.world import World, do, end_of, failed, now, unit, until

NEED = 30 * GiB + GiB // 4

Frees = Callable[[float], int]
"""GiB that are free so many seconds after the old engine has ended."""


def tells(world: World, monkeypatch: pytest.MonkeyPatch, frees: Frees) -> list[int]:
    """The card tells so many free from the stop on; returned is what it has told."""
    stopped: list[float] = []
    told: list[int] = []
    world.when("strata stop [stop]", lambda: stopped.append(now()))

    async def memory() -> Memory:
        free = frees(now() - stopped[0]) * GiB if stopped and not world.up else world.card.free
        if stopped:
            told.append(free)
        return Memory(32 * GiB, free, 32 * GiB - free)

    monkeypatch.setattr(world.card, "memory", memory)
    return told


@pytest.mark.parametrize(
    ("frees", "at"),
    [
        (lambda t: 31 if t >= 3 else 1, 3.0),
        (lambda t: min(31, 1 + 5 * int(t)), 6.0),
        (lambda t: 31 if t >= 4 or 1 <= t < 1.15 else 2, 4.0),
    ],
    ids=["after 3 s", "in steps", "a dip before"],
)
@in_simulated_time
async def test_case_26_memory_that_comes_late_is_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch, frees: Frees, at: float
) -> None:
    async with world.serving():
        told = tells(world, monkeypatch, frees)
        started: list[tuple[float, list[int]]] = []
        world.when("ninfer start [start]", lambda: started.append((now(), told[-2:])))
        began = now()
        ended = await world.swap("ninfer")
        assert (ended.code, ended.serving) == (Code.SERVES, "ninfer:v2")
        when, last = started[0]
        assert at <= when - began < at + 1
        assert min(last) >= NEED  # twice in a row


@in_simulated_time
async def test_case_26_memory_that_another_process_fills_after_a_dip_starts_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sample alone is never enough, and who has filled it is named."""
    async with world.serving():
        tells(world, monkeypatch, lambda t: 31 if 2 <= t < 2.09 else 2)
        monkeypatch.setattr(world.card, "processes", _a_game)
        progress: list[Progress] = []
        ended = await end_of(world.order("ninfer", wish=Wish()), progress)
        assert ended.code == Code.DARK
        assert "held by pid 4711 (game, 29.0 GiB, in no container)" in ended.text
        assert any("pid 4711 (game" in step.text for step in progress)  # said while it is waited for
        assert world.up == set()
    assert "ninfer start [start]" not in world.happened


async def _a_game() -> tuple[CardProcess, ...]:
    return (CardProcess(4711, 29 * GiB, "game"),)


@pytest.mark.parametrize("used", [0, 31 * GiB, 32 * GiB, 2**64 - 1])
@pytest.mark.parametrize("free", [NEED, NEED - 1])
@in_simulated_time
async def test_case_30_only_what_is_free_counts_whatever_is_told_as_used(
    world: World, monkeypatch: pytest.MonkeyPatch, used: int, free: int
) -> None:
    v2 = await unit(world)

    async def memory() -> Memory:
        return Memory(32 * GiB, free, used, reserved=GiB)

    monkeypatch.setattr(world.card, "memory", memory)
    report = await do(world, Free(7, v2))
    assert (report == Done(7)) == (free >= NEED)


@pytest.mark.parametrize(
    ("processes", "words"),
    [
        ((CardProcess(12, None, "Xorg"),), "pid 12 (Xorg, in no container)"),
        ((CardProcess(99, 31 * GiB),), "pid 99 (no such process is seen from here, 31.0 GiB)"),
        ((), "somebody whom the driver doesn't name (see nvidia-smi)"),
        (
            (CardProcess(1, 64 * GiB, "liar"), CardProcess(2, 64 * GiB, "liar")),
            "pid 1 (liar, 64.0 GiB, in no container), pid 2 (liar, 64.0 GiB, in no container)",
        ),
    ],
    ids=["None", "a foreign pid", "an empty list", "too much"],
)
@in_simulated_time
async def test_case_32_processes_are_for_messages_only_and_never_summed(
    world: World, monkeypatch: pytest.MonkeyPatch, processes: tuple[CardProcess, ...], words: str
) -> None:
    """31 GB are in use and nobody, or somebody nobody knows, has them; or the card is free and they claim all of it."""
    v2 = await unit(world)

    async def told() -> tuple[CardProcess, ...]:
        return processes

    monkeypatch.setattr(world.card, "processes", told)
    assert await do(world, Free(7, v2)) == Done(7)
    world.card.foreign["somebody"] = 31 * GiB
    assert (
        f"only 1.0 GiB of the card are free, 30.2 GiB are needed; held by {words} after"
        in failed(await do(world, Free(7, v2))).why
    )


@in_simulated_time
async def test_case_27_a_card_whose_memory_is_unknown_refuses_swaps_with_that_reason_and_serves_on(
    world: World,
) -> None:
    """What serves needs no NVML: neither to go on, nor to come back when it dies."""
    async with world.serving():
        world.card.unknown = CardUnknown("this card doesn't tell that (NOT_SUPPORTED)", "take another card")
        before = world.strata.sight
        ended = await world.swap("ninfer")
        assert (ended.code, ended.serving) == (Code.REFUSED, "strata:current")
        assert "NOT_SUPPORTED" in ended.text
        assert "take another card" in ended.text
        assert (world.strata.sight, world.gate.state) == (before, "open strata")
        world.strata.exit(139)
        await until(lambda: "strata start [start]" in world.story and world.gate.state == "open strata")
    assert world.happened == ["gate closed", "strata start [start]", "gate open strata"]
