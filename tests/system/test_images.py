"""The test bed itself: engines in containers that answer, and whose "VRAM" the host sees."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import httpx
import pytest

from engines.ninfer.sample import write_artifact
from engines.simvram import Use, uses
from engines.spec import GiB
from tests.realengine.tiny_gguf import make_tiny_gguf
from tests.system.bed import DockerBed, free_port

pytestmark = pytest.mark.docker

PATIENCE = 60.0  # seconds


def test_a_simulated_engine_in_a_container_holds_vram_until_it_is_killed(docker_bed: DockerBed, tmp_path: Path) -> None:
    write_artifact(tmp_path / "v2.ninfer", 2)
    image = docker_bed.name("ninfer") + ":v2"
    docker_bed.images.ninfer(image, reads=2)
    env = {"NINFER_SIM_CARD": str(tmp_path / "card"), "NINFER_SIM_VRAM": "20GiB", "NINFER_SIM_LOAD_S": "0.1"}
    command = ["ninfer-serve", "--model", str(tmp_path / "v2.ninfer"), "--host", "0.0.0.0", "--port", "8095"]
    made, url = _run(docker_bed, tmp_path, image, command, env)
    _eventually(lambda: _answers(f"{url}/health"))
    (use,) = uses(tmp_path / "card")
    assert use == Use(use.name, 20 * GiB, docker_bed.state(made)["Pid"])
    docker_bed.client.kill(made)
    _eventually(lambda: uses(tmp_path / "card") == [])


def test_a_build_that_reads_another_version_refuses_the_artifact(docker_bed: DockerBed, tmp_path: Path) -> None:
    write_artifact(tmp_path / "v3.ninfer", 3)
    image = docker_bed.name("ninfer") + ":v2"
    docker_bed.images.ninfer(image, reads=2)
    made, _ = _run(docker_bed, tmp_path, image, ["ninfer-serve", str(tmp_path / "v3.ninfer")], {})
    assert docker_bed.client.wait(made, timeout=PATIENCE)["StatusCode"] == 1
    assert b"error: artifact magic is not NInfer v2" in docker_bed.client.logs(made)


def test_the_real_llama_cpp_server_answers_from_its_container(docker_bed: DockerBed, tmp_path: Path) -> None:
    make_tiny_gguf(tmp_path / "tiny.gguf")
    command = ["llama-server", "--model", str(tmp_path / "tiny.gguf"), "--host", "0.0.0.0", "--port", "8095"]
    card = ["--card-folder", str(tmp_path / "card"), "--vram", str(GiB)]
    made, url = _run(docker_bed, tmp_path, docker_bed.images.llama, [*command, *card], {})
    _eventually(lambda: _answers(f"{url}/health"))
    body = {"messages": [{"role": "user", "content": "ka"}], "max_tokens": 3}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=PATIENCE, trust_env=False).json()
    assert answer["usage"]["completion_tokens"] == 3
    assert [use.pid for use in uses(tmp_path / "card")] == [docker_bed.state(made)["Pid"]]


def _run(bed: DockerBed, folder: Path, image: str, command: Sequence[str], env: Mapping[str, str]) -> tuple[str, str]:
    """Its id, and where its port 8095 is. The folder has the same path inside and outside."""
    port = free_port()
    host = bed.client.create_host_config(binds=[f"{folder}:{folder}"], port_bindings={8095: ("127.0.0.1", port)})
    made = bed.client.create_container(
        image, list(command), name=bed.name("run"), environment=dict(env), ports=[8095], host_config=host
    )
    bed.client.start(made["Id"])
    return made["Id"], f"http://127.0.0.1:{port}"


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2.0, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def _eventually(happens: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.05)
