"""Work that goes on only as long as the client is there."""

from __future__ import annotations

import asyncio

import pytest

from slotproxy.presence import Beat, ClientGone, Cut, cut_off, unless


async def never() -> None:
    await asyncio.Event().wait()


async def test_work_that_ends_is_handed_back_and_no_alarm_stays_behind() -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    before = asyncio.all_tasks()
    assert await unless(work(), cut_off(asyncio.Event())) == "done"
    assert asyncio.all_tasks() == before


async def test_an_alarm_cancels_the_work_and_is_raised_by_itself_not_in_a_group() -> None:
    cut = asyncio.Event()
    cut.set()
    cancelled = False

    async def work() -> None:
        nonlocal cancelled
        try:
            await never()
        finally:
            cancelled = True

    with pytest.raises(Cut):
        await unless(work(), cut_off(cut))
    assert cancelled


async def test_an_error_of_the_work_comes_out_as_it_is() -> None:
    async def work() -> None:
        raise LookupError("x")

    with pytest.raises(LookupError):
        await unless(work(), cut_off(asyncio.Event()))


async def test_work_that_finishes_in_the_moment_of_the_alarm_is_not_lost() -> None:
    cut = asyncio.Event()

    async def work() -> str:
        cut.set()
        return "a place that must be left"

    assert await unless(work(), cut_off(cut)) == "a place that must be left"


async def test_work_that_ends_in_spite_of_the_alarm_is_not_lost() -> None:
    cut = asyncio.Event()
    cut.set()

    async def work() -> str:
        try:
            await never()
        except asyncio.CancelledError:
            return "kept"
        return ""

    assert await unless(work(), cut_off(cut)) == "kept"


async def test_the_beat_goes_on_until_the_work_ends() -> None:
    beats = 0
    enough = asyncio.Event()

    async def beat() -> None:
        nonlocal beats
        beats += 1
        if beats == 3:
            enough.set()

    await unless(enough.wait(), beat=Beat(0.01, 0.01, beat))
    assert beats == 3


async def test_a_beat_that_finds_the_client_gone_ends_the_work() -> None:
    async def beat() -> None:
        raise ClientGone

    with pytest.raises(ClientGone):
        await unless(never(), cut_off(asyncio.Event()), beat=Beat(0.01, 0.01, beat))
