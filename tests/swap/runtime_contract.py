"""What any `Runtime` must do, whatever it runs engines on. Subclass `RuntimeContract`, give it a `bed` fixture.

    class TestProcessEngine(RuntimeContract):
        @pytest.fixture
        async def bed(self, tmp_path) -> AsyncIterator[RuntimeBed]: ...

The bed's pairs all run `ENGINE` (below) with Python, with the mode as its only argument and `GREETING` in its
environment. `hello` and `changed` differ in `GREETING` alone. Changes count from the call of `events()` on, so that
nobody who calls it before he looks can miss one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

import pytest

from engines.spec import Pair
from swap.drift import differences
from swap.ports import CannotStage, CannotStart, Change, Exit, Recipe, Runtime, RuntimeEvent, Sight, Status

ENGINE = '''
"""An engine that does nothing but live: MODE is `polite`, `deaf` or `failing`."""
import os, signal, sys, time

if sys.argv[1] == "failing":
    print("reading the model", flush=True)
    print("error: no such model", file=sys.stderr, flush=True)
    sys.exit(3)
signal.signal(signal.SIGTERM, signal.SIG_IGN if sys.argv[1] == "deaf" else lambda *_: sys.exit(0))
print("serving:", os.environ.get("GREETING", ""), flush=True)
time.sleep(600)
'''

LIMIT = 60.0  # seconds that anything here may take on a busy machine


@dataclass(frozen=True, slots=True)
class RuntimeBed:
    """One engine that is absent at first. `kill(id)` is SIGKILL by somebody else, `stop(id)` a stop by hand."""

    runtime: Runtime
    hello: Pair  # mode polite, GREETING=hello
    changed: Pair  # mode polite, GREETING=changed
    deaf: Pair  # mode deaf
    failing: Pair  # mode failing
    missing: Pair  # its image or executable isn't there
    kill: Callable[[str], Awaitable[None]]


class RuntimeContract:
    """The tests. They use nothing but the bed and the port."""

    @pytest.fixture
    def bed(self) -> RuntimeBed:
        raise AssertionError("a contract's subclass gives it a bed")

    async def test_what_was_never_made_is_absent(self, bed: RuntimeBed) -> None:
        sight = await bed.runtime.look()
        assert (sight.status, sight.id, sight.recipe) == (Status.ABSENT, "", None)

    async def test_a_staged_engine_is_there_stopped_and_exactly_as_declared(self, bed: RuntimeBed) -> None:
        declared = await bed.runtime.declared(bed.hello)
        staged = await bed.runtime.stage(bed.hello)
        assert staged.status is Status.CREATED
        assert staged.pid is None
        assert await bed.runtime.look() == staged
        assert staged.recipe is not None
        assert differences(declared, staged.recipe) == ()
        assert ("GREETING", "hello") in staged.recipe.env

    async def test_declaring_changes_nothing(self, bed: RuntimeBed) -> None:
        staged = await bed.runtime.stage(bed.hello)
        await bed.runtime.declared(bed.changed)
        assert await bed.runtime.look() == staged

    async def test_staging_what_is_there_already_leaves_it_alone(self, bed: RuntimeBed) -> None:
        staged = await bed.runtime.stage(bed.hello)
        assert await bed.runtime.stage(bed.hello) == staged

    async def test_staging_another_pair_replaces_the_stopped_one(self, bed: RuntimeBed) -> None:
        await bed.runtime.stage(bed.hello)
        staged = await bed.runtime.stage(bed.changed)
        assert staged.recipe is not None
        assert ("GREETING", "changed") in staged.recipe.env
        assert await bed.runtime.look() == staged

    async def test_what_was_staged_is_what_runs(self, bed: RuntimeBed) -> None:
        await bed.runtime.stage(bed.hello)
        staged = await bed.runtime.stage(bed.changed)
        await bed.runtime.start(staged.id)
        assert "serving: changed" in await _log(bed, staged.id, "serving")

    async def test_what_runs_is_told_only_while_it_runs(self, bed: RuntimeBed) -> None:
        assert await bed.runtime.running() is None
        staged = await bed.runtime.stage(bed.hello)
        assert await bed.runtime.running() is None
        await bed.runtime.start(staged.id)
        assert await bed.runtime.running() == staged.recipe
        await bed.runtime.stop(staged.id, LIMIT)
        assert await bed.runtime.running() is None

    async def test_the_image_of_what_is_staged_is_there(self, bed: RuntimeBed) -> None:
        staged = await bed.runtime.stage(bed.hello)
        assert await bed.runtime.has_image(_recipe(staged).image_id)

    async def test_a_restart_policy_is_corrected_without_touching_what_runs(self, bed: RuntimeBed) -> None:
        staged = await bed.runtime.stage(bed.hello)
        await bed.runtime.correct_restart(staged.id)
        assert await bed.runtime.look() == staged
        await bed.runtime.start(staged.id)
        running = await bed.runtime.look()
        await bed.runtime.correct_restart(running.id)
        assert await bed.runtime.look() == running
        assert _recipe(running).restart == "no"
        await bed.runtime.stop(staged.id, LIMIT)

    async def test_put_back_makes_the_replaced_one_again(self, bed: RuntimeBed) -> None:
        old = await bed.runtime.stage(bed.hello)
        await bed.runtime.stage(bed.changed)
        back = await bed.runtime.put_back(_recipe(old))
        assert back.status is Status.CREATED
        assert back.recipe == old.recipe
        await bed.runtime.start(back.id)
        assert "serving: hello" in await _log(bed, back.id, "serving")

    async def test_put_back_also_after_staging_twice_the_same(self, bed: RuntimeBed) -> None:
        old = await bed.runtime.stage(bed.hello)
        await bed.runtime.stage(bed.changed)
        await bed.runtime.stage(bed.changed)
        assert (await bed.runtime.put_back(_recipe(old))).recipe == old.recipe

    async def test_what_is_wanted_back_and_is_there_is_left_untouched(self, bed: RuntimeBed) -> None:
        staged = await bed.runtime.stage(bed.hello)
        with pytest.raises(CannotStage):
            await bed.runtime.stage(bed.missing)
        assert await bed.runtime.put_back(_recipe(staged)) == staged
        assert await bed.runtime.look() == staged

    async def test_what_is_wanted_back_is_not_changed_for_an_older_one_that_is_kept(self, bed: RuntimeBed) -> None:
        await bed.runtime.stage(bed.hello)
        await bed.runtime.stage(bed.changed)
        staged = await bed.runtime.stage(bed.hello)
        with pytest.raises(CannotStage):
            await bed.runtime.stage(bed.missing)
        assert await bed.runtime.put_back(_recipe(staged)) == staged
        assert await bed.runtime.look() == staged

    async def test_what_is_neither_there_nor_kept_is_refused_and_nothing_is_touched(self, bed: RuntimeBed) -> None:
        wanted = await bed.runtime.declared(bed.deaf)
        with pytest.raises(CannotStage):
            await bed.runtime.put_back(wanted)
        await bed.runtime.stage(bed.hello)
        staged = await bed.runtime.stage(bed.changed)
        with pytest.raises(CannotStage):
            await bed.runtime.put_back(wanted)
        assert await bed.runtime.look() == staged

    async def test_a_running_engine_is_never_staged_nor_put_back_over(self, bed: RuntimeBed) -> None:
        old = await bed.runtime.stage(bed.hello)
        running = await _started(bed, bed.changed)
        with pytest.raises(CannotStage, match="running"):
            await bed.runtime.stage(bed.hello)
        with pytest.raises(CannotStage, match="running"):
            await bed.runtime.put_back(_recipe(old))
        assert await bed.runtime.look() == running

    async def test_a_pair_that_cant_be_made_leaves_the_old_one_there(self, bed: RuntimeBed) -> None:
        staged = await bed.runtime.stage(bed.hello)
        with pytest.raises(CannotStage):
            await bed.runtime.stage(bed.missing)
        assert await bed.runtime.look() == staged

    async def test_a_started_engine_is_seen_running_with_its_pid(self, bed: RuntimeBed) -> None:
        running = await _started(bed, bed.hello)
        assert running.status is Status.RUNNING
        assert running.started_at
        assert running.pid
        assert running.exit_code is None

    async def test_starting_what_runs_changes_nothing(self, bed: RuntimeBed) -> None:
        running = await _started(bed, bed.hello)
        await bed.runtime.start(running.id)
        assert await bed.runtime.look() == running

    async def test_an_id_that_isnt_there_cant_be_started(self, bed: RuntimeBed) -> None:
        await bed.runtime.stage(bed.hello)
        with pytest.raises(CannotStart):
            await bed.runtime.start("0" * 64)
        assert (await bed.runtime.look()).status is Status.CREATED

    async def test_a_polite_engine_stops_by_itself(self, bed: RuntimeBed) -> None:
        running = await _started(bed, bed.hello)
        assert await bed.runtime.stop(running.id, LIMIT) == Exit(0, forced=False)
        stopped = await bed.runtime.look()
        assert (stopped.status, stopped.id, stopped.exit_code, stopped.pid) == (Status.EXITED, running.id, 0, None)

    async def test_a_deaf_engine_is_killed_after_its_grace(self, bed: RuntimeBed) -> None:
        running = await _started(bed, bed.deaf)
        assert await bed.runtime.stop(running.id, 1.0) == Exit(137, forced=True)
        assert (await bed.runtime.look()).status is Status.EXITED

    async def test_only_what_was_told_to_stop_and_still_runs_is_ending(self, bed: RuntimeBed) -> None:
        began = time.time()
        running = await _started(bed, bed.deaf)
        assert not await bed.runtime.ending(running.id, began)
        async with asyncio.TaskGroup() as tasks:
            stop = tasks.create_task(bed.runtime.stop(running.id, 2.0))
            async with asyncio.timeout(LIMIT):
                while not await bed.runtime.ending(running.id, began):
                    assert not stop.done(), "nobody would know that it is being stopped"
                    await asyncio.sleep(0.05)
        assert not await bed.runtime.ending(running.id, began)
        await bed.runtime.start(running.id)
        assert not await bed.runtime.ending(running.id, began), "the one of before was told, not this run"

    async def test_stopping_what_is_stopped_says_how_it_ended(self, bed: RuntimeBed) -> None:
        running = await _started(bed, bed.hello)
        ended = await bed.runtime.stop(running.id, LIMIT)
        assert await bed.runtime.stop(running.id, LIMIT) == ended

    async def test_a_stopped_engine_starts_anew(self, bed: RuntimeBed) -> None:
        running = await _started(bed, bed.hello)
        await bed.runtime.stop(running.id, LIMIT)
        await bed.runtime.start(running.id)
        again = await bed.runtime.look()
        assert again.running
        assert again.id == running.id
        assert again.started_at != running.started_at

    async def test_a_failed_engine_leaves_exit_code_and_error_line(self, bed: RuntimeBed) -> None:
        staged = await bed.runtime.stage(bed.failing)
        await bed.runtime.start(staged.id)
        ended = await _until(bed, Status.EXITED)
        assert ended.exit_code == 3
        assert "error: no such model" in await _log(bed, staged.id, "error")

    async def test_a_start_and_a_death_are_told_with_the_exit_code(self, bed: RuntimeBed) -> None:
        staged = await bed.runtime.stage(bed.failing)
        async with aclosing(_events(bed)) as events, asyncio.timeout(LIMIT):
            await bed.runtime.start(staged.id)
            assert await anext(events) == RuntimeEvent(Change.STARTED, staged.id)
            assert await anext(events) == RuntimeEvent(Change.DIED, staged.id, 3)

    async def test_a_kill_from_outside_is_told_as_a_death_alone(self, bed: RuntimeBed) -> None:
        running = await _started(bed, bed.hello)
        async with aclosing(_events(bed)) as events, asyncio.timeout(LIMIT):
            await bed.kill(running.id)
            assert await anext(events) == RuntimeEvent(Change.DIED, running.id, 137)
            await bed.runtime.start(running.id)
            assert await anext(events) == RuntimeEvent(Change.STARTED, running.id)

    async def test_a_stop_is_told_as_a_death(self, bed: RuntimeBed) -> None:
        running = await _started(bed, bed.hello)
        async with aclosing(_events(bed)) as events, asyncio.timeout(LIMIT):
            await bed.runtime.stop(running.id, LIMIT)
            seen = {await anext(events)}
            while RuntimeEvent(Change.DIED, running.id, 0) not in seen:
                seen.add(await anext(events))
            assert {event.change for event in seen} <= {Change.STOPPED, Change.DIED}


def _recipe(sight: Sight) -> Recipe:
    assert sight.recipe is not None
    return sight.recipe


async def _started(bed: RuntimeBed, pair: Pair) -> Sight:
    """Stage, start, and wait until the engine has said that it serves (its signal handlers are set)."""
    staged = await bed.runtime.stage(pair)
    await bed.runtime.start(staged.id)
    await _log(bed, staged.id, "serving")
    return await bed.runtime.look()


def _events(bed: RuntimeBed) -> AsyncGenerator[RuntimeEvent, None]:
    stream = bed.runtime.events()
    assert isinstance(stream, AsyncGenerator)  # so that it can be closed
    return stream


async def _log(bed: RuntimeBed, id: str, word: str) -> str:
    async with asyncio.timeout(LIMIT):
        while True:
            if word in (text := await bed.runtime.log_tail(id)):
                return text
            await asyncio.sleep(0.05)


async def _until(bed: RuntimeBed, status: Status) -> Sight:
    async with asyncio.timeout(LIMIT):
        while True:
            if (sight := await bed.runtime.look()).status is status:
                return sight
            await asyncio.sleep(0.05)
