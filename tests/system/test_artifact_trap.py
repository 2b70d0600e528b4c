"""The artifact trap: an image reads one version of artifacts, and says so itself only when the other engine is down.

What an image reads is told by the pair, else by the image's label, else by what it has served.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.bed import DockerBed
from tests.system.house import House
from tests.system.tenants import V2, V3, Tenant
from tests.system.traps import REFUSED, box, ids, move, plan, said, swap

pytestmark = [pytest.mark.docker, pytest.mark.slow]


def test_an_image_and_an_artifact_of_another_version_are_refused_before_anything_stops_also_as_a_trial(
    docker_bed: DockerBed, shim: Path, tmp_path: Path
) -> None:
    """Case 37: a v2 image and a v3 file."""
    with box(docker_bed, shim, tmp_path, lambda _, ninfer: more_pairs(docker_bed, tmp_path, ninfer)) as house:
        house.serve()
        move(house, "strata", trial=True)
        assert house.slotctl("plan", "to-ninfer:labelled")[0] == REFUSED
        refused(house, "labelled", "version 2 (its label slotproxy.ninfer.reads)")
        refused(house, "stated", "version 2 (the pair's `reads`)")

        shown = plan(house, "ninfer:silent", trial=True)
        assert shown["allowed"], said(shown)  # nobody knows yet what this image reads
        move(house, "ninfer:knows", "strata", trial=True)
        refused(house, "silent", "version 2 (it served that on ")


def more_pairs(bed: DockerBed, folder: Path, ninfer: Tenant) -> None:
    """Pairs with the v3 file: a v2 image by its label; one by `reads` that its label denies; one that says nothing."""
    unlabelled = bed.name("ninfer") + ":unlabelled"
    bed.images.variant(unlabelled, bed.images.engines, env={"NINFER_SIM_READS": "2"})
    v2, v3 = ninfer.images
    ninfer.keys["pairs"] |= {
        "labelled": made_of(folder, v2, V3),
        "stated": {**made_of(folder, v3, V3), "reads": 2},
        "silent": made_of(folder, unlabelled, V3),
        "knows": made_of(folder, unlabelled, V2),
    }


def made_of(folder: Path, image: str, artifact: str) -> dict[str, object]:
    env = {"NINFER_IMAGE": image, "NINFER_ARTIFACT": artifact}
    return {"image": image, "artifact": str(folder / "models" / artifact), "env": env}


def refused(house: House, name: str, why: str) -> None:
    """Also with --trial; both versions are named, and no container is touched."""
    before = ids(house)
    shown = plan(house, f"ninfer:{name}", trial=True)
    assert not shown["allowed"]
    assert f"reads artifacts of {why}" in said(shown)
    code, words = swap(house, f"to-ninfer:{name}", "--trial")
    assert code == REFUSED, words
    assert f"reads artifacts of {why}" in words
    assert f"{V3} is version 3" in words
    assert ids(house) == before
    assert house.running() == ["strata"]
