"""Small `.ninfer` artifacts with real headers, for the demo and the tests: right in every field but the weights."""

from __future__ import annotations

import hashlib
import itertools
import json
import struct
from pathlib import Path
from typing import Any

from engines.ninfer.artifact import JSON_START, MAGIC, PART_MAGIC, PAYLOAD_ALIGNMENT, payload_start

_LAYOUT = {1: "row-major-v1", 2: "row-major-v1", 3: "contiguous_le_v1"}


def write_artifact(
    path: Path,
    version: int,
    *,
    model: str = "qwen3.8-27b",
    quantization: str = "nvfp4",
    objects: int = 4,
    payload: bytes = bytes(4096),
    parts: int = 0,
) -> None:
    """Write an artifact of `version` (1 to 3) whose `objects` tensors share `payload`; replaces what is there.

    `parts` further files (version 3) stand beside it, each with a payload of the same size.
    """
    directory = _directory(version, model, quantization, _tensors(version, quantization, objects, len(payload)))
    if version == 3:
        names = [None, *(f"{path.name}.part-{number:04}" for number in range(1, parts + 1))]
        directory["files"] = [{"path": name, "payload_bytes": len(payload)} for name in names]
    text = json.dumps(directory, separators=(",", ":")).encode()
    head = MAGIC + bytes([version]) + struct.pack("<Q", len(text))
    if version == 3:
        file_id = hashlib.sha256(payload).digest()[: JSON_START[3] - len(head)]
        head += file_id
        for number in range(1, parts + 1):
            part = PART_MAGIC + bytes([version]) + struct.pack("<Q", number) + file_id
            path.with_name(f"{path.name}.part-{number:04}").write_bytes(part.ljust(PAYLOAD_ALIGNMENT, b"\0") + payload)
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
