"""Requests that come while an engine dies: only those that it may have seen are told an error.

Docker's proxy goes on accepting connections for a dead container, and the news of its death takes a while to come.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Self

import httpx
import pytest

from tests.system.bed import DockerBed
from tests.system.house import LIMIT, House
from tests.system.tenants import MODEL
from tests.system.tenants import ninfer as simulator

pytestmark = [pytest.mark.docker, pytest.mark.slow]

CLIENTS = 6
RUNS = 2
NEWS = 2.0  # seconds


@dataclass(frozen=True)
class Ended:
    """One request: when it was begun and over (Unix time), and how it ended."""

    began: float
    over: float
    status: int
    text: str
    id: str


class Callers:
    """Clients that ask for two tokens again and again, each on a connection of its own."""

    def __init__(self, house: House) -> None:
        self.ended: list[Ended] = []
        self._house, self._end = house, threading.Event()
        self._threads = [threading.Thread(target=self._run, name="client") for _ in range(CLIENTS)]

    def _run(self) -> None:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
        with httpx.Client(timeout=LIMIT, trust_env=False, limits=httpx.Limits(max_keepalive_connections=0)) as client:
            while not self._end.is_set():
                began = time.time()
                answer = client.post(f"{self._house.url}/v1/chat/completions", json=body)
                status, name = answer.status_code, answer.headers["x-request-id"]
                self.ended.append(Ended(began, time.time(), status, answer.text, name))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(LIMIT)


class SlowNews:
    """A way to Docker on which its events take NEWS seconds; all else is passed on at once."""

    def __init__(self, target: str, own: Path) -> None:
        self._target = target
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(own))
        self._listener.listen(64)
        threading.Thread(target=self._accept, name="slow news", daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was closed: the end
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        slow = False
        with contextlib.suppress(OSError), client, socket.socket(socket.AF_UNIX) as docker:
            docker.connect(self._target)
            while True:
                for end in select.select([client, docker], [], [])[0]:
                    if not (data := end.recv(65536)):
                        return
                    slow = slow or (end is client and b"/events?" in data)
                    if slow and end is docker:
                        time.sleep(NEWS)
                    (client if end is docker else docker).sendall(data)


@pytest.fixture(scope="module")
def ninfer(docker_bed: DockerBed, shim: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """NInfer serves, alone; of its death slotproxy hears late."""
    folder = tmp_path_factory.mktemp("dying")
    way = SlowNews(docker_bed.address.removeprefix("unix://"), folder / "docker.sock")
    with contextlib.closing(way), House(docker_bed, shim, folder) as house:
        house.config["docker"] = f"unix://{folder}/docker.sock"
        house.take_in(simulator(docker_bed, folder, failure_file="/log/failure"))
        house.write()
        house.serve()
        house.prove("ninfer")
        yield house


def test_a_container_is_killed_under_a_stream_of_requests_and_none_fails_that_was_begun_after_its_death(
    ninfer: House,
) -> None:
    house, deaths = ninfer, list[float]()
    with Callers(house) as callers:
        for _ in range(RUNS):
            answered(house, callers, CLIENTS)
            run = house.run_of("ninfer")
            os.kill(house.container("ninfer")["State"]["Pid"], signal.SIGKILL)
            house.wait(lambda run=run: house.run_of("ninfer") != run, "the next run")  # type: ignore[misc]
            deaths.append(died(house))
        answered(house, callers, CLIENTS)
    failed = [one for one in callers.ended if one.status != 200]
    assert len(failed) <= RUNS  # one place: one request may have been at the engine
    assert all("ninfer" in one.text for one in failed)
    for one in failed:
        last = max(death for death in deaths if death <= one.over)
        assert one.began < last, one
    ids = [line["request_id"] for line in house.requests("ninfer") if line["event"] == "received"]
    assert {ids.count(one.id) for one in callers.ended if one.status == 200} == {1}
    assert max(ids.count(one.id) for one in callers.ended) == 1


def test_case_33_a_container_that_lost_the_card_is_restarted_while_clients_wait(ninfer: House) -> None:
    """As after a `systemctl daemon-reload`: the host is fine, the container runs, and each request is a CUDA error."""
    run, log = ninfer.run_of("ninfer"), ninfer.folder / "log"
    (log / "failing").write_text("lost")
    (log / "failing").rename(log / "failure")
    with Callers(ninfer) as callers:
        ninfer.wait(lambda: ninfer.run_of("ninfer") != run, "the next run")
        answered(ninfer, callers, CLIENTS)
    (met,) = [one for one in callers.ended if one.status != 200]
    assert met.status == 500
    assert "no CUDA-capable device" in met.text
    assert ninfer.run_of("ninfer")[0] == run[0]
    assert "no CUDA-capable device" in ninfer.ok("events")


def answered(house: House, callers: Callers, count: int) -> None:
    """Wait for so many more whole answers."""
    before = len(callers.ended)
    house.wait(lambda: sum(one.status == 200 for one in callers.ended[before:]) >= count, "answers")


def died(house: House) -> float:
    """When Docker saw the last run dead, in Unix time."""
    finished: str = house.container("ninfer")["State"]["FinishedAt"]
    return datetime.fromisoformat(f"{finished[:26].rstrip('Z')}+00:00").timestamp()
