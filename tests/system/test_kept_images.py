"""On a whole box: what a killed staging left is mended at the next start, and images that evidence names are kept."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker.errors import ImageNotFound

from swap.kept import kept_name
from tests.system.bed import DockerBed
from tests.system.house import House
from tests.system.inspected import HAS_RUN, differing
from tests.system.tenants import Tenant
from tests.system.traps import box, move, plan

pytestmark = pytest.mark.docker

# Compose as it is, but it never comes back from `up`: whoever waits for it can be killed there.
STUCK = """#!/bin/sh
case " $* " in *" up "*) "$REAL" "$@"; echo $$ >"$PLACE.new"; mv "$PLACE.new" "$PLACE"; exec sleep 600;; esac
exec "$REAL" "$@"
"""


@pytest.fixture
def house(docker_bed: DockerBed, shim: Path, tmp_path: Path) -> Iterator[House]:
    """NInfer's v2, an image that nobody else has, is verified, and Strata serves."""
    with box(docker_bed, shim, tmp_path, lambda _, ninfer: build(docker_bed, ninfer)) as house:
        house.serve()
        move(house, "ninfer", "strata", trial=True)
        kept = kept_name("ninfer", image(house, house.tenants["ninfer"].images[0]))
        yield house
    with contextlib.suppress(ImageNotFound):
        docker_bed.client.remove_image(kept, force=True)


def build(bed: DockerBed, ninfer: Tenant) -> None:
    """Another image by the name of NInfer's v2."""
    bed.images.ninfer(ninfer.images[0], reads=2, env={"BUILD": bed.name("build")})


def image(house: House, name: str) -> str:
    """Its id; empty where there is none."""
    try:
        return str(house.bed.client.inspect_image(name)["Id"])
    except ImageNotFound:
        return ""


def remove_container(house: House) -> None:
    """NInfer's: no container uses its image any more."""
    house.bed.client.remove_container(house.container("ninfer")["Id"])


def pairs(house: House) -> dict[str, Any]:
    return {pair["label"]: pair for pair in json.loads(house.ok("pairs", "--json"))["pairs"]}


def test_a_verified_image_outlives_a_rebuild_and_one_tag_takes_it_back(house: House) -> None:
    """Case 39: after a prune the image that evidence names is still there."""
    name = house.tenants["ninfer"].images[0]
    old, kept = image(house, name), kept_name("ninfer", image(house, name))
    assert image(house, kept) == old
    build(house.bed, house.tenants["ninfer"])
    assert image(house, name) != old
    remove_container(house)
    # `docker image prune` takes what is dangling.
    assert old not in [one["Id"] for one in house.bed.client.images(filters={"dangling": True})]
    shown = plan(house, "ninfer")
    assert shown["allowed"] is False
    assert f"`docker tag {old[7:19]} {name}` takes it back" in json.dumps(shown)
    assert pairs(house)["ninfer:v2"]["image_gone"] is False
    house.bed.client.tag(kept, *name.split(":"), force=True)
    assert plan(house, "ninfer")["allowed"] is True
    move(house, "ninfer")
    assert house.container("ninfer")["Image"] == old


def test_a_tag_that_is_missing_is_there_again_after_the_start_and_a_lost_image_is_told(house: House) -> None:
    name = house.tenants["ninfer"].images[0]
    old, kept = image(house, name), kept_name("ninfer", image(house, name))
    house.stop()
    house.bed.client.remove_image(kept)  # the tag alone: the image has another
    assert image(house, kept) == ""
    house.serve()
    house.wait(lambda: image(house, kept) == old, "the image to be kept")

    remove_container(house)
    house.bed.client.remove_image(kept)
    house.bed.client.remove_image(name)  # as `docker image prune -a` does
    assert image(house, old) == ""
    assert pairs(house)["ninfer:v2"]["image_gone"] is True
    assert "the image that served isn't on this machine any more; load it again" in " ".join(house.ok("pairs").split())


def test_a_daemon_killed_in_the_middle_of_a_staging_makes_the_old_container_again_when_it_starts(house: House) -> None:
    """Case 45: killed in the middle of a staging."""
    old, strata = house.container("ninfer"), house.run_of("strata")
    house.stop()
    real, place = house._env["SLOTPROXY_COMPOSE"], house.folder / "stuck"
    script = house.folder / "compose"
    script.write_text(STUCK.replace("$REAL", real).replace("$PLACE", str(place)))
    script.chmod(0o755)
    house._env["SLOTPROXY_COMPOSE"] = str(script)
    house.serve()
    house.edit("ninfer", "--max-context 260000", "--max-context 131072")
    with house.order("stage", "ninfer"):
        house.wait(place.exists, "compose to have made the new container")
        house.kill()
    os.kill(int(place.read_text()), signal.SIGKILL)
    assert house.container("ninfer")["Id"] != old["Id"]

    house._env["SLOTPROXY_COMPOSE"] = real
    house.serve()
    (said,) = [line for line in house.log() if "was mended" in line["event"]]
    assert (said["facts"]["engine"], "made again" in said["why"]) == ("ninfer", True)
    now = house.container("ninfer")
    assert {name for name in differing(old, now) if not HAS_RUN.match(name)} == set()
    house.wait_serving("strata")
    assert house.run_of("strata") == strata
    house.edit("ninfer", "--max-context 131072", "--max-context 260000")
    move(house, "ninfer")  # verified as it was, and no other container is made
    assert house.container("ninfer")["Id"] == now["Id"]
