"""What Strata's image has baked, compared with what is declared: the same in every spelling, and no secret shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines.spec import BakedDifference
from engines.strata.baked import differences, ours, unsaid
from engines.strata.simulator.settings import bake

ENV = {
    "MODEL": "/data/packs/a.gguf",
    "CONTEXT": "65536",
    "VISION": "0",
    "KV": "q8_0",
    "PORT": "8095",
    "API_KEY": "s3cret",
    "PATH": "/usr/bin",
}


@pytest.fixture
def baked(tmp_path: Path) -> dict[str, Any]:
    """What the image makes of ENV."""
    model = tmp_path / "a.gguf"
    said: dict[str, Any] = json.loads(bake(ENV | {"MODEL": str(model)}, tmp_path).read_text())
    return said | {"model": ENV["MODEL"]}


def test_what_was_just_baked_is_what_is_declared(baked: dict[str, Any]) -> None:
    assert differences(ENV, baked) == ()
    assert unsaid(ENV, baked) == ()
    assert ours(ENV, baked)


@pytest.mark.parametrize(
    ("variable", "value", "same"),
    [
        ("CONTEXT", "065536", True),
        ("CONTEXT", "131072", False),
        ("CONTEXT", "64k", False),
        ("CONTEXT", "9" * 5000, False),
        ("VISION", "off", True),
        ("VISION", "True", False),
        ("KV", "fp8", False),
        ("KV", "Q8_0", False),
        ("PORT", "8096", False),
        ("HOST", "0.0.0.0", True),
        ("HOST", "127.0.0.1", False),
        ("MODEL", "/data/packs/../packs/a.gguf", True),
        ("MODEL", "/data/packs/b.gguf", False),
        ("API_KEY", "", False),
        ("PATH", "/bin", True),
    ],
)
def test_each_variable_is_compared_by_what_it_means(
    baked: dict[str, Any], variable: str, value: str, same: bool
) -> None:
    found = differences(ENV | {variable: value}, baked)
    assert [one.variable for one in found] == ([] if same else [variable])
    assert all(one.declared != one.baked or variable == "API_KEY" for one in found)


def test_a_variable_that_isnt_declared_differs_in_nothing(baked: dict[str, Any]) -> None:
    assert differences({"MODEL": ENV["MODEL"]}, baked | {"context": 1}) == ()


def test_an_api_key_is_never_shown(baked: dict[str, Any]) -> None:
    (found,) = differences(ENV | {"API_KEY": "other"}, baked)
    assert found == BakedDifference("API_KEY", "not shown", "not shown")


def test_a_setting_that_the_file_doesnt_name_is_said_to_be_unknown() -> None:
    assert unsaid(ENV, {"model": ENV["MODEL"], "context": 65536}) == ("VISION", "KV", "PORT", "API_KEY")


def test_a_file_for_another_model_is_another_models() -> None:
    assert not ours(ENV, {"model": "/data/packs/b.gguf"})
    assert not ours(ENV, {})
    assert not ours({}, {"model": ENV["MODEL"]})


@pytest.mark.parametrize("value", [None, [], {"a": 1}, "a\nb", "x" * 10_000])
def test_an_odd_value_is_shown_in_one_short_line(baked: dict[str, Any], value: object) -> None:
    (found,) = differences(ENV, baked | {"kv": value})
    assert found.baked.isprintable()
    assert len(found.baked) <= 100
