"""What looks ready and isn't: healthy before it is loaded, a port that accepts for nobody, an engine that has died."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from engines.spec import Engine
from swap.moves import Code
from swap.readiness import Answered, Readiness
from tests.simulated_time import in_simulated_time
from tests.swap.test_readiness import COMPLETION, SURE, Reply, http, serving
from tests.swap.world import World, now, until

LOG = "loading weights\nerror: CUDA out of memory\nusage: ninfer-serve ARTIFACT [flags]\n"
NOT_YET = http(503, {"error": {"message": "Loading model"}})


@pytest.fixture(scope="module")
def shared() -> Iterator[Readiness]:
    readiness = Readiness()
    yield readiness
    asyncio.run(readiness.close())


# ------------------------------------------------------------------------------------------------- healthy too early


@in_simulated_time
async def test_case_20_who_is_healthy_at_once_and_answers_after_10_s_is_ready_then_and_not_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.serving():
        healthy = after_the_start(world, monkeypatch, answers_after=10.0)
        began = now()
        assert (await world.swap("ninfer")).code == Code.SERVES
        assert 10 <= now() - began < 12
        assert len(healthy) > 50  # it said so all the time
        assert world.happened[-2:] == ["ninfer start [start]", "gate open ninfer"]


@in_simulated_time
async def test_case_20_a_failure_doesnt_stick(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next swap can succeed, by the same daemon."""
    async with world.serving():
        with monkeypatch.context() as never:
            after_the_start(world, never, answers_after=1e6)
            ended = await world.swap("ninfer")
            assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
            assert "not ready after 120 s" in ended.text
        ended = await world.swap("ninfer")
        assert (ended.code, ended.serving) == (Code.SERVES, "ninfer:v2")


def after_the_start(world: World, monkeypatch: pytest.MonkeyPatch, *, answers_after: float) -> list[float]:
    """NInfer is healthy from its start on, and answers requests so many seconds later; when it was asked for health."""
    started: list[float] = []
    healthy: list[float] = []
    completes = world.readiness.completes
    world.when("ninfer start [start]", lambda: started.append(now()))

    async def sign(engine: Engine) -> bool:
        healthy.append(now())
        return True

    async def once_loaded(engine: Engine) -> Answered | None:
        if engine.name == "ninfer" and now() - started[0] < answers_after:
            return None
        return await completes(engine)

    monkeypatch.setattr(world.readiness, "sign", sign)
    monkeypatch.setattr(world.readiness, "completes", once_loaded)
    return healthy


async def test_case_20_a_503_to_the_completion_is_not_yet_however_healthy_it_calls_itself(shared: Readiness) -> None:
    async with asyncio.timeout(SURE), serving(chat=NOT_YET) as server:
        engine = server.engine(patience=SURE)
        assert await shared.sign(engine)
        assert await shared.completes(engine) is None
        server.replies["/v1/chat/completions"] = http(200, COMPLETION)
        assert await shared.completes(engine) == Answered(3)


# ------------------------------------------------------------------------------------------------- a port too early


async def reset(writer: asyncio.StreamWriter) -> None:
    """What docker-proxy does while nobody listens in the container: the connection was made, and is reset."""
    writer.transport.abort()


async def closed(_: asyncio.StreamWriter) -> None:
    """It ends, without a byte."""


@pytest.mark.parametrize("reply", [reset, closed])
async def test_case_21_a_connection_that_is_made_and_then_reset_is_not_yet(shared: Readiness, reply: Reply) -> None:
    async with asyncio.timeout(SURE), serving(health=reply, chat=reply, models=reply) as server:
        engine = server.engine(patience=SURE)
        assert not await shared.sign(engine)
        assert await shared.completes(engine) is None


@in_simulated_time
async def test_case_21_not_yet_is_no_failure_as_long_as_the_container_runs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.serving():
        began = now()
        sign = world.readiness.sign

        async def refused(engine: Engine) -> bool:
            return now() - began > 100 and await sign(engine)

        monkeypatch.setattr(world.readiness, "sign", refused)
        assert (await world.swap("ninfer")).code == Code.SERVES
        assert 100 < now() - began < 102


@pytest.mark.parametrize("question", ["sign", "completes", "generates"])
@in_simulated_time
async def test_case_21_an_exit_is_a_failure_within_a_second_though_a_question_is_still_open(
    world: World, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    """Something on the way may keep the connection of a dead engine: nobody waits for its time-out, or a deadline."""
    async with world.serving():
        exited: list[float] = []

        async def open_for_ever(*_: object) -> None:
            world.ninfer.exit(1, LOG)
            exited.append(now())
            await asyncio.sleep(1e6)

        monkeypatch.setattr(world.readiness, question, open_for_ever)
        ticket = world.order("ninfer", trial=question == "generates")
        await until(lambda: exited)
        monkeypatch.undo()
        await until(lambda: world.controller.state.failure)
        assert now() - exited[0] <= 1.0
        assert "ninfer:v2 exited with code 1: error: CUDA out of memory" in world.controller.state.failure
        await until(lambda: world.gate.state == "open strata")
        async for _ in ticket.follow():
            pass
