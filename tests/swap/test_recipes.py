"""How compose's and Docker's words become recipes, where a real daemon would be slow to show it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from swap.creation import Creation, CreationFile, body_of, later_networks
from swap.ports import CannotStage, Recipe
from swap.recipes import created_recipe, declared_recipe, nanoseconds

IMAGE = {
    "Id": "sha256:1",
    "Config": {
        "Entrypoint": ["/init"],
        "Cmd": ["serve"],
        "Env": ["PATH=/bin", "A=image"],
        "WorkingDir": "/image",
        "User": "7",
        "Healthcheck": {"Test": ["CMD", "probe"], "Interval": 5 * 10**9, "Retries": 3},
        "Volumes": {"/data": {}},
    },
}


def _declared(**service: Any) -> Recipe:
    project = {"name": "p", "services": {"s": {"image": "i:1", **service}}}
    return declared_recipe(project, "s", IMAGE, "hash")


def test_a_bare_service_is_what_its_image_says() -> None:
    recipe = _declared()
    assert (recipe.entrypoint, recipe.command) == (("/init",), ("serve",))
    assert recipe.env == (("A", "image"), ("PATH", "/bin"))
    assert (recipe.working_dir, recipe.user) == ("/image", "7")
    assert recipe.healthcheck == "CMD probe, every 5s, retries 3"
    assert [mount.target for mount in recipe.mounts] == ["/data"]


@pytest.mark.parametrize(
    ("service", "argv"),
    [
        ({"command": ["x"]}, ("/init", "x")),
        ({"entrypoint": ["e"]}, ("e",)),
        ({"entrypoint": ["e"], "command": ["x"]}, ("e", "x")),
        ({"entrypoint": []}, ("serve",)),
        ({"entrypoint": None, "command": None}, ("/init", "serve")),
    ],
)
def test_entry_point_and_command_merge_as_docker_merges_them(service: dict[str, Any], argv: tuple[str, ...]) -> None:
    assert _declared(**service).argv == argv


def test_a_variable_of_no_value_takes_the_images_away() -> None:
    assert _declared(environment={"A": None, "B": ""}).env == (("B", ""), ("PATH", "/bin"))


@pytest.mark.parametrize(
    ("check", "text"),
    [
        ({"disable": True}, "none"),
        ({"test": ["NONE"]}, "none"),
        ({"interval": "1m30s"}, "CMD probe, every 90s, retries 3"),
        (
            {"test": ["CMD-SHELL", "x"], "retries": 9, "start_period": "10m"},
            "x, every 5s, start period 600s, retries 9",
        ),
    ],
)
def test_a_healthcheck_takes_what_it_leaves_out_from_the_image(check: dict[str, Any], text: str) -> None:
    assert _declared(healthcheck=check).healthcheck.removeprefix("CMD-SHELL ") == text


@pytest.mark.parametrize(
    ("service", "policy"),
    [
        ({}, "no"),
        ({"restart": "no"}, "no"),
        ({"restart": "on-failure:3"}, "on-failure:3"),
        ({"deploy": {"restart_policy": {"condition": "any"}}}, "always"),
        ({"deploy": {"restart_policy": {"condition": "none"}}}, "no"),
        ({"deploy": {"restart_policy": {"condition": "on-failure", "max_attempts": 2}}}, "on-failure:2"),
    ],
)
def test_both_ways_to_declare_a_restart_policy(service: dict[str, Any], policy: str) -> None:
    assert _declared(**service).restart == policy


@pytest.mark.parametrize(
    ("text", "value"), [("", 0), (None, 0), ("1m30s", 90 * 10**9), ("500ms", 5 * 10**8), ("1.5h", 5400 * 10**9)]
)
def test_durations_as_go_writes_them(text: str | None, value: int) -> None:
    assert nanoseconds(text) == value


def _container(**more: Any) -> dict[str, Any]:
    container: dict[str, Any] = {
        "Id": "f" * 64,
        "Image": "sha256:1",
        "Config": {"Image": "i:1", "Hostname": "f" * 12, "Labels": {"com.docker.compose.config-hash": "hash"}},
        "HostConfig": {"NetworkMode": "front"},
        "NetworkSettings": {"Networks": {"front": {"Aliases": ["llm", "f" * 12]}, "back": {"IPAddress": "10.0.0.2"}}},
        "Mounts": [],
    }
    return {**container, **more}


def test_a_body_asks_for_what_was_asked_for_and_not_for_what_docker_added() -> None:
    body = body_of(_container(), "sha256:1")
    assert (body["Image"], "Hostname" in body) == ("sha256:1", False)
    assert body["NetworkingConfig"] == {"EndpointsConfig": {"front": {"Aliases": ["llm"]}}}
    assert later_networks(_container()) == {"back": {}}


def test_a_body_names_the_volumes_that_hold_the_old_data() -> None:
    volume = {"Type": "volume", "Name": "a" * 64, "Source": "/v", "Destination": "/data", "RW": True}
    typed = {**volume, "Destination": "/typed"}
    host = {"NetworkMode": "none", "Mounts": [{"Type": "volume", "Target": "/typed"}]}
    body = body_of(_container(Mounts=[volume, typed], HostConfig=host), "i:1")
    assert body["HostConfig"]["Binds"] == [f"{'a' * 64}:/data:rw"]
    assert body["HostConfig"]["Mounts"] == [{"Type": "volume", "Target": "/typed", "Source": "a" * 64}]
    assert "Source" not in host["Mounts"][0]  # what Docker showed stays as it was shown


def test_a_kept_creation_outlives_the_process_and_counts_from_before_the_replacement(tmp_path: Path) -> None:
    first, second = Creation(_container(), IMAGE), Creation(_container(Id="2" * 64), IMAGE)
    file = CreationFile(tmp_path / "state" / "creation.json")
    assert file.kept() == ()
    file.begin(first)
    assert CreationFile(tmp_path / "state" / "creation.json").kept() == (first,)
    file.succeed()
    file.begin(second)
    assert file.replacing() == second
    assert file.kept() == (second, first)
    file.give_up()
    assert file.kept() == (first,)
    assert first.recipe == created_recipe(_container(), IMAGE)
    file.begin(None)  # nothing is there: nothing will be replaced
    file.succeed()
    assert file.kept() == ()


def test_a_damaged_creation_is_named(tmp_path: Path) -> None:
    (tmp_path / "creation.json").write_text('{"container"')
    with pytest.raises(CannotStage, match=r"creation\.json"):
        CreationFile(tmp_path / "creation.json").kept()
