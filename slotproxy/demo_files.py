"""The demo's house on disk: configuration, small artifacts with real headers, a simulated card."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from engines.artifacts.sample_gguf import write_gguf
from engines.ninfer.sample import write_artifact
from slotproxy import config
from slotproxy.claims import CannotServe
from swap.durable import replace_file

HOST = "127.0.0.1"
HEAD = "# Written by `slotproxy demo`, which removes it again.\n"
CONFIG, CONTROL, LOG = "slotproxy.yml", "control.sock", "slotproxy.log"
FOLDERS = ("models", "state", "card", "strata")
ENGINE_PORTS = range(18_000, 32_000)  # below those that the kernel gives to connections, which come and go
VRAM = "30.5GiB"
VRAM_BYTES = int(30.5 * 1024**3)
LOAD = 1.5  # seconds
DECODE = 10  # milliseconds a token
MODEL = "qwen3.8-27b"
STRATA_MODEL = "qwen3.8-flash-next"


class Quarters:
    """The demo's folder; `over`, set before it is left: everything of the demo's in it goes, and what it has made."""

    def __init__(self, given: Path | None) -> None:
        """`given`: None makes a temporary one. Raises CannotServe."""
        self.over = False
        self._made: list[Path] = []
        if given is None:
            self.folder = Path(tempfile.mkdtemp(prefix="slotproxy-demo-")).resolve()
            self._made = [self.folder]
            return
        self.folder = given.resolve()
        try:
            self._check()
            self._made = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CannotServe(f"--state: {self.folder} can't be used: {error.strerror}; give another folder") from error

    def _check(self) -> None:
        """Nothing that isn't a demo's is ever written over, or removed in the end."""
        length = len(os.fsencode(self.folder / CONTROL))
        if length > config.LONGEST_SOCKET_PATH:
            what = f"{self.folder / CONTROL} would have {length} bytes"
            most = f"a socket's path may have {config.LONGEST_SOCKET_PATH}"
            raise CannotServe(f"--state: {what}, {most}; give a folder with a shorter path")
        house = self.folder / CONFIG
        if house.exists():
            if not house.read_bytes().startswith(HEAD.encode()):
                raise CannotServe(f"--state: {house} is no demo's; give another folder")
            return
        for name in (CONTROL, LOG, *FOLDERS):
            if (self.folder / name).exists():
                raise CannotServe(f"--state: {self.folder / name} is there, and no demo's; give another folder")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.over:
            for name in (CONFIG, CONTROL, LOG):
                (self.folder / name).unlink(missing_ok=True)
            for name in FOLDERS:
                shutil.rmtree(self.folder / name, ignore_errors=True)
        for folder in self._made:
            with contextlib.suppress(OSError):  # there is something in it
                folder.rmdir()


def write_house(folder: Path, port: int) -> Path:
    """Write everything the demo needs below `folder`; returns the configuration's path.

    A house that is there already (its daemon was killed) is kept with its engines' ports, so that they are adopted.
    """
    path = folder / CONFIG
    if path.exists():
        house = yaml.safe_load(path.read_text())
        config.load(path)  # says what is wrong with it, where somebody has edited it
        house["listen"] = f"{HOST}:{port}"
    else:
        _artifacts(folder)
        ports = _free_ports(port)
        house = _house(folder, port, next(ports), next(ports))
    text = HEAD + yaml.safe_dump(house, sort_keys=False, width=120, allow_unicode=True)
    replace_file(path, text.encode())
    return path


def _artifacts(folder: Path) -> None:
    (folder / "models").mkdir(exist_ok=True)
    write_artifact(folder / "models" / "qwen3_8_27b_nvfp4.ninfer", 2, model=MODEL, objects=1190)
    write_artifact(folder / "models" / "qwen3_8_27b_nvfp4_v3.ninfer", 3, model=MODEL, objects=1190)
    write_gguf(folder / "models" / "qwen3.8-flash-next.gguf", name=STRATA_MODEL)
    (folder / "strata").mkdir(exist_ok=True)
    baked = {"model": str(folder / "models" / "qwen3.8-flash-next.gguf"), "context": 131072, "kv": "fp8"}
    (folder / "strata" / "strata.json").write_text(json.dumps(baked, indent=2) + "\n")


def _house(folder: Path, port: int, strata: int, ninfer: int) -> dict[str, Any]:
    return {
        "listen": f"{HOST}:{port}",
        "control": str(folder / CONTROL),
        "state": str(folder / "state"),
        "card": {"simulated": "32GiB", "folder": str(folder / "card"), "headroom": "256MiB"},
        "stop_limit": "6s",
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
        "url": f"http://{HOST}:{port}",
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
        "url": f"http://{HOST}:{port}",
        "env": _environment("NINFER_SIM_", knobs),
        "vram": VRAM,
        "stop_grace": "10s",
        "deployed": "v2",
        "pairs": {"v2": pair(2, "qwen3_8_27b_nvfp4.ninfer"), "v3": pair(3, "qwen3_8_27b_nvfp4_v3.ninfer")},
    }


def _environment(prefix: str, knobs: dict[str, Any]) -> dict[str, str]:
    return {"PYTHONUNBUFFERED": "1", **{prefix + name: str(value) for name, value in knobs.items()}}


def _free_ports(taken: int) -> Iterator[int]:
    """Ports that nobody has now, each once. Raises CannotServe."""
    for port in random.sample(ENGINE_PORTS, k=1000):
        with socket.socket() as tried:
            try:
                tried.bind((HOST, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
        if port != taken:
            yield port
    raise CannotServe(f"no free port at {HOST} for an engine; end something that listens there")
