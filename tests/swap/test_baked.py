"""The configuration that Strata's image has baked is part of the pair, and where it isn't what is declared is said."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.artifacts.sample_gguf import write_gguf
from engines.spec import Engine, GiB, Pair
from engines.strata.profile import PROFILE as STRATA
from swap.artifacts import files_of, look_at
from swap.ports import Fault, Mount, Recipe
from tests.swap.fakes import recipe_for

SAID = {"model": "/data/packs/a.gguf", "context": 32768, "kv": "q8_0"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Strata's data folder, with a model and what was baked for it."""
    for name in ("packs", "config"):
        (tmp_path / "data" / name).mkdir(parents=True)
    write_gguf(tmp_path / "data" / "packs" / "a.gguf")
    say(tmp_path / "data" / "config" / "strata-a.json")
    return tmp_path / "data"


def say(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(SAID | changes))


def engine(data: Path, **changes: Any) -> Engine:
    pair = Pair("strata", "current", "strata:1", (data / "packs" / "a.gguf",), **changes)
    return Engine("strata", STRATA, "http://127.0.0.1:1", 30 * GiB, {"current": pair}, "current", container="strata")


def recipe(data: Path, mounts: tuple[Mount, ...] = (), **env: str) -> Recipe:
    return replace(
        recipe_for("strata:1", "a.gguf"),
        command=(),
        env=tuple({"MODEL": "/data/packs/a.gguf", "CONTEXT": "32768", **env}.items()),
        mounts=(Mount(str(data), "/data", read_only=False), *mounts),
    )


def files(data: Path, declared: Recipe, **pair: Any) -> list[str]:
    strata = engine(data, **pair)
    return [str(path.relative_to(data)) for path in files_of(strata, declared, strata.deployed_pair)]


def warnings(data: Path, declared: Recipe, **pair: Any) -> tuple[str, ...]:
    strata = engine(data, **pair)
    contents = look_at(strata, strata.deployed_pair, declared)
    assert contents.faults == ()
    return contents.warnings


# ------------------------------------------------------------------------------------------------- part of the pair


def test_what_is_baked_is_part_of_the_pair_without_being_listed(data: Path) -> None:
    assert files(data, recipe(data)) == ["packs/a.gguf", "config/strata-a.json"]


def test_what_is_listed_too_counts_once(data: Path) -> None:
    (data / "link.json").symlink_to(data / "config" / "strata-a.json")
    assert files(data, recipe(data), config_files=(data / "link.json",)) == ["packs/a.gguf", "link.json"]


def test_before_the_first_start_there_is_nothing_to_name(data: Path) -> None:
    (data / "config" / "strata-a.json").unlink()
    assert files(data, recipe(data)) == ["packs/a.gguf"]
    (data / "config").rmdir()
    assert files(data, recipe(data)) == ["packs/a.gguf"]


def test_of_several_models_files_only_its_own_counts(data: Path) -> None:
    say(data / "config" / "strata-b.json", model="/data/packs/b.gguf")
    assert files(data, recipe(data)) == ["packs/a.gguf", "config/strata-a.json"]


def test_where_no_file_names_its_model_all_count(data: Path) -> None:
    say(data / "config" / "strata-a.json", model="/data/packs/b.gguf")
    (data / "config" / "more.json").write_text("no JSON")
    (data / "config" / "notes.txt").write_text("no configuration")
    assert files(data, recipe(data)) == ["packs/a.gguf", "config/more.json", "config/strata-a.json"]


def test_a_model_that_only_the_file_names_is_part_of_the_pair(data: Path) -> None:
    """It is what Strata reads, whatever is declared."""
    say(data / "config" / "strata-a.json", model="/data/packs/b.gguf")
    write_gguf(data / "packs" / "b.gguf")
    assert files(data, recipe(data)) == ["packs/a.gguf", "config/strata-a.json", "packs/b.gguf"]


@pytest.mark.parametrize("contained", [True, False])
def test_what_config_names_is_part_of_the_pair_with_the_model_in_it(data: Path, contained: bool) -> None:
    root = Path("/data") if contained else data
    say(data / "own.json", model=str(root / "packs" / "b.gguf"))
    write_gguf(data / "packs" / "b.gguf")
    command = ("server.py", "--engine", "strata", "--config", str(root / "own.json"))
    declared = replace(recipe(data, MODEL=str(root / "packs/a.gguf")), command=command, contained=contained)
    (data / "config" / "strata-a.json").unlink()
    assert files(data, declared) == ["packs/a.gguf", "own.json", "packs/b.gguf"]


def test_a_folder_or_a_file_with_a_mount_of_its_own_is_found(data: Path, tmp_path: Path) -> None:
    other = tmp_path / "data" / "other"
    other.mkdir()
    say(other / "x.json")
    assert files(data, recipe(data, (Mount(str(other), "/data/config/", read_only=True),))) == [
        "packs/a.gguf",
        "other/x.json",
    ]
    (data / "config" / "strata-a.json").unlink()
    alone = Mount(str(other / "x.json"), "/data/config/strata-a.json", read_only=True)
    assert files(data, recipe(data, (alone,))) == ["packs/a.gguf", "other/x.json"]


@pytest.mark.parametrize("kind", ["volume", "tmpfs"])
def test_a_volume_cant_be_read_and_refuses_naming_the_path(data: Path, kind: str) -> None:
    declared = recipe(data, (Mount("strata-config", "/data/config", read_only=False, kind=kind),))
    if kind == "tmpfs":
        assert files(data, declared) == ["packs/a.gguf"]
        return
    with pytest.raises(Fault, match=r"/data/config/\*.json.*volume strata-config.*config_files"):
        files(data, declared)
    strata = engine(data)
    (fault,) = look_at(strata, strata.deployed_pair, declared).faults
    assert "/data/config/*.json" in fault.what
    listed = (data / "config" / "strata-a.json",)
    assert files(data, declared, config_files=listed) == ["packs/a.gguf", "config/strata-a.json"]


def test_a_folder_that_cant_be_read_refuses_naming_it(data: Path) -> None:
    (data / "config" / "strata-a.json").unlink()
    (data / "config").rmdir()
    (data / "config").write_text("a file")
    with pytest.raises(Fault, match=f"{data / 'config'} can't be read"):
        files(data, recipe(data))


def test_a_process_on_the_host_has_no_such_folder(data: Path) -> None:
    declared = replace(recipe(data, MODEL=str(data / "packs" / "a.gguf")), contained=False)
    assert files(data, declared) == ["packs/a.gguf"]
    assert warnings(data, declared) == ()


# ------------------------------------------------------------------------------------------------- what differs


def test_what_is_baked_as_declared_warns_of_nothing(data: Path) -> None:
    assert warnings(data, recipe(data, KV="q8_0")) == ()


def test_each_difference_is_a_warning_with_both_values_the_file_and_the_way_out(data: Path) -> None:
    first, second = warnings(data, recipe(data, CONTEXT="65536", KV="fp8"))
    file = data / "config" / "strata-a.json"
    assert first.startswith(f"CONTEXT=65536 is declared, but strata runs what {file} says: 32768; ")
    assert "REINSTALL=1 (once)" in first
    assert "without that file" in first
    assert second.startswith("KV=fp8 is declared, but strata runs what")


def test_a_secret_is_never_shown(data: Path) -> None:
    say(data / "config" / "strata-a.json", api_key="baked-secret")
    (one,) = warnings(data, recipe(data, API_KEY="declared-secret"))
    assert "API_KEY" in one
    assert "-secret" not in one


def test_a_reinstall_that_stays_set_is_said_to_bake_at_each_start(data: Path) -> None:
    (one,) = warnings(data, recipe(data, CONTEXT="65536", REINSTALL="1"))
    assert "REINSTALL=1 stays set" in one
    assert "at each start" in one


def test_what_the_file_doesnt_say_cant_be_told(data: Path) -> None:
    (one,) = warnings(data, recipe(data, VISION="1"))
    assert "says nothing of VISION" in one


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_text("no JSON"),
        lambda path: path.write_text("[1]"),
        lambda path: path.write_bytes(b"\xff"),
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.write_text(json.dumps(SAID).ljust(2**20 + 1)),
        pipe,
        lambda path: (path.unlink(), path.mkdir()),
    ],
)
def test_a_file_that_is_no_configuration_is_named(data: Path, spoil: Callable[[Path], object]) -> None:
    file = data / "config" / "strata-a.json"
    spoil(file)
    (one,) = warnings(data, recipe(data))
    assert f"{file}, which strata runs, is no JSON object" in one
    assert files(data, recipe(data)) == ["packs/a.gguf", "config/strata-a.json"]
