"""Images that evidence names are kept by a tag of ours, out of the way of a rebuild and of `docker image prune`.

`prune -a` takes them all the same where no container uses them; `docker save` keeps them outside. We never remove a
tag: whoever revokes evidence may (`docker rmi`).
"""

from __future__ import annotations

import re

REPOSITORY = "slotproxy-kept"


def tag_of(engine: str, image_id: str) -> str:
    """`ninfer-8f2c01d9ab34`: the engine, and the first 12 digits of the image's id."""
    return f"{re.sub(r'[^a-zA-Z0-9_.-]', '_', engine)}-{image_id.removeprefix('sha256:')[:12]}"


def kept_name(engine: str, image_id: str) -> str:
    """The name that the image can be had by when its own means another one."""
    return f"{REPOSITORY}:{tag_of(engine, image_id)}"
