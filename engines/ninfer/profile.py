"""What the house may know of NInfer (`ninfer-serve`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from engines.artifacts.read import read_ninfer
from engines.commandline import words
from engines.failing import broken
from engines.openai.probe import chat_probe
from engines.spec import CHAT, COUNT_TOKENS, MESSAGES, RESPONSES, Api, Profile, Settling, Sign

_BUSY = frozenset(("server_overloaded", "request_queue_timeout"))
_ARTIFACT = re.compile(r"\.ninfer(\.part-\d+)?$")


def _healthy(status: int, _body: bytes) -> bool:
    # Older builds say 200 although they are useless after an engine-wide failure: the probe decides that.
    return status == 200


def _broken(status: int, body: bytes) -> bool:
    """After an engine-wide failure: 503 `unavailable` for ever. A full or slow queue says 503 (and others), too."""
    return broken(status, body, busy=_BUSY)


def _artifacts(command: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Paths by their ending: builds differ in whether the artifact is positional or follows `--model`.

    An image that is given no command takes it from a variable, as a whole path.
    """
    found = [word.partition("=")[2] if word.startswith("-") else word for word in words(command)]
    found += [value for _, value in sorted(environment.items()) if value.startswith("/")]
    return tuple(dict.fromkeys(word for word in found if _ARTIFACT.search(word)))


PROFILE = Profile(
    name="ninfer",
    default_port=8080,
    sign=Sign("/health", _healthy),  # answers only when it is loaded; until then connections get no answer
    probe=chat_probe,
    concurrency=1,
    settling=Settling.COMPLETION,
    settle_limit=300.0,  # a prefill of 64k takes half a minute, and contexts go to 260k
    client_paths={
        CHAT: Api.CHAT,
        RESPONSES: Api.RESPONSES,
        MESSAGES: Api.MESSAGES,
        COUNT_TOKENS: Api.COUNT_TOKENS,
    },
    prefixes=1,  # by exact tokens, one or two conversations: one is sure
    stop_grace=60.0,
    start_deadline=600.0,
    artifacts=_artifacts,
    read_artifact=read_ninfer,
    reads_label="slotproxy.ninfer.reads",
    broken=_broken,
)
