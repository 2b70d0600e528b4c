"""Images that evidence names are kept by a tag of ours, out of the way of a rebuild and of `docker image prune`.

So is the one whose container staging replaced last, proven or not, by a tag that moves on with the next staging.
`prune -a` takes them all the same where no container uses them; `docker save` keeps them outside. We never remove a
tag: whoever revokes evidence may (`docker rmi`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence

import structlog

from swap.ports import Evidence, Fault, Outcome, Runtime
from swap.standing import by_subject, standing

REPOSITORY = "slotproxy-kept"
KEEP_LIMIT = 30.0  # seconds for one image
PAUSES = (5.0, 30.0, 120.0, 600.0)  # seconds until an image that couldn't be kept is tried again; then it is left


def tag_of(engine: str, image_id: str) -> str:
    """`ninfer-8f2c01d9ab34`: the engine, and the first 12 digits of the image's id."""
    return _tag(engine, image_id.removeprefix("sha256:")[:12])


def replaced_tag(engine: str) -> str:
    """`ninfer-replaced`"""
    return _tag(engine, "replaced")


def _tag(engine: str, which: str) -> str:
    return f"{re.sub(r'[^a-zA-Z0-9_.-]', '_', engine)}-{which}"


def kept_name(engine: str, image_id: str) -> str:
    """The name that the image can be had by when its own means another one."""
    return f"{REPOSITORY}:{tag_of(engine, image_id)}"


def proven(evidence: Sequence[Evidence]) -> list[Evidence]:
    """For each subject that has served, on whatever card, the newest line that nobody has revoked; newest first."""
    about, newest = by_subject(evidence), dict[str, Evidence]()
    for one in reversed(evidence):
        if one.outcome is Outcome.SERVED:
            newest.setdefault(one.key, one)
    return [one for one in newest.values() if standing(about[one.key], one.subject, "", one.card).served is not None]


async def keep_proven(
    runtimes: Mapping[str, Runtime], evidence: Sequence[Evidence], pauses: Sequence[float] = PAUSES
) -> None:
    """Keep every image that this evidence proves. Faults are logged, each image's once, and tried again a few times.

    A bug of ours costs the images their tags, and ends nobody who runs beside this.
    """
    try:
        await _keep(runtimes, evidence, pauses)
    except Exception:
        structlog.get_logger("slotproxy.swap").exception("keeping images broke")


async def _keep(runtimes: Mapping[str, Runtime], evidence: Sequence[Evidence], pauses: Sequence[float]) -> None:
    images = dict.fromkeys((one.subject.engine, one.subject.image_id) for one in proven(evidence))
    left = [image for image in images if image[0] in runtimes]
    told: set[tuple[str, str]] = set()
    for pause in (0.0, *pauses):
        if left:
            await asyncio.sleep(pause)
        for engine, image_id in tuple(left):
            try:
                async with asyncio.timeout(KEEP_LIMIT):
                    await runtimes[engine].keep(image_id)
                left.remove((engine, image_id))
            except (Fault, TimeoutError) as error:
                _tell(engine, image_id, error, told)


def _tell(engine: str, image_id: str, error: Exception, told: set[tuple[str, str]]) -> None:
    if (engine, image_id) not in told:
        told.add((engine, image_id))
        why = str(error) or f"nothing came in {KEEP_LIMIT:g} s"
        log = structlog.get_logger("slotproxy.swap")
        log.warning("an image that evidence names couldn't be kept yet", engine=engine, image=image_id, why=why)


async def image_gone(runtime: Runtime, evidence: Sequence[Evidence], label: str) -> bool | None:
    """Whether the image isn't on the host any more that the newest proof under this name is about.

    None: it can't be asked. Ask only where what is declared now isn't proven: else its image is there.
    """
    proof = next((one for one in proven(evidence) if one.pair == label), None)
    if proof is None:
        return False
    try:
        return not await runtime.has_image(proof.subject.image_id)
    except Fault:
        return None
