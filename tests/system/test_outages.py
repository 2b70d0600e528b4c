"""Docker or NVML gone: the proxy serves on with what it has, says what is gone, and swaps again when it is back."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from swap.adoption import MARGIN
from tests.system.bed import DockerBed
from tests.system.house import House
from tests.system.traps import (
    DARK,
    REFUSED,
    ask,
    box,
    client,
    compose,
    ids,
    move,
    reconfigure,
    served_by,
    swap,
)

pytestmark = [pytest.mark.docker, pytest.mark.slow]

AT_ONCE = 10.0  # seconds; none of these may wait for a time-out of Docker's


def way_to_docker(house: House) -> Path:
    """A socket that leads to Docker as long as this link stands."""
    link = house.folder / "docker.sock"
    house.config["docker"] = f"unix://{link}"
    reconfigure(house)
    return link


def stand(link: Path, bed: DockerBed) -> None:
    link.symlink_to(bed.address.removeprefix("unix://"))


def test_docker_or_nvml_goes_and_comes_back_while_clients_are_served(
    docker_bed: DockerBed, shim: Path, tmp_path: Path
) -> None:
    """Case 40: the proxy serves on without Docker."""
    with box(docker_bed, shim, tmp_path) as house:
        link = way_to_docker(house)
        stand(link, docker_bed)
        house.serve()
        move(house, "ninfer", "strata", trial=True)
        before = ids(house)
        link.unlink()
        without_docker(house, link)
        stand(link, docker_bed)
        without_memory(house)
        assert ids(house) == before
        house.ok("swap", "to-ninfer")  # each is asked afresh


def without_docker(house: House, link: Path) -> None:
    began = time.monotonic()
    assert served_by(ask(house)) == "strata"
    status = house.status()
    assert (status["serving"], status["pair"]) == (True, "strata:current")
    assert f"Docker at unix://{link} can't be reached" in status["engines"]["ninfer"]["error"]
    code, words = swap(house, "to-ninfer")
    assert code == REFUSED, words
    assert f"Docker at unix://{link} can't be reached" in words
    assert "systemctl start docker" in words
    assert house.slotctl("stage", "ninfer")[0] == REFUSED
    assert served_by(ask(house)) == "strata"
    assert time.monotonic() - began < AT_ONCE


def without_memory(house: House) -> None:
    """Driver and library differ, as after an update: code 18."""
    broken = house.card / "errors" / "memory"
    broken.parent.mkdir()
    broken.write_text("18")
    code, words = swap(house, "to-ninfer")
    assert code == REFUSED, words
    assert "reboot" in words
    assert served_by(ask(house)) == "strata"
    broken.unlink()


def test_without_docker_from_the_start_clients_wait_until_it_is_there(
    docker_bed: DockerBed, shim: Path, tmp_path: Path
) -> None:
    with box(docker_bed, shim, tmp_path) as house, client(house) as send:
        link = way_to_docker(house)
        compose(house, "strata", "up", "--detach")
        before = house.run_of("strata")
        house.serve()
        waiting = send()
        assert b"qwen3.8-27b" in house.get("/v1/models")
        dark = house.status()["dark"]
        assert dark["passing"]
        assert f"Docker at unix://{link} can't be reached: there is no such socket" in dark["reason"]
        code, words = swap(house, "to-ninfer", "--trial")
        assert code == DARK, words
        assert "can't be reached" in words
        code, printed, _ = house.slotctl("plan", "to-ninfer", "--trial")
        assert code == REFUSED
        assert "can't be reached" in printed
        assert "as the pair declares" not in printed  # nobody has seen it
        assert not waiting.done()
        lines = [line for line in house.log() if "can't be reached" in str(line)]
        assert 0 < len(lines) < 10, lines  # said when it begins, not at each try

        stand(link, docker_bed)
        assert served_by(waiting.result()) == "strata"
        assert house.run_of("strata") == before  # adopted, untouched


def test_without_nvml_an_adopted_engine_serves_and_swaps_are_refused_with_what_to_do(
    docker_bed: DockerBed, tmp_path: Path
) -> None:
    """Case 28, where there is no library at all."""
    with box(docker_bed, tmp_path / "no library here", tmp_path) as house:
        time.sleep(MARGIN)
        compose(house, "strata", "up", "--detach")
        before = house.run_of("strata")
        house.serve()
        house.wait(lambda: house.status()["verified"] is False, "it to serve, marked as not verified")
        assert served_by(ask(house)) == "strata"
        code, words = swap(house, "to-ninfer", "--trial")
        assert code == REFUSED, words
        assert "libnvidia-ml.so.1 is missing" in words
        assert "install the NVIDIA driver's libraries" in words
        assert "libnvidia-ml.so.1 is missing" in house.status()["card"]["error"]
        code, _, words = house.slotctl("pairs", "adopt", "strata")
        assert code == REFUSED
        assert "libnvidia-ml.so.1 is missing" in words
        assert house.run_of("strata") == before
        assert served_by(ask(house)) == "strata"
