"""The demo's house on disk: configuration, small artifacts with real headers, a simulated card."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import yaml

from engines.ninfer.sample import write_artifact
from slotproxy import config

VRAM = "30.5GiB"
VRAM_BYTES = int(30.5 * 1024**3)
LOAD = 1.5  # seconds
DECODE = 20  # milliseconds a token
MODEL = "qwen3.8-27b"
STRATA_MODEL = "qwen3.8-flash-next"


def write_house(folder: Path, port: int) -> Path:
    """Write everything the demo needs below `folder`; returns the configuration's path.

    A house that is there already (its daemon was killed) is kept with its engines' ports, so that they are adopted.
    """
    path = folder / "slotproxy.yml"
    if path.exists():
        house = yaml.safe_load(path.read_text())
        config.load(path)  # says what is wrong with it, where somebody has edited it
        house["listen"] = f"127.0.0.1:{port}"
    else:
        _artifacts(folder)
        house = _house(folder, port, *_free_ports(2))
    path.write_text(yaml.safe_dump(house, sort_keys=False, width=120))
    return path


def _artifacts(folder: Path) -> None:
    (folder / "models").mkdir(exist_ok=True)
    write_artifact(folder / "models" / "qwen3_8_27b_nvfp4.ninfer", 2, model=MODEL, objects=1190)
    write_artifact(folder / "models" / "qwen3_8_27b_nvfp4_v3.ninfer", 3, model=MODEL, objects=1190)
    (folder / "models" / "qwen3.8-flash-next.gguf").write_bytes(b"GGUF" + bytes(4092))
    (folder / "strata").mkdir(exist_ok=True)
    baked = {"model": str(folder / "models" / "qwen3.8-flash-next.gguf"), "context": 131072, "kv": "fp8"}
    (folder / "strata" / "strata.json").write_text(json.dumps(baked, indent=2) + "\n")


def _house(folder: Path, port: int, strata: int, ninfer: int) -> dict[str, Any]:
    return {
        "listen": f"127.0.0.1:{port}",
        "control": str(folder / "control.sock"),
        "state": str(folder / "state"),
        "card": {"simulated": "32GiB", "folder": str(folder / "card"), "headroom": "256MiB"},
        "default": "strata",
        "models": {MODEL: {"ninfer": MODEL, "strata": STRATA_MODEL}},
        "engines": {"strata": _strata(folder, strata), "ninfer": _ninfer(folder, ninfer)},
        "slots": {"anonymous": {}},
    }


def _strata(folder: Path, port: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "engines.strata.simulator", "--engine", "strata"]
    command += ["--config", str(folder / "strata" / "strata.json"), "--port", str(port)]
    knobs = {"CARD": folder / "card", "VRAM": VRAM_BYTES, "LOAD": LOAD, "DECODE": DECODE, "THINKING": 4}
    return {
        "profile": "strata",
        "url": f"http://127.0.0.1:{port}",
        "command": command,
        "env": _environment("STRATA_SIM_", knobs),
        "vram": VRAM,
        "stop_grace": "10s",
        "pairs": {
            "current": {
                "artifact": str(folder / "models" / "qwen3.8-flash-next.gguf"),
                "config_files": [str(folder / "strata" / "strata.json")],
            }
        },
    }


def _ninfer(folder: Path, port: int) -> dict[str, Any]:
    def pair(reads: int, artifact: str) -> dict[str, Any]:
        path = str(folder / "models" / artifact)
        command = [sys.executable, "-m", "engines.ninfer.simulator", path, "--port", str(port)]
        command += ["--max-context", "260000", "--kv-capacity", "260000", "--kv-dtype", "fp8"]
        return {"command": command, "artifact": path, "reads": reads, "env": {"NINFER_SIM_READS": str(reads)}}

    knobs = {"CARD": folder / "card", "VRAM": VRAM_BYTES, "LOAD_S": LOAD, "DECODE_MS": DECODE}
    return {
        "profile": "ninfer",
        "url": f"http://127.0.0.1:{port}",
        "env": _environment("NINFER_SIM_", knobs),
        "vram": VRAM,
        "stop_grace": "10s",
        "deployed": "v2",
        "pairs": {"v2": pair(2, "qwen3_8_27b_nvfp4.ninfer"), "v3": pair(3, "qwen3_8_27b_nvfp4_v3.ninfer")},
    }


def _environment(prefix: str, knobs: dict[str, Any]) -> dict[str, str]:
    return {"PYTHONUNBUFFERED": "1", **{prefix + name: str(value) for name, value in knobs.items()}}


def _free_ports(count: int) -> list[int]:
    """Ports that nobody has now; taken together so that they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
