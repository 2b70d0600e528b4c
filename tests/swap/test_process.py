"""Engines as child processes: the runtime's contract, and what only processes can do to us."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from engines.openai import profile as openai
from engines.spec import Engine, Pair
from swap import proc
from swap.ports import CannotStage, CannotStart, Change, Exit, RuntimeEvent, Sight, Status, Unreachable
from swap.process import ChildProcess
from swap.record import Record, Records, Run
from tests.swap.runtime_contract import ENGINE, LIMIT, RuntimeBed, RuntimeContract

T = TypeVar("T")

SLEEP = ("/usr/bin/sleep", "600")

# Another daemon: it stages and starts the engine of the folder given, says its id, and is then killed.
DAEMON = """
import asyncio, os, signal, sys
from pathlib import Path
from swap import launch
from tests.swap.test_process import an_engine
from swap.process import ChildProcess

async def main():
    runtime = ChildProcess(an_engine(*sys.argv[3:]), Path(sys.argv[1]))
    staged = await runtime.stage(runtime.engine.deployed_pair)
    if sys.argv[2] == "before the orders":
        launch.Launch.go = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    await runtime.start(staged.id)
    print((await runtime.look()).pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""

LAUNCHER = """
import sys
from pathlib import Path
from swap.launch import Launch
print(Launch(Path(sys.argv[1])).pid)
"""

# What it was given, as the kernel shows it (an interpreter adds to its own view).
TELL = """
import json, os
status = dict(line.split(":\\t") for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
print(json.dumps({
    "env": open("/proc/self/environ").read(), "argv": open("/proc/self/cmdline").read().split("\\0")[:-1],
    "folder": os.getcwd(), "stdin": os.readlink("/proc/self/fd/0"), "session": os.getsid(0) == os.getpid(),
    "descriptors": sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:-1],
    "blocked": int(status["SigBlk"], 16), "ignored": int(status["SigIgn"], 16),
}))
"""

# A server with a child of its own that is deaf to SIGTERM, as an engine can be that is slow to let go of its memory.
PARENT = """
import os, signal, sys, time
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("child", os.getpid(), flush=True)
else:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
time.sleep(600)
"""


def an_engine(*command: str) -> Engine:
    pair = Pair("engine", "only", image="", artifacts=())
    return Engine("engine", openai.PROFILE, "http://127.0.0.1:9", 0, {"only": pair}, "only", command=command)


class TestProcessEngine(RuntimeContract):
    @pytest.fixture
    async def bed(self, tmp_path: Path) -> AsyncIterator[RuntimeBed]:
        script = tmp_path / "engine.py"
        script.write_text(ENGINE)
        runtime = ChildProcess(an_engine("unused"), tmp_path)

        def pair(mode: str, greeting: str = "hello") -> Pair:
            command = (sys.executable, str(script), mode)
            return Pair("engine", mode, sys.executable, (), env={"GREETING": greeting}, command=command)

        async def kill(id: str) -> None:
            os.kill((await runtime.look()).pid or 0, signal.SIGKILL)

        missing = Pair("engine", "missing", "/nowhere/engine", (), command=("/nowhere/engine",))
        hello, changed = pair("polite"), pair("polite", "changed")
        yield RuntimeBed(runtime, hello, changed, pair("deaf"), pair("failing"), missing, kill)
        await _end(runtime)


@pytest.fixture
async def sleeper(tmp_path: Path) -> AsyncIterator[ChildProcess]:
    """An engine that sleeps."""
    runtime = ChildProcess(an_engine(*SLEEP), tmp_path)
    yield runtime
    await _end(runtime)


@pytest.fixture
async def family(tmp_path: Path) -> AsyncIterator[ChildProcess]:
    """An engine whose child is deaf to SIGTERM."""
    runtime = ChildProcess(an_engine(sys.executable, "-c", PARENT), tmp_path)
    yield runtime
    await _end(runtime)


@pytest.fixture
def stranger() -> Iterator[proc.Mark]:
    """A process that isn't ours, a session's leader as an engine would be."""
    with subprocess.Popen(SLEEP, start_new_session=True) as process:
        try:
            yield proc.mark(process.pid)
        finally:
            process.kill()


# ------------------------------------------------------------------------------------------------- what it is given


async def test_an_engine_gets_exactly_its_command_and_environment_and_nothing_of_ours(tmp_path: Path) -> None:
    inherited, kept = os.pipe()
    os.set_inheritable(inherited, True)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        command = (sys.executable, "-c", TELL)
        runtime = ChildProcess(an_engine(*command), tmp_path)
        await _start(runtime, Pair("engine", "only", "", (), env={"KEY": "välue", "EMPTY": ""}))
        ended = await _until(runtime, Status.EXITED)
        told = json.loads(await runtime.log_tail(ended.id))
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        os.close(inherited)
        os.close(kept)
    assert told == {
        "env": "EMPTY=\0KEY=välue\0",
        "argv": list(command),
        "folder": "/",
        "stdin": "/dev/null",
        "session": True,
        "descriptors": [0, 1, 2],
        "blocked": 0,
        "ignored": told["ignored"],  # by Python itself: SIGPIPE and SIGXFSZ
    }
    assert not told["ignored"] & 1 << signal.SIGUSR1 - 1


async def test_an_engine_that_python_did_not_start_ignores_no_signal(sleeper: ChildProcess) -> None:
    running = await _start(sleeper)
    ignored = int(_read(Path(f"/proc/{running.pid}/status")).partition("SigIgn:\t")[2].split()[0], 16)
    assert ignored & (1 << 31) - 1 == 0  # those beyond 31 are the C library's own


async def test_an_engine_runs_on_and_is_seen_and_stopped_though_the_state_folder_was_moved_away(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    runtime = ChildProcess(an_engine(*SLEEP), state)
    running = await _start(runtime)
    state.rename(tmp_path / "moved")
    assert await runtime.look() == running
    await runtime.stop(running.id, LIMIT)
    assert (await runtime.look()).status is Status.EXITED
    with pytest.raises(CannotStart, match="No such file or directory"):  # a crash would lose what isn't on record
        await runtime.start(running.id)
    assert not state.exists()


async def test_nothing_is_put_on_record_in_a_state_folder_that_isnt_ours_any_more(tmp_path: Path) -> None:
    def another() -> None:
        raise OSError(errno.ESTALE, "another folder is there")

    runtime = ChildProcess(an_engine(*SLEEP), tmp_path, another)
    with pytest.raises(CannotStage, match="another folder is there"):
        await runtime.stage(runtime.engine.deployed_pair)
    assert not (tmp_path / "processes").exists()


async def test_the_pairs_command_and_variables_win_over_the_engines(tmp_path: Path) -> None:
    runtime = ChildProcess(an_engine("/usr/bin/false"), tmp_path)
    recipe = await runtime.declared(Pair("engine", "p", "", (), command=SLEEP, env={"A": "1"}))
    assert (recipe.image, recipe.command, recipe.env) == ("/usr/bin/sleep", SLEEP, (("A", "1"),))
    assert recipe.image_id.startswith("sha256:")
    assert not recipe.contained


async def test_a_program_without_a_path_is_looked_for_in_the_engines_own_path(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "my-engine"
    program.parent.mkdir()
    shutil.copy(SLEEP[0], program)
    runtime = ChildProcess(an_engine("my-engine", "600"), tmp_path)
    recipe = await runtime.declared(Pair("engine", "p", "", (), env={"PATH": str(program.parent)}))
    assert recipe.image == str(program)
    with pytest.raises(CannotStage, match="no program my-engine"):
        await runtime.declared(Pair("engine", "p", "", ()))


@pytest.mark.parametrize(
    ("pair", "why"),
    [
        (Pair("engine", "p", "/usr/bin/env", (), command=SLEEP), "no part of its command"),
        (Pair("engine", "p", "", (), command=("./sleep", "1")), "is relative"),
        (Pair("engine", "p", "", (), command=("",)), "empty command"),
    ],
)
async def test_a_command_that_cant_be_told_apart_or_run_is_refused(tmp_path: Path, pair: Pair, why: str) -> None:
    with pytest.raises(CannotStage, match=why):
        await ChildProcess(an_engine(), tmp_path).stage(pair)


async def test_an_executable_that_changed_since_it_was_staged_is_not_started(tmp_path: Path) -> None:
    program = tmp_path / "engine"
    shutil.copy(SLEEP[0], program)
    runtime = ChildProcess(an_engine(str(program), "600"), tmp_path)
    staged = await runtime.stage(runtime.engine.deployed_pair)
    shutil.copy("/usr/bin/env", program)
    moved = await runtime.look()
    assert moved.recipe == staged.recipe
    assert moved.tag_id not in ("", staged.tag_id)
    with pytest.raises(CannotStart, match="has changed since it was staged"):
        await runtime.start(staged.id)


async def test_a_program_that_cant_be_executed_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    program = tmp_path / "engine"
    program.write_text("no program at all")
    program.chmod(0o755)
    runtime = ChildProcess(an_engine(str(program)), tmp_path)
    staged = await runtime.stage(runtime.engine.deployed_pair)
    with pytest.raises(CannotStart, match="Exec format error"):
        await runtime.start(staged.id)
    assert await runtime.look() == staged
    zombies = await asyncio.to_thread(lambda: [one for one in proc._everyone() if one.dead])
    assert not [one for one in zombies if one.parent == os.getpid()]


async def test_a_new_run_begins_a_new_log_and_keeps_the_one_before(tmp_path: Path) -> None:
    runtime = ChildProcess(an_engine("/bin/sh", "-c", "echo $$"), tmp_path)
    for _ in range(2):
        running = await _start(runtime)
        await _until(runtime, Status.EXITED)
    logs = tmp_path / "processes/engine"
    new, old = _read(logs / f"{running.id}.log"), _read(logs / f"{running.id}.log.1")
    assert new == await runtime.log_tail(running.id) != old
    assert len(new.split()) == len(old.split()) == 1
    assert await runtime.log_tail("another") == ""


async def test_a_long_log_is_told_by_its_end(tmp_path: Path) -> None:
    runtime = ChildProcess(an_engine("/bin/sh", "-c", "yes | head -c 300000; echo end"), tmp_path)
    running = await _start(runtime)
    await _until(runtime, Status.EXITED)
    tail = await runtime.log_tail(running.id)
    assert len(tail) == 64 * 1024
    assert tail.endswith("end\n")


# ------------------------------------------------------------------------------------------------- outliving the daemon


async def test_another_object_adopts_what_runs(sleeper: ChildProcess, tmp_path: Path) -> None:
    running = await _start(sleeper)
    next_daemon = ChildProcess(an_engine(*SLEEP), tmp_path)
    assert await next_daemon.look() == running
    assert await next_daemon.stop(running.id, LIMIT) == Exit(143, forced=False)
    assert (await sleeper.look()).status is Status.EXITED


async def test_an_engine_outlives_a_killed_daemon_and_is_adopted_and_stopped(
    sleeper: ChildProcess, tmp_path: Path
) -> None:
    pid = _daemon_killed(tmp_path, "when it runs", *SLEEP)
    async with aclosing(sleeper.events()) as events:
        adopted = await sleeper.look()
        assert (adopted.status, adopted.pid) == (Status.RUNNING, int(pid))
        assert adopted.started_at
        assert await sleeper.stop(adopted.id, LIMIT) == Exit(None, forced=False)  # another's child: its code is lost
        async with asyncio.timeout(LIMIT):
            assert await anext(events) == RuntimeEvent(Change.DIED, adopted.id)
    assert await _session(int(pid)) == []


async def test_a_daemon_killed_between_fork_and_orders_loses_no_engine(sleeper: ChildProcess, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    _daemon_killed(tmp_path, "before the orders", "/usr/bin/touch", str(marker))
    ended = await _until(sleeper, Status.EXITED)  # on record, and its launcher has given up
    assert ended.exit_code is None
    assert not marker.exists()


async def test_a_launcher_whose_daemon_dies_before_the_record_runs_nothing(tmp_path: Path) -> None:
    launcher = int(_python(LAUNCHER, str(tmp_path / "log")).stdout)
    await _eventually(lambda: _session(launcher), lambda left: not left)


async def test_a_start_whose_caller_gives_up_is_seen_all_the_same(sleeper: ChildProcess) -> None:
    staged = await sleeper.stage(sleeper.engine.deployed_pair)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.005):
            await asyncio.gather(sleeper.start(staged.id), asyncio.sleep(600))
    # whatever became of it, a start and a look agree with what the kernel says
    await sleeper.start(staged.id)
    running = await sleeper.look()
    assert running.pid is not None
    assert await _session(running.pid) == [running.pid]


async def test_a_damaged_record_is_named_and_nothing_is_started_over_it(sleeper: ChildProcess, tmp_path: Path) -> None:
    running = await _start(sleeper)
    record = tmp_path / "processes/engine/current.json"
    kept = record.read_bytes()
    record.write_bytes(kept[:50])
    with pytest.raises(Unreachable, match="is damaged"):
        await sleeper.look()
    with pytest.raises(Unreachable, match=str(record)):
        await sleeper.start(running.id)
    record.write_bytes(kept)
    assert await sleeper.look() == running


# ------------------------------------------------------------------------------------------------- who is signalled


async def test_a_pid_that_was_used_again_is_never_signalled(
    sleeper: ChildProcess, stranger: proc.Mark, tmp_path: Path
) -> None:
    staged = await sleeper.stage(sleeper.engine.deployed_pair)
    assert staged.recipe is not None
    before = proc.Mark(stranger.pid, stranger.start - 1, stranger.boot)
    await _rewrite(tmp_path, Record(staged.recipe, staged.id, Run(before, "then")))
    assert await sleeper.stop(staged.id, LIMIT) == Exit(None, forced=False)
    assert (await sleeper.look()).status is Status.EXITED
    assert await _lives(stranger)


async def test_a_run_of_another_boot_is_over(sleeper: ChildProcess, stranger: proc.Mark, tmp_path: Path) -> None:
    staged = await sleeper.stage(sleeper.engine.deployed_pair)
    assert staged.recipe is not None
    before = proc.Mark(stranger.pid, stranger.start, "another boot")
    await _rewrite(tmp_path, Record(staged.recipe, staged.id, Run(before, "then")))
    assert (await sleeper.look()).status is Status.EXITED
    assert await sleeper.stop(staged.id, LIMIT) == Exit(None, forced=False)
    assert await _lives(stranger)


def test_a_signal_that_comes_too_late_hits_nobody(stranger: proc.Mark) -> None:
    now = proc.process(stranger.pid)
    assert now is not None
    proc.send(proc.Process(now.pid, now.parent, now.session, now.start - 1, dead=False), signal.SIGKILL)
    time.sleep(0.2)  # a kill takes its time
    assert proc.lives(stranger)
    proc.send(now, signal.SIGKILL)
    os.waitid(os.P_PID, now.pid, os.WEXITED | os.WNOWAIT)
    assert not proc.lives(stranger), "a zombie doesn't live"


async def test_a_stop_of_another_id_stops_nothing(sleeper: ChildProcess) -> None:
    running = await _start(sleeper)
    assert await sleeper.stop("another", 0.0) == Exit(None, forced=False)
    assert await sleeper.look() == running


# ------------------------------------------------------------------------------------------------- its whole group


async def test_a_stop_ends_the_whole_group_also_members_deaf_to_sigterm(family: ChildProcess) -> None:
    running, child = await _start_family(family)
    assert await family.stop(running.id, LIMIT) == Exit(0, forced=False)
    assert not await _lives(child)
    assert (await family.look()).status is Status.EXITED


async def test_a_crash_of_the_leader_is_the_end_of_its_group_as_in_a_container(family: ChildProcess) -> None:
    running, child = await _start_family(family)
    assert running.pid is not None
    async with aclosing(family.events()) as events, asyncio.timeout(LIMIT):
        os.kill(running.pid, signal.SIGKILL)
        assert await anext(events) == RuntimeEvent(Change.DIED, running.id, 137)
    crashed = await family.look()
    assert (crashed.status, crashed.pid, crashed.exit_code) == (Status.EXITED, None, 137)
    await _eventually(partial(_lives, child), lambda lives: not lives)
    assert running.pid not in await _session(running.pid, dead=True), "its zombie was collected"
    assert await family.stop(running.id, 0.5) == Exit(137, forced=False)


async def test_a_group_whose_leader_died_while_no_daemon_ran_is_ended_by_the_next(
    family: ChildProcess, tmp_path: Path
) -> None:
    running, child = await _start_family(family)
    os.kill(running.pid or 0, signal.SIGKILL)
    next_daemon = ChildProcess(an_engine("/bin/true"), tmp_path)
    await _eventually(next_daemon.look, lambda sight: sight.status is Status.EXITED)
    await _eventually(partial(_lives, child), lambda lives: not lives)


async def test_a_start_after_a_crash_ends_what_the_crash_left_behind(family: ChildProcess) -> None:
    running, child = await _start_family(family)
    os.kill(running.pid or 0, signal.SIGKILL)
    await _eventually(family.look, lambda sight: sight.pid is None)
    await family.start(running.id)
    assert not await _lives(child)
    again = await family.look()
    assert again.running
    assert again.started_at != running.started_at


async def test_an_engine_that_ends_leaves_no_zombie(tmp_path: Path) -> None:
    runtime = ChildProcess(an_engine("/bin/sh", "-c", "echo $$; exit 3"), tmp_path)
    await _start(runtime)
    ended = await _until(runtime, Status.EXITED)
    assert ended.exit_code == 3
    assert await _session(int(await runtime.log_tail(ended.id)), dead=True) == []


# ------------------------------------------------------------------------------------------------- helpers


def _daemon_killed(state: Path, when: str, *command: str) -> str:
    """Run another daemon until it is killed; what it said: the engine's pid."""
    ended = _python(DAEMON, str(state), when, *command)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    return ended.stdout.strip()


def _python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def _read(path: Path) -> str:
    return path.read_text()


async def _rewrite(state: Path, record: Record) -> None:
    await asyncio.to_thread(Records(state / "processes/engine").write, record)


async def _lives(marked: proc.Mark) -> bool:
    return await asyncio.to_thread(proc.lives, marked)


async def _session(number: int, *, dead: bool = False) -> list[int]:
    """The pids of who is in this session, with `dead` its zombies too."""
    everyone = await asyncio.to_thread(lambda: list(proc._everyone()))
    return [found.pid for found in everyone if found.session == number and (dead or not found.dead)]


async def _start(runtime: ChildProcess, pair: Pair | None = None) -> Sight:
    staged = await runtime.stage(pair or runtime.engine.deployed_pair)
    await runtime.start(staged.id)
    return await runtime.look()


async def _start_family(family: ChildProcess) -> tuple[Sight, proc.Mark]:
    """The engine once its child is deaf, and the child."""
    running = await _start(family)
    words = (await _eventually(lambda: family.log_tail(running.id), bool)).split()
    return running, await asyncio.to_thread(proc.mark, int(words[1]))


async def _until(runtime: ChildProcess, status: Status) -> Sight:
    return await _eventually(runtime.look, lambda sight: sight.status is status)


async def _eventually(ask: Callable[[], Awaitable[T]], good: Callable[[T], bool]) -> T:
    async with asyncio.timeout(LIMIT):
        while True:
            if good(answer := await ask()):
                return answer
            await asyncio.sleep(0.05)


async def _end(runtime: ChildProcess) -> None:
    await runtime.stop((await runtime.look()).id, 0.0)
