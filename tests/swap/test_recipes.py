"""How compose's and Docker's words become recipes, where a real daemon would be slow to show it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from swap.creation import Creation, CreationFile, UnderWay, body_of, later_networks, unlike
from swap.ports import CannotStage, Recipe
from swap.recipes import created_recipe, declared_recipe, image_content, nanoseconds, running_recipe

IMAGE: dict[str, Any] = {
    "Id": "sha256:1",
    "Config": {
        "Entrypoint": ["/init"],
        "Cmd": ["serve"],
        "Env": ["PATH=/bin", "A=image"],
        "WorkingDir": "/image",
        "User": "7",
        "Healthcheck": {"Test": ["CMD", "probe"], "Interval": 5 * 10**9, "Retries": 3},
        "Volumes": {"/data": {}},
        "Labels": {"reads": "2", "vendor": "us"},
    },
    "RootFS": {"Type": "layers", "Layers": ["sha256:a", "sha256:b"]},
    "Os": "linux",
    "Architecture": "amd64",
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


# ------------------------------------------------------------------------------------------------- labels


def test_labels_are_those_that_were_chosen_for_this_container_and_the_same_on_both_sides() -> None:
    chosen = {"team": "voice", "vendor": "them"}
    shown = {**chosen, "reads": "2", "com.docker.compose.service": "s", "desktop.docker.io/wsl-distro": "x"}
    container = _container()
    container["Config"]["Labels"] = shown
    assert _declared(labels={**chosen, "reads": "2"}).labels == (("team", "voice"), ("vendor", "them"))
    assert created_recipe(container, IMAGE).labels == _declared(labels=chosen).labels


# ------------------------------------------------------------------------------------------------- image content


def _image(config: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {**IMAGE, **more, "Config": {**IMAGE["Config"], **(config or {})}}


@pytest.mark.parametrize(
    "other",
    [
        _image(Id="sha256:" + "9" * 64, Created="2026-01-01T00:00:00Z", RepoTags=["i:2"], RepoDigests=["i@sha256:1"]),
        _image(Id="sha256:" + "9" * 64, Descriptor={"digest": "sha256:" + "9" * 64}),  # the containerd store's way
        _image({"Labels": {"reads": "2", "build": "7"}}),
        _image({"Labels": None, "Healthcheck": None, "Volumes": None, "OnBuild": None}),
        _image({"Env": ["A=image", "PATH=/bin"]}),
        _image(Variant=""),
    ],
)
def test_the_same_content_is_the_same_whatever_its_id_its_labels_and_the_store_that_shows_it(
    other: dict[str, Any],
) -> None:
    assert image_content(other) == image_content(IMAGE)


@pytest.mark.parametrize(
    "other",
    [
        _image(RootFS={"Layers": ["sha256:b", "sha256:a"]}),
        _image(RootFS={"Layers": ["sha256:a"]}),
        _image(Os="windows"),
        _image(Architecture="arm64"),
        _image(Variant="v3"),
        _image({"Entrypoint": ["/init", "-s"]}),
        _image({"Entrypoint": None}),
        _image({"Cmd": ["serve", "--fast"]}),
        _image({"Cmd": None}),
        _image({"Env": ["PATH=/bin", "A=other"]}),
        _image({"Env": ["PATH=/bin"]}),
        _image({"User": ""}),
        _image({"WorkingDir": "/"}),
    ],
)
def test_all_that_decides_what_runs_in_an_image_is_its_content(other: dict[str, Any]) -> None:
    assert image_content(other) != image_content(IMAGE)


def test_what_is_not_set_in_an_image_may_be_null_empty_or_left_out() -> None:
    plain = {"RootFS": IMAGE["RootFS"], "Os": "linux", "Architecture": "amd64"}
    empty = {"Entrypoint": [], "Cmd": [], "Env": [], "User": "", "WorkingDir": ""}
    contents = [image_content({**plain, "Config": config}) for config in (None, {}, dict.fromkeys(empty), empty)]
    assert contents == [image_content(plain)] * 4


@pytest.mark.parametrize("layers", [None, [], {}])
def test_an_image_whose_layers_nobody_tells_has_no_content(layers: object) -> None:
    assert image_content(_image(RootFS={"Layers": layers} if layers != {} else None)) == ""
    assert image_content({}) == ""


# ------------------------------------------------------------------------------------------------- making it again


BACK = {"IPAddress": "10.0.0.2", "MacAddress": "02:42:0a:00:00:02", "EndpointID": "e"}  # state: nobody asked for these


def _container(**more: Any) -> dict[str, Any]:
    container: dict[str, Any] = {
        "Id": "f" * 64,
        "Image": "sha256:1",
        "Config": {"Image": "i:1", "Hostname": "f" * 12, "Labels": {"com.docker.compose.config-hash": "hash"}},
        "HostConfig": {"NetworkMode": "front"},
        "NetworkSettings": {"Networks": {"front": {"Aliases": ["llm", "f" * 12]}, "back": BACK}},
        "Mounts": [],
    }
    return {**container, **more}


@pytest.mark.parametrize(
    ("now", "ports"),
    [
        ({"80/tcp": [{"HostIp": "0.0.0.0", "HostPort": "8080"}, {"HostIp": "::", "HostPort": "8080"}]}, ["*:8080"]),
        ({"80/tcp": [{"HostIp": "0.0.0.0", "HostPort": "9999"}]}, []),
        ({"80/tcp": None}, []),
        ({}, []),
        ({"81/tcp": [{"HostIp": "127.0.0.1", "HostPort": "49153"}]}, ["127.0.0.1:any"]),
    ],
)
def test_the_ports_of_a_run_are_those_that_are_really_published_in_the_words_of_the_creation(
    now: dict[str, Any], ports: list[str]
) -> None:
    asked = {"80/tcp": [{"HostIp": "", "HostPort": "8080"}], "81/tcp": [{"HostIp": "127.0.0.1", "HostPort": ""}]}
    container = _container(HostConfig={"NetworkMode": "front", "PortBindings": asked})
    container["NetworkSettings"]["Ports"] = now
    assert [port.partition("->")[0] for port in running_recipe(container, IMAGE).ports] == ports


def test_with_the_hosts_network_nothing_is_published_and_nothing_is_missing() -> None:
    asked = {"80/tcp": [{"HostIp": "", "HostPort": "8080"}]}
    container = _container(HostConfig={"NetworkMode": "host", "PortBindings": asked})
    assert running_recipe(container, IMAGE) == created_recipe(container, IMAGE)


def test_a_body_asks_for_what_was_asked_for_and_not_for_what_docker_added() -> None:
    body = body_of(_container(), "sha256:1")
    assert (body["Image"], "Hostname" in body) == ("sha256:1", False)
    assert body["NetworkingConfig"] == {"EndpointsConfig": {"front": {"Aliases": ["llm"]}}}
    assert later_networks(_container()) == {"back": {}}
    asked = {"IPAMConfig": {"IPv4Address": "10.0.0.2"}, "IPAddress": "10.0.0.2", "MacAddress": "02:42:0a:00:00:02"}
    networks = {"Networks": {"front": {}, "back": {**asked, "EndpointID": "", "Gateway": ""}}}
    assert later_networks(_container(NetworkSettings=networks)) == {"back": asked}


def test_a_body_leaves_out_what_docker_refuses_beside_anothers_network() -> None:
    config = {"Image": "i:1", "Hostname": "a" * 12, "ExposedPorts": {"80/tcp": {}}}
    shared = _container(Config=config, HostConfig={"NetworkMode": "container:abc"})
    assert not {"Hostname", "ExposedPorts"} & body_of(shared, "i:1").keys()
    hosts = body_of(_container(Config=config, HostConfig={"NetworkMode": "host", "UTSMode": "host"}), "i:1")
    assert ("Hostname" in hosts, "ExposedPorts" in hosts) == (False, True)


def test_two_containers_are_unlike_only_in_what_they_were_asked_to_be() -> None:
    config = {**_container()["Config"], "Hostname": "2" * 12, "Volumes": None}
    networks = {"Networks": {"front": {"Aliases": ["2" * 12, "llm"]}, "back": {"EndpointID": "other"}}}
    made = _container(Id="2" * 64, Config=config, NetworkSettings=networks)
    assert unlike(_container(), made) == []
    host = {"NetworkMode": "front", "ShmSize": 64, "Ulimits": []}
    other = _container(HostConfig=host, Image="sha256:2", NetworkSettings={"Networks": {"front": {}}})
    assert unlike(_container(), other) == [
        "Config.Image",
        "HostConfig.ShmSize",
        "Networks.back",
        "Networks.front.Aliases",
    ]


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
    (tmp_path / "state").mkdir()
    file = CreationFile(tmp_path / "state" / "creation.json")
    assert file.kept() == ()
    file.begin(first)
    assert CreationFile(tmp_path / "state" / "creation.json").kept() == (first,)
    file.succeed()
    file.begin(second)
    assert file.under_way() == UnderWay(second)
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
