"""Case 34: Docker brings every container with a restart policy back when it starts anew, whoever was stopped and why.

What Docker's start would do is done by hand here: each container is started, and nobody is told.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.bed import DockerBed
from tests.system.house import House
from tests.system.tenants import Tenant
from tests.system.traps import REFUSED, SERVED, ask, box, served_by, share, swap

pytestmark = [pytest.mark.docker, pytest.mark.slow]

ALWAYS = {"Name": "always", "MaximumRetryCount": 0}


def small(strata: Tenant, ninfer: Tenant) -> None:
    """Both fit the card, so that nothing but our own decision keeps them apart."""
    share(strata, 10, "STRATA_SIM_")
    share(ninfer, 10, "NINFER_SIM_")


@pytest.fixture(scope="module")
def both_proven(docker_bed: DockerBed, shim: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with box(docker_bed, shim, tmp_path_factory.mktemp("policies"), small) as house:
        house.serve()
        house.prove("ninfer", "strata")
        yield house


@pytest.fixture
def house(both_proven: House) -> House:
    """Strata serves, and somebody has given both a restart policy."""
    both_proven.make_serve("strata")
    for engine in both_proven.tenants:
        both_proven.bed.client.update_container(both_proven.container(engine)["Id"], restart_policy=ALWAYS)
    return both_proven


def policies(house: House) -> dict[str, str]:
    return {engine: house.container(engine)["HostConfig"]["RestartPolicy"]["Name"] for engine in house.tenants}


def docker_starts_anew(house: House) -> None:
    """Nobody lives through it, and whoever has a policy is started."""
    house.kill()
    for engine in house.tenants:
        house.bed.client.stop(house.container(engine)["Id"], timeout=20)
    for engine in house.tenants:
        house.bed.client.start(house.container(engine)["Id"])


# ------------------------------------------------------------------------------------------------- the tests


def test_case_34_of_two_that_docker_brought_back_the_last_server_is_kept_and_the_other_stopped(house: House) -> None:
    docker_starts_anew(house)
    assert sorted(house.running()) == ["ninfer", "strata"]
    before = house.run_of("strata")
    house.serve()
    house.wait_serving("strata")
    house.wait(lambda: house.running() == ["strata"], "the other one to be stopped")
    assert house.run_of("strata") == before
    assert served_by(ask(house)) == "strata"
    assert policies(house) == {"ninfer": "always", "strata": "always"}

    warned = house.status()["warnings"]
    assert len(warned) == 2, warned
    for engine, said in zip(house.tenants, warned, strict=True):
        name = house.tenants[engine].container
        assert said.startswith(f"the container {name} has the restart policy 'always', it would come back")
        assert f"`slotctl correct {engine}`" in said
    house.wait(lambda: len(needing_a_person(house)) == 2, "the event log to name both")


def needing_a_person(house: House) -> list[str]:
    events = json.loads(house.ok("events", "--json"))["events"]
    return [one["text"] for one in events if one["kind"] == "person" and "restart policy" in one["text"]]


def test_case_34_policies_are_corrected_on_request_and_nothing_else_is_touched(house: House) -> None:
    before = {engine: house.run_of(engine) for engine in house.tenants}
    said = house.ok("correct")
    for engine in house.tenants:
        assert f"{engine}: the restart policy of {house.tenants[engine].container} was 'always', it is 'no' now" in said
    assert policies(house) == {"ninfer": "no", "strata": "no"}
    assert {engine: house.run_of(engine) for engine in house.tenants} == before
    assert house.running() == ["strata"]
    assert served_by(ask(house)) == "strata"
    assert house.status()["warnings"] == []
    events = json.loads(house.ok("events", "--json"))["events"]
    assert [one["facts"]["engine"] for one in events if one["kind"] == "corrected"] == list(house.tenants)

    answer = json.loads(house.ok("correct", "--json", "ninfer"))
    assert answer["engines"] == {"ninfer": {"container": house.tenants["ninfer"].container, "was": None, "error": None}}
    code, words = swap(house, "to-ninfer", "--no-stage")
    assert code == SERVED, words
    assert house.run_of("ninfer")[0] == before["ninfer"][0]


def test_case_34_a_swap_to_a_container_with_a_policy_is_refused_and_its_mend_mends_it(house: House) -> None:
    code, words = swap(house, "to-ninfer", "--no-stage")
    assert code == REFUSED, words
    assert "`slotctl correct ninfer`" in words
    house.ok("correct", "ninfer")
    assert policies(house) == {"ninfer": "no", "strata": "always"}
