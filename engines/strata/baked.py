"""What Strata's image has baked, beside what is declared now.

Its entry point writes the environment into /data/config/*.json at the first start and runs that file from then on: a
recreated container with another CONTEXT runs the old one. REINSTALL=1 writes it anew at each start.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from engines.spec import Baked, BakedDifference

_NUMBERS, _SWITCHES, _SECRETS = {"CONTEXT", "PORT"}, {"VISION"}, {"API_KEY"}
_VARIABLES = ("MODEL", "CONTEXT", "VISION", "KV", "HOST", "PORT", "API_KEY")
_ON = ("1", "true", "yes", "on")
_LONGEST = 100  # characters of a value in a message


def differences(env: Mapping[str, str], baked: Mapping[str, Any]) -> tuple[BakedDifference, ...]:
    """Of the variables that are declared and that the file names. An API key is never shown."""
    return tuple(
        BakedDifference(name, _shown(name, declared), _shown(name, found))
        for name, declared, found in _both(env, baked)
        if _meant(name, declared) != _meant(name, found)
    )


def unsaid(env: Mapping[str, str], baked: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(name for name in _VARIABLES if name in env and name.lower() not in baked)


def ours(env: Mapping[str, str], baked: Mapping[str, Any]) -> bool:
    """Several models that share a data folder have a file each."""
    return "MODEL" in env and _meant("MODEL", env["MODEL"]) == _meant("MODEL", baked.get("model"))


def models_in(said: Mapping[str, Any]) -> tuple[str, ...]:
    """The model files that a configuration names: what the engine reads, whatever is declared."""
    return tuple(value for value in said.values() if isinstance(value, str) and value.endswith(".gguf"))


def _both(env: Mapping[str, str], baked: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    return ((name, env[name], baked[name.lower()]) for name in _VARIABLES if name in env and name.lower() in baked)


def _meant(name: str, value: object) -> object:
    """Different spellings of one value are the same; what can't be understood is only itself."""
    text = str(value)
    if name in _NUMBERS:
        return int(text) if text.isdecimal() and len(text) < _LONGEST else text
    if name in _SWITCHES:
        return text.lower() in _ON
    return posixpath.normpath(text) if name == "MODEL" else text


def _shown(name: str, value: object) -> str:
    text = "not shown" if name in _SECRETS else str(value)
    return (text if text.isprintable() else ascii(text))[:_LONGEST]


BAKED = Baked(pattern="/data/config/*.json", anew="REINSTALL", ours=ours, differences=differences, unsaid=unsaid)
