"""`slotctl doctor` on a real Docker: it finds nothing where nothing is wrong, and what is done to a house by hand."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.swap.repositories import commit, head, needs_git, repository
from tests.system.bed import DockerBed
from tests.system.house import House, Json
from tests.system.tenants import Tenant
from tests.system.traps import box, move, strata_serves

pytestmark = [pytest.mark.docker, pytest.mark.slow, needs_git]


@pytest.fixture(scope="module")
def surgery(docker_bed: DockerBed, shim: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """NInfer's v2 is pinned to a source tree, and both engines have served."""
    folder = tmp_path_factory.mktemp("doctor")
    tree = repository(folder / "ninfer-src")

    def pinned(_: Tenant, ninfer: Tenant) -> None:
        ninfer.keys["pairs"]["v2"]["source"] = {"tree": str(tree), "commit": head(tree)[:10]}

    with box(docker_bed, shim, folder, pinned) as house:
        house.serve()
        move(house, "ninfer", "strata", trial=True)
        yield house


@pytest.fixture
def house(surgery: House) -> Iterator[House]:
    with strata_serves(surgery) as house:
        yield house


def doctor(house: House) -> tuple[int, list[Json], list[str]]:
    """Exit code, findings, and what was seen."""
    code, out, err = house.slotctl("doctor", "--json")
    answer = json.loads(out)
    assert (err, answer["code"]) == ("", code)
    return code, answer["findings"], answer["seen"]


def test_where_nothing_is_wrong_the_versions_are_seen_and_nothing_is_found(house: House) -> None:
    code, findings, seen = doctor(house)
    assert (code, findings) == (0, [])
    version = house.bed.client.version()
    serves, docker, compose, card = seen
    assert (serves, docker) == ("strata:current serves", f"Docker {version['Version']}, API {version['ApiVersion']}")
    assert compose.startswith("compose 2.")
    assert "driver" in card


def test_a_restart_policy_that_was_set_by_hand_is_found_and_its_mend_mends_it(house: House) -> None:
    for engine in ("strata", "ninfer"):
        container = house.container(engine)
        house.bed.client.update_container(container["Id"], restart_policy={"Name": "unless-stopped"})
        code, (finding,), _ = doctor(house)
        name = house.tenants[engine].container
        assert code == 3
        assert finding["what"].startswith(f"the container {name} has the restart policy 'unless-stopped', it would")
        assert finding["mend"] == f"`slotctl correct {engine}`, or `docker update --restart=no {name}`"
        house.ok("correct", engine)
        assert doctor(house)[:2] == (0, [])


def test_a_stranger_at_the_stopped_engines_address_is_found(house: House) -> None:
    with socket.create_server(("127.0.0.1", house.tenants["ninfer"].port)):
        code, (finding,), _ = doctor(house)
    assert (code, finding["where"]) == (3, "ninfer")
    assert finding["what"].endswith(f"listens at its address {house.tenants['ninfer'].url}")


def test_a_source_tree_that_moved_is_shown_and_needs_nobody_now(house: House) -> None:
    tree = house.folder / "ninfer-src"
    pinned, now = head(tree), commit(tree)
    code, (finding,), _ = doctor(house)
    assert (code, finding["severity"], finding["where"]) == (0, "warning", "ninfer:v2")
    assert f"is at {now[:7]}, not at {pinned[:7]}" in finding["what"]
    out = house.ok("plan", "to-ninfer")
    assert f"warning   the source tree {tree} of ninfer:v2 is at {now[:7]}, not at {pinned[:7]}" in out
    assert "verdict   allowed" in out
