"""Staging keeps the way back on a real dockerd: cut off at any change, the old container is there after the next start.

The daemon "is killed" by cutting its staging off while Docker's n-th change is never answered: compose is killed with
it, nothing of ours gets to run, and the next daemon has only what is on disk and in Docker.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from engines.spec import ComposeService
from swap import recovery
from swap.container import DockerContainer
from swap.creation import Creation, CreationFile, body_of
from swap.dockerd import Docker
from swap.kept import REPOSITORY
from swap.ports import CannotStage, Foreign, Status, Unreachable
from tests.system.bed import free_port
from tests.system.flaky_docker import FlakyWay
from tests.system.inspected import HAS_RUN, differing
from tests.system.workshop import Workshop

pytestmark = pytest.mark.docker

PATIENCE = 60.0
RICH = """
services:
  engine:
    image: ${IMAGE}
    container_name: %(name)s
    hostname: llm
    domainname: example.test
    entrypoint: [python3, /engine.py]
    command: [polite]
    environment: {GREETING: "${GREETING:-hello}", EMPTY: "", ODD: "a=b$$c"}
    working_dir: /opt
    user: "0:0"
    group_add: ["20"]
    labels: {owner: somebody}
    gpus: all
    devices: ["/dev/null:/dev/other:r"]
    device_cgroup_rules: ["c 1:3 r"]
    volumes:
      - cache:/data
      - /anonymous
      - {type: bind, source: ./engine.py, target: /engine.py, read_only: true}
      - {type: tmpfs, target: /scratch, tmpfs: {size: 1048576}}
    tmpfs: ["/run:size=64m"]
    ulimits: {memlock: -1, nofile: {soft: 1000, hard: 2000}}
    shm_size: 1gb
    ipc: shareable
    cap_add: [IPC_LOCK]
    cap_drop: [MKNOD]
    security_opt: ["no-new-privileges:true"]
    sysctls: {net.core.somaxconn: 1024}
    dns: [192.0.2.1]
    extra_hosts: ["models:192.0.2.2"]
    mem_limit: 512m
    cpus: 0.5
    oom_score_adj: 100
    pids_limit: 200
    read_only: true
    init: true
    tty: true
    stdin_open: true
    stop_signal: SIGINT
    stop_grace_period: 70s
    networks:
      front: {aliases: [llm, voice], mac_address: "02:42:0a:00:00:17"}
      back: {ipv4_address: 10.%(net)s.5}
    ports: ["127.0.0.1:%(port)s:8090", "8091"]
    expose: ["9000"]
    healthcheck: {test: [CMD, python3, -c, pass], interval: 11s, timeout: 3s, retries: 4, start_period: 10m}
    restart: "no"
    logging: {driver: json-file, options: {max-size: 10m, max-file: "2"}}
volumes: {cache: {}}
networks:
  front: {}
  back: {ipam: {config: [{subnet: 10.%(net)s.0/24}]}}
"""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "SETTLE", 0.05)


@pytest.fixture
async def way(docker_address: str, tmp_path: Path) -> AsyncIterator[FlakyWay]:
    if not docker_address.startswith("unix://"):
        pytest.skip("the way leads to a unix socket")
    way = FlakyWay(Path(docker_address.removeprefix("unix://")), tmp_path / "way.sock")
    async with way.serve():
        yield way


@pytest.fixture
def rich(workshop: Workshop) -> Workshop:
    port = free_port()
    workshop.write(RICH.replace("%(port)s", str(port)).replace("%(net)s", f"{200 + port % 50}.{port % 251}"))
    return workshop


async def host(workshop: Workshop) -> dict[str, list[str]]:
    """What else of this engine's project is on the host."""
    containers = await workshop.client("containers", all=True)
    volumes = (await workshop.client("volumes"))["Volumes"] or ()
    found = {
        "containers": [name for one in containers for name in one["Names"]],
        "networks": [one["Name"] for one in await workshop.client("networks")],
        "volumes": [one["Name"] for one in volumes],
    }
    ours = (workshop.name, workshop.project)
    return {kind: sorted(one for one in names if any(part in one for part in ours)) for kind, names in found.items()}


class Daemons:
    """One daemon after the other over the same disk and the same Docker; each can be killed at a change of Docker's."""

    def __init__(self, workshop: Workshop, way: FlakyWay) -> None:
        self.workshop, self.way = workshop, way

    @asynccontextmanager
    async def another(self) -> AsyncIterator[DockerContainer]:
        docker = Docker(self.way.address)
        compose = ComposeService(self.workshop.file, "engine")
        try:
            yield DockerContainer(self.workshop.engine(compose), docker, self.workshop.folder / "state")
        finally:
            await docker.close()

    async def killed(self, doing: Callable[[DockerContainer], Awaitable[object]], change: int, *, done: bool) -> bool:
        """A daemon does this and is killed at its n-th change of Docker's; False: it made fewer, and is through."""
        self.way.stop(change, done=done)
        async with self.another() as runtime, asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
            work, stop = tasks.create_task(_run(doing(runtime))), tasks.create_task(_run(self.way.stopped.wait()))
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
            self.way.stop(0, done=done)
            work.cancel()
            stop.cancel()
        return work.cancelled()

    async def recovered(self) -> tuple[str, dict[str, Any]]:
        """What the next daemon says at its start, and the container that there is then."""
        async with self.another() as runtime, asyncio.timeout(PATIENCE):
            said = await runtime.recover()
            assert await runtime.recover() == ""
            return said, await self.workshop.inspect((await runtime.look()).id)


async def _run(doing: Awaitable[object]) -> None:
    await doing


@pytest.fixture
def daemons(rich: Workshop, way: FlakyWay) -> Daemons:
    return Daemons(rich, way)


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
async def test_a_daemon_killed_at_any_change_of_a_staging_finds_the_old_container_again(
    daemons: Daemons, rich: Workshop, *, done: bool
) -> None:
    await rich.open().stage(rich.pair())
    old = await rich.inspect(rich.name)
    around = await host(rich)
    new = rich.pair({"GREETING": "new"})
    for change in itertools.count(1):
        if not await daemons.killed(lambda runtime: runtime.stage(new), change, done=done):
            break
        said, now = await daemons.recovered()
        assert differing(old, now) == {}, f"change {change}: {said}"
        assert said
        assert await host(rich) == around, f"change {change}: {said}"
        if change > 1:  # the image is tagged before anything else is changed
            tag = f"{REPOSITORY}:{rich.name}-replaced"
            assert (await rich.client("inspect_image", tag))["Id"] == old["Image"]
        old = now
    assert change > 4  # to make the new one, to remove the old one, to rename: each was cut off


# A daemon that stages, in a process of its own: it can be killed, and the compose that it began goes on.
STAGES = """
import asyncio, sys
from pathlib import Path
from engines.profiles import PROFILES
from engines.spec import ComposeService, Engine, GiB, Pair
from swap.container import DockerContainer
from swap.dockerd import Docker

address, folder, name, image = sys.argv[1:]
pair = Pair(engine=name, name="plain", image=image, artifacts=(), env={"IMAGE": image, "GREETING": "new"})
service = ComposeService(Path(folder) / "docker-compose.yml", "engine")
engine = Engine(name=name, profile=PROFILES["openai"], url="http://127.0.0.1:1", vram=GiB, pairs={"plain": pair},
    deployed="plain", container=name, compose=service)
asyncio.run(DockerContainer(engine, Docker(address), Path(folder) / "state").stage(pair))
"""


@pytest.mark.parametrize("hangs", ["/containers/create", "DELETE"])
async def test_a_compose_that_outlives_its_daemon_is_waited_for(workshop: Workshop, way: FlakyWay, hangs: str) -> None:
    await workshop.open().stage(workshop.pair())
    old = await workshop.inspect(workshop.name)
    way.hang(hangs)
    words = (way.address, str(workshop.folder), workshop.name, workshop.image)
    daemon = await asyncio.create_subprocess_exec(sys.executable, "-c", STAGES, *words)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        await way.hung.wait()
        daemon.kill()
        await daemon.wait()
        recovering = tasks.create_task(workshop.open().recover())
        await asyncio.sleep(1)
        assert not recovering.done()
        way.let_go()
    assert "made again" in recovering.result()
    assert differing(old, await workshop.inspect(workshop.name)) == {}
    assert len(await workshop.docker.of_service(workshop.project, "engine")) == 1


async def test_a_recovery_that_is_killed_twice_at_any_change_is_finished_by_the_third(
    daemons: Daemons, rich: Workshop
) -> None:
    await rich.open().stage(rich.pair())
    old = await rich.inspect(rich.name)
    around = await host(rich)
    for change, done in itertools.product(range(1, 5), (False, True)):
        await cut_off(rich, old)
        assert await daemons.killed(lambda runtime: runtime.recover(), change, done=done)
        await daemons.killed(lambda runtime: runtime.recover(), change, done=done)  # it may have less left to do
        said, now = await daemons.recovered()
        assert differing(old, now) == {}, f"change {change}: {said}"
        assert await host(rich) == around
        old = now


async def cut_off(workshop: Workshop, old: dict[str, Any]) -> None:
    """As a daemon leaves it that is killed when compose has made the new one, and nobody has inspected it."""
    await begin(workshop, old)
    await workshop.client("remove_container", old["Id"])
    await half_made(workshop, old, workshop.name)


async def begin(workshop: Workshop, old: dict[str, Any]) -> None:
    state = workshop.folder / "state" / f"creation-{workshop.name}.json"
    await asyncio.to_thread(CreationFile(state).begin, Creation(old, {}))


async def half_made(workshop: Workshop, old: dict[str, Any], name: str) -> str:
    body = body_of(old, old["Image"])
    body["Env"] = [*body["Env"], "GREETING=new"]
    return str((await workshop.client("create_container_from_config", body, name))["Id"])


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
async def test_a_daemon_killed_at_any_change_of_putting_back_has_it_put_back_by_the_next(
    workshop: Workshop, way: FlakyWay, *, done: bool
) -> None:
    daemons = Daemons(workshop, way)
    wanted = (await workshop.open().stage(workshop.pair())).recipe
    assert wanted is not None
    old = await workshop.inspect(workshop.name)
    for change in itertools.count(1):
        failed = await workshop.open().stage(workshop.pair({"GREETING": "new"}))
        await workshop.client("start", failed.id)  # it has run, and wasn't good
        await workshop.client("kill", failed.id)
        if not await daemons.killed(lambda runtime: runtime.put_back(wanted), change, done=done):
            break
        said, now = await daemons.recovered()
        assert differing(old, now) == {}, f"change {change}: {said}"
    assert change > 3
    assert differing(old, await workshop.inspect(workshop.name)) == {}
    assert await workshop.open().recover() == ""


async def test_a_new_container_that_runs_or_has_run_is_never_touched_and_the_old_one_stays_kept(
    workshop: Workshop,
) -> None:
    wanted = (await workshop.open().stage(workshop.pair())).recipe
    assert wanted is not None
    for running in (True, False):
        old = await workshop.inspect(workshop.name)
        await cut_off(workshop, old)
        await workshop.client("start", workshop.name)
        if not running:
            await workshop.client("kill", workshop.name)
        before = await workshop.inspect(workshop.name)
        runtime = workshop.open()
        assert "it stays" in await runtime.recover()
        assert await workshop.inspect(workshop.name) == before
        assert await runtime.recover() == ""
        if running:
            await workshop.client("kill", workshop.name)
        back = await runtime.put_back(wanted)
        assert differing(old, await workshop.inspect(back.id)) == {}


async def test_what_compose_had_begun_beside_or_in_place_of_the_old_one_goes_and_the_very_old_one_stays(
    workshop: Workshop,
) -> None:
    await workshop.open().stage(workshop.pair())
    old = await workshop.inspect(workshop.name)
    aside = f"{old['Id'][:12]}_{workshop.name}"

    await begin(workshop, old)
    await half_made(workshop, old, aside)
    assert await workshop.open().recover()
    assert await workshop.inspect(workshop.name) == old

    await begin(workshop, old)
    await workshop.client("rename", old["Id"], aside)  # as compose's first version did
    await half_made(workshop, old, workshop.name)
    assert await workshop.open().recover()
    assert await workshop.inspect(workshop.name) == old
    assert len(await workshop.docker.of_service(workshop.project, "engine")) == 1


async def test_what_the_next_staging_mends_first_is_logged_too(workshop: Workshop) -> None:
    await workshop.open().stage(workshop.pair())
    await cut_off(workshop, await workshop.inspect(workshop.name))
    with capture_logs() as logs:
        await workshop.open().stage(workshop.pair())
    (said,) = [line["done"] for line in logs if "was mended" in line["event"]]
    assert said == f"{workshop.name} was made again as it was before an interrupted staging"


async def test_only_a_draft_of_ours_that_never_ran_is_removed(workshop: Workshop) -> None:
    await workshop.open().stage(workshop.pair())
    old, draft = await workshop.inspect(workshop.name), f"{workshop.name}.slotproxy"
    await half_made(workshop, old, draft)
    assert draft in await workshop.open().recover()
    assert [one["Names"] for one in await workshop.docker.of_service(workshop.project, "engine")] == [[old["Name"]]]

    body = body_of(old, old["Image"])
    for labels, runs in (({}, False), (body["Labels"], True)):
        made = await workshop.client("create_container_from_config", {**body, "Labels": labels}, draft)
        if runs:
            await workshop.client("start", made["Id"])
            await workshop.client("kill", made["Id"])
        assert await workshop.open().recover() == ""
        await workshop.client("remove_container", made["Id"])


async def test_a_container_of_somebodys_by_the_drafts_name_is_in_the_way_and_stays(workshop: Workshop) -> None:
    await workshop.open().stage(workshop.pair())
    old, draft = await workshop.inspect(workshop.name), f"{workshop.name}.slotproxy"
    await cut_off(workshop, old)
    body = body_of(old, old["Image"])
    for labels, runs in (({}, False), (body["Labels"], True)):
        made = await workshop.client("create_container_from_config", {**body, "Labels": labels}, draft)
        if runs:
            await workshop.client("start", made["Id"])
            await workshop.client("kill", made["Id"])
        with pytest.raises(CannotStage, match=f"{draft} is in the way.*; rename or remove it"):
            await workshop.open().recover()
        await workshop.docker.remove(made["Id"])
        await workshop.docker.remove(made["Id"])  # that somebody was faster is no fault
    assert "made again" in await workshop.open().recover()


async def test_what_cant_be_mended_says_the_ways_out_and_nothing_is_staged_over_it(workshop: Workshop) -> None:
    tag = workshop.bed.name("image") + ":local"
    image = workshop.bed.images.variant(tag, workshop.image, labels={"build": "1"})
    await workshop.open().stage(workshop.pair(image=tag))
    old = await workshop.inspect(workshop.name)
    await begin(workshop, old)
    await workshop.client("remove_container", old["Id"])
    await workshop.client("remove_image", image, force=True)
    file = workshop.folder / "state" / f"creation-{workshop.name}.json.staging"
    for attempt in (workshop.open().recover(), workshop.open().stage(workshop.pair())):
        with pytest.raises(CannotStage, match=rf"\({image[7:19]}\) is gone; build or load it again; or remove {file}"):
            await attempt
    assert (await workshop.open().look()).status is Status.ABSENT
    file.unlink()
    staged = await workshop.open().stage(workshop.pair())
    assert staged.status is Status.CREATED

    file.write_text("{")
    assert staged.recipe is not None
    assert await workshop.open().put_back(staged.recipe) == staged  # what served is served again all the same
    for attempt in (workshop.open().recover(), workshop.open().stage(workshop.pair())):
        with pytest.raises(CannotStage, match=f"{file} can't be read.*remove that file"):
            await attempt


async def test_a_foreign_container_in_its_place_is_left_alone(workshop: Workshop) -> None:
    await workshop.open().stage(workshop.pair())
    old = await workshop.inspect(workshop.name)
    await begin(workshop, old)
    await workshop.client("remove_container", old["Id"])
    body = body_of(old, old["Image"])
    foreign = await workshop.client("create_container_from_config", {**body, "Labels": {}}, workshop.name)
    with pytest.raises(Foreign, match="wasn't made by compose"):
        await workshop.open().recover()
    await workshop.client("remove_container", foreign["Id"])
    assert "made again" in await workshop.open().recover()


async def test_a_staging_that_docker_refuses_at_once_leaves_nothing_behind(workshop: Workshop, way: FlakyWay) -> None:
    old = await workshop.open().stage(workshop.pair())
    async with Daemons(workshop, way).another() as runtime:
        way.reset("/tag?")
        with pytest.raises(Unreachable):
            await runtime.stage(workshop.pair({"GREETING": "new"}))
        assert await runtime.recover() == ""
        assert await runtime.look() == old


@pytest.mark.parametrize(
    "mode", ["network_mode: host", "network_mode: host\n    uts: host", "network_mode: container:%s"]
)
async def test_one_that_shares_a_network_is_made_again_too(workshop: Workshop, mode: str) -> None:
    other = workshop.bed.name("other")
    command = ["python3", "-c", "import time; time.sleep(600)"]
    await workshop.client("create_container", workshop.image, command, name=other)
    await workshop.client("start", other)
    exposing = workshop.bed.images.variant(other + ":1", workshop.image, more=["EXPOSE 8090"])
    workshop.edit("network_mode: none", mode.replace("%s", other))
    runtime = workshop.open()
    staged = await runtime.stage(workshop.pair(image=other + ":1"))
    await workshop.client("start", staged.id)  # then it has the other's name, too
    await workshop.client("kill", staged.id)
    old = await workshop.inspect(staged.id)
    assert old["Image"] == exposing
    await cut_off(workshop, old)
    assert "made again" in await runtime.recover()
    await workshop.client("start", workshop.name)
    await workshop.client("kill", workshop.name)
    now = await workshop.inspect(workshop.name)
    assert {name for name in differing(old, now) if not HAS_RUN.match(name)} == set()
