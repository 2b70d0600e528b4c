"""The swap trap: `docker start` runs what was last created, whatever the compose file says since.

A plan shows what differs and what would run, `stage` makes it without a byte of VRAM, and a swap runs only what is
declared: verified as it stands, or by a trial.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engines.simvram import uses
from tests.system.bed import DockerBed
from tests.system.house import House
from tests.system.tenants import Tenant
from tests.system.traps import (
    NEVER,
    REFUSED,
    SERVED,
    box,
    compose,
    editor,
    fields,
    ids,
    move,
    plan,
    said,
    strata_serves,
    swap,
    used,
)

pytestmark = [pytest.mark.docker, pytest.mark.slow]

CONTEXT, EDITED = "--max-context 260000", "--max-context 131072"


@pytest.fixture(scope="module")
def proven(docker_bed: DockerBed, shim: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with box(docker_bed, shim, tmp_path_factory.mktemp("trap"), with_healthcheck) as house:
        house.serve()
        move(house, "ninfer", "strata", trial=True)
        yield house


def with_healthcheck(_: Tenant, ninfer: Tenant) -> None:
    ninfer.service["healthcheck"] = {"test": ["CMD", "python3", "-c", "0"], "interval": "30s"}


@pytest.fixture
def house(proven: House) -> Iterator[House]:
    """NInfer's v2 is verified, and Strata serves."""
    with strata_serves(proven) as house:
        yield house


def test_docker_start_runs_the_old_command_and_staging_applies_an_edit_without_taking_vram(
    docker_bed: DockerBed, shim: Path, tmp_path: Path
) -> None:
    """Case 36: the file was edited."""
    with box(docker_bed, shim, tmp_path) as house:
        compose(house, "ninfer", "up", "--no-start")
        house.edit("ninfer", CONTEXT, EDITED)
        assert CONTEXT in started_by_hand(house)

        house.serve()
        shown = plan(house, "ninfer")
        assert fields(shown) == {"command": (EDITED, CONTEXT)}
        assert EDITED in " ".join(shown["would_run"]["argv"])
        assert shown["stage"]
        code, printed, _ = house.slotctl("plan", "to-ninfer")
        assert code == REFUSED  # it never ran; that it is another command is no reason
        (line,) = (line for line in printed.splitlines() if line.startswith("  command"))
        assert line.split("  ")[1:] == ["command", EDITED, CONTEXT]
        assert f"would run ninfer-serve --model /models/qwen3_8_27b_nvfp4.ninfer {EDITED}" in printed

        old = house.container("ninfer")
        assert "ninfer:v2 is staged" in house.ok("stage", "ninfer")
        new = house.container("ninfer")
        assert new["Id"] != old["Id"]
        assert (new["State"]["Status"], new["State"]["StartedAt"]) == ("created", NEVER)
        assert EDITED in " ".join(new["Config"]["Cmd"])
        assert (used(house), uses(house.card)) == (0, [])
        assert plan(house, "ninfer")["drift"] == []
        assert "is staged already" in house.ok("stage", "ninfer")
        assert house.container("ninfer")["Id"] == new["Id"]


def started_by_hand(house: House) -> str:
    """The command lines of what `docker start` runs."""
    docker, container = house.bed.client, house.container("ninfer")["Id"]
    docker.start(container)
    try:
        return "\n".join(words for _, words in docker.top(container, ps_args="-eo pid,args")["Processes"])
    finally:
        docker.stop(container, timeout=10)


def test_an_edit_beside_the_pair_is_staged_by_the_swap_which_says_so(house: House) -> None:
    """Case 36: what is declared and verified is staged, and said."""
    with editor(house) as service:
        service["healthcheck"]["interval"] = "31s"
    shown = plan(house, "ninfer")
    assert (shown["allowed"], list(fields(shown))) == (True, ["healthcheck"])
    code, words = swap(house, "to-ninfer")
    assert code == SERVED, words
    assert "recreating the container: healthcheck" in words
    assert house.container("ninfer")["Config"]["Healthcheck"]["Interval"] == 31 * 10**9


def test_an_edit_of_command_or_environment_makes_another_pair_which_only_a_trial_runs(house: House) -> None:
    with strata_serves(house):  # this edit is gone again after it
        refused_after(lambda: set_variable(house, "HF_HUB_OFFLINE", "1"), "environment HF_HUB_OFFLINE", house)
    refused_after(lambda: house.edit("ninfer", CONTEXT, EDITED), "command", house)
    code, words = swap(house, "to-ninfer", "--trial")
    assert code == SERVED, words
    assert "recreating the container: command" in words
    assert plan(house, "ninfer")["allowed"]  # from now on it is verified


def refused_after(edit: Callable[[], None], field: str, house: House) -> None:
    """After the edit the plan shows this field, and a swap is refused because that pair never ran."""
    before = ids(house)
    edit()
    shown = plan(house, "ninfer")
    assert field in fields(shown)
    assert "ninfer:v2 never ran on this card" in said(shown)
    code, words = swap(house, "to-ninfer")
    assert code == REFUSED, words
    assert "never ran on this card" in words
    assert ids(house) == before


def set_variable(house: House, name: str, value: str) -> None:
    with editor(house) as service:
        service["environment"][name] = value


def test_without_staging_a_container_that_is_not_the_declared_one_is_refused(house: House) -> None:
    house.ok("stage", "ninfer")
    with editor(house) as service:
        service["healthcheck"]["interval"] = "32s"
    refused_without_staging(house, "healthcheck")
    house.edit("ninfer", CONTEXT, "--max-context 65536")
    refused_without_staging(house, "command")
    house.ok("stage", "ninfer")
    code, words = swap(house, "to-ninfer", "--no-stage", "--trial")
    assert code == SERVED, words


def refused_without_staging(house: House, field: str) -> None:
    before = ids(house)
    code, words = swap(house, "to-ninfer", "--no-stage", "--trial")
    assert code == REFUSED, words
    assert f"isn't what ninfer:v2 declares: {field}" in words
    assert "slotctl stage ninfer:v2" in words
    assert ids(house) == before


def test_a_rebuilt_image_under_the_same_tag_is_another_pair(house: House) -> None:
    """Case 36: the tag moved by a rebuild, and the container shows its name all the same."""
    tag, old = house.tenants["ninfer"].images[0], house.container("ninfer")["Image"]
    refused_after(lambda: rebuild(house, tag), "image tag moved", house)
    new = house.bed.client.inspect_image(tag)["Id"]
    shown = plan(house, "ninfer")
    assert fields(shown)["image tag moved"] == (f"{tag} ({new[7:19]})", f"{tag} ({old[7:19]})")
    assert shown["would_run"]["image_id"] == new
    assert house.container("ninfer")["Config"]["Image"] == tag  # by its name nobody would see it
    move(house, "ninfer", trial=True)
    assert house.container("ninfer")["Image"] == new


def rebuild(house: House, tag: str) -> None:
    house.bed.images.variant(tag, tag, env={"BUILD": "2"})
