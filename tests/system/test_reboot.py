"""The machine reboots, simulated: daemon and containers gone at a stroke, Docker there late, all files as they were."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.bed import DockerBed
from tests.system.house import House
from tests.system.test_outages import stand, way_to_docker
from tests.system.traps import box, client, in_phase, move, served_by, swap

pytestmark = [pytest.mark.docker, pytest.mark.slow]

DOCKER_IS_LATE = 2.0  # seconds


def power_off(house: House, link: Path) -> None:
    """What Docker keeps of containers that ran is that they have ended, and when they began."""
    house.kill()
    for engine in house.running():
        house.bed.client.kill(house.container(engine)["Id"])
    link.unlink()
    house.wait(lambda: not house.running(), "the engines to be gone")


def test_after_a_reboot_the_last_server_comes_back_by_itself_and_who_waits_at_the_port_is_answered(
    docker_bed: DockerBed, shim: Path, tmp_path: Path
) -> None:
    with box(docker_bed, shim, tmp_path) as house:
        link = way_to_docker(house)
        stand(link, docker_bed)
        house.serve()
        move(house, "strata", "ninfer", trial=True)
        before = {name: house.run_of(name) for name in house.tenants}
        power_off(house, link)
        assert Path(house.config["control"]).is_socket()  # nobody has tidied up

        comes_back(house, lambda: stand(link, docker_bed))
        now = {name: house.run_of(name) for name in house.tenants}
        assert now["strata"] == before["strata"]
        assert now["ninfer"][0] == before["ninfer"][0]  # the very container
        assert now["ninfer"][1] > before["ninfer"][1]

        in_the_middle_of_a_swap(house, link)
        stand(link, docker_bed)
        comes_back(house)
        code, words = swap(house, "to-strata")
        assert code == 0, words


def comes_back(house: House, docker: Callable[[], None] | None = None) -> None:
    """NInfer, which isn't the default; `docker` brings Docker, which clients are there before."""
    house.serve()
    with client(house) as send:
        waiting = [send() for _ in range(3)]
        if docker is not None:
            time.sleep(DOCKER_IS_LATE)
            assert not any(one.done() for one in waiting)
            docker()
        assert {served_by(one.result()) for one in waiting} == {"ninfer"}
    assert house.running() == ["ninfer"]
    assert (house.status()["pair"], house.status()["verified"]) == ("ninfer:v2", True)


def in_the_middle_of_a_swap(house: House, link: Path) -> None:
    """The power fails when the old engine has stopped and the new one hasn't begun."""
    in_the_way = house.occupy(20 * 1024**3)
    with house.order("swap", "to-strata"):
        in_phase(house, "freeing")
        power_off(house, link)
    in_the_way.unlink()
