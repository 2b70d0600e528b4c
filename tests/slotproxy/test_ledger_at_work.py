"""A daemon that starts on a damaged ledger: who gets the card then, and what is said."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from swap.ports import Outcome
from tests.slotproxy.office import Office


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    with capture_logs():
        office = Office(tmp_path)
        yield office
    office.close()


async def left_behind(office: Office) -> Path:
    """By a daemon that verified two pairs, and tried the third, which failed."""
    async with office.serving():
        office.ninfer.exits_on_start = 1
        assert (await office.swapped("ninfer", "v3", trial=True))[-1]["code"] == 4
    assert office.evidence_of("ninfer:v3") == [Outcome.FAILED]
    return office.folder / "state" / "ledger.jsonl"


async def test_a_torn_line_costs_no_verified_pair_the_card(office: Office) -> None:
    file = await left_behind(office)
    whole = await asyncio.to_thread(file.read_bytes)
    await asyncio.to_thread(file.write_bytes, whole[:-200])
    await asyncio.to_thread(office.rebuild)
    async with office.serving(verified=()):
        assert "crash cut off" in (await office.desk.status())["warnings"][0]
        assert (await office.swapped("ninfer", "v2"))[-1]["code"] == 0
        assert office.evidence_of("ninfer:v2") == [Outcome.SERVED, Outcome.SERVED]


async def test_an_edited_line_gets_nobody_the_card_and_those_before_it_keep_theirs(office: Office) -> None:
    file = await left_behind(office)
    lines = (await asyncio.to_thread(file.read_text)).splitlines(keepends=True)
    lines[2] = lines[2].replace('"outcome":"failed"', '"outcome":"served"')
    await asyncio.to_thread(file.write_text, "".join(lines))
    await asyncio.to_thread(office.rebuild)
    async with office.serving(verified=()):
        assert "line 3 was changed" in (await office.desk.status())["warnings"][0]
        refused = (await office.swapped("ninfer", "v3"))[-1]
        assert refused["code"] == 3
        assert "never ran on this card" in refused["text"]
        served = (await office.swapped("ninfer", "v2"))[-1]
        assert served["code"] == 0
        assert "line 3 was changed" in served["text"]
    assert (await asyncio.to_thread(file.read_text)) == "".join(lines)
