"""Memory of the card that somebody else holds: the target isn't started into it, and the holder is named.

The old engine comes back as soon as its own need is free, if that takes longer than a swap: by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.spec import GiB
from tests.system.bed import DockerBed
from tests.system.house import LIMIT, House
from tests.system.tenants import Tenant
from tests.system.traps import (
    DARK,
    NEVER,
    RESTORED,
    box,
    client,
    in_phase,
    move,
    served_by,
    share,
    squatter,
    strata_serves,
    swap,
    unix,
)

pytestmark = [pytest.mark.docker, pytest.mark.slow]

LINGER = 2.0  # seconds
PYTHON = Path(sys.executable).name  # as a holder is named
FIRST_REST = 5.0  # seconds until what failed for a passing reason is tried again


@pytest.fixture(scope="module")
def roomy(docker_bed: DockerBed, shim: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with box(docker_bed, shim, tmp_path_factory.mktemp("vram"), small_and_large, freeing="1s") as house:
        house.serve()
        move(house, "strata", trial=True)
        house.ok("stage", "ninfer")
        yield house


def small_and_large(strata: Tenant, ninfer: Tenant) -> None:
    share(strata, 10, "STRATA_SIM_")
    share(ninfer, 20, "NINFER_SIM_")


@pytest.fixture
def house(roomy: House) -> Iterator[House]:
    """Strata serves; its need is 10 GiB of the card's 32, NInfer's is 20."""
    with strata_serves(roomy) as house:
        yield house
        assert house.container("ninfer")["State"]["StartedAt"] == NEVER


def test_case_25_the_target_is_not_started_into_held_memory_and_the_old_engine_comes_back(house: House) -> None:
    with squatter(house, 15) as holder:
        code, words = swap(house, "to-ninfer", "--trial")
        assert code == RESTORED, words
        assert "strata:current serves again" in words
        assert f"held by pid {holder.pid} ({PYTHON} squatter.py, 15.0 GiB, in no container)" in words
        assert "only 17.0 GiB of the card are free, 20.2 GiB are needed" in words
        assert house.running() == ["strata"]
        assert holder.poll() is None  # nobody was killed


def test_while_not_even_the_old_engine_fits_clients_wait_and_it_serves_by_itself_once_it_does(house: House) -> None:
    """Cases 25 and 45: nearly all of the card is held, so the restore fails, too."""
    strata = house.container("strata")["Id"]
    with client(house) as send:
        in_the_way = house.occupy(30 * GiB)
        with house.order("swap", "to-ninfer", "--trial") as order:
            in_phase(house, "freeing")
            waiting = send()
            out, err = order.communicate(timeout=LIMIT)
        assert order.returncode == DARK, out + err
        pid = in_the_way.read_text().split()[1]
        assert f"held by pid {pid} (" in err
        assert "20.2 GiB are needed" in err
        assert "10.2 GiB are needed" in err  # Strata's own need
        dark = house.status()["dark"]
        assert dark["passing"]
        assert f"pid {pid} (" in dark["reason"]
        assert (house.gate(), house.running(), waiting.done()) == (("closed", None), [], False)

        house.wait(lambda: (rest(house) or 0.0) > FIRST_REST, "the rest after another try, which is longer")
        assert house.running() == []
        in_the_way.unlink()
        assert served_by(waiting.result()) == "strata"
        assert house.container("strata")["Id"] == strata


def rest(house: House) -> float | None:
    """Seconds until the next try; None while it tries."""
    dark = house.status()["dark"]
    return None if dark is None or dark["retry_in"] is None else float(dark["retry_in"])


def test_case_26_memory_that_is_released_late_is_waited_for(docker_bed: DockerBed, shim: Path, tmp_path: Path) -> None:
    def lingering(strata: Tenant, _: Tenant) -> None:
        strata.service["environment"]["STRATA_SIM_LINGER"] = str(LINGER)

    with box(docker_bed, shim, tmp_path, lingering) as house:
        house.serve()
        move(house, "strata", "ninfer", trial=True)
        ended = unix(house.container("strata")["State"]["FinishedAt"])
        began = unix(house.container("ninfer")["State"]["StartedAt"])
        assert began - ended > LINGER - 0.5  # it touches its allocation every 0.1 s while it lives
