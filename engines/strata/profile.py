"""Strata: an HTTP server in front of one engine process, whose port being open says nothing of the engine.

`/health` is 200 as soon as the port is open and stays so when the engine is dead or unloaded: only `loaded` counts.
A dead engine shows in the answers as 503, in streams as an error before anything was said (and then `[DONE]`); both
are `engines.failing.broken`, which this profile leaves as it is.
`/unload` and `/settings` are no client paths: the first gives the card away (and the next request takes it back),
the second changes the engine for everyone.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence

from engines.artifacts.read import read_gguf
from engines.commandline import words
from engines.openai.probe import chat_probe
from engines.spec import CHAT, COUNT_TOKENS, MESSAGES, RESPONSES, Api, Probe, Profile, Settling, Sign
from engines.strata.baked import BAKED, models_in


def loaded(status: int, body: bytes) -> bool:
    """Ready ⇔ 200 and `loaded` is `true` itself, no other truthy value."""
    if status != 200:
        return False
    try:
        health = json.loads(body)
    except ValueError:
        return False
    return isinstance(health, dict) and health.get("loaded") is True


def probe(model: str, tokens: int) -> Probe:
    """With nothing set thinking is high: ask for as little as any build understands."""
    return chat_probe(model, tokens, reasoning_effort="low", chat_template_kwargs={"enable_thinking": False})


def artifacts(argv: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """Every path that ends in `.gguf`, in the command line or as the value of a variable (`MODEL`), once each.

    A configuration names the model, too (`models_in`).
    """
    found = [word.partition("=")[2] if word.startswith("-") else word for word in words(argv)]
    values = [value for _, value in sorted(env.items())]
    return tuple(dict.fromkeys(path for path in found + values if path.endswith(".gguf")))


def configuration(argv: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:  # noqa: ARG001  (a profile's signature)
    """What `--config` names."""
    pairs = itertools.pairwise(["", *words(argv)])
    return tuple(word.removeprefix("--config=") for before, word in pairs if _names_config(before, word))


def _names_config(before: str, word: str) -> bool:
    return before == "--config" or word.startswith("--config=")


PROFILE = Profile(
    name="strata",
    default_port=8095,
    sign=Sign("/health", loaded),
    probe=probe,
    concurrency=1,
    settling=Settling.AT_ONCE,
    settle_limit=30.0,
    client_paths={
        CHAT: Api.CHAT,
        MESSAGES: Api.MESSAGES,
        COUNT_TOKENS: Api.COUNT_TOKENS,
        RESPONSES: Api.RESPONSES,  # newer builds; older ones answer 404 themselves
    },
    stop_grace=60.0,
    start_deadline=600.0,
    artifacts=artifacts,
    configuration=configuration,
    models_in=models_in,
    takes_what_is_free=True,
    read_artifact=read_gguf,
    baked=BAKED,
)
