"""Staging on a real dockerd: what is declared is what is made, and what was there can be made again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engines.spec import Pair
from swap.compose import ComposeProject
from swap.container import DockerContainer
from swap.drift import differences
from swap.kept import REPOSITORY
from swap.ports import CannotStage, Status
from tests.system.bed import free_port
from tests.system.workshop import SERVICE, Workshop

pytestmark = pytest.mark.docker

NINFER = """
services:
  engine:
    image: ${IMAGE}
    container_name: %(name)s
    command: [python3, /engine.py, polite, --max-context, "260000", "a$$b"]
    environment: {GREETING: "${GREETING:-hello}", TOKEN: "x=y$$z", PATH:, UNSET: ""}
    env_file: [e.env]
    working_dir: /opt
    user: "0:0"
    ports: ["127.0.0.1:%(port)s:8095"]
    volumes: ["%(folder)s/:/models:ro", "%(folder)s/engine.py:/engine.py:ro"]
    init: true
    restart: "no"
    stop_grace_period: 1m
    healthcheck:
      test: ["CMD", "python3", "-c", "pass"]
      interval: 10s
      timeout: 2s
      retries: 3
      start_period: 10m
    deploy:
      resources:
        reservations:
          devices: [{driver: nvidia, device_ids: ["0"], capabilities: [gpu]}]
"""
STRATA = """
services:
  engine:
    image: ${IMAGE}
    container_name: %(name)s
    entrypoint: [python3, /engine.py]
    command: [polite]
    gpus: all
    devices: ["/dev/null:/dev/other:r"]
    volumes:
      - cache:/data
      - /anonymous
      - {type: bind, source: ./engine.py, target: /engine.py, read_only: true}
      - {type: tmpfs, target: /scratch}
    tmpfs: ["/run:size=64m"]
    secrets: [key]
    configs: [{source: settings, target: /etc/settings}]
    ulimits: {memlock: 65536}
    shm_size: 1gb
    ipc: host
    cap_add: [IPC_LOCK]
    networks: {front: {aliases: [llm]}, back: {}}
    ports: ["%(port)s:8090", "8091"]
    healthcheck: {disable: true}
    restart: on-failure:3
    logging: {driver: json-file, options: {max-size: 10m}}
volumes: {cache: {}}
networks: {front: {}, back: {}}
secrets: {key: {file: ./e.env}}
configs: {settings: {file: ./e.env}}
"""


def _filled(text: str) -> str:
    return text.replace("%(port)s", str(free_port()))


@pytest.mark.parametrize("text", [NINFER, STRATA], ids=["as ninfer", "as strata"])
async def test_a_freshly_staged_container_equals_its_declaration_in_every_field(workshop: Workshop, text: str) -> None:
    workshop.write(_filled(text))
    runtime, pair = workshop.open(), workshop.pair()
    declared = await runtime.declared(pair)
    staged = await runtime.stage(pair)
    assert staged.recipe == declared
    assert (staged.status, staged.owner) == (Status.CREATED, f"compose {workshop.project}/engine")
    assert await workshop.open().look() == staged
    await runtime.start(staged.id)  # the devices are really asked for
    assert (await runtime.look()).recipe == declared
    await runtime.stop(staged.id, 60.0)


@pytest.mark.parametrize("text", [NINFER, STRATA], ids=["as ninfer", "as strata"])
async def test_put_back_makes_the_same_container_by_every_field_that_docker_shows(
    workshop: Workshop, text: str
) -> None:
    workshop.write(_filled(text))
    runtime = workshop.open()
    old = await runtime.stage(workshop.pair())
    await runtime.start(old.id)  # a container that has run shows more than one that hasn't
    await runtime.stop(old.id, 60.0)
    before = await workshop.inspect(old.id)
    workshop.edit("container_name", "labels: {edited: 'yes'}\n    container_name")
    staged = await runtime.stage(workshop.pair())
    assert staged.id != old.id
    assert old.recipe is not None
    back = await workshop.open().put_back(old.recipe)  # by a daemon that was started anew
    after = await workshop.inspect(back.id)
    assert _asked(after) == _asked(before)
    assert back.recipe == old.recipe
    await workshop.by_hand("up", "--no-start", "--no-deps", "--pull", "never", "--force-recreate", "engine")
    assert (await runtime.look()).id != back.id  # compose took it for its own


def _asked(container: dict[str, Any]) -> dict[str, Any]:
    """All that a container was asked to be; not its identity, its state, and the names that follow from them."""
    config = {key: value for key, value in container["Config"].items() if key != "Hostname"}
    networks = container["NetworkSettings"]["Networks"]
    aliases = {name: _without_ids(network["Aliases"], container["Id"]) for name, network in networks.items()}
    host = dict(container["HostConfig"])
    host["Binds"] = sorted(bind for bind in host["Binds"] or [] if bind.startswith("/") or "cache" in bind)
    host["Mounts"] = [mount.get("Target") for mount in host.get("Mounts") or []]
    mounts = {mount["Destination"]: (mount["Type"], mount["Source"], mount["RW"]) for mount in container["Mounts"]}
    return {"config": config, "host": host, "aliases": aliases, "mounts": mounts, "image": container["Image"]}


def _without_ids(aliases: list[str] | None, id: str) -> list[str]:
    return sorted(alias for alias in aliases or [] if alias != id[:12])


async def test_an_edit_is_seen_field_by_field_and_only_staging_applies_it(workshop: Workshop) -> None:
    """Case 36: a start applies nothing."""
    runtime, pair = workshop.open(), workshop.pair()
    old = await runtime.stage(pair)
    workshop.edit("polite]", "polite, --max-context, '131072']")
    workshop.edit('"${GREETING:-hello}"', "edited")
    workshop.edit("network_mode", "healthcheck: {test: [CMD, python3, -c, pass]}\n    network_mode")
    declared = await runtime.declared(pair)
    assert old.recipe is not None
    found = [(d.field, d.pair) for d in differences(declared, old.recipe)]
    assert found == [("command", True), ("environment GREETING", True), ("healthcheck", False)]
    await runtime.start(old.id)
    assert (await runtime.look()).recipe == old.recipe  # the swap trap: a start applies nothing
    await runtime.stop(old.id, 60.0)
    assert (await runtime.stage(pair)).recipe == declared


async def test_what_no_field_shows_is_seen_by_composes_hash(workshop: Workshop) -> None:
    runtime, pair = workshop.open(), workshop.pair()
    old = await runtime.stage(pair)
    workshop.edit("network_mode", "ulimits: {memlock: -1}\n    network_mode")
    assert old.recipe is not None
    found = differences(await runtime.declared(pair), old.recipe)
    assert [(d.field, d.pair) for d in found] == [("other settings (compose hash)", False)]
    staged = await runtime.stage(pair)
    assert staged.id != old.id


async def test_a_rebuild_under_the_same_tag_is_seen_and_staged_and_put_back_by_id(workshop: Workshop) -> None:
    """Cases 36 and 39: the image is known by its id, and kept from a prune."""
    tag = workshop.bed.name("image") + ":local"
    first = workshop.bed.images.variant(tag, workshop.image, labels={"build": "1"})
    runtime, pair = workshop.open(), workshop.pair(image=tag)
    old = await runtime.stage(pair)
    assert old.tag_id == first
    second = workshop.bed.images.variant(tag, workshop.image, labels={"build": "2"})
    assert (await runtime.look()).tag_id == second
    assert old.recipe is not None
    found = differences(await runtime.declared(pair), old.recipe)
    assert [(one.field, one.pair) for one in found] == [("image id (the same content)", False)]
    staged = await runtime.stage(pair)
    assert staged.recipe is not None
    assert (staged.recipe.image_id, staged.recipe.image_labels) == (second, (("build", "2"),))
    assert await _kept(workshop) == {"replaced": first}  # no prune takes what put_back needs
    back = await runtime.put_back(old.recipe)
    assert back.recipe is not None
    assert back.recipe.image_id == first
    assert differences(old.recipe, back.recipe) == ()


async def test_only_the_image_that_was_replaced_last_is_kept_though_nothing_proves_it(workshop: Workshop) -> None:
    tag = workshop.bed.name("image") + ":local"
    runtime, pair, builds = workshop.open(), workshop.pair(image=tag), []
    for build in ("1", "2", "3"):
        builds.append(workshop.bed.images.variant(tag, workshop.image, labels={"build": build}))
        await runtime.stage(pair)
    assert await _kept(workshop) == {"replaced": builds[1]}
    await runtime.keep(builds[1])  # it has served meanwhile
    await runtime.stage(workshop.pair(image=tag, env={"GREETING": "other"}))
    assert await _kept(workshop) == {builds[1][7:19]: builds[1], "replaced": builds[2]}


async def _kept(workshop: Workshop) -> dict[str, str]:
    """By what our tags say after the engine's name."""
    begin = f"{REPOSITORY}:{workshop.name}-"
    images = await workshop.client("images", REPOSITORY)
    return {tag.removeprefix(begin): image["Id"] for image in images for tag in image["RepoTags"] if begin in tag}


async def test_staging_leaves_a_running_neighbour_alone_though_it_depends_on_it(workshop: Workshop) -> None:
    """Case 39: compose by itself would stop and recreate it."""
    other = "\n  neighbour: {image: '${IMAGE}', command: [python3, -c, 'import time; time.sleep(600)'], init: true}\n"
    workshop.write(SERVICE.rstrip() + "\n    depends_on: [neighbour]" + other)
    await workshop.by_hand("up", "-d", "--no-build", "--pull", "never", "neighbour")
    (neighbour,) = await workshop.docker.of_service(workshop.project, "neighbour")
    before = await workshop.inspect(neighbour["Id"])
    runtime = workshop.open()
    await runtime.stage(workshop.pair())
    workshop.edit("time.sleep(600)", "time.sleep(601)")
    workshop.edit("polite]", "polite, edited]")
    await runtime.stage(workshop.pair())
    after = await workshop.inspect(neighbour["Id"])
    assert after["State"]["Running"]
    assert after["State"]["StartedAt"] == before["State"]["StartedAt"]


async def test_what_was_changed_behind_composes_back_is_staged_too(workshop: Workshop) -> None:
    runtime, pair = workshop.open(), workshop.pair()
    old = await runtime.stage(pair)
    await workshop.client("update_container", old.id, restart_policy={"Name": "always"})
    assert (await runtime.look()).recipe != old.recipe
    assert (await runtime.stage(pair)).recipe == old.recipe


class Liar(ComposeProject):
    """A compose that makes something else than it declared."""

    async def create(self, pair: Pair, *, force: bool = False, held: int | None = None) -> None:
        await super().create(replace(pair, env={**pair.env, "GREETING": "a lie"}), force=force, held=held)


def _lie(runtime: DockerContainer, workshop: Workshop) -> None:
    assert runtime._staging is not None
    runtime._staging._compose = Liar(workshop.file, "engine", workshop.bed.address)


async def test_a_container_that_isnt_what_was_declared_is_replaced_by_the_old_one(workshop: Workshop) -> None:
    runtime = workshop.open()
    oldest = await runtime.stage(workshop.pair({"GREETING": "first"}))
    old = await runtime.stage(workshop.pair())
    _lie(runtime, workshop)
    with pytest.raises(CannotStage, match="environment GREETING: 'a lie' instead of 'new'"):
        await runtime.stage(workshop.pair({"GREETING": "new"}))
    now = await runtime.look()
    assert (now.status, now.recipe) == (Status.CREATED, old.recipe)
    assert oldest.recipe is not None
    assert (await runtime.put_back(oldest.recipe)).recipe == oldest.recipe  # what the last good staging replaced


async def test_a_staging_that_fails_leaves_the_very_container_to_be_put_back(workshop: Workshop) -> None:
    runtime, other = workshop.open(), workshop.pair({"GREETING": "other"})
    for before in [(), (other, workshop.pair())]:  # an earlier swap there and back keeps an older creation
        old = await runtime.stage(workshop.pair())
        for pair in before:
            old = await runtime.stage(pair)
        workshop.edit("polite]", "polite")
        with pytest.raises(CannotStage):
            await runtime.stage(other)
        workshop.edit("polite", "polite]")
        assert old.recipe is not None
        assert await workshop.open().put_back(old.recipe) == old


async def test_what_is_wanted_back_and_is_neither_there_nor_kept_is_told(workshop: Workshop) -> None:
    runtime = workshop.open()
    wanted = await runtime.declared(workshop.pair({"GREETING": "gone"}))
    staged = await runtime.stage(workshop.pair())
    with pytest.raises(CannotStage, match="environment GREETING is 'hello', not 'gone'; and staging has kept none"):
        await runtime.put_back(wanted)
    assert await runtime.look() == staged


async def test_where_nothing_was_before_a_wrong_one_is_taken_away(workshop: Workshop) -> None:
    runtime = workshop.open()
    _lie(runtime, workshop)
    with pytest.raises(CannotStage, match="a lie"):
        await runtime.stage(workshop.pair())
    assert (await runtime.look()).status is Status.ABSENT


async def test_a_staging_that_was_cut_off_can_be_put_back(workshop: Workshop) -> None:
    runtime = workshop.open()
    old = await runtime.stage(workshop.pair())
    assert runtime._staging is not None
    await runtime._staging._keep(old)
    await workshop.client("remove_container", old.id)  # the daemon was killed here
    assert old.recipe is not None
    back = await workshop.open().put_back(old.recipe)
    assert back.recipe == old.recipe
    assert await workshop.open().put_back(old.recipe) == back


async def test_another_container_of_the_service_under_another_name_is_not_given_to_compose(workshop: Workshop) -> None:
    runtime = workshop.open()
    old = await runtime.stage(workshop.pair())
    kept = workshop.bed.name("kept")
    await workshop.client("rename", old.id, kept)
    with pytest.raises(CannotStage, match=kept):
        await workshop.open().stage(workshop.pair({"GREETING": "new"}))
    assert (await workshop.inspect(old.id))["Name"] == f"/{kept}"


async def test_a_service_that_makes_another_name_is_refused(workshop: Workshop) -> None:
    workshop.edit(f"container_name: {workshop.name}", f"container_name: {workshop.name}-x")
    with pytest.raises(CannotStage, match=f"container_name: {workshop.name}"):
        await workshop.open().stage(workshop.pair())


async def test_a_missing_image_is_named_before_anything_is_touched(workshop: Workshop) -> None:
    with pytest.raises(CannotStage, match=r"gone:1 isn't on this machine"):
        await workshop.open().declared(workshop.pair(image="gone:1"))
