"""What Strata's image has baked, on a real dockerd: it runs that, whatever is declared; so it belongs to the pair.

One house: NInfer serves, Strata is verified and stopped, its data in a folder of the host.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.strata.simulator.settings import bake
from tests.system.bed import DockerBed
from tests.system.house import House
from tests.system.tenants import Tenant
from tests.system.traps import REFUSED, SERVED, box, compose_file, editor, ids, move, pair, plan, said, swap

pytestmark = [pytest.mark.docker, pytest.mark.slow]

FILE = "strata-flash-next.json"


@pytest.fixture(scope="module")
def proven(docker_bed: DockerBed, shim: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("baked")
    with box(docker_bed, shim, folder, lambda strata, _: with_context(strata, folder)) as house:
        house.serve()
        move(house, "strata", "ninfer", trial=True)
        yield house


def with_context(strata: Tenant, folder: Path) -> None:
    """It declares a context, and has baked it."""
    strata.service["environment"]["CONTEXT"] = "32768"
    (folder / "data" / "config" / FILE).unlink()
    bake(strata.service["environment"], folder / "data" / "config")


@pytest.fixture
def house(proven: House) -> Iterator[House]:
    """NInfer serves; compose file and baked file are what they were, in the very same state."""
    proven.make_serve("ninfer")
    file, text = compose_file(proven, "strata"), compose_file(proven, "strata").read_text()
    shutil.copytree(config(proven), proven.folder / "kept")
    yield proven
    proven.make_serve("ninfer")
    file.write_text(text)
    shutil.rmtree(config(proven))
    (proven.folder / "kept").rename(config(proven))


def config(house: House) -> Path:
    return house.folder / "data" / "config"


def baked(house: House) -> Path:
    return config(house) / FILE


def context(house: House) -> int:
    return int(json.loads(baked(house).read_text())["context"])


def test_a_context_that_is_edited_after_baking_is_warned_of_and_a_start_without_the_file_bakes_it(
    house: House,
) -> None:
    assert not plan(house, "strata")["warnings"]
    with editor(house, "strata") as service:
        service["environment"]["CONTEXT"] = "65536"
    shown = plan(house, "strata", trial=True)
    assert shown["allowed"], said(shown)
    (warning,) = shown["warnings"]
    assert warning.startswith(f"CONTEXT=65536 is declared, but strata runs what {baked(house)} says: 32768; ")
    assert "REINSTALL=1 (once), or without that file, bakes it anew" in warning

    code, words = swap(house, "to-strata", "--trial")
    assert code == SERVED, words
    assert context(house) == 32768  # as warned
    move(house, "ninfer")
    baked(house).unlink()
    code, words = swap(house, "to-strata", "--trial")
    assert code == SERVED, words
    assert f"no evidence was written: strata wrote {baked(house)} while it started; swap away" in words
    assert context(house) == 65536
    assert pair(house, "strata:current")["state"] != "verified"

    move(house, "ninfer")
    assert not plan(house, "strata", trial=True)["warnings"]
    move(house, "strata", trial=True)
    assert pair(house, "strata:current")["state"] == "verified"


def test_a_baked_file_that_is_edited_makes_another_pair_and_is_refused_without_a_trial(house: House) -> None:
    assert pair(house, "strata:current")["state"] == "verified"
    baked(house).write_text(baked(house).read_text().replace("32768", "16384"))
    before = ids(house)
    shown = plan(house, "strata")
    assert not shown["allowed"]
    assert str(baked(house)) in said(shown)
    code, words = swap(house, "to-strata")
    assert code == REFUSED, words
    assert ids(house) == before
    assert house.running() == ["ninfer"]
    assert pair(house, "strata:current")["state"] == "changed"
    assert f"CONTEXT=32768 is declared, but strata runs what {baked(house)} says: 16384" in shown["warnings"][0]


def test_another_models_file_beside_it_changes_nothing(house: House) -> None:
    (config(house) / "strata-other.json").write_text('{"model": "/data/packs/other.gguf"}')
    assert plan(house, "strata")["allowed"]


def test_a_reinstall_that_stays_set_is_warned_of_and_makes_no_evidence(house: House) -> None:
    with editor(house, "strata") as service:
        service["environment"] |= {"REINSTALL": "1", "CONTEXT": "65536"}
    (warning,) = plan(house, "strata", trial=True)["warnings"]
    assert "REINSTALL=1 stays set" in warning
    code, words = swap(house, "to-strata", "--trial")
    assert code == SERVED, words
    assert context(house) == 65536
    assert f"no evidence was written: {baked(house)} changed since it was checked" in words


def test_what_lies_in_a_named_volume_cant_be_read_and_is_refused_also_as_a_trial(house: House) -> None:
    with editor(house, "strata") as service:
        service["volumes"].append({"type": "volume", "source": "config", "target": "/data/config"})
    file = compose_file(house, "strata")
    name = house.bed.name("config")
    file.write_text(file.read_text() + f"volumes:\n  config:\n    name: {name}\n")
    before = ids(house)
    code, words = swap(house, "to-strata", "--trial")
    assert code == REFUSED, words
    assert "strata runs /data/config/*.json, which can't be read: it lies in the volume" in words
    assert "config_files" in words
    assert ids(house) == before
