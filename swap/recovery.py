"""What an interrupted staging left behind, mended before anything is looked at.

While a container is replaced, or put back, the creation that there must be if that doesn't end is on disk
(`CreationFile.under_way`). Whoever finds it there at start, or when staging has failed, asks for the mend of what
Docker shows (`mend_of`, pure) and carries it out. Each step can be cut off in turn: the next look finds what is left.

Compose makes the new container under the name `<12 digits of the old id>_NAME`, removes the old one, and renames the
new one. We make one again under `NAME.slotproxy`, remove what is in its place, and rename it. A container that runs, or
has run, is never touched, but for one that failed and is being replaced by the one that was there before. A compose
that has outlived the daemon that began it is waited for: it holds a file that it has inherited (`CreationFile.hold`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from swap.creation import Creation, CreationFile, UnderWay, half_made, has_run, unlike
from swap.dockerd import Docker, DockerSaid, Inspection
from swap.ports import CannotStage, Sight
from swap.recipes import Json
from swap.remaking import Remaking

SETTLE = 0.3  # seconds between two looks that must agree: Docker may still be doing what a dead compose asked for
SETTLE_LIMIT = 60.0  # seconds that removing a container may take (a loaded disk)


@dataclass(frozen=True, slots=True)
class Scene:
    """The containers that matter, as Docker shows them: under our name, under compose's for it, and the old one."""

    here: Json | None
    aside: Json | None = None
    old: Json | None = None


@dataclass(frozen=True, slots=True)
class Mend:
    """In this order: remove these ids, rename that one to our name, make the old one again in place of `instead_of`.

    `replaced`: what is there now stays, the old creation is kept as what it has replaced.
    """

    said: str
    remove: tuple[str, ...] = ()
    rename: str = ""
    make: Creation | None = None
    instead_of: str = ""
    replaced: bool = False


def mend_of(under_way: UnderWay, scene: Scene, name: str) -> Mend:
    """How the container of `name` becomes the one that must be there. Pure. Raises CannotStage: a person must look."""
    old, here = under_way.creation, scene.here
    if old is None:
        return _without_an_old_one(here, name)
    junk = tuple(one["Id"] for one in (scene.aside,) if one is not None and half_made(one, old.container))
    if here is not None and (here["Id"] == old.id or not unlike(old.container, here)):
        return Mend(f"an interrupted staging left {name} as it was", remove=junk)
    if here is not None and (here["State"]["Running"] or (has_run(here) and here["Id"] != under_way.instead_of)):
        return Mend(f"{name} was staged anew and has run since: it stays", remove=junk, replaced=True)
    there = (here["Id"],) if here is not None else ()
    if scene.old is not None:
        if scene.old["State"]["Running"] or scene.old["Name"] != f"/{aside_name(old.id, name)}":
            now = scene.old["Name"].removeprefix("/")
            mend = f"stop it if it runs, then `docker rename {now} {name}`"
            raise CannotStage(f"the container {name} that an interrupted staging replaced is named {now} now", mend)
        return Mend(f"{name} has its name again after an interrupted staging", remove=there, rename=old.id)
    instead_of = there[0] if there else ""
    return Mend(f"{name} was made again as it was before an interrupted staging", junk, "", old, instead_of)


def _without_an_old_one(here: Json | None, name: str) -> Mend:
    if here is None:
        return Mend(f"an interrupted staging had made no container {name} yet")
    if here["State"]["Running"] or has_run(here):
        return Mend(f"{name} was staged and has run since: it stays", replaced=True)
    return Mend(f"{name}, half made by an interrupted staging, was removed; there was none before", (here["Id"],))


def aside_name(id: str, name: str) -> str:
    """Compose's name for the one that takes the place of container `id`, until it has it."""
    return f"{id[:12]}_{name}"


class Recovery:
    """For one engine whose container compose makes. One call at a time: the caller sees to that.

    `look` raises Foreign where our name is another's; `ours` tells by a container's labels.
    """

    def __init__(
        self,
        docker: Docker,
        creation: CreationFile,
        remaking: Remaking,
        look: Callable[[], Awaitable[Sight]],
        ours: Callable[[Json], Awaitable[bool]],
    ) -> None:
        self._docker, self._creation, self._remaking = docker, creation, remaking
        self._look, self._ours, self._name = look, ours, remaking.name

    async def recover(self) -> str:
        """What was done, or nothing. Raises CannotStage, Unreachable, Unfinished: then it is to be tried again."""
        under_way = await self._creation.ask(CreationFile.under_way)
        if under_way is None:
            return await self._tidy()
        await self._alone()
        try:
            scene = await self._scene(under_way)
            await self._look()  # now: waiting may have taken a while
            mend = mend_of(under_way, scene, self._name)
            await self._carry_out(mend)
        except (CannotStage, DockerSaid) as fault:
            if fault.passing:
                raise
            way_out = f"or remove {self._creation.begun}, and {self._name} stays as it is now"
            what = f"what an interrupted staging left of {self._name} can't be mended: {fault.what}"
            raise CannotStage(what, f"{fault.mend or 'see `docker ps -a`'}; {way_out}") from fault
        return mend.said

    async def _carry_out(self, mend: Mend) -> None:
        for half in mend.remove:
            await self._docker.remove(half)
        if mend.rename:
            await self._docker.rename(mend.rename, self._name)
        if mend.make is not None:
            await self._remaking.make(mend.make, mend.instead_of)
        await self._creation.ask(CreationFile.succeed if mend.replaced else CreationFile.give_up)

    async def _alone(self) -> None:
        """Once no compose is at work any more that outlived the daemon that began it. Raises CannotStage."""
        deadline = asyncio.get_running_loop().time() + SETTLE_LIMIT
        while True:
            try:
                return (await self._creation.ask(CreationFile.hold)).close()
            except CannotStage as fault:
                if not fault.passing or asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(SETTLE)

    async def _scene(self, under_way: UnderWay) -> Scene:
        """Once two looks agree, and nothing is being removed."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLE_LIMIT
        before, moving = await self._glance(under_way)
        while loop.time() < deadline:
            await asyncio.sleep(SETTLE)
            now, moving = await self._glance(under_way)
            if now == before and not moving:
                return now
            before = now
        raise CannotStage(f"Docker is still changing {self._name}", "see `docker ps -a`", passing=True)

    async def _glance(self, under_way: UnderWay) -> tuple[Scene, bool]:
        here, old = await self._docker.inspect(self._name), under_way.creation
        if old is None:
            return Scene(_shown(here)), _moving(here)
        aside = await self._docker.inspect(aside_name(old.id, self._name))
        was = await self._docker.inspect(old.id)
        return Scene(_shown(here), _shown(aside), _shown(was)), any(map(_moving, (here, aside, was)))

    async def _tidy(self) -> str:
        """A draft that was asked for, and came when nobody waited for it any more."""
        left = await self._docker.inspect(self._remaking.draft)
        if left is None or left.container["State"]["Running"] or has_run(left.container):
            return ""
        if not await self._ours(left.container["Config"].get("Labels") or {}):
            return ""
        try:
            await self._docker.remove(left.container["Id"])
        except DockerSaid as said:
            raise CannotStage(f"the draft {self._remaking.draft} can't be removed: {said.what}") from said
        return f"a draft that staging had left, {self._remaking.draft}, was removed"


def _shown(found: Inspection | None) -> Json | None:
    return None if found is None else found.container


def _moving(found: Inspection | None) -> bool:
    return found is not None and found.container["State"]["Status"] in ("removing", "dead")
