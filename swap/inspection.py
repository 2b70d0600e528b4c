"""Is a stopped container what was checked, or what served? And would nobody answer in its place?"""

from __future__ import annotations

from urllib.parse import urlsplit

from swap.address import listener
from swap.drift import differences
from swap.known import Known
from swap.ports import Fault, Sight


async def inspect(label: str, known: Known, sight: Sight) -> None:
    """Raises Fault saying why it mustn't be started."""
    if sight.running:
        raise Fault(f"{label} is running already, started by somebody else", passing=True)
    if sight.recipe is None:
        raise Fault(f"the container of {label} is gone")
    if wrong := [one for one in differences(known.recipe, sight.recipe) if one.pair]:
        fields = ", ".join(f"{one.field} is {one.created}, not {one.declared}" for one in wrong)
        raise Fault(f"the container isn't that of {label}: {fields}")
    address = urlsplit(known.engine.url)
    if stale := await listener(address.hostname or "127.0.0.1", address.port or 80):
        what = f"{stale} listens at {known.engine.url} already and would answer in its place; stop it"
        raise Fault(what, passing=True)


def replaced(label: str, files: list[str]) -> Fault:
    """What would run isn't what was checked."""
    what = f"{', '.join(files)} changed since {label} was checked"
    return Fault(what, "swap to it again when nobody writes its files: it needs --trial where it never ran with them")


def rewritten(files: list[str]) -> Fault:
    """What was read isn't known to be what was checked."""
    what = f"{', '.join(files)} changed since it was checked, so nobody knows what it has read"
    return Fault(what, "swap to another engine, and with --trial to it again when nobody writes its files")
