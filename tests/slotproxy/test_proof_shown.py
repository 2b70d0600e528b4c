"""Status says how what serves is proven, as it counts now, and in what the rule is relaxed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from engines.spec import Require
from slotproxy import render
from slotproxy.desk import Json
from swap.ports import Evidence, Outcome
from swap.state import phase
from tests.slotproxy.office import Office
from tests.swap.fakes import REAL
from tests.swap.world import until


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    with capture_logs():
        office = Office(tmp_path)
        yield office
    office.close()


async def test_status_says_how_what_serves_is_proven_now(office: Office) -> None:
    async with office.serving() as controller:
        serving = controller.state.serving
        assert serving is not None
        known = office.hands.known[serving]
        await until(lambda: known.subject is not None)
        assert (await office.desk.status())["proof"] == "verified"
        office.card._identity = replace(REAL, driver="580.1")  # after a reboot, say
        now = await office.desk.status()
        assert now["proof"] == "verified, but it was verified with driver 575.57, this is 580.1"
        assert now["verified"] is True
        assert known.subject is not None
        word = Evidence(known.subject, "", Outcome.REVOKED, serving.label, "2026-01-03", "operator", REAL)
        await asyncio.to_thread(office.ledger.record, replace(word, reason="garbles tools"))
        now = await office.desk.status()
        assert (now["proof"], now["verified"]) == ("revoked 2026-01-03: garbles tools", False)
        assert now["policy"] == []


async def test_status_says_that_a_trial_will_hand_the_card_back_and_that_it_does(office: Office) -> None:
    async with office.serving(), asyncio.TaskGroup() as tasks:
        office.ninfer.hang("start")
        asked = office.desk.swap("ninfer", "v3", trial=True, and_back=True)
        swap = tasks.create_task(_last(asked))
        await until(lambda: phase(office.controller.state) == "starting")
        (line,) = [one for one in render.status(await office.desk.status()) if one.startswith("swap")]
        assert line.startswith("swap      to ninfer:v3, a trial that hands the card back: starting, ")
        office.strata.hang("start")
        office.ninfer.let_go("start")
        await until(lambda: office.controller.hands_back and phase(office.controller.state) == "starting")
        (line,) = [one for one in render.status(await office.desk.status()) if one.startswith("swap")]
        assert line.startswith("swap      to strata:current, the way back of a trial: starting, ")
        office.strata.let_go("start")
        assert await swap == (0, "ninfer:v3 is verified; strata:current serves again")


async def _last(asked: AsyncIterator[Json]) -> tuple[int, str]:
    *_, ended = [item async for item in asked]
    return ended["code"], ended["text"]


async def test_status_says_what_is_relaxed_in_so_many_words(office: Office) -> None:
    for name, word in (("ninfer", Require.CANDIDATE), ("strata", Require.ATTESTED)):
        office.engines[name] = replace(office.engines[name], require=word)
    async with office.serving(verified=()):
        assert (await office.desk.status())["policy"] == [
            "strata: a pair is given the card when the operator attests it (require: attested)",
            "ninfer: a pair is given the card when its files fit, proven or not (require: candidate)",
        ]
