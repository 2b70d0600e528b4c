"""The one YAML file: typed settings, every default here and nowhere else.  (loader still to be written)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines.spec import Engine, MiB


class ConfigError(Exception):
    """The configuration can't be used: the key's path, what stands there, what was expected. One line each."""


@dataclass(frozen=True, slots=True)
class CardSettings:
    """`gpu`: UUID or index; or `simulated`: bytes, with `folder` holding the simulated card's state."""

    gpu: str | None = None
    simulated: int | None = None
    folder: Path | None = None
    headroom: int = 256 * MiB
    baseline: int = 0


@dataclass(frozen=True, slots=True)
class SlotSettings:
    """A client's place at the proxy. `key` is None for `anonymous`. Times in seconds."""

    name: str
    key: str | None = None
    priority: int = 0
    max_in_flight: int | None = None
    max_waiting: int = 256
    max_hold: float = 600.0
    defaults: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limits:
    """Global limits of what is held. Sizes in bytes, times in seconds."""

    max_body: int = 32 * MiB
    max_waiting: int = 512
    max_waiting_bytes: int = 256 * MiB
    first_ping: float = 15.0
    ping_every: float = 15.0


@dataclass(frozen=True, slots=True)
class Settings:
    path: Path
    host: str
    port: int
    control: Path
    state: Path
    card: CardSettings
    engines: Mapping[str, Engine]
    default: str | None
    models: Mapping[str, Mapping[str, str]]  # what clients say -> engine -> what the engine is sent
    slots: Mapping[str, SlotSettings]
    limits: Limits = field(default_factory=Limits)
    drain: float = 60.0  # how long a swap waits for requests in flight before it is given up
    freeing: float = 60.0  # how long a swap waits for VRAM
    stop_limit: float = 30.0  # how long SIGTERM may take
    docker: str | None = None  # the Docker daemon's address; None: DOCKER_HOST, else the usual socket


def load(path: Path) -> Settings:
    """Read and check the file. Raises ConfigError: the message names the key's path and what was expected."""
    raise ConfigError(f"{path}: loader missing")
