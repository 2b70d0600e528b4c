"""The engines that live in a `House`: each a compose file of its own, its artifacts, and its keys in slotproxy.yml.

    ninfer       the simulator, pairs v2 (deployed) and v3: an image and an artifact of each version
    llama        llama.cpp's real server on a random model, pair tiny
    strata       the simulator, pair current

All want 30.5 GiB of the simulated card (32 GiB), load in a third of a second, and publish a port of 127.0.0.1. What
is between them and the house is plain data: a test changes `service` and `keys` before `House.write()`, and the
compose file by hand after it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines.artifacts.sample_gguf import write_gguf
from engines.ninfer.sample import write_artifact
from engines.strata.simulator.settings import bake
from tests.realengine.tiny_gguf import make_tiny_gguf
from tests.system.bed import DockerBed, free_port

VRAM = int(30.5 * 1024**3)
INSIDE = 8095  # the port in the container
LOAD = 0.3  # seconds
V2, V3 = "qwen3_8_27b_nvfp4.ninfer", "qwen3_8_27b_nvfp4_v3.ninfer"
MODEL = "qwen3.8-27b"
"""What clients say, and what NInfer's artifacts are called."""


@dataclass
class Tenant:
    """`service`: as in a compose file. `keys`: as under `engines:` in slotproxy.yml. `model`: its name for `MODEL`."""

    name: str
    container: str
    port: int
    model: str
    service: dict[str, Any]
    keys: dict[str, Any]
    images: list[str] = field(default_factory=list)  # by pair, in the order of `keys["pairs"]`

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def ninfer(bed: DockerBed, folder: Path, **knobs: object) -> Tenant:
    """`knobs` are the simulator's (`engines.ninfer.simulator`), in lower case: `decode_ms=2`. Its log of requests is
    `folder/log/ninfer.jsonl`.
    """
    v2, v3 = bed.name("ninfer") + ":local", bed.name("ninfer") + ":v3"
    bed.images.ninfer(v2, reads=2)
    bed.images.ninfer(v3, reads=3)
    models = _folder(folder, "models")
    write_artifact(models / V2, 2, model=MODEL, objects=1190)
    write_artifact(models / V3, 3, model=MODEL, objects=1190)
    set_to = {"load_s": LOAD, "decode_ms": 2, "stop_s": 0.1, "request_log": "/log/ninfer.jsonl", **knobs}
    tenant = _tenant(bed, folder, "ninfer", model=MODEL)
    tenant.service |= {
        "image": f"${{NINFER_IMAGE:-{v2}}}",
        "init": True,
        "command": f"ninfer-serve --model /models/${{NINFER_ARTIFACT:-{V2}}} --max-context 260000 --kv-capacity 260000"
        f" --kv-dtype fp8 --host 0.0.0.0 --port {INSIDE}",
        "environment": _knobs("NINFER_SIM_", {"card": "/card", "vram": VRAM, **set_to}),
    }
    tenant.keys |= {
        "deployed": "v2",
        "pairs": {
            "v2": {"image": v2, "artifact": str(models / V2)},
            "v3": {"image": v3, "artifact": str(models / V3), "env": {"NINFER_IMAGE": v3, "NINFER_ARTIFACT": V3}},
        },
    }
    tenant.images = [v2, v3]
    return tenant


def llama(bed: DockerBed, folder: Path) -> Tenant:
    model = make_tiny_gguf(_folder(folder, "models") / "tiny.gguf")
    tenant = _tenant(bed, folder, "llama", model="tiny", profile="llamacpp")
    command = f"llama-server --model /models/tiny.gguf --host 0.0.0.0 --port {INSIDE} --card-folder /card --vram {VRAM}"
    tenant.service |= {"image": bed.images.llama, "command": command}
    tenant.keys |= {"pairs": {"tiny": {"image": bed.images.llama, "artifact": str(model)}}}
    tenant.images = [bed.images.llama]
    return tenant


def strata(bed: DockerBed, folder: Path, **knobs: object) -> Tenant:
    """`knobs` are the simulator's (`engines.strata.simulator`), in lower case: `load=2`."""
    image, model = bed.name("strata") + ":1", _folder(folder, "data/packs") / "flash-next.gguf"
    bed.images.strata(image)
    write_gguf(model)
    tenant = _tenant(bed, folder, "strata", model="qwen3.8-flash-next")
    set_to = {"load": LOAD, "decode": 2, "thinking": 4, "unpin": 0.1, "request_log": "/log/strata.jsonl", **knobs}
    tenant.service |= {
        "image": image,
        "init": True,
        "environment": {"MODEL": "/data/packs/flash-next.gguf", "PORT": str(INSIDE), "HOST": "0.0.0.0"}
        | _knobs("STRATA_SIM_", {"card": "/card", "vram": VRAM, **set_to}),
    }
    tenant.service["volumes"].append(f"{folder / 'data'}:/data")
    bake(tenant.service["environment"], folder / "data/config")  # as after a first start
    tenant.keys |= {"pairs": {"current": {"image": image, "artifact": str(model)}}}
    tenant.images = [image]
    return tenant


def _tenant(bed: DockerBed, folder: Path, name: str, *, model: str, profile: str | None = None) -> Tenant:
    container, port = bed.name(name), free_port()
    for made in ("card", "log", "models"):
        _folder(folder, made)
    service = {
        "container_name": container,
        "ports": [f"127.0.0.1:{port}:{INSIDE}"],
        "user": f"{os.getuid()}:{os.getgid()}",  # what it writes can be removed by whoever runs the tests
        "volumes": [f"{folder}/models:/models:ro", f"{folder}/card:/card", f"{folder}/log:/log"],
        "restart": "no",
        "network_mode": "bridge",  # Docker's own: it has subnets for some thirty networks of projects only
    }
    keys = {
        "profile": profile or name,
        "url": f"http://127.0.0.1:{port}",
        "container": container,
        "compose": {"file": str(folder / name / "docker-compose.yml"), "service": name},
        "vram": "30.5GiB",
        "stop_grace": "10s",
        "start_deadline": "30s",
    }
    return Tenant(name, container, port, model, service, keys)


def _folder(folder: Path, name: str) -> Path:
    (folder / name).mkdir(parents=True, exist_ok=True)
    return folder / name


def _knobs(prefix: str, knobs: dict[str, object]) -> dict[str, str]:
    return {prefix + name.upper(): str(value) for name, value in knobs.items()}
