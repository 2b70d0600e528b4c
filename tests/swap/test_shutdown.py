"""`on_stop: stop`: engines are stopped within the daemon's own end, and who isn't gone is named."""

from __future__ import annotations

import pytest

from swap.ports import Foreign, Runtime, Unreachable
from swap.shutdown import Stopped, stop_engines
from tests.simulated_time import in_simulated_time
from tests.swap.fakes import Behaviour
from tests.swap.world import World, now


async def stopped(world: World) -> Stopped:
    runtimes: dict[str, Runtime] = dict(world.runtimes)
    await stop_engines(world.engines, runtimes, 10.0, done := Stopped())
    return done


@in_simulated_time
async def test_what_runs_is_stopped_and_what_does_not_is_left_alone(world: World) -> None:
    world.strata.run(world.strata.recipes["current"])
    done = await stopped(world)
    assert (done.stopped, done.left) == (["strata"], {})
    assert world.up == set()
    assert "stop" not in world.ninfer.calls


@in_simulated_time
async def test_one_that_ignores_its_signal_is_killed_in_time_whatever_its_own_grace_is(world: World) -> None:
    world.strata.behaviours[world.strata.recipes["current"].image] = Behaviour(deaf=True)
    world.strata.run(world.strata.recipes["current"])
    done = await stopped(world)
    assert (done.stopped, done.left) == (["strata"], {})
    assert now() == 9.0, "its own is longer, and a second is kept for the kill and a look"


@pytest.mark.parametrize("call", ["look", "stop"])
@in_simulated_time
async def test_a_docker_that_hangs_holds_it_up_no_longer_than_that_and_the_engine_is_named(
    call: str, world: World
) -> None:
    world.strata.run(world.strata.recipes["current"])
    world.strata.hang(call)
    done = await stopped(world)
    assert now() == 10.0
    assert (done.stopped, done.left) == ([], {"strata": "it isn't gone after 10.0 s"})


@in_simulated_time
async def test_one_that_cannot_be_asked_keeps_no_other_and_a_foreign_one_is_not_ours_to_stop(world: World) -> None:
    world.strata.run(world.strata.recipes["current"])
    world.ninfer.fail("look", Unreachable("Docker doesn't answer", "start it"))
    done = await stopped(world)
    assert (done.stopped, done.left) == (["strata"], {"ninfer": "Docker doesn't answer; start it"})
    world.ninfer.fail("look", Foreign("ninfer-1 is somebody else's"))
    done = await stopped(world)
    assert (done.stopped, done.left) == ([], {})
