"""The machine reboots, simulated: daemon and engines gone at a stroke, another boot's marks, all files as they were.

Pids begin anew after a boot: who has an engine's old one is a stranger, and is never signalled.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from signal import SIGKILL

import httpx
import msgspec
import pytest

from engines.spec import GiB
from swap import proc
from swap.record import Record, Run
from tests.slotproxy.programs import (
    LIMIT,
    Serve,
    accepts,
    chat,
    ended_engines,
    engines,
    free_port,
    quick_house,
    until,
)
from tests.slotproxy.test_card_at_work import swap

CLIENTS = 4


@pytest.fixture
def stranger() -> Iterator[proc.Mark]:
    """Somebody's process, the leader of its session, as an engine is."""
    with subprocess.Popen(["/usr/bin/sleep", "600"], start_new_session=True) as process:
        try:
            yield proc.mark(process.pid)
        finally:
            process.kill()


class Machine:
    """A slotproxy, and the power switch."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self._config = quick_house(folder, listen=f"127.0.0.1:{self.port}")
        self._boots = 0

    def boot(self) -> Serve:
        self._boots += 1
        return Serve(self._config, name=f"boot-{self._boots}")

    def power_off(self, serve: Serve) -> None:
        serve.end(SIGKILL)
        for pid in engines(self.folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, SIGKILL)
        until(lambda: not engines(self.folder))

    def forget_the_boot(self, engine: str, pid: proc.Mark) -> None:
        """The engine's record is another boot's, and its pid belongs to somebody else by now."""
        file = self.folder / "state" / "processes" / engine / "current.json"
        record = msgspec.json.decode(file.read_bytes(), type=Record)
        assert record.run is not None
        run = Run(proc.Mark(pid.pid, pid.start, "another boot"), record.run.started_at)
        file.write_bytes(msgspec.json.encode(Record(record.recipe, record.id, run)))


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with ended_engines(tmp_path):
        yield Machine(tmp_path)


def answered_by(waiting: list[Future[httpx.Response]]) -> set[str]:
    answers = [one.result(LIMIT) for one in waiting]
    assert [answer.status_code for answer in answers] == [200] * CLIENTS
    return {answer.headers["x-slotproxy-engine"] for answer in answers}


@contextlib.contextmanager
def at_the_port(machine: Machine) -> Iterator[list[Future[httpx.Response]]]:
    """Clients who are there as soon as the port is."""
    url = f"http://127.0.0.1:{machine.port}/v1/chat/completions"
    with ThreadPoolExecutor(CLIENTS) as threads:
        until(lambda: accepts(machine.port))
        yield [threads.submit(httpx.post, url, json=chat(), timeout=LIMIT) for _ in range(CLIENTS)]


@pytest.mark.slow
def test_after_a_reboot_the_last_server_comes_back_by_itself_and_who_waits_at_the_port_is_answered(
    machine: Machine, stranger: proc.Mark
) -> None:
    with machine.boot() as serve:
        assert serve.url
        assert [swap(serve, engine, trial=True)["code"] for engine in ("strata", "ninfer")] == [0, 0]
        machine.power_off(serve)
    for engine in ("ninfer", "strata"):
        machine.forget_the_boot(engine, stranger)
    assert serve.control.is_socket()  # nobody has tidied up

    with machine.boot() as serve, at_the_port(machine) as waiting:
        assert answered_by(waiting) == {"ninfer"}  # and not the default, which is strata
        assert (serve.status()["pair"], serve.status()["verified"]) == ("ninfer:v2", True)
        in_the_middle_of_a_swap(machine, serve)
    machine.forget_the_boot("ninfer", stranger)

    with machine.boot() as serve, at_the_port(machine) as waiting:
        assert answered_by(waiting) == {"ninfer"}
        assert serve.status()["pair"] == "ninfer:v2"
        assert swap(serve, "strata")["code"] == 0  # an ordinary one
        assert proc.lives(stranger)


def in_the_middle_of_a_swap(machine: Machine, serve: Serve) -> None:
    """The power fails when the old engine has stopped and the new one hasn't begun."""
    in_the_way = machine.folder / "card" / "foreign" / "trainer"
    in_the_way.parent.mkdir()
    in_the_way.write_text(f"{20 * GiB} 1 trainer\n")
    with ThreadPoolExecutor(1) as operator:
        order = operator.submit(swap, serve, "strata")
        until(lambda: serve.status()["state"] == "freeing")
        machine.power_off(serve)
        with pytest.raises(httpx.HTTPError):
            order.result(LIMIT)
    in_the_way.unlink()
