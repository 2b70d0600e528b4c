"""Making a stopped container the declared one, and making the replaced one again.

The old creation body is on disk before compose touches anything, and its image is tagged so that no prune takes it.
What compose made is inspected; if it isn't what was declared, or if that was cut off (`swap.recovery`), the old one is
made again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import structlog

from engines.spec import Engine, Pair
from swap import kept
from swap.compose import ComposeProject
from swap.creation import Creation, CreationFile
from swap.dockerd import Docker
from swap.drift import Difference, differences, nearest, otherwise
from swap.ports import CannotStage, Fault, Recipe, Sight
from swap.recipes import Json
from swap.recovery import Recovery
from swap.remaking import Remaking


class Staging:
    """For one engine whose container compose makes. One call at a time: the caller sees to that.

    `look` shows it, and raises Foreign where it is another's; `ours` tells whose a container is by its labels.
    """

    def __init__(
        self,
        engine: Engine,
        docker: Docker,
        compose: ComposeProject,
        creation: CreationFile,
        *,
        look: Callable[[], Awaitable[Sight]],
        ours: Callable[[Json], Awaitable[bool]],
    ) -> None:
        self.engine, self.name = engine, str(engine.container)
        self._docker, self._compose, self._creation, self._look = docker, compose, creation, look
        self._remaking = Remaking(self.name, docker, creation, look)
        self._recovery = Recovery(docker, creation, self._remaking, look, ours)

    async def recover(self) -> str:
        """Mend what was cut off; says what was done, or nothing."""
        return await self._recovery.recover()

    async def stage(self, pair: Pair, declared: Recipe) -> Sight:
        """Does nothing where the container is as declared already. Raises CannotStage, the old one in place."""
        before = await self._stopped()
        if await self._mended():
            before = await self._stopped()
        if before.recipe is not None and not differences(declared, before.recipe):
            return before
        await self._refuse_others(pair, before.id)
        try:
            await self._keep(before)
            with await self._creation.ask(CreationFile.hold) as held:
                after = await self._replace(pair, declared, before, held.fileno())
        except Fault as fault:
            await self._undo(fault)
            raise
        await self._creation.ask(CreationFile.succeed)
        return after

    async def put_back(self, wanted: Recipe) -> Sight:
        """Does nothing where the wanted one is in place already. Raises CannotStage, the present one in place.

        A staging that failed has left the wanted one there, and what is kept is then an older one: never made again.
        """
        now = await self._stopped()
        try:
            if await self._mended():
                now = await self._stopped()
        except CannotStage as fault:  # that must not keep back what is there already
            if fault.passing or now.recipe is None or differences(wanted, now.recipe):
                raise
            return now
        if now.recipe is not None and not differences(wanted, now.recipe):
            return now
        kept = await self._creation.ask(CreationFile.kept)
        found = nearest(wanted, (now.recipe, *(creation.recipe for creation in kept)))
        if found is None:
            what = f"container {self.name} isn't the one that is wanted back: {otherwise(wanted, now.recipe)}"
            raise CannotStage(f"{what}; and staging has kept none that is", "recreate it by hand")
        return await self._remaking.put_back(kept[found - 1], now.id) if found else now

    async def _mended(self) -> bool:
        """Whether there was something to mend; what was done is logged, as it is at start."""
        done = await self._recovery.recover()
        if done:
            log = structlog.get_logger("slotproxy.swap")
            log.warning("what an interrupted staging left was mended", engine=self.engine.name, done=done)
        return bool(done)

    async def _stopped(self) -> Sight:
        sight = await self._look()
        if sight.running:
            raise CannotStage(f"container {self.name} is running", "stop it first")
        return sight

    async def _refuse_others(self, pair: Pair, id: str) -> None:
        """Compose finds a service's containers by their labels: one that was renamed away it would remove."""
        project = await self._compose.name(pair)
        for other in await self._docker.of_service(project, self._compose.service):
            if other["Id"] != id:
                names = ", ".join(name.removeprefix("/") for name in other.get("Names") or ())
                raise CannotStage(
                    f"compose would also take container {names} ({other['Id'][:12]}) for this service",
                    f"remove it, or keep it by `docker commit {other['Id'][:12]}`",
                )

    async def _keep(self, before: Sight) -> None:
        found = await self._docker.inspect(before.id) if before.id else None
        creation = Creation(found.container, found.image) if found else None
        await self._creation.ask(lambda file: file.begin(creation))
        if creation is not None and creation.image:
            await self._docker.tag(creation.recipe.image_id, kept.REPOSITORY, kept.replaced_tag(self.engine.name))

    async def _replace(self, pair: Pair, declared: Recipe, before: Sight, held: int) -> Sight:
        """Plainly first; what compose thinks is up to date, and isn't (`docker update`), by force."""
        await self._compose.create(pair, held=held)
        after = await self._look()
        if after.id == before.id and _unlike(declared, after):
            await self._compose.create(pair, force=True, held=held)
            after = await self._look()
        if after.recipe is None:
            raise CannotStage(f"compose made no container {self.name}", f"see {self._compose.file}")
        wrong = _unlike(declared, after)
        if wrong:
            fields = "; ".join(f"{d.field}: {d.created} instead of {d.declared}" for d in wrong)
            raise CannotStage(f"compose made {self.name} otherwise than declared: {fields}", "see its file")
        return after

    async def _undo(self, fault: Fault) -> None:
        try:
            await self._recovery.recover()
        except Fault as worse:
            raise CannotStage(
                f"{fault.what}; and the container that was there can't be made again: {worse.what}", worse.mend
            ) from fault


def _unlike(declared: Recipe, sight: Sight) -> tuple[Difference, ...]:
    """What is wrong with what compose made. Its own hash isn't: compose has just said that it fits.

    Nor are labels: other tools may add theirs.
    """
    if sight.recipe is None:
        return ()
    fitting = replace(declared, config_hash=sight.recipe.config_hash, labels=sight.recipe.labels)
    return differences(fitting, sight.recipe)
