"""What the server runs: the configuration file, and how a container bakes it once from its environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any


class SettingsError(Exception):
    """The configuration can't be used: one line for the log."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The configuration file's keys. `context` in tokens; an empty `api_key` means that anyone may ask."""

    model: str
    context: int = 32768
    vision: bool = False
    kv: str = "q8_0"
    host: str = "127.0.0.1"
    port: int = 8095
    api_key: str = ""

    def shown(self) -> dict[str, Any]:
        """All of it but the key."""
        return {name: value for name, value in asdict(self).items() if name != "api_key"}


def read_settings(path: Path) -> Settings:
    """Raises SettingsError: no such file, not JSON, an unknown key, no model."""
    try:
        parsed = json.loads(path.read_text())
        settings = Settings(**parsed)
    except (OSError, ValueError, TypeError) as error:
        raise SettingsError(f"cannot read the configuration {path}: {error}") from error
    if settings.model.endswith(".gguf") and not Path(settings.model).is_file():
        raise SettingsError(f"cannot load the model: no file {settings.model}")
    return settings


def bake(env: Mapping[str, str], folder: Path) -> Path:
    """The container's configuration file: written if it isn't there yet, or if REINSTALL is 1. Raises SettingsError.

    What is there already wins over the environment, whatever that says now.
    """
    if not env.get("MODEL"):
        raise SettingsError("MODEL is not set")
    path = folder / f"strata-{Path(env['MODEL']).stem}.json"
    if not path.exists() or env.get("REINSTALL") == "1":
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(asdict(from_env(env)), indent=2) + "\n")
        except OSError as error:
            raise SettingsError(f"cannot write the configuration {path}: {error}") from error
    return path


def from_env(env: Mapping[str, str]) -> Settings:
    """MODEL CONTEXT VISION KV HOST PORT API_KEY; inside a container it listens on every address by default."""
    given: dict[str, Any] = {f.name: env[f.name.upper()] for f in fields(Settings) if f.name.upper() in env}
    try:
        given |= {name: int(given[name]) for name in ("context", "port") if name in given}
    except ValueError as error:
        raise SettingsError(f"CONTEXT and PORT must be numbers: {error}") from error
    if "vision" in given:
        given["vision"] = given["vision"].lower() in ("1", "true", "yes", "on")
    return Settings(**({"host": "0.0.0.0"} | given))
