"""`Runtime` on a container of a Docker Engine. Nothing here touches a container that isn't ours, or one that runs.

Ours is the container of the configured name that compose made for the configured project and service; where no compose
file is configured, the container of that name however it was made.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from engines.spec import Engine, Pair
from swap import kept
from swap.compose import ComposeProject, Declaration
from swap.creation import CreationFile
from swap.dockerd import Docker, DockerSaid, Inspection, Reset
from swap.dockerevents import ACTIONS, MEANT, StopFirst
from swap.drift import HIDDEN, looks_secret, nearest, otherwise, without_secrets
from swap.ports import CannotStage, CannotStart, Exit, Foreign, Recipe, RuntimeEvent, Sight, Status, Unreachable
from swap.recipes import LABEL, Json, created_recipe, declared_recipe, image_name, running_recipe
from swap.staging import Staging

SETTLING = 10.0  # seconds in which a container that Docker says has stopped must look stopped
LATE = 1.0  # seconds by which Docker may note a start too late: a quick engine's first lines are older (measured)
FORCED = 137
LABELS_SHOWN = 200  # characters of a foreign container's labels
MENDS = {
    "could not select device driver": "install the NVIDIA Container Toolkit (nvidia-ctk) and restart Docker",
    "nvidia": "see that `nvidia-smi` works, and that the NVIDIA Container Toolkit fits the driver",
    "already allocated": "see who listens on that port: `ss -ltnp`; if nobody does, restart Docker",
    "address already in use": "see who listens on that port: `ss -ltnp`",
    "rlimit": "raise that limit for dockerd itself (`LimitMEMLOCK=infinity` in its unit)",
    "mount": "see that what is mounted is there",
}


class DockerContainer:
    """One engine's container. `state` is the folder where the creation that staging replaces is kept."""

    def __init__(self, engine: Engine, docker: Docker, state: Path) -> None:
        if engine.container is None:
            raise ValueError(f"{engine.name} runs in no container")
        self.engine, self.name = engine, engine.container
        self._docker = docker
        self._compose: ComposeProject | None = None
        self._staging: Staging | None = None
        if engine.compose is not None:
            self._compose = ComposeProject(engine.compose.file, engine.compose.service, docker.address)
            creation = CreationFile.of(engine.name, state)
            self._staging = Staging(engine, docker, self._compose, creation, look=self.look, ours=self._ours)
        self._changing = asyncio.Lock()
        self._id = ""  # of the container that we last saw under our name
        self._asked = ("", 0.0)  # which container we last asked to start, and when (Unix time)

    # ------------------------------------------------------------------------------------------------- looking

    async def look(self) -> Sight:
        """By name, unless the one that we knew runs on under another: whoever has its name now, it holds the card."""
        found = await self._docker.inspect(self.name)
        if self._id and (found is None or found.container["Id"] != self._id):
            renamed = await self._docker.inspect(self._id)
            found = renamed if renamed is not None and _up(renamed) else found
        if found is None:
            return Sight(Status.ABSENT)
        await self._refuse_foreign(found.container)
        self._id = found.container["Id"]
        sight = sight_of(found)
        return sight if self._docker.address.startswith("unix://") else replace(sight, finished_at="")

    async def running(self) -> Recipe | None:
        sight = await self.look()
        found = await self._docker.inspect(sight.id) if sight.running else None
        return running_recipe(found.container, found.image) if found is not None and _up(found) else None

    async def has_image(self, image_id: str) -> bool:
        return await self._docker.image(image_id) is not None

    async def declared(self, pair: Pair) -> Recipe:
        if self._compose is None:
            return await self._declared_by_hand(pair)
        declaration = await self._compose.declared(pair)
        self._refuse_other_name(declaration)
        image = await self._image(image_name(declaration.project, self._compose.service))
        return declared_recipe(declaration.project, self._compose.service, image, declaration.config_hash)

    async def ending(self, id: str, since: float) -> bool:
        found = await self._docker.inspect(id)
        if found is None or not _up(found):
            return False
        began = _unix(found.container["State"]["StartedAt"])
        return await self._docker.told_to_end(id, max(since, began))

    async def log_tail(self, id: str) -> str:
        """Of its last run only: what an earlier run complained of is no reason for this one."""
        found = await self._docker.inspect(id)
        if found is None:
            return ""
        began = _unix(found.container["State"]["StartedAt"])
        asked_id, asked = self._asked
        since = asked if asked_id == id and asked <= began else max(0.0, began - LATE)
        return (await self._docker.log(id, since)).decode(errors="replace")

    def events(self) -> AsyncGenerator[RuntimeEvent, None]:
        """Changes from this call on, also when the first is asked for later. Close it (`contextlib.aclosing`)."""
        return self._events(time.time())

    async def _events(self, since: float) -> AsyncGenerator[RuntimeEvent, None]:
        listener, order = self._docker.listen(self.name, ACTIONS, since), StopFirst()
        try:
            while True:
                event = await listener.get(MEANT if order.waiting else None)
                for told in order.feed(event) if event is not None else order.flush():
                    yield told
        finally:
            await listener.close()

    # ------------------------------------------------------------------------------------------------- changing

    async def stage(self, pair: Pair) -> Sight:
        async with self._changing:
            declared = await self.declared(pair)
            if self._staging is not None:
                return await self._staging.stage(pair, declared)
            sight = await self.look()
            if sight.running:
                raise CannotStage(f"container {self.name} is running", "stop it first")
            return sight

    async def put_back(self, recipe: Recipe) -> Sight:
        async with self._changing:
            if self._staging is not None:
                return await self._staging.put_back(recipe)
            sight = await self.look()
            if sight.running:
                raise CannotStage(f"container {self.name} is running", "stop it first")
            if nearest(recipe, (sight.recipe,)) is None:
                what = f"container {self.name} isn't the one that is wanted back: {otherwise(recipe, sight.recipe)}"
                raise CannotStage(what, "recreate it by hand; without a compose file nothing is kept of it")
            return sight

    async def recover(self) -> str:
        if self._staging is None:
            return ""
        async with self._changing:
            return await self._staging.recover()

    async def keep(self, image_id: str) -> None:
        there = await self._docker.image(kept.kept_name(self.engine.name, image_id))
        if (there is None or there["Id"] != image_id) and await self._docker.image(image_id) is not None:
            await self._docker.tag(image_id, kept.REPOSITORY, kept.tag_of(self.engine.name, image_id))

    async def correct_restart(self, id: str) -> None:
        async with self._changing:
            found = await self._docker.inspect(id)
            if found is None:
                raise Unreachable(f"there is no container {id[:12]} any more", "look again: `slotctl status`")
            await self._refuse_foreign(found.container)
            await self._docker.no_restart(id)

    async def start(self, id: str) -> None:
        if self._docker.changing(id):  # measured: a start during a pending stop is answered with success, and lost
            raise CannotStart(f"Docker is still busy with {self.name}", "try again when it has ended", passing=True)
        before = await self._docker.inspect(id)
        if before is None:
            raise CannotStart(f"there is no container {id[:12]}", "stage it anew")
        await self._refuse_foreign(before.container)
        if before.container["State"]["Running"]:
            return
        self._asked = (id, time.time())
        try:
            await self._ask_to_start(id, before)
        except DockerSaid as said:
            raise CannotStart(f"{self.name} can't be started: {said.what}", _mend(said.what)) from said
        if not _begun(before, await self._docker.inspect(id)):
            raise CannotStart(
                f"Docker says that it started {self.name}, and it didn't", "a stop may be under way", passing=True
            )

    async def _ask_to_start(self, id: str, before: Inspection) -> None:
        """Once more only when the connection broke and a look shows that nothing has happened."""
        try:
            await self._docker.start(id)
        except Reset:
            if not _begun(before, await self._docker.inspect(id)):
                await self._docker.start(id)

    async def stop(self, id: str, grace: float) -> Exit:
        before = await self._docker.inspect(id)
        if before is None:
            return Exit(None, forced=False)
        await self._refuse_foreign(before.container)
        if _up(before):
            await self._ask_to_stop(id, math.ceil(grace))
        return await self._gone(id, before)

    async def _ask_to_stop(self, id: str, grace: int) -> None:
        try:
            await self._docker.stop(id, grace)
        except Reset:
            after = await self._docker.inspect(id)
            if after is not None and _up(after):
                await self._docker.stop(id, grace)
        except DockerSaid as said:
            if said.status != 404:
                raise Unreachable(f"Docker can't stop {self.name}: {said.what}", passing=True) from said

    async def _gone(self, id: str, before: Inspection) -> Exit:
        """How it ended, once a look shows that it has. Somebody who starts it anew hides that."""
        deadline = asyncio.get_running_loop().time() + SETTLING
        while True:
            after = await self._docker.inspect(id)
            if after is None or (_up(after) and _begun(before, after)):
                return Exit(None, forced=False)
            if not _up(after):
                code = int(after.container["State"]["ExitCode"])
                return Exit(code, forced=code == FORCED)
            if asyncio.get_running_loop().time() > deadline:
                raise Unreachable(f"Docker says that {self.name} has stopped, and shows it running", passing=True)
            await asyncio.sleep(0.1)

    # ------------------------------------------------------------------------------------------------- inside

    async def _declared_by_hand(self, pair: Pair) -> Recipe:
        """Without a compose file, what a container was created with is all that is declared."""
        recipe = (await self.look()).recipe
        if recipe is None:
            raise CannotStage(
                f"there is no container {self.name}, and no compose file that declares it",
                f"create it by hand, or set `engines.{self.engine.name}.compose`",
            )
        if _full(recipe.image) != _full(pair.image):
            raise CannotStage(
                f"container {self.name} was made from {recipe.image}, {pair.label} wants {pair.image}",
                f"recreate it by hand, or set `engines.{self.engine.name}.compose`",
            )
        return recipe

    async def _image(self, name: str) -> Json:
        image = await self._docker.image(name)
        if image is None:
            raise CannotStage(f"image {name} isn't on this machine", "build or load it; nothing is pulled by itself")
        return image

    async def _refuse_foreign(self, container: Json) -> None:
        if self._compose is None or container["Id"] == self._id:  # a container's labels never change
            return
        labels = container["Config"].get("Labels") or {}
        project, service = labels.get(LABEL + "project"), labels.get(LABEL + "service")
        if await self._ours(labels):
            return
        what = f"belongs to compose project {project}, service {service}"
        if project is None:
            what = f"wasn't made by compose ({_labels(labels)})"
        raise Foreign(
            f"container {self.name} ({container['Id'][:12]}) {what}",
            f"rename or remove it: it isn't {self._compose.service} of {self._compose.file}",
        )

    async def _ours(self, labels: Json) -> bool:
        """By service and the project's name; by the file it was made from, where the file can't be read now."""
        assert self._compose is not None
        if labels.get(LABEL + "project") is None or labels.get(LABEL + "service") != self._compose.service:
            return False
        try:
            return bool(await self._compose.name(self.engine.deployed_pair) == labels[LABEL + "project"])
        except CannotStage:
            return str(self._compose.file) in labels.get(LABEL + "project.config_files", "").split(",")

    def _refuse_other_name(self, declaration: Declaration) -> None:
        assert self._compose is not None
        service = self._compose.service
        name = declaration.project["services"][service].get("container_name") or f"{declaration.name}-{service}-1"
        if name != self.name:
            raise CannotStage(
                f"service {service} of {self._compose.file} makes a container named {name}, not {self.name}",
                f"set `container_name: {self.name}` there, or `engines.{self.engine.name}.container: {name}`",
            )


def sight_of(found: Inspection) -> Sight:
    """What an inspection shows, in our words. Pure."""
    state, labels = found.container["State"], found.container["Config"].get("Labels") or {}
    status = _status(found)
    project = labels.get(LABEL + "project")
    return Sight(
        status,
        id=found.container["Id"],
        started_at="" if _unix(state["StartedAt"]) == 0 else state["StartedAt"],
        exit_code=int(state["ExitCode"]) if status is Status.EXITED else None,
        pid=state.get("Pid") or None,
        recipe=created_recipe(found.container, found.image),
        owner=f"compose {project}/{labels.get(LABEL + 'service')}" if project else "docker run",
        tag_id=found.tag_id,
        finished_at=state["FinishedAt"] if _unix(state["FinishedAt"]) and _alone(found) else "",
    )


def _alone(found: Inspection) -> bool:
    """Do all of its processes end with the first? (Among the host's processes they needn't.)"""
    return not found.container["HostConfig"].get("PidMode")


def _up(found: Inspection) -> bool:
    """Running, paused, or between two runs by a restart policy."""
    state = found.container["State"]
    return bool(state["Running"] or state.get("Restarting"))


def _status(found: Inspection) -> Status:
    if _up(found):
        return Status.RUNNING
    return Status.CREATED if found.container["State"]["Status"] == "created" else Status.EXITED


def _begun(before: Inspection, after: Inspection | None) -> bool:
    """It was started between the two looks; it may have ended again."""
    return after is not None and after.container["State"]["StartedAt"] != before.container["State"]["StartedAt"]


def _mend(said: str) -> str:
    return next((mend for sign, mend in MENDS.items() if sign in said), "see Docker's log")


def _unix(when: str) -> float:
    """Docker's time stamp (nanoseconds) in Unix time; 0 for what never happened."""
    whole, _, rest = when.partition(".")
    seconds = datetime.fromisoformat(f"{whole.rstrip('Z')}+00:00").timestamp()
    return max(0.0, seconds + float(f"0.{rest.rstrip('Z')[:6] or 0}"))


def _labels(labels: Json) -> str:
    """What may remind people whose it is; no more than a line."""
    told = {name: HIDDEN if looks_secret(name) else without_secrets(str(value)) for name, value in labels.items()}
    shown = ", ".join(f"{name}={value}" for name, value in sorted(told.items())) or "none"
    return f"labels: {shown[:LABELS_SHOWN]}"


def _full(image: str) -> str:
    """An image name with what Docker adds to a short one."""
    name = image.removeprefix("docker.io/").removeprefix("library/")
    return name if ":" in name.rsplit("/", 1)[-1] or "@" in name else f"{name}:latest"
