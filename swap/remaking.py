"""Making a container again from its creation, with zero differences by inspect, in place of another or of none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from swap.creation import Creation, CreationFile, body_of, half_made, later_networks, unlike
from swap.dockerd import Docker, DockerSaid
from swap.drift import differences
from swap.ports import CannotStage, Recipe, Sight
from swap.recipes import Json

BY_HAND = "recreate it by hand"


class Remaking:
    """For the container of one name. What is made again must be in `creation`, on disk, before it is begun."""

    def __init__(self, name: str, docker: Docker, creation: CreationFile, look: Callable[[], Awaitable[Sight]]) -> None:
        self.name, self.draft = name, f"{name}.slotproxy"
        self._docker, self._creation, self._look = docker, creation, look

    async def put_back(self, creation: Creation, instead_of: str) -> Sight:
        """As `make`, and finished at the next start where it is cut off. Nothing is begun that can't be ended."""
        await self._image(creation.recipe)
        await self._creation.ask(lambda file: file.begin(creation, instead_of=instead_of))
        sight = await self.make(creation, instead_of)
        await self._creation.ask(CreationFile.give_up)
        return sight

    async def make(self, creation: Creation, instead_of: str) -> Sight:
        """Made under another name first, so that nothing is removed before its place can be taken."""
        try:
            left = await self._docker.inspect(self.draft)
            if left is not None:
                self._expect_ours(left.container, creation.container)
                await self._docker.remove(left.container["Id"])
            body = body_of(creation.container, await self._image(creation.recipe))
            made = await self._docker.create(body, self.draft, later_networks(creation.container))
            if instead_of:
                await self._docker.remove(instead_of)
            await self._docker.rename(made, self.name)
        except DockerSaid as said:
            raise CannotStage(f"{self.name} can't be made again: {said.what}", BY_HAND) from said
        sight = await self._look()
        wrong = differences(creation.recipe, sight.recipe) if sight.recipe else ()
        if sight.id != made or wrong:
            raise CannotStage(f"{self.name} was made again, and differs: {', '.join(d.field for d in wrong)}", BY_HAND)
        await self._compare(creation, made)
        return sight

    def _expect_ours(self, left: Json, wanted: Json) -> None:
        if not half_made(left, wanted):
            what = f"container {self.draft} is in the way: it has run, or it is another's"
            raise CannotStage(what, "rename or remove it")

    async def _compare(self, creation: Creation, made: str) -> None:
        """What no recipe shows is compared too. Another version of Docker may show it otherwise: it is only said."""
        found = await self._docker.inspect(made)
        if found is not None and (fields := unlike(creation.container, found.container)):
            structlog.get_logger("slotproxy.swap").warning(
                "a container was made again, and Docker shows some of it otherwise", container=self.name, fields=fields
            )

    async def _image(self, recipe: Recipe) -> str:
        """The image's name while it still means the old image, else its id."""
        if await self._docker.image(recipe.image_id) is None:
            raise CannotStage(f"image {recipe.image} ({recipe.image_id[7:19]}) is gone", "build or load it again")
        named = await self._docker.image(recipe.image)
        return recipe.image if named and named["Id"] == recipe.image_id else recipe.image_id
