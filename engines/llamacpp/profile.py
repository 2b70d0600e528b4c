"""llama.cpp's server: `/health` is 503 `Loading model` until it is ready; closing a connection cancels the work.

It says 500 to some requests that are themselves at fault (a grammar, a template): they are counted as errors of the
engine, and our own completion, which is well, takes them back.
`/slots` is no client path: it shows other clients' prompts and can erase their caches.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

from engines.artifacts.read import read_gguf
from engines.commandline import words
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

_ONE = ("-m", "--model", "-md", "--model-draft", "--spec-draft-model", "-mm", "--mmproj", "-mv", "--model-vocoder")
_SEVERAL = ("--lora", "--lora-scaled", "--control-vector", "--control-vector-scaled")  # A,B or A:0.5,B:1
_NAMES = ("LLAMA_ARG_MODEL", "LLAMA_ARG_MODEL_DRAFT", "LLAMA_ARG_SPEC_DRAFT_MODEL", "LLAMA_ARG_MMPROJ")
_CONFIGURATION = ("--chat-template-file", "--grammar-file", "-jf", "--json-schema-file", "--models-preset")
_CONFIGURATION_NAMES = ("LLAMA_ARG_CHAT_TEMPLATE_FILE", "LLAMA_ARG_MODELS_PRESET")
_SCALE = re.compile(r":[-+.\deE]+$")


def loaded(status: int, body: bytes) -> bool:  # noqa: ARG001  (a sign's signature)
    return status == 200


def probe(model: str, tokens: int) -> Probe:
    return chat_probe(model, tokens, chat_template_kwargs={"enable_thinking": False})


def artifacts(argv: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """What a flag for a model file names (the model, a draft, a projector, an adapter), and every other `.gguf`.

    The same of the environment. Once each, in order.
    """
    from_env = [value for name, value in sorted(env.items()) if value.endswith(".gguf") or (value and name in _NAMES)]
    return tuple(dict.fromkeys([*_named(argv), *from_env]))


def configuration(argv: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """Templates, grammars and presets: files that aren't models, and decide what it answers."""
    named = [value for flag, value in _values(argv) if flag in _CONFIGURATION]
    return tuple(dict.fromkeys([*named, *(env[name] for name in _CONFIGURATION_NAMES if env.get(name))]))


def _named(argv: Sequence[str]) -> Iterator[str]:
    for flag, value in _values(argv):
        if flag in _SEVERAL:
            yield from (_SCALE.sub("", one) for one in value.split(","))
        elif flag in _ONE or value.endswith(".gguf"):
            yield value


def _values(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each word that may be a value, with the word or the flag before it."""
    for previous, word in itertools.pairwise(["", *words(argv)]):
        flag, equals, value = word.partition("=")
        if word.startswith("-") and equals:
            yield flag, value
        else:
            yield previous, word


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
    kv_slot=dict.fromkeys((Api.CHAT, Api.COMPLETIONS, Api.RESPONSES), "id_slot"),  # measured: messages don't take it
    prefixes=1,  # of each of its KV slots, of which there is one for each request at a time
    stop_grace=30.0,
    start_deadline=600.0,
    artifacts=artifacts,
    configuration=configuration,
    read_artifact=read_gguf,
)
