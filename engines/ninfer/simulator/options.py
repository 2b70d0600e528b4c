"""The command line of `ninfer-serve`, and the simulator's knobs: see the package's docstring."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

PREFIX = "NINFER_SIM_"
_UNITS = {"": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}


class UsageError(Exception):
    """The engine refuses its command line: the text that follows `error:`."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What the command line asks for."""

    artifact: Path = Path()
    host: str = "127.0.0.1"
    port: int = 8080
    api_key: str = ""
    model_id: str = ""
    max_context: int = 8192
    kv_capacity: str = ""
    kv_dtype: str = "bf16"
    spec: str = ""
    draft_tokens: int = 0
    max_concurrency: int = 1
    max_pending_requests: int = 16
    pending_timeout_ms: int = 30_000
    max_request_mib: int = 384
    default_max_tokens: int = 32
    lm_head_draft: bool = False
    preserve_thinking: bool = False
    no_thinking: bool = False
    help: bool = False


@dataclass(frozen=True, slots=True)
class Knobs:
    """What a machine, a build or bad luck decides. Documented in the package's docstring."""

    load_s: float = 1.0
    prefill_tps: float = 3000.0
    decode_ms: float = 5.0
    prefixes: int = 1
    reads: int = 2
    card: Path | None = None
    vram: int = field(default=31_000_000_000, metadata={"unit": "bytes"})
    linger_s: float = 0.0
    workers: int = 8
    pending_timeout_s: float | None = None
    pending_status: int = 503
    keepalive_s: float = 5.0
    stop_s: float = 0.3
    request_log: Path | None = None
    never_ready: bool = False
    exit_after_load: int | None = None
    crash_after_tokens: int | None = None
    hang_after_tokens: int | None = None
    error_after_tokens: int | None = None
    fail_after_requests: int | None = None
    failure_file: Path | None = None
    lying_health: bool = False
    ignore_sigterm: bool = False


def usage() -> str:
    """The help text; it also follows every refusal, as the engine's does."""
    flags = " ".join(f"[{_flag(name)}]" if kind is bool else f"[{_flag(name)} V]" for name, kind in _kinds(Launch))
    return f"usage: ninfer-serve <model.ninfer> {flags.replace('[--artifact V] ', '')} [--model <model.ninfer>]"


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[Launch, Knobs]:
    """Read both. No arguments: help. Raises UsageError for everything that the engine would refuse."""
    knobs = _from_environment(environment)
    launch: dict[str, Any] = {}
    if not arguments:
        return Launch(help=True), Knobs()
    words = iter(arguments)
    for word in words:
        flag, equals, value = word.partition("=")
        if not word.startswith("-") and "artifact" not in launch:
            launch["artifact"] = Path(word)
            continue
        into, name, kind = _known(flag, word, launch, knobs)
        if kind is not bool and not equals:
            value = _next(words, flag)
        into[name] = True if kind is bool and not equals else _convert(kind, flag, value)
    return _checked(Launch(**launch)), Knobs(**knobs)


def _known(flag: str, word: str, launch: dict[str, Any], knobs: dict[str, Any]) -> tuple[dict[str, Any], str, Any]:
    if flag == "--model" and "artifact" not in launch:
        return launch, "artifact", Path
    if flag == "-h":
        return launch, "help", bool
    for into, cls, start in ((launch, Launch, "--"), (knobs, Knobs, "--sim-")):
        for name, kind in _kinds(cls):
            if flag == _flag(name, start) and name != "artifact":
                return into, name, kind
    raise UsageError(f"unknown argument: {word}")


def _next(words: Any, flag: str) -> str:
    value: str | None = next(words, None)
    if value is None:
        raise UsageError(f"{flag} needs a value")
    return value


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    kinds, found = dict(_kinds(Knobs)), {}
    for variable, value in environment.items():
        if variable.startswith(PREFIX) and value:
            name = variable.removeprefix(PREFIX).lower()
            if name not in kinds:
                raise UsageError(f"unknown variable: {variable}")
            found[name] = _convert(kinds[name], variable, value)
    return found


def _checked(launch: Launch) -> Launch:
    if launch.help:
        return launch
    if launch.artifact == Path():
        raise UsageError("artifact path is required")
    if not 0 <= launch.port <= 65535:
        raise UsageError("--port must be in [1,65535]")
    if not 1 <= launch.max_concurrency <= 8:
        raise UsageError("--max-concurrency must be in [1,8]")
    if launch.kv_dtype not in ("bf16", "int8", "fp8"):
        raise UsageError(f"invalid kv-dtype: {launch.kv_dtype}")
    if not re.fullmatch(r"(auto|\d+)?", launch.kv_capacity):
        raise UsageError(f"invalid kv-capacity: {launch.kv_capacity}")
    return launch


def _kinds(cls: type) -> list[tuple[str, Any]]:
    """The fields of a dataclass with the function that reads a value for each (bool: a flag without one)."""
    return [(item.name, _kind(str(item.type), dict(item.metadata))) for item in fields(cls)]


def _kind(annotation: str, hints: Mapping[str, str]) -> Callable[[str], Any]:
    plain = annotation.removesuffix(" | None")
    if hints.get("unit") == "bytes":
        return _bytes
    return {"int": int, "float": float, "str": str, "bool": bool, "Path": Path}[plain]


def _convert(kind: Any, name: str, value: str) -> Any:
    try:
        return value not in ("0", "false", "") if kind is bool else kind(value)
    except ValueError:
        raise UsageError(f"invalid {name.removeprefix('--')}: {value}") from None


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]iB)?", text)
    if match is None:
        raise ValueError(text)
    return int(float(match[1]) * _UNITS[match[2]]) if match[2] else int(text)


def _flag(name: str, start: str = "--") -> str:
    return start + name.replace("_", "-")
