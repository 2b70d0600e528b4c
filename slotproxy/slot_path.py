"""`/slot/NAME/v1/…`: a slot named in the path, for clients that can be given an address and nothing else.

The prefix is taken off as a request arrives, and all that follows sees the path without it: what clients reach, and
what an engine is sent, is the same under every slot. Only the bytes of the target decide: neither an encoded slash nor
`..` nor a doubled slash makes another path of it, as what is left must be a path that clients reach, to the letter.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from starlette.types import Scope

PREFIX = "/slot/"
_NAMED = re.compile(rb"/slot/([^/]*)(.*)", re.DOTALL)
_NAME = "slotproxy.slot"
"""Where the name is kept, in the scope's `state`."""


def without_slot(scope: Scope) -> Scope:
    """The same request without the slot in its path, which `slot_named` then tells."""
    match = _NAMED.fullmatch(scope.get("raw_path", b""))
    if match is None:
        return scope
    name, rest = unquote(match[1].decode("latin-1")), match[2] or b"/"
    scope.setdefault("state", {})[_NAME] = name  # the server keeps this very dict
    return {**scope, "raw_path": rest, "path": unquote(rest.decode("latin-1"))}


def slot_named(scope: Scope) -> str | None:
    """The slot that the path named."""
    name: str | None = scope.get("state", {}).get(_NAME)
    return name
