"""Every difference made by hand on a real dockerd: found, named in the right words, and mended as the words say.

One house: Strata serves, NInfer's v2 is verified and its container stopped. Where the rule refuses, nothing is changed.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engines.ninfer.sample import write_artifact
from tests.system.bed import DockerBed
from tests.system.house import House, Json
from tests.system.tenants import INSIDE, MODEL, V2, Tenant
from tests.system.traps import (
    REFUSED,
    SERVED,
    box,
    compose,
    compose_file,
    control,
    editor,
    ids,
    move,
    plan,
    said,
    strata_serves,
)

pytestmark = [pytest.mark.docker, pytest.mark.slow]

SECRETS = ("hunter2", "hunter3")
TRIAL = "slotctl swap to-ninfer:v2 --trial"
Edit = Callable[[Json], Any]


@pytest.fixture(scope="module")
def proven(docker_bed: DockerBed, shim: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("drift")
    with box(docker_bed, shim, folder, lambda _, ninfer: furnish(docker_bed, folder, ninfer)) as house:
        shutil.copytree(house.folder / "models", house.folder / "elsewhere")
        house.serve()
        move(house, "ninfer", "strata", trial=True)
        yield house


def furnish(bed: DockerBed, folder: Path, ninfer: Tenant) -> None:
    """NInfer with something in every field; and v2 once more, its artifact in another folder of the host.

    The image of v2 is nobody else's: it is rebuilt, and removed.
    """
    bed.client.remove_image(ninfer.images[0])
    build(bed, ninfer.images[0])
    ninfer.service["environment"]["NINFER_API_KEY"] = SECRETS[0]
    ninfer.service |= {"stop_grace_period": "50s", "labels": {"team": "voice"}, "working_dir": "/opt"}
    ninfer.service["healthcheck"] = {"test": ["CMD", "python3", "-c", "0"], "interval": "30s"}
    ninfer.service["volumes"][0] = f"${{MODELS:-{folder}/models}}:/models:ro"
    pairs = ninfer.keys["pairs"]
    elsewhere = folder / "elsewhere"
    pairs["elsewhere"] = {**pairs["v2"], "artifact": str(elsewhere / V2), "env": {"MODELS": str(elsewhere)}}


@pytest.fixture
def house(proven: House) -> Iterator[House]:
    """Nothing differs; a test that changes more than the compose file puts it back itself."""
    with strata_serves(proven) as house:
        yield house


def row(house: House, field: str, target: str = "ninfer:v2") -> Json:
    """What the plan says of one field."""
    rows = plan(house, target)["drift"]
    assert field in [one["field"] for one in rows], rows
    return dict(next(one for one in rows if one["field"] == field))


def refused(house: House, *fields: str) -> None:
    """The plan shows these fields and no other as unproven, worst first; a swap ends 3, and nothing was touched."""
    before = ids(house)
    shown = plan(house, "ninfer")
    unproven = [one for one in shown["drift"] if one["severity"] == "unproven"]
    assert {one["field"] for one in unproven} == set(fields)
    assert shown["drift"][: len(unproven)] == unproven
    assert {one["trial"] for one in unproven} == {TRIAL}
    assert not shown["allowed"]
    assert "ninfer:v2 never ran on this card as it is now" in said(shown)
    last = order(house, "swap")
    assert last["code"] == REFUSED
    assert "never ran on this card" in last["text"]
    assert ids(house) == before
    assert not any(secret in json.dumps([shown, last]) for secret in SECRETS)


def order(house: House, what: str) -> Json:
    """How an order for ninfer:v2 ended."""
    with control(house) as desk:
        answer = desk.post(f"/{what}", json={"engine": "ninfer", "pair": "v2"})
    return dict(json.loads(answer.text.splitlines()[-1]))


# ------------------------------------------------------------------------------------------------- the compose file


@pytest.mark.parametrize(
    ("edit", "field", "declared", "created"),
    [
        (lambda it: replaced(it, "command", "260000", "131072", 1), "command", "--max-context 131072", "260000"),
        (lambda it: it.update(command=it["command"] + " --lm-head-draft"), "command", "--lm-head-draft", "(not set)"),
        (lambda it: it.update(entrypoint=["/usr/local/bin/env"]), "entry point", "/usr/local/bin/env", "(not set)"),
        (lambda it: it["environment"].update(HF_HUB_OFFLINE="1"), "environment HF_HUB_OFFLINE", "'1'", "(not set)"),
        (
            lambda it: it["environment"].update(NINFER_API_KEY=SECRETS[1]),
            "environment NINFER_API_KEY",
            "(hidden)",
            "(hidden, another value)",
        ),
        (lambda it: it["volumes"].append("/srv:/more"), "mount /more", "/srv → /more", "(not set)"),
        (lambda it: it["volumes"].append(it["volumes"].pop() + ":ro"), "mount /log", "(read-only)", "/log"),
        (lambda it: it.update(devices=["/dev/null:/dev/x:r"]), "devices", "/dev/null:/dev/x:r", "(not set)"),
        (lambda it: it.update(gpus=[{"driver": "nvidia", "count": 1}]), "devices", "nvidia gpu 1", "(not set)"),
        (lambda it: it.update(user="7:7"), "user", "7:7", f"{os.getuid()}:{os.getgid()}"),
        (lambda it: it.update(working_dir="/tmp"), "working directory", "/tmp", "/opt"),  # in the container
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_edit_of_what_makes_the_pair_is_refused_until_it_is_proven(
    house: House, edit: Edit, field: str, declared: str, created: str
) -> None:
    with editor(house) as service:
        edit(service)
    shown = row(house, field)
    assert declared in shown["declared"]
    assert created in shown["created"]
    assert shown["verified"] == shown["created"]
    assert shown["mend"] == "take the edit back"
    refused(house, field)


@pytest.mark.parametrize(
    ("edit", "field", "declared", "created"),
    [
        (lambda it: it["ports"].append("127.0.0.1:1:9"), "port 9/tcp", "127.0.0.1:1", "(not set)"),
        (lambda it: it["healthcheck"].update(interval="31s"), "healthcheck", "every 31s", "every 30s"),
        (lambda it: it.update(stop_grace_period="51s"), "stop grace", "51 s", "50 s"),
        (lambda it: it.pop("network_mode"), "networks", "_default", "bridge"),
        (lambda it: it.update(init=False), "init", "no", "yes"),
        (lambda it: it.update(labels={"team": "text"}), "label team", "'text'", "'voice'"),
        (lambda it: it.update(shm_size="1gb"), "other settings (compose hash)", "", ""),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_edit_beside_the_pair_is_shown_and_allowed(
    house: House, edit: Edit, field: str, declared: str, created: str
) -> None:
    with editor(house) as service:
        edit(service)
    shown = plan(house, "ninfer")
    (found,) = shown["drift"]
    severity = "cosmetic" if field.startswith("label") else "beside"
    assert (found["field"], found["severity"], found["verified"]) == (field, severity, None)
    assert declared in found["declared"]
    assert created in found["created"]
    assert found["mend"] == "the next swap makes it so, or `slotctl stage ninfer:v2` now"
    assert (shown["allowed"], shown["stage"]) == (True, True)


def test_a_mount_counts_by_where_the_engine_sees_it_and_not_by_where_it_lies_on_the_host(house: House) -> None:
    with editor(house) as service:
        log = service["volumes"].pop()
        service["volumes"].append(f"{house.folder}/elsewhere:/log")
    shown = plan(house, "ninfer")
    (found,) = shown["drift"]
    assert (found["field"], found["severity"], shown["allowed"]) == ("mount /log", "stale", True)
    assert (found["declared"], found["created"]) == (
        f"{house.folder}/elsewhere → /log",
        f"{house.folder}/log → /log",
    )
    with editor(house) as service:
        service["volumes"][-1] = f"{log}s"
    moved = row(house, "mount /logs")
    assert (moved["declared"], moved["created"]) == (f"{house.folder}/log → /logs", "(not set)")
    refused(house, "mount /log", "mount /logs")


def test_limits_that_no_field_shows_are_told_until_it_has_served_with_them(house: House) -> None:
    text = compose_file(house, "ninfer").read_text()
    with editor(house) as service:
        service["shm_size"] = "1gb"
    assert order(house, "stage")["code"] == SERVED
    (found,) = plan(house, "ninfer")["drift"]
    assert (found["field"], found["severity"]) == ("other settings (compose hash)", "beside")
    assert found["declared"] == found["created"] != found["verified"]
    move(house, "ninfer", "strata")
    assert plan(house, "ninfer")["drift"] == []
    compose_file(house, "ninfer").write_text(text)
    move(house, "ninfer", "strata")
    assert plan(house, "ninfer")["drift"] == []


def replaced(service: Json, key: str, old: str, new: str, count: int) -> None:
    assert old in service[key]
    service[key] = service[key].replace(old, new, count)


def test_a_port_that_leads_elsewhere_is_shown_and_refused(house: House) -> None:
    """It would be started, and never found ready."""
    before = ids(house)
    with editor(house) as service:
        service["ports"] = [f"127.0.0.1:1:{INSIDE}"]
    assert row(house, f"port {INSIDE}/tcp")["declared"] == "127.0.0.1:1"
    last = order(house, "swap")
    assert last["code"] == REFUSED
    assert f"publishes 127.0.0.1:1->{INSIDE}/tcp, but is asked at {house.tenants['ninfer'].url}" in last["text"]
    assert ids(house) == before


# ------------------------------------------------------------------------------------------------- the container


def test_a_restart_policy_in_the_file_is_refused(house: House) -> None:
    with editor(house) as service:
        service["restart"] = "always"
    before = ids(house)
    shown = row(house, "restart policy")
    assert (shown["declared"], shown["created"], shown["severity"]) == ("always", "no", "blocks")
    assert 'set `restart: "no"` for service ninfer' in shown["mend"]
    assert order(house, "swap")["code"] == REFUSED
    assert ids(house) == before


def test_a_restart_policy_by_docker_update_is_taken_back_as_the_plan_says(house: House) -> None:
    name, docker = house.tenants["ninfer"].container, house.bed.client
    docker.update_container(name, restart_policy={"Name": "always", "MaximumRetryCount": 0})
    shown = row(house, "restart policy")
    assert (shown["declared"], shown["created"], shown["severity"]) == ("no", "always", "blocks")
    assert f"`docker update --restart=no {name}`" in shown["mend"]
    docker.update_container(name, restart_policy={"Name": "no", "MaximumRetryCount": 0})
    assert plan(house, "ninfer")["drift"] == []


def test_a_running_engine_whose_network_was_taken_away_is_told_beside_what_it_was_created_with(house: House) -> None:
    docker, strata = house.bed.client, house.container("strata")["Id"]
    port = house.tenants["strata"].port
    docker.disconnect_container_from_network(strata, "bridge")
    try:
        code, shown, _ = house.slotctl("drift", "strata")
        assert code == REFUSED
        lines = [line.split() for line in shown.splitlines()]
        assert ["declared", "created", "running"] in lines
        assert ["port", f"{INSIDE}/tcp", f"127.0.0.1:{port}", f"127.0.0.1:{port}", "(not", "set)"] in lines
    finally:
        docker.connect_container_to_network(strata, "bridge")
    assert house.slotctl("drift", "strata")[0] == SERVED


def test_a_container_of_another_project_with_our_name_is_foreign_and_never_touched(house: House) -> None:
    """Case 38: made by compose for another project."""
    docker, ours = house.bed.client, house.container("ninfer")["Id"]
    name, other = house.tenants["ninfer"].container, house.bed.name("other")
    docker.rename(ours, name + "-aside")
    try:
        compose(house, "ninfer", "-p", other, "up", "--no-start", "--no-build", "--pull", "never")
        before = ids(house)
        shown = plan(house, "ninfer", trial=True)
        assert f"container {name} ({before['ninfer'][0][:12]}) belongs to compose project {other}" in said(shown)
        assert (shown["allowed"], shown["drift"], shown["container"]) == (False, [], None)
        code, printed, _ = house.slotctl("drift", "ninfer")
        assert code == REFUSED
        assert f"belongs to compose project {other}, service ninfer" in printed
        assert order(house, "swap")["code"] == order(house, "stage")["code"] == REFUSED
        assert ids(house) == before
        docker.remove_container(before["ninfer"][0])
    finally:
        docker.rename(ours, name)


# ------------------------------------------------------------------------------------------------- the image


def rebuild(house: House, **change: Any) -> str:
    """The tag means another image from now on; its id."""
    return build(house.bed, house.tenants["ninfer"].images[0], **change)


def build(
    bed: DockerBed, tag: str, env: dict[str, str] | None = None, labels: dict[str, str] | None = None, **more: list[str]
) -> str:
    env = {"NINFER_SIM_READS": "2", **(env or {})}
    labels = {"slotproxy.ninfer.reads": "2", "session": bed.prefix, **(labels or {})}
    return bed.images.variant(tag, bed.images.engines, env=env, labels=labels, **({"command": ["ninfer-serve"]} | more))


def tag_back(house: House, old: str) -> None:
    """What the plan says."""
    repository, _, version = house.tenants["ninfer"].images[0].rpartition(":")
    house.bed.client.tag(old, repository, version, force=True)


@pytest.mark.parametrize(
    ("change", "also"),
    [
        ({"env": {"BUILD": "2"}}, ["environment BUILD"]),
        ({"entrypoint": ["/usr/local/bin/env"]}, ["entry point"]),
        ({"command": ["other"]}, []),  # the compose file has a command of its own
        ({"more": ["COPY Dockerfile /rebuilt"]}, []),
    ],
)
def test_a_rebuild_to_the_same_tag_is_a_moved_tag_until_it_is_tagged_back_as_the_plan_says(
    house: House, change: dict[str, Any], also: list[str]
) -> None:
    tag, old = house.tenants["ninfer"].images[0], house.container("ninfer")["Image"]
    new = rebuild(house, **change)
    try:
        shown = row(house, "image tag moved")
        assert (shown["declared"], shown["created"]) == (f"{tag} ({new[7:19]})", f"{tag} ({old[7:19]})")
        assert shown["verified"] == shown["created"]
        assert f"`docker tag {old[7:19]} {tag}` takes it back" in shown["mend"]
        refused(house, "image tag moved", *also)
    finally:
        tag_back(house, old)
        house.bed.client.remove_image(new)
    assert plan(house, "ninfer")["drift"] == []


def test_the_same_content_under_another_id_is_the_verified_pair(house: House) -> None:
    old = house.container("ninfer")["Image"]
    new = rebuild(house, labels={"build": "2"})
    assert new != old
    try:
        shown = plan(house, "ninfer")
        (found,) = shown["drift"]
        assert (found["field"], found["severity"]) == ("image id (the same content)", "cosmetic")
        assert (shown["allowed"], shown["state"]) == (True, "verified")
        assert order(house, "swap")["code"] == SERVED
        assert house.container("ninfer")["Image"] == new
        assert house.status()["verified"] is True
        move(house, "strata")
    finally:
        tag_back(house, old)
        order(house, "stage")
        house.bed.client.remove_image(new, force=True)


def test_an_image_that_lost_its_name_gets_it_back_as_the_plan_says(house: House) -> None:
    docker, tag = house.bed.client, house.tenants["ninfer"].images[0]
    old, before = house.container("ninfer")["Image"], ids(house)
    docker.remove_image(tag)  # it only takes the name away: a tag of ours keeps the image
    try:
        shown = plan(house, "ninfer")
        (found,) = shown["drift"]
        assert (found["field"], found["declared"]) == ("image", f"{tag} (none)")
        assert found["created"] == found["verified"] == f"{tag} ({old[7:19]})"
        assert found["mend"] == f"`docker tag {old[7:19]} {tag}` brings it back"
        assert order(house, "swap")["code"] == REFUSED
        assert ids(house) == before
    finally:
        tag_back(house, old)
    assert plan(house, "ninfer")["allowed"]


def test_a_verified_image_that_is_gone_comes_back_by_docker_load_as_the_plan_says(house: House) -> None:
    docker, tag = house.bed.client, house.tenants["ninfer"].images[0]
    old, saved = house.container("ninfer")["Image"], b"".join(docker.get_image(tag))
    new = rebuild(house, env={"BUILD": "3"})
    try:
        assert order(house, "stage")["code"] == SERVED
        docker.remove_image(old, force=True)
        shown = row(house, "image tag moved")
        assert shown["verified"].startswith(f"{tag} (")
        assert shown["verified"].endswith("), gone")
        assert "load it again (`docker load`)" in shown["mend"]
        refused(house, "image tag moved", "environment BUILD")
    finally:
        docker.load_image(saved)
        order(house, "stage")
        docker.remove_image(new, force=True)
    shown = plan(house, "ninfer")
    assert (shown["allowed"], shown["drift"]) == (True, [])


# ------------------------------------------------------------------------------------------------- the files


@contextmanager
def kept(file: Path) -> Iterator[bytes]:
    """The file's bytes, which are there again afterwards."""
    content = file.read_bytes()
    try:
        yield content
    finally:
        file.unlink(missing_ok=True)
        file.write_bytes(content)


def flip(file: Path, content: bytes) -> None:
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def replace_it(file: Path, _: bytes) -> None:
    other = file.with_name("other.ninfer")
    write_artifact(other, 2, model=MODEL, objects=1190, payload=b"\2" * 4096)
    other.replace(file)


def move_a_link(file: Path, _: bytes) -> None:
    other = file.with_name("other.ninfer")
    write_artifact(other, 2, model=MODEL, objects=1190, payload=b"\3" * 4096)
    file.unlink()
    file.symlink_to(other.name)


@pytest.mark.parametrize("change", [flip, replace_it, move_a_link])
def test_other_bytes_under_the_same_name_are_refused_until_the_verified_ones_are_back(
    house: House, change: Callable[[Path, bytes], None]
) -> None:
    """Case 37: the same name, other bytes."""
    file = house.folder / "models" / V2
    verified = plan(house, "ninfer")["would_run"]["artifacts"][0]["sha256"]
    with kept(file) as content:
        change(file, content)
        shown = row(house, f"file {V2}")
        assert shown["verified"].startswith(f"sha256:{verified[:12]} ")
        assert shown["declared"].split()[0] != shown["verified"].split()[0]
        assert shown["mend"] == f"put the verified bytes back (sha256:{verified})"
        refused(house, f"file {V2}")
    assert plan(house, "ninfer")["allowed"]


def test_the_same_bytes_at_another_place_of_the_host_are_the_verified_pair(house: House) -> None:
    shown = plan(house, "ninfer:elsewhere")
    (found,) = shown["drift"]
    assert (found["field"], found["severity"]) == ("mount /models", "stale")
    assert found["declared"] == f"{house.folder}/elsewhere → /models (read-only)"
    assert (shown["allowed"], shown["state"]) == (True, "verified")
    move(house, "ninfer:elsewhere")
    assert house.status()["verified"] is True
    move(house, "strata")
    assert order(house, "stage")["code"] == SERVED


# ------------------------------------------------------------------------------------------------- the card


def test_another_driver_than_that_of_the_evidence_is_a_warning_and_no_difference_of_the_pair(house: House) -> None:
    driver = house.card / "driver"
    driver.write_text("999.99\n")
    try:
        shown = plan(house, "ninfer")
    finally:
        driver.unlink()
    assert (shown["allowed"], shown["drift"]) == (True, [])
    assert [words for words in shown["warnings"] if "this is 999.99" in words]
    assert plan(house, "ninfer")["warnings"] == []


# ------------------------------------------------------------------------------------------------- in words


def test_drift_prints_a_table_worst_first_and_is_silent_where_nothing_differs(house: House) -> None:
    code, shown, _ = house.slotctl("drift")
    assert code == SERVED
    assert shown.count("none: as declared and verified") == 2
    with editor(house) as service:
        replaced(service, "command", "260000", "131072", 1)
        service["environment"]["NINFER_API_KEY"] = SECRETS[1]
        service["labels"] = {"team": "text"}
    code, shown, _ = house.slotctl("drift", "ninfer")
    assert code == REFUSED
    assert "): ninfer:v2 as it was verified, not running" in shown
    lines = shown.splitlines()
    assert lines.index("NOT WHAT WAS VERIFIED: another pair, which has to prove itself") < lines.index(
        "differs, and decides nothing"
    )
    assert f"  or prove it: `{TRIAL}`" in lines
    words = [line.split() for line in lines]
    assert ["command", "--max-context", "131072", "--max-context", "260000"] in words
    assert not any(secret in shown for secret in SECRETS)
    assert max(map(len, lines)) <= 120
