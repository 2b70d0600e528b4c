"""What to do about a difference, in words whose commands can be pasted into a shell. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from engines.spec import Engine
from swap.ports import FileDigest, Recipe
from swap.restart_policy import mend as corrected


@dataclass(frozen=True, slots=True)
class Mends:
    """For one pair (`label`) of an engine; `up`: its container runs now."""

    engine: Engine
    label: str
    up: bool

    def stage(self) -> str:
        """The container isn't what is declared."""
        if self.engine.container is not None and self.engine.compose is None:
            return "make it so by hand: no compose file declares this container"
        if self.up:
            return f"the next swap to {self.label} makes it so; until then what runs goes on"
        return f"the next swap makes it so, or `slotctl stage {self.label}` now"

    def edit(self) -> str:
        """What is declared isn't what was verified."""
        return "take the edit back"

    def others(self) -> str:
        """What no field shows was otherwise when it served."""
        was = "limits, shared memory, capabilities or the like were others when it served"
        return f"{was}: take the edit back, or see whether the next swap serves"

    def trial(self) -> str:
        return f"slotctl swap to-{self.label} --trial"

    def restart(self) -> str:
        """What runs isn't what it was created with."""
        return f"it was changed while it runs: swap to another engine, then to {self.label}"

    def declared_policy(self) -> str:
        compose = self.engine.compose
        where = f"service {compose.service} of {compose.file}" if compose else f"container {self.engine.container}"
        return f'it would come back beside the other engine: set `restart: "no"` for {where}'

    def created_policy(self) -> str:
        return f"it would come back beside the other engine: {corrected(self.engine)}; a swap to it makes it anew"

    def image(self, declared: Recipe, verified: Recipe, *, gone: bool) -> str:
        """The declared image isn't the verified one."""
        if not verified.contained:
            return f"put the verified one back ({verified.image_id})"
        if gone:
            return "the verified image is gone: load it again (`docker load`)"
        if verified.image == declared.image:
            return self.take_back(verified)
        return self.edit()

    def take_back(self, old: Recipe) -> str:
        """The name means another image now."""
        return f"the tag moved by a rebuild or a pull: `docker tag {short(old.image_id)} {old.image}` takes it back"

    def untagged(self, name: str, there: str) -> str:
        """Nothing has the image's name any more. `there`: the id of one that had it, if that is still there."""
        if there:
            return f"`docker tag {short(there)} {name}` brings it back"
        return "it is gone: load it again (`docker load`), or build it and prove it by a trial"

    def file(self, verified: FileDigest | None) -> str:
        if verified is None:
            return "leave it out again"
        return f"put the verified bytes back (sha256:{verified.sha256})"


def short(id: str) -> str:
    """As Docker shows it."""
    return id.removeprefix("sha256:")[:12]
