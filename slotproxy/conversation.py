"""What two requests have in common from their beginning: an engine that has just answered one needn't read it again.

Only what stands at a few places is compared, never the whole: a prompt may have 64 MiB, and whose turn is next is
decided while everybody waits. Nothing but an order depends on the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from engines.spec import Api

_SAID_IN = {Api.CHAT: "messages", Api.MESSAGES: "messages", Api.RESPONSES: "input", Api.COMPLETIONS: "prompt"}
_PLACES = 16  # where a conversation is looked at, evenly spread; its very end changes when it goes on
_WIDTH = 64  # bytes that are compared at each
SHORTEST = 2048  # bytes: a prefill of less costs about as much as a token


@dataclass(frozen=True, slots=True)
class Remembered:
    """A conversation as it was asked for last. `places`: what stood where, by offset in bytes."""

    length: int
    places: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """The bytes of all that was said in it, as its client sent them; they belong to the request, and aren't copied."""

    said: memoryview

    def remembered(self) -> Remembered:
        offsets = (len(self.said) * number // (_PLACES + 1) for number in range(1, _PLACES + 1))
        return Remembered(len(self.said), tuple((at, bytes(self.said[at : at + _WIDTH])) for at in offsets))

    def shares(self, other: Remembered) -> int:
        """How many bytes of its beginning, as far as can be seen, it has in common with that one."""
        shared = 0
        for at, stood in other.places:
            if self.said[at : at + _WIDTH] != stood:
                break
            shared = at + _WIDTH
        return shared


def conversation_of(api: Api, fields: Mapping[str, msgspec.Raw] | None) -> Conversation | None:
    """None: it is too short to matter, or says nothing of what came before."""
    said = (fields or {}).get(_SAID_IN.get(api, ""))
    if said is None:
        return None
    view = memoryview(said)
    return Conversation(view) if len(view) >= SHORTEST else None
