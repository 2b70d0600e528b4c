"""Looking, starting and logs on a real dockerd: whose a container is, and what is said when it can't start."""

from __future__ import annotations

import asyncio
import socket

import pytest

from swap.container import DockerContainer
from swap.ports import CannotStage, CannotStart, Foreign, Status
from tests.system.bed import free_port
from tests.system.workshop import SERVICE, Workshop

pytestmark = pytest.mark.docker


async def _run(workshop: Workshop, name: str) -> str:
    """`docker run` by hand, stopped."""
    made = await workshop.client("create_container", workshop.image, ["python3", "-c", "print('hand-made')"], name=name)
    return str(made["Id"])


async def test_a_container_made_by_docker_run_is_foreign_and_left_alone(workshop: Workshop) -> None:
    """Case 38: also when it is asked for by its id."""
    made = await _run(workshop, workshop.name)
    runtime = workshop.open()
    with pytest.raises(Foreign, match="wasn't made by compose"):
        await runtime.look()
    with pytest.raises(Foreign, match="wasn't made by compose"):
        await runtime.stage(workshop.pair())
    with pytest.raises(Foreign):
        await runtime.start(made)
    assert (await workshop.inspect(made))["State"]["Status"] == "created"


async def test_a_container_of_another_project_is_foreign_and_its_labels_are_shown(workshop: Workshop) -> None:
    other = workshop.bed.name("other")
    await workshop.by_hand("-p", other, "up", "--no-start", "--no-build", "--pull", "never", "engine")
    with pytest.raises(Foreign, match=f"compose project {other}, service engine"):
        await workshop.open().stage(workshop.pair())


async def test_our_own_is_known_also_while_the_file_is_broken(workshop: Workshop) -> None:
    staged = await workshop.open().stage(workshop.pair())
    workshop.file.write_text("services: [")
    assert await workshop.open().look() == staged


async def test_without_a_compose_file_any_container_of_the_name_is_ours(workshop: Workshop) -> None:
    runtime = DockerContainer(workshop.engine(None), workshop.docker, workshop.folder)
    assert (await runtime.look()).status is Status.ABSENT
    with pytest.raises(CannotStage, match="no compose file"):
        await runtime.declared(workshop.pair())
    made = await _run(workshop, workshop.name)
    sight = await runtime.look()
    assert (sight.id, sight.owner) == (made, "docker run")
    assert await runtime.declared(workshop.pair()) == sight.recipe
    assert await runtime.stage(workshop.pair()) == sight
    with pytest.raises(CannotStage, match="wants another:1"):
        await runtime.declared(workshop.pair(image="another:1"))
    await runtime.start(made)
    async with asyncio.timeout(60.0):
        while "hand-made" not in await runtime.log_tail(made):  # noqa: ASYNC110  # there is nothing to wait on
            await asyncio.sleep(0.05)


async def test_a_running_container_that_was_renamed_is_still_seen(workshop: Workshop) -> None:
    runtime = workshop.open()
    staged = await runtime.stage(workshop.pair())
    await runtime.start(staged.id)
    await workshop.client("rename", staged.id, workshop.bed.name("renamed"))
    seen = await runtime.look()
    assert (seen.id, seen.running) == (staged.id, True)
    await runtime.stop(staged.id, 60.0)
    assert (await runtime.look()).status is Status.ABSENT


async def test_a_running_container_is_still_seen_when_a_foreign_one_has_its_name(workshop: Workshop) -> None:
    runtime = workshop.open()
    staged = await runtime.stage(workshop.pair())
    await runtime.start(staged.id)
    await workshop.client("rename", staged.id, workshop.bed.name("renamed"))
    foreign = await _run(workshop, workshop.name)
    seen = await runtime.look()
    assert (seen.id, seen.running) == (staged.id, True)
    await runtime.stop(staged.id, 60.0)
    with pytest.raises(Foreign, match="wasn't made by compose"):
        await runtime.look()
    assert (await workshop.inspect(foreign))["State"]["Status"] == "created"


async def test_a_name_is_no_prefix_of_an_id(workshop: Workshop) -> None:
    staged = await workshop.open().stage(workshop.pair())
    assert await workshop.docker.inspect(staged.id[:12]) is None
    assert await workshop.docker.inspect(workshop.name) is not None


async def test_a_port_that_is_taken_is_said_at_the_start(workshop: Workshop) -> None:
    port = free_port()
    workshop.write(SERVICE.replace("network_mode: none", f'ports: ["127.0.0.1:{port}:80"]'))
    runtime = workshop.open()
    staged = await runtime.stage(workshop.pair())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(CannotStart, match="ss -ltnp"):
            await runtime.start(staged.id)
    assert not (await runtime.look()).running


async def test_a_gpu_request_that_docker_cant_serve_says_what_to_install(workshop: Workshop) -> None:
    """Case 41: it can be made, a start is refused, and it stays as it was created."""
    request = "{driver: nosuch, count: 1, capabilities: [gpu]}"
    reservation = f"deploy: {{resources: {{reservations: {{devices: [{request}]}}}}}}"
    workshop.edit("network_mode", f"{reservation}\n    network_mode")
    runtime = workshop.open()
    staged = await runtime.stage(workshop.pair())
    with pytest.raises(CannotStart, match=r"could not select device driver.*NVIDIA Container Toolkit"):
        await runtime.start(staged.id)
    assert await runtime.look() == staged


async def test_the_log_is_of_the_last_run_alone(workshop: Workshop) -> None:
    workshop.edit("/engine.py, polite", "-c, 'import time; print(time.time())'")
    runtime = workshop.open()
    staged = await runtime.stage(workshop.pair())
    lines = []
    for _ in range(2):
        await runtime.start(staged.id)
        async with asyncio.timeout(60.0):
            while (await runtime.look()).running:  # noqa: ASYNC110  # there is nothing to wait on
                await asyncio.sleep(0.05)
        lines.append(await runtime.log_tail(staged.id))
    assert [text.count("\n") for text in lines] == [1, 1]
    assert lines[0] != lines[1]
