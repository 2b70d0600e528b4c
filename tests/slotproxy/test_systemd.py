"""What systemd is told (case 42): each message at a real datagram socket, and none where nobody asked for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from slotproxy.claims import CannotServe
from slotproxy.systemd import Systemd, handed_over, in_a_line
from swap import adoption
from tests.slotproxy.manager import Manager, listening
from tests.slotproxy.office import Office
from tests.swap.world import until


@pytest.fixture
def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    monkeypatch.setattr(adoption, "MARGIN", 0.0)  # here files are made, and engines started, in one moment
    with capture_logs():
        office = Office(tmp_path)
        yield office
    office.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    with listening(str(tmp_path / "notify")) as manager:
        yield manager


def started(manager: Manager, **more: object) -> Systemd:
    return Systemd({"NOTIFY_SOCKET": manager.name, **{name: str(value) for name, value in more.items()}})


def test_ready_is_told(manager: Manager) -> None:
    started(manager).ready()
    assert manager.told() == ["READY=1"]


def test_an_abstract_socket_is_reached_by_its_name() -> None:
    with listening(f"\0slotproxy-{uuid.uuid4()}") as manager:
        started(manager).ready()
        assert manager.told() == ["READY=1"]


def test_a_reload_is_told_with_its_beginning_and_its_end_also_when_it_fails(manager: Manager) -> None:
    systemd = started(manager)
    with contextlib.suppress(ValueError), systemd.reloading():
        (began,) = manager.told()
        raise ValueError("it can't be used")
    word, _, clock = began.partition("|MONOTONIC_USEC=")
    assert word == "RELOADING=1"
    assert int(clock) > 0
    assert manager.told() == ["READY=1"]


async def test_the_status_is_told_when_it_changes_in_one_line_and_the_end_is_told(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slotproxy.systemd.STATUS_EVERY", 0.01)
    stop, line = asyncio.Event(), "nothing serves:\nREADY=1"
    systemd = started(manager)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(systemd.accompany(lambda: line, stop))
        told = await until_told(manager, 1)
        await asyncio.sleep(0.05)
        line = "strata:current serves" + "!" * 1000
        told += await until_told(manager, 1)
        stop.set()
    assert [text[:40] for text in told] == [
        "STATUS=nothing serves: READY=1",
        "STATUS=strata:current serves!!!!!!!!!!!!",
    ]
    assert len(told[1]) < 600
    assert manager.told() == ["STOPPING=1|STATUS=stopping"]


async def test_case_42_signs_of_life_come_from_the_event_loop_and_stop_when_it_hangs(manager: Manager) -> None:
    stop = asyncio.Event()
    systemd = started(manager, WATCHDOG_USEC=20_000, WATCHDOG_PID=os.getpid())
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(systemd.accompany(lambda: "", stop))
        assert await until_told(manager, 3) == ["WATCHDOG=1"] * 3
        manager.told()
        hang(0.1)
        assert manager.told() == []
        assert "WATCHDOG=1" in await until_told(manager, 1)
        stop.set()


def hang(seconds: float) -> None:
    """The loop stands still meanwhile. This module isn't ours, so nothing forbids it."""
    import time

    time.sleep(seconds)


@pytest.mark.parametrize("more", [{}, {"WATCHDOG_USEC": 20_000, "WATCHDOG_PID": 1}, {"WATCHDOG_USEC": "soon"}])
async def test_no_sign_of_life_where_none_is_waited_for_from_us(manager: Manager, more: dict[str, object]) -> None:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(started(manager, **more).accompany(lambda: "", stop))
        await asyncio.sleep(0.1)
        stop.set()
    assert manager.told() == ["STOPPING=1|STATUS=stopping"]


async def test_nothing_is_told_and_nothing_is_said_where_nobody_asked() -> None:
    stop = asyncio.Event()
    stop.set()
    with capture_logs() as logs:
        systemd = Systemd({"WATCHDOG_USEC": "20000"})
        systemd.ready()
        await systemd.accompany(lambda: "never asked for", stop)
    assert logs == []


def test_a_socket_that_fails_is_logged_once_and_costs_nothing(tmp_path: Path) -> None:
    with capture_logs() as logs:
        systemd = Systemd({"NOTIFY_SOCKET": str(tmp_path / "nobody")})
        systemd.ready()
        with systemd.reloading():
            pass
    (said,) = logs
    assert said["socket"] == str(tmp_path / "nobody")
    assert "No such file" in said["why"]


async def test_a_manager_that_is_busy_hears_it_later_and_nothing_is_said(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slotproxy.systemd.STATUS_EVERY", 0.01)
    stop, systemd = asyncio.Event(), started(manager)
    with capture_logs() as logs:
        fill(manager)
        systemd.ready()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(systemd.accompany(lambda: "strata:current serves", stop))
            await asyncio.sleep(0.05)
            assert set(manager.told()) == {"full"}
            assert await until_told(manager, 2) == ["READY=1", "STATUS=strata:current serves"]
            stop.set()
    assert logs == []


def fill(manager: Manager) -> None:
    """The kernel keeps a few datagrams, and then no more."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, contextlib.suppress(BlockingIOError):
        sender.setblocking(False)
        while True:
            sender.sendto(b"full", manager.name)


def test_what_we_start_cannot_speak_in_our_name(manager: Manager) -> None:
    environ = {"NOTIFY_SOCKET": manager.name, "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "HOME": "/"}
    Systemd(environ)
    assert environ == {"HOME": "/"}


# ------------------------------------------------------------------------------------------------- its port


def test_a_port_that_systemd_opened_is_taken_and_nobody_else_inherits_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as theirs:
        port, environ = theirs.getsockname()[1], {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
        given = os.dup(theirs.fileno())
        os.set_inheritable(given, True)
        ours = handed_over("127.0.0.1", port, environ, first=given)
        assert ours is not None
        with ours:
            assert ours.getsockname() == theirs.getsockname()
            assert not ours.get_inheritable()
        assert environ == {}


def test_a_port_of_systemds_that_the_configuration_does_not_name_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as theirs:
        environ = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
        there = f"systemd listens at 127.0.0.1:{theirs.getsockname()[1]}, `listen:` says 127.0.0.1:1"
        with pytest.raises(CannotServe, match=there):
            handed_over("127.0.0.1", 1, environ, first=os.dup(theirs.fileno()))
        port, two = theirs.getsockname()[1], {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2"}
        with pytest.raises(CannotServe, match=f"systemd listens at 127.0.0.1:{port} and elsewhere"):
            handed_over("127.0.0.1", port, two, first=os.dup(theirs.fileno()))


@pytest.mark.parametrize("environ", [{}, {"LISTEN_PID": "1", "LISTEN_FDS": "1"}, {"LISTEN_FDS": "1"}])
def test_what_systemd_gave_to_somebody_else_is_not_ours(environ: dict[str, str]) -> None:
    assert handed_over("127.0.0.1", 1, environ) is None


async def until_told(manager: Manager, count: int) -> list[str]:
    told: list[str] = []

    def enough() -> bool:
        told.extend(manager.told())
        return len(told) >= count

    await until(enough)
    return told[:count]


# ------------------------------------------------------------------------------------------------- the status line


async def test_the_line_says_who_serves_what_is_under_way_and_that_requests_are_held(office: Office) -> None:
    async with office.serving(verified=("ninfer:v2", "strata:current")) as controller:
        assert in_a_line(office.desk) == "strata:current serves"
        office.slots.hold(None)
        assert in_a_line(office.desk) == "strata:current serves; requests are held"
        office.slots.release()
        place = await office.request()
        async with asyncio.TaskGroup() as tasks:
            swap = tasks.create_task(office.swapped("ninfer"))
            await until(lambda: in_a_line(office.desk) == "swap to ninfer:v2: draining")
            place.leave()
            await swap
        assert controller.state.serving is not None
        assert in_a_line(office.desk) == "ninfer:v2 serves"


async def test_the_line_says_why_nothing_serves(office: Office) -> None:
    assert in_a_line(office.desk) == "nothing serves yet: looking"
    async with office.running(verified=()):
        assert in_a_line(office.desk).startswith("nothing serves: nothing runs; strata:current can't be started: ")
