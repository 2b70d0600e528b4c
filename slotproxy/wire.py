"""The protocols that clients speak, a row each: all that slotproxy has to know of one.

Where nothing else is said here, nothing is done: bodies, answers and events go through as they are, whatever is new in
them. What counts as a place at the engine doesn't differ: every POST takes one, and whatever else of `passthrough:` may
change something; what only looks (GET, HEAD) doesn't, and is answered 503 while nothing serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engines.spec import CHAT, COMPLETIONS, COUNT_TOKENS, EMBEDDINGS, MESSAGES, RESPONSES, Api

PING = b'event: ping\ndata: {"type": "ping"}\n\n'
COMMENT = b": keep-alive\n\n"
DONE = b"[DONE]"

Kinds = frozenset[bytes]


@dataclass(frozen=True, slots=True)
class Protocol:
    """One protocol's clients.

    `anthropic`: an error is `{"type": "error", "error": {type, message}}`, else `{"error": {message, type, param,
    code}}`; by its status and in-band alike. `error_name`: what names such an event; Anthropic's clients go by it
    alone, and pass over one without. `sequenced`: events have numbers, and an error's fields stand in it by themselves,
    too. `ends`: what only a whole stream ends with: the kinds of its last event, or DONE, which is its data; empty: its
    answers have no end marker, and HTTP's framing has to do. `fails`: kinds of events that are errors, besides all that
    have an `error`. `keep_alive`: what may come between two events while a client waits. `model`: it stands at the
    top level of a JSON body, is checked against `models:` and sent on as the engine calls it. `generates`: a slot's
    defaults are for it.
    """

    path: str
    anthropic: bool = False
    error_name: bytes = b""
    sequenced: bool = False
    ends: Kinds = frozenset()
    fails: Kinds = frozenset((b"error",))
    keep_alive: bytes = COMMENT
    model: bool = True
    generates: bool = False


_RESPONSES_END = frozenset((b"response.completed", b"response.failed", b"response.incomplete"))
_RESPONSES_FAIL = frozenset((b"error", b"response.failed"))

PROTOCOLS: Mapping[Api, Protocol] = {
    Api.CHAT: Protocol(CHAT, ends=frozenset((DONE,)), generates=True),
    Api.COMPLETIONS: Protocol(COMPLETIONS, ends=frozenset((DONE,)), generates=True),
    Api.RESPONSES: Protocol(
        RESPONSES, error_name=b"error", sequenced=True, ends=_RESPONSES_END, fails=_RESPONSES_FAIL, generates=True
    ),
    Api.MESSAGES: Protocol(
        MESSAGES, True, b"error", ends=frozenset((b"message_stop",)), keep_alive=PING, generates=True
    ),
    Api.COUNT_TOKENS: Protocol(COUNT_TOKENS, True, b"error", keep_alive=PING),
    Api.EMBEDDINGS: Protocol(EMBEDDINGS),
    Api.OTHER: Protocol("", model=False),  # what `passthrough:` names: nothing is known of it, and nothing changed
}

PATHS: Mapping[str, Api] = {row.path: api for api, row in PROTOCOLS.items() if row.path}
"""Where clients may post to at any engine. Who doesn't have it says so itself: its 404 is what they get."""
