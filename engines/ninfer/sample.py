"""Small `.ninfer` artifacts with real headers, for the demo and the tests: right in every field but the weights."""

from __future__ import annotations

import hashlib
import itertools
import json
import struct
from pathlib import Path
from typing import Any

from engines.ninfer.artifact import JSON_START, MAGIC, payload_start

_LAYOUT = {1: "row-major-v1", 2: "row-major-v1", 3: "contiguous_le_v1"}


def write_artifact(
    path: Path,
    version: int,
    *,
    model: str = "qwen3.8-27b",
    quantization: str = "nvfp4",
    objects: int = 4,
    payload: bytes = bytes(4096),
) -> None:
    """Write an artifact of `version` (1 to 3) whose `objects` tensors share `payload`; replaces what is there."""
    directory = _directory(version, model, quantization, _tensors(version, quantization, objects, len(payload)))
    if version == 3:
        directory["files"] = [{"path": None, "payload_bytes": len(payload)}]
    text = json.dumps(directory, separators=(",", ":")).encode()
    head = MAGIC + bytes([version]) + struct.pack("<Q", len(text))
    if version == 3:
        head += hashlib.sha256(payload).digest()[: JSON_START[3] - len(head)]
    path.write_bytes((head + text).ljust(payload_start(version, len(text)), b"\0") + payload)


def _tensors(version: int, format: str, count: int, size: int) -> list[dict[str, Any]]:
    edges = [size * index // count for index in range(count + 1)] if count else []
    return [
        {
            "id" if version == 3 else "name": f"text/layers/{index}/weight",
            "kind": "tensor",
            "shape": [end - start],
            "format": format,
            "layout": _LAYOUT[version],
            "offset": start,
            "bytes": end - start,
        }
        for index, (start, end) in enumerate(itertools.pairwise(edges))
    ]


def _directory(version: int, model: str, quantization: str, objects: list[dict[str, Any]]) -> dict[str, Any]:
    if version == 1:
        return {"model_id": model, "objects": objects}
    if version == 2:
        return {"identity": {"model_id": model, "weights_id": quantization}, "objects": objects}
    came_from = {"version": 2, "model_id": model, "weights_id": quantization}
    return {
        "components": {"text": {"config": {}, "resources": {}}},
        "objects": objects,
        "bindings": {item["id"]: {"object": item["id"]} for item in objects},
        "uses": [],
        "metadata": {"name": model},
        "provenance": {"upgraded_from": came_from},
    }
