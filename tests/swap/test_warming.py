"""When is it ready? When it says so and completes, with our very container running before and after."""

from __future__ import annotations

import asyncio

import pytest

from engines.spec import GiB
from swap.lastwords import first_error
from swap.moves import Done, Inspect, Start, Unit, Up, Warm
from swap.ports import CardUnknown
from swap.readiness import Answered
from tests.simulated_time import in_simulated_time
from tests.swap.world import GONE, World, do, failed, unit


async def _started(world: World, label: str = "ninfer:v2") -> Unit:
    one = await unit(world, label)
    await do(world, Inspect(7, one))
    assert await do(world, Start(7, one)) == Up(7, one)
    return one


@in_simulated_time
async def test_a_sign_without_a_completion_is_not_ready(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Healthy before loaded."""
    v2 = await _started(world)
    monkeypatch.setattr(world.readiness, "completes", _none)
    report = failed(await do(world, Warm(7, v2)))
    assert report.why == "not ready after 120 s"
    assert report.passing
    assert not report.gone


@in_simulated_time
async def test_a_completion_is_never_asked_for_before_the_sign(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that still loads can take a few connections only."""
    v2 = await _started(world)
    monkeypatch.setattr(world.readiness, "sign", _none)
    monkeypatch.setattr(world.readiness, "completes", _never)
    assert failed(await do(world, Warm(7, v2))).why == "not ready after 120 s"


@in_simulated_time
async def test_an_answer_counts_only_if_our_container_runs_before_and_after_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 22: a stale server answers, and goes on answering; ours has exited meanwhile."""
    v2 = await _started(world)

    async def stale(*_: object) -> Answered:
        world.ninfer.exit(1, "error: address already in use\n")
        return Answered(4)

    monkeypatch.setattr(world.readiness, "completes", stale)
    report = failed(await do(world, Warm(7, v2)))
    assert report.why == "ninfer:v2 exited with code 1: error: address already in use"
    assert report.gone


@in_simulated_time
async def test_another_run_of_the_same_container_is_not_the_one_that_we_started(world: World) -> None:
    v2 = await _started(world)
    world.ninfer.exit(0)
    world.ninfer.start_by_hand()
    report = failed(await do(world, Warm(7, v2)))
    assert report.why == "ninfer:v2 was started anew by somebody else"
    assert report.gone


@in_simulated_time
async def test_of_a_run_that_somebody_else_has_started_the_log_isnt_shown(world: World) -> None:
    """Clients may have asked it by its own address, and engines log what they ask."""
    v2 = await unit(world, "ninfer:v2")
    world.ninfer.run(world.ninfer.recipes["v2"])
    await do(world, Inspect(7, v2))
    world.ninfer.exit(1, "error: template fails on 'a prompt'\n")
    assert failed(await do(world, Warm(7, v2))).why == "ninfer:v2 exited with code 1; its log may say why"


@in_simulated_time
async def test_an_exit_whose_log_cant_be_read_still_tells_its_code(world: World) -> None:
    v2 = await _started(world)
    world.ninfer.exit(134)
    world.ninfer.fail("log_tail", GONE)
    assert failed(await do(world, Warm(7, v2))).why == "ninfer:v2 exited with code 134"


@in_simulated_time
async def test_the_deadline_holds_though_docker_cant_be_asked_after_each_completion(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    v2 = await _started(world)

    async def and_gone(*_: object) -> Answered:
        world.ninfer.fail("look", GONE)
        return Answered(4)

    monkeypatch.setattr(world.readiness, "completes", and_gone)
    assert failed(await do(world, Warm(7, v2))).why == "not ready after 120 s"


@in_simulated_time
async def test_readiness_is_counted_from_the_start_and_with_the_memory_in_use(world: World) -> None:
    v2 = await _started(world)
    await asyncio.sleep(3)
    assert await do(world, Warm(7, v2)) == Done(7)
    warmed = world.hands.warmed[v2]
    assert warmed.ready_in == pytest.approx(3)
    assert (warmed.answered.tokens, warmed.peak) == (4, 30 * GiB)
    world.card.unknown = CardUnknown("no driver", "install it")
    assert await do(world, Warm(7, v2)) == Done(7)
    assert world.hands.warmed[v2].peak is None


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("loading\nerror: no such file\nusage: serve ARTIFACT\n  --port N\n", "error: no such file"),
        ("ERROR something\nerror: later\n", "ERROR something"),
        ("main: error: bad flag\nusage\n", "main: error: bad flag"),
        ("Traceback (most recent call last):\n  File x\nValueError: no\n\n", "ValueError: no"),
        ("0 errors so far\nerrors are rare\nlast words\n", "errors are rare"),
        ("just\nlast words\n", "last words"),
        ("\n  \n", ""),
        ("error: " + "x" * 1000, ("error: " + "x" * 1000)[:300]),
    ],
)
def test_the_first_error_of_a_log_is_told_or_else_its_last_line(log: str, line: str) -> None:
    assert first_error(log) == line


async def _none(*_: object) -> None:
    return None


async def _never(*_: object) -> None:
    raise AssertionError("asked too early")
