"""llama.cpp's server: `/health` is 503 `Loading model` until it is ready; closing a connection cancels the work.

`/slots` is no client path: it shows other clients' prompts and can erase their caches.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from engines.artifacts.read import read_gguf
from engines.openai.probe import chat_probe
from engines.spec import (
    CHAT,
    COMPLETIONS,
    COUNT_TOKENS,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES,
    Api,
    Probe,
    Profile,
    Settling,
    Sign,
)


def loaded(status: int, body: bytes) -> bool:  # noqa: ARG001  (a sign's signature)
    return status == 200


def probe(model: str, tokens: int) -> Probe:
    return chat_probe(model, tokens, chat_template_kwargs={"enable_thinking": False})


def artifacts(argv: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """What follows -m or --model, and every other `.gguf` (draft models, projectors, LLAMA_ARG_MODEL), once each."""
    named = [value for flag, value in itertools.pairwise(argv) if flag in ("-m", "--model")]
    joined = [word.removeprefix("--model=") for word in argv if word.startswith("--model=")]
    others = [word.rpartition("=")[2] for word in argv if word.endswith(".gguf")]
    from_env = [value for _, value in sorted(env.items()) if value.endswith(".gguf")]
    return tuple(dict.fromkeys(named + joined + others + from_env))


PROFILE = Profile(
    name="llamacpp",
    default_port=8080,
    sign=Sign("/health", loaded),
    probe=probe,
    concurrency=1,
    settling=Settling.AT_ONCE,
    settle_limit=30.0,
    client_paths={
        CHAT: Api.CHAT,
        COMPLETIONS: Api.COMPLETIONS,
        RESPONSES: Api.RESPONSES,
        MESSAGES: Api.MESSAGES,
        COUNT_TOKENS: Api.COUNT_TOKENS,
        EMBEDDINGS: Api.EMBEDDINGS,
    },
    stop_grace=30.0,
    start_deadline=600.0,
    artifacts=artifacts,
    read_artifact=read_gguf,
)
