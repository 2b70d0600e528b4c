"""What a unit's name means: the same pair has one key, whatever makes another pair has another."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.ninfer.profile import PROFILE as NINFER
from engines.ninfer.sample import write_artifact
from engines.spec import Engine, Pair
from swap import findings
from swap import known as known_module
from swap.known import Known, unit_of
from swap.ports import Fault, Mount, Recipe, Sight, Status
from tests.swap.fakes import recipe_for


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    path = tmp_path / "v2.ninfer"
    write_artifact(path, 2)
    return path


@pytest.fixture
def engine(artifact: Path) -> Engine:
    pair = Pair("ninfer", "v2", "ninfer:local", (artifact,))
    return Engine("ninfer", NINFER, "http://127.0.0.1:1", 0, {"v2": pair}, "v2", container="ninfer-eval")


@pytest.fixture
def recipe(artifact: Path) -> Recipe:
    made = recipe_for("ninfer:local", artifact.name, models=str(artifact.parent))
    more = Mount("cache", "/cache", read_only=False, kind="volume")
    return replace(made, env=(("A", "1"), ("B", "2")), mounts=(*made.mounts, more))


def replace_by_a_copy(path: Path) -> None:
    """Same bytes and same mtime, another inode."""
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    copy.rename(path)
    os.utime(path, ns=(1, 1))


def remove(path: Path) -> None:
    path.unlink()


async def key(engine: Engine, recipe: Recipe) -> str:
    return (await unit_of(engine, engine.deployed_pair, recipe)).key


async def test_a_unit_is_named_by_engine_pair_and_key(engine: Engine, recipe: Recipe) -> None:
    unit = await unit_of(engine, engine.deployed_pair, recipe)
    assert (unit.engine, unit.pair, unit.label) == ("ninfer", "v2", "ninfer:v2")
    assert len(unit.key) == 16
    unknown = await unit_of(engine, None, recipe)
    assert (unknown.pair, unknown.label) == ("", "ninfer:?")


@pytest.mark.parametrize(
    "change",
    [
        {"image_id": "sha256:other"},
        {"entrypoint": ("sh",)},
        {"command": ("--model", "/models/v2.ninfer", "--max-context", "1")},
        {"env": (("A", "1"),)},
        {"working_dir": "/srv"},
        {"user": "1000"},
        {"mounts": ()},
        {"devices": ("nvidia all",)},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_what_makes_another_pair_makes_another_unit(engine: Engine, recipe: Recipe, change: Any) -> None:
    assert await key(engine, replace(recipe, **change)) != await key(engine, recipe)


@pytest.mark.parametrize(
    "change",
    [
        {"image": "ninfer:other-name"},
        {"healthcheck": "CMD curl"},
        {"ports": ()},
        {"networks": ("lan",)},
        {"config_hash": "c0ffee"},
        {"restart": "always"},
        {"stop_grace": 90.0},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_what_doesnt_make_another_pair_doesnt_make_another_unit(
    engine: Engine, recipe: Recipe, change: Any
) -> None:
    assert await key(engine, replace(recipe, **change)) == await key(engine, recipe)


async def test_the_same_image_under_another_id_is_the_same_unit(engine: Engine, recipe: Recipe) -> None:
    here = replace(recipe, image_content="sha256:content")
    assert await key(engine, replace(here, image_id="sha256:other")) == await key(engine, here)
    assert await key(engine, replace(here, image_content="sha256:else")) != await key(engine, here)


async def test_the_order_of_variables_and_mounts_doesnt_count(engine: Engine, recipe: Recipe) -> None:
    turned = replace(recipe, env=recipe.env[::-1], mounts=recipe.mounts[::-1])
    assert await key(engine, turned) == await key(engine, recipe)


async def test_each_side_of_a_mount_counts(engine: Engine, recipe: Recipe) -> None:
    models, cache = recipe.mounts
    others = [
        cache,
        replace(cache, source="other"),
        replace(cache, target="/other"),
        replace(cache, read_only=True),
        replace(cache, kind="tmpfs"),
    ]
    assert len({await key(engine, replace(recipe, mounts=(models, other))) for other in others}) == 5


async def test_a_file_that_was_touched_or_replaced_makes_another_unit(
    engine: Engine, recipe: Recipe, artifact: Path
) -> None:
    keys = [await key(engine, recipe)]
    os.utime(artifact, ns=(1, 1))
    keys.append(await key(engine, recipe))
    replace_by_a_copy(artifact)
    keys.append(await key(engine, recipe))
    remove(artifact)
    keys.append(await key(engine, recipe))
    assert len(set(keys)) == 4


async def test_a_part_of_the_artifact_that_was_touched_makes_another_unit(
    engine: Engine, recipe: Recipe, artifact: Path
) -> None:
    await asyncio.to_thread(write_artifact, artifact, 3, parts=1)
    before = await key(engine, recipe)
    os.utime(artifact.with_name(f"{artifact.name}.part-0001"), ns=(1, 1))
    assert await key(engine, recipe) != before


async def test_an_artifact_whose_header_cant_be_read_counts_by_its_state_all_the_same(
    engine: Engine, recipe: Recipe, artifact: Path
) -> None:
    await asyncio.to_thread(artifact.write_bytes, b"no artifact")
    before = await key(engine, recipe)
    os.utime(artifact, ns=(1, 1))
    assert await key(engine, recipe) != before


async def test_a_configuration_file_of_the_pair_counts_and_one_of_no_pair_doesnt(
    engine: Engine, recipe: Recipe, tmp_path: Path
) -> None:
    baked = tmp_path / "baked.json"
    baked.write_text("1")
    pair = replace(engine.deployed_pair, config_files=(baked,))
    before = await unit_of(engine, pair, recipe), await unit_of(engine, None, recipe)
    baked.write_text("22")
    after = await unit_of(engine, pair, recipe), await unit_of(engine, None, recipe)
    assert before[0] != after[0]
    assert before[1] == after[1]


async def test_an_artifact_that_no_mount_holds_is_no_reason_to_fail(engine: Engine, recipe: Recipe) -> None:
    inside_a_volume = replace(recipe, mounts=(Mount("models", "/models", read_only=True, kind="volume"),))
    assert await key(engine, inside_a_volume) == await key(engine, inside_a_volume)


async def test_files_on_a_disk_that_hangs_are_a_passing_fault(
    engine: Engine, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = threading.Event()
    monkeypatch.setattr(findings, "FILES_LIMIT", 0.05)
    monkeypatch.setattr(known_module, "_fingerprint", lambda *_: hangs.wait(60))
    with pytest.raises(Fault, match="the disk of ninfer:v2's files hasn't answered") as fault:
        await key(engine, recipe)
    hangs.set()
    assert fault.value.passing


def test_only_that_very_run_of_that_very_container_is_the_same_run(engine: Engine, recipe: Recipe) -> None:
    known = Known(engine, engine.deployed_pair, recipe)
    sight = Sight(Status.RUNNING, id="a", started_at="1", recipe=recipe)
    assert not known.same_run(sight)
    known.saw(sight)
    assert known.same_run(sight)
    assert not known.same_run(replace(sight, status=Status.EXITED))
    assert not known.same_run(replace(sight, started_at="2"))
    assert not known.same_run(replace(sight, id="b"))
