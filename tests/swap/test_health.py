"""An engine that runs and serves nobody is given up; one that is only silent never is. In simulated time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from engines.spec import Engine
from swap.ends import Moment, Tried
from swap.health import Health
from swap.known import run_of
from swap.moves import Unit
from swap.ports import Status
from swap.readiness import Asked
from swap.state import State
from tests.simulated_time import in_simulated_time
from tests.swap.world import GONE, FakeReadiness, World, until

WELL = Asked(200, json.dumps({"choices": [{"message": {"content": "OK"}, "finish_reason": "stop"}]}).encode())
LOADED = Asked(200, b'{"status": "ok", "loaded": true}')
UNLOADED = Asked(200, b'{"status": "ok", "loaded": false}')
UNAVAILABLE = Asked(503, b'{"error": {"code": "unavailable", "message": "the engine has failed"}}')
CUDA = Asked(500, b'{"error": {"message": "CUDA error: no CUDA-capable device is detected"}}')
QUEUED = Asked(503, b'{"error": {"code": "request_queue_timeout", "message": "waited too long"}}')
SILENT = Asked(fault="no whole answer in 2 s")
REFUSED = Asked(fault="Connection refused", gone=True)


@dataclass
class Ward:
    """An engine that serves, and its health. `sign` and `completion` are what it answers, `questions` what was asked.

    `work`: places at the engine that others have; ours comes on top.
    """

    world: World
    sign: Asked = LOADED
    completion: Asked = WELL
    work: int = 0
    ours: int = 0
    questions: list[str] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)
    asked: Callable[[], object] = lambda: None
    taken_away: bool = False  # the gate is closed to it

    def __post_init__(self) -> None:
        readiness = _Answers(self.world.runtimes)
        readiness.ward = self
        self.world.hands.readiness = readiness
        self.health = Health(self.world.hands, self._state, self._useless, self._taken, self._place)

    def _taken(self) -> int:
        return self.work + self.ours

    def _state(self) -> State:
        state = self.world.controller.state
        return replace(state, closed=True) if self.taken_away else state

    def _useless(self, unit: Unit, why: str) -> None:
        self.given_up.append(f"{unit.label}: {why}")
        self.taken_away = True

    @asynccontextmanager
    async def _place(self, within: float) -> AsyncIterator[bool]:
        """One place in all."""
        if self.work + self.ours:
            await asyncio.sleep(within)
        free = self.work + self.ours == 0
        self.ours += free
        yield free
        self.ours -= free

    @property
    def run(self) -> str:
        unit = self.world.controller.state.serving
        assert unit is not None
        return run_of(unit, self.world.hands.known[unit])

    async def client_gets(self, error: str) -> None:
        """A client's answer; as a visit does it, its place is kept while the engine is examined."""
        if self.health.error(self.run, error):
            self.ours += 1
            await self.health.examine(self.run)
            self.ours -= 1


class _Answers(FakeReadiness):
    ward: Ward

    async def ask(self, method: str, engine: Engine, path: str, limit: float, body: bytes | None = None) -> Asked:
        if path == "/v1/models":
            return Asked(200, b"{}")
        self.ward.questions.append(path)
        self.ward.asked()
        answer = self.ward.sign if path == "/health" else self.ward.completion
        await asyncio.sleep(0.01 if answer.status or answer.gone else limit)
        return answer


@asynccontextmanager
async def ward(world: World, label: str = "ninfer:v2", **engine: object) -> AsyncIterator[Ward]:
    """`engine`: keys of its configuration."""
    name = label.partition(":")[0]
    world.engines[name] = replace(world.engines[name], **engine)  # type: ignore[arg-type]
    world.rebuild()
    async with world.serving(label):
        made = Ward(world)
        async with asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(made.health.run())
            yield made
            looking.cancel()


async def some(seconds: float) -> None:
    await asyncio.sleep(seconds)


# ------------------------------------------------------------------------------------------------- explicit errors


@in_simulated_time
async def test_case_24_an_engine_that_answers_503_for_ever_is_given_up_whatever_its_health_says(world: World) -> None:
    async with ward(world) as made:
        made.completion = UNAVAILABLE
        await made.client_gets("HTTP 503: unavailable")
        assert made.given_up == [
            "ninfer:v2: errors in a row: 3; the last: a completion of ours got HTTP 503: the engine has failed"
        ]
        assert made.questions.count("/v1/chat/completions") == 2  # one client has met it, and nobody else


@in_simulated_time
async def test_case_33_an_engine_that_lost_the_card_is_given_up(world: World) -> None:
    async with ward(world, "strata:current") as made:
        made.completion = CUDA
        await made.client_gets("HTTP 500: CUDA error")
        assert len(made.given_up) == 1
        assert "no CUDA-capable device" in made.given_up[0]


@in_simulated_time
async def test_a_client_whose_requests_are_at_fault_never_makes_an_engine_useless(world: World) -> None:
    async with ward(world) as made:
        for _ in range(100):
            await made.client_gets("HTTP 500: failed to parse grammar")
        assert made.given_up == []
        assert made.questions.count("/v1/chat/completions") < 40  # nor is it asked each time


@in_simulated_time
@pytest.mark.parametrize("answer", [QUEUED, SILENT, REFUSED, Asked(404, b"{}"), Asked(429, b"{}")])
async def test_errors_are_confirmed_by_an_explicit_error_only(world: World, answer: Asked) -> None:
    async with ward(world) as made:
        made.completion = answer
        for _ in range(5):
            await made.client_gets("HTTP 503: unavailable")
        assert made.given_up == []


@in_simulated_time
async def test_a_whole_answer_in_between_starts_the_count_afresh(world: World) -> None:
    async with ward(world) as made:
        made.completion = QUEUED
        for _ in range(5):
            await made.client_gets("HTTP 500: x")
            await made.client_gets("HTTP 500: x")
            made.health.answered(made.run)
        made.completion = UNAVAILABLE
        made.asked = lambda: made.health.answered(made.run)
        await made.client_gets("HTTP 500: x")
        assert made.given_up == []


@in_simulated_time
async def test_what_was_heard_of_an_earlier_run_says_nothing_of_this_one(world: World) -> None:
    async with ward(world) as made:
        before = made.run
        world.ninfer.exit(134)
        await until(lambda: world.controller.state.serving and made.run != before)
        made.completion = UNAVAILABLE
        assert not made.health.error(before, "HTTP 503: unavailable")
        await made.health.examine(before)
        assert made.given_up == []


@in_simulated_time
async def test_an_engine_that_has_gone_meanwhile_is_not_ours_to_give_up(world: World) -> None:
    """The watch knows how it ended, and whether somebody meant it."""
    async with ward(world) as made:
        made.completion = UNAVAILABLE
        world.ninfer.sight = replace(world.ninfer.sight, started_at="later")
        await made.client_gets("HTTP 503: unavailable")
        assert made.given_up == []


@in_simulated_time
async def test_while_the_card_moves_nobody_is_given_up(world: World) -> None:
    async with ward(world) as made:
        made.completion = made.sign = UNAVAILABLE
        made.taken_away = True
        assert not made.health.error(made.run, "HTTP 503: unavailable")
        await some(120)
        assert made.given_up == made.questions == []


@in_simulated_time
async def test_0_switches_it_off(world: World) -> None:
    async with ward(world, useless_after=0, health_failures=0) as made:
        made.completion = made.sign = UNAVAILABLE
        for _ in range(10):
            await made.client_gets("HTTP 503: unavailable")
        await some(120)
        assert made.given_up == made.questions == []


# ------------------------------------------------------------------------------------------------- its own sign


@in_simulated_time
@pytest.mark.parametrize(
    ("label", "sign"),
    [("ninfer:v2", UNAVAILABLE), ("strata:current", UNLOADED), ("ninfer:v2", SILENT), ("ninfer:v2", REFUSED)],
)
@pytest.mark.parametrize("completion", [UNAVAILABLE, SILENT, REFUSED])
async def test_bad_signs_in_a_row_that_a_completion_confirms_are_enough(
    world: World, label: str, sign: Asked, completion: Asked
) -> None:
    async with ward(world, label) as made:
        made.sign, made.completion = sign, completion
        await some(25)
        assert made.given_up == []
        await some(100)
        assert len(made.given_up) == 1
        assert "bad signs of health in a row: 3" in made.given_up[0]


@in_simulated_time
async def test_bad_signs_of_one_that_answers_are_forgotten(world: World) -> None:
    async with ward(world) as made:
        made.sign = UNAVAILABLE
        await some(300)
        assert made.given_up == []


@in_simulated_time
async def test_case_24_twin_an_engine_that_is_silent_in_a_prefill_is_not_useless(world: World) -> None:
    """Neither its sign nor a completion says anything while it has work, however long; nor is it counted for later."""
    async with ward(world) as made:
        made.sign = made.completion = SILENT
        made.work = 1
        await some(1000)
        made.work = 0
        await some(12)
        made.sign = LOADED
        await some(200)
        assert made.given_up == []


@in_simulated_time
async def test_a_completion_that_is_silent_beside_other_work_confirms_nothing(world: World) -> None:
    async with ward(world) as made:
        made.sign = made.completion = SILENT

        def comes() -> None:
            made.work = int(made.questions[-1] != "/health")

        made.asked = comes
        await some(300)
        assert "/v1/chat/completions" in made.questions
        assert made.given_up == []


@in_simulated_time
async def test_explicitly_bad_signs_are_confirmed_once_its_work_is_done(world: World) -> None:
    async with ward(world) as made:
        made.sign = made.completion = UNAVAILABLE
        made.work = 1
        await some(200)
        assert made.given_up == []
        assert "/v1/chat/completions" not in made.questions
        made.work = 0
        await some(100)
        assert len(made.given_up) == 1


@in_simulated_time
async def test_its_sign_is_asked_at_once_when_a_client_could_not_reach_it_but_not_each_time(world: World) -> None:
    async with ward(world, health_every=60.0) as made:
        made.sign = made.completion = REFUSED
        for _ in range(20):
            made.health.unreached(made.run)
            await some(0.1)
        assert made.questions == ["/health"]  # it may be stopping, and take its time
        assert made.given_up == []


@in_simulated_time
async def test_a_docker_that_cannot_be_asked_puts_it_off(world: World) -> None:
    async with ward(world) as made:
        made.completion = UNAVAILABLE
        world.ninfer.fail("look", GONE, times=3)
        await made.client_gets("HTTP 503: unavailable")
        assert made.given_up == []
        await until(lambda: not world.ninfer._orders.fail["look"])
        await made.client_gets("HTTP 503: unavailable")
        assert len(made.given_up) == 1


@in_simulated_time
@pytest.mark.parametrize("contained", [True, False])
async def test_only_of_a_container_it_can_be_proven_that_it_had_ended(world: World, contained: bool) -> None:
    async with ward(world) as made:
        run = made.run
        world.ninfer.sight = replace(world.ninfer.sight, status=Status.EXITED, finished_at="2020-01-01T00:00:00Z")
        if not contained:
            world.engines["ninfer"] = replace(world.engines["ninfer"], container=None)
        assert await made.health.ended_before("ninfer", Tried(run, Moment(), Moment())) is contained
