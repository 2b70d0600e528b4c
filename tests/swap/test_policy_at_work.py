"""What is required of a pair holds at start and for what comes up by itself; what served is put back whatever it is."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from engines.spec import Require
from swap.moves import Code
from swap.ports import Outcome
from tests.simulated_time import in_simulated_time
from tests.swap.fakes import REAL
from tests.swap.world import World, until

NOTHING: tuple[str, ...] = ()
DOUBT = "strata:current: it was verified with driver 575.57, this is 580.1"


def configured(world: World, *, require: str = "verified", strict: bool = False) -> None:
    for name, engine in world.engines.items():
        world.engines[name] = replace(engine, require=Require(require))
    world.strict = strict
    world.rebuild()


def another_driver(world: World) -> None:
    world.card._identity = replace(REAL, driver="580.1")


# ------------------------------------------------------------------------------------------------- at start


@in_simulated_time
@pytest.mark.parametrize(
    ("require", "lines", "starts"),
    [
        ("verified", [], False),
        ("verified", [Outcome.ATTESTED], False),
        ("attested", [], False),
        ("attested", [Outcome.ATTESTED], True),
        ("candidate", [], True),
        ("candidate", [Outcome.REVOKED], False),
    ],
)
async def test_at_start_the_default_needs_what_its_engine_requires(
    world: World, require: str, lines: list[Outcome], starts: bool
) -> None:
    configured(world, require=require)
    for outcome in lines:
        await world.record("strata:current", outcome)
    async with world.running(verified=NOTHING):
        assert world.gate.state.startswith("open strata" if starts else "refusing: nothing runs; strata:current can't")
        assert world.up == ({"strata"} if starts else set())


@in_simulated_time
async def test_at_start_another_driver_is_no_reason_to_stay_dark_unless_it_is_configured_so(world: World) -> None:
    await world.verify("strata:current")
    another_driver(world)
    async with world.running(verified=NOTHING):
        assert world.gate.state == "open strata"


@in_simulated_time
async def test_at_start_another_driver_keeps_it_dark_where_it_is_configured_so_until_a_trial(world: World) -> None:
    configured(world, strict=True)
    await world.verify("strata:current")
    another_driver(world)
    async with world.running(verified=NOTHING):
        assert DOUBT in world.gate.state
        assert "`slotctl swap to-strata:current --trial` proves it anew" in world.gate.state
        await asyncio.sleep(1000)
        assert world.up == set()
        assert (await world.swap("strata", trial=True)).code == Code.SERVES
    world.strata.exit(0)
    world.rebuild()
    async with world.running(verified=NOTHING):
        assert world.gate.state == "open strata"  # with evidence of this driver


# ------------------------------------------------------------------------------------------------- by itself


@in_simulated_time
@pytest.mark.parametrize(
    ("require", "lines", "serves"),
    [
        ("verified", [Outcome.ATTESTED], False),
        ("attested", [], False),
        ("attested", [Outcome.ATTESTED], True),
        ("candidate", [], True),
        ("candidate", [Outcome.REVOKED], False),
    ],
)
async def test_what_comes_up_alone_needs_what_its_engine_requires(
    world: World, require: str, lines: list[Outcome], serves: bool
) -> None:
    world.default = None
    configured(world, require=require)
    for outcome in lines:
        await world.record("ninfer:v2", outcome)
    async with world.running(verified=NOTHING):
        world.ninfer.start_by_hand()
        await until(lambda: world.gate.state.startswith("open ninfer" if serves else "refusing: ninfer:v2 was started"))


@in_simulated_time
@pytest.mark.parametrize("strict", [False, True])
async def test_what_comes_up_alone_with_another_driver_serves_unless_it_is_configured_otherwise(
    world: World, strict: bool
) -> None:
    world.default = None
    configured(world, strict=strict)
    await world.verify("ninfer:v2")
    another_driver(world)
    async with world.running(verified=NOTHING):
        world.ninfer.start_by_hand()
        await until(lambda: world.gate.state.startswith("refusing: ninfer:v2 was started" if strict else "open ninfer"))


# ------------------------------------------------------------------------------------------------- put back


@in_simulated_time
async def test_what_served_is_put_back_whatever_has_become_of_its_evidence(world: World) -> None:
    """The driver was replaced, and the pair revoked, after the swap away from it had begun."""
    configured(world, strict=True)
    async with world.serving("strata:current"):
        world.readiness.never.add("ninfer:local")
        world.when("strata stop [stop]", lambda: another_driver(world))
        ended = await world.swap("ninfer:v2")
        assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
        await world.record("strata:current", Outcome.REVOKED, reason="garbles tools")
        world.strata.exit(1)  # and what dies is started again, too
        await until(lambda: world.gate.story.count("open strata") == 3)


@in_simulated_time
async def test_an_order_is_refused_where_another_driver_is_and_what_serves_stays(world: World) -> None:
    configured(world, strict=True)
    async with world.serving("strata:current"):
        another_driver(world)
        ended = await world.swap("ninfer:v2")
        assert ended.code == Code.REFUSED
        assert "ninfer:v2: it was verified with driver 575.57, this is 580.1" in ended.text
        assert world.gate.state == "open strata"
