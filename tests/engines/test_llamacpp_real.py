"""The llama.cpp profile against llama.cpp's real server, with a random model on the CPU."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from engines.llamacpp.profile import PROFILE
from engines.simvram import uses
from tests.engines.strata_sim import LIMIT, RawStream, Simulator, chat, free_port, spawned, until
from tests.realengine.tiny_gguf import make_tiny_gguf

SERVER = "tests.realengine.llama_server"
ENDLESS = 30_000  # tokens: half a minute at least


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def llama(model: Path) -> Iterator[Simulator]:
    port = free_port()
    command = [SERVER, "--model", str(model), "--port", str(port), "--context", "32768"]
    with spawned(command, port, model.parent, {}, wait=False) as server:
        until(lambda: ready(server))
        yield server


def ready(server: Simulator) -> bool:
    """What the profile says of it, as the readiness check would ask."""
    assert PROFILE.sign is not None
    assert server.process.poll() is None
    try:
        health = httpx.get(server.url + PROFILE.sign.path, timeout=PROFILE.sign.timeout)
    except httpx.TransportError:
        return False
    return PROFILE.sign.judge(health.status_code, health.content)


def busy(server: Simulator) -> bool:
    return any(slot["is_processing"] for slot in server.get("/slots"))


def test_the_same_seed_makes_the_same_model(model: Path, tmp_path: Path) -> None:
    again, other = make_tiny_gguf(tmp_path / "a.gguf"), make_tiny_gguf(tmp_path / "b.gguf", seed=2)
    assert again.read_bytes() == model.read_bytes() != other.read_bytes()
    assert other.stat().st_size == model.stat().st_size < 2**20


def test_the_profiles_probe_is_answered_and_believed(llama: Simulator) -> None:
    probe = PROFILE.probe("any", 4)
    answer = httpx.post(llama.url + probe.path, content=probe.body, timeout=LIMIT)
    assert probe.judge(answer.status_code, answer.content)
    broken = httpx.post(llama.url + probe.path, content=b"{", timeout=LIMIT)
    assert not probe.judge(broken.status_code, broken.content)


def test_a_streamed_chat_has_every_token_and_ends_with_done(llama: Simulator) -> None:
    with openai.OpenAI(base_url=llama.url + "/v1", api_key="none", max_retries=0) as client:
        chunks = list(
            client.chat.completions.create(
                model="any",
                messages=[{"role": "user", "content": "hello"}],
                max_tokens=50,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.completion_tokens == 50
    with RawStream(llama, chat(max_tokens=5)) as stream:
        assert b"data: [DONE]\n\n" in stream.rest()


@pytest.mark.parametrize("path", [path for path in PROFILE.client_paths if "embeddings" not in path])
def test_every_client_path_of_the_profile_is_there(llama: Simulator, path: str) -> None:
    body: dict[str, Any] = chat(max_tokens=3, max_output_tokens=3, prompt="hello", input="hello")
    assert llama.post(path, body).status_code == 200


def test_a_client_that_leaves_cancels_the_work(llama: Simulator) -> None:
    with RawStream(llama, chat(max_tokens=ENDLESS)) as stream:
        stream.read_until(b'"content"')
        assert busy(llama)
    until(lambda: not busy(llama), limit=10)


def test_sigterm_ends_it_with_exit_0_and_gives_the_vram_back(model: Path, tmp_path: Path) -> None:
    port = free_port()
    command = [SERVER, "--model", str(model), "--port", str(port), "--card-folder", str(tmp_path), "--vram", "1000"]
    with spawned(command, port, tmp_path, {}, wait=False) as server:
        until(lambda: ready(server))
        assert [use.bytes for use in uses(tmp_path)] == [1000]
        server.process.send_signal(signal.SIGTERM)
        assert server.ended()[0] == 0
        assert not uses(tmp_path)


@pytest.mark.parametrize("more", [["--model", "/none.gguf"], ["--card-folder", ".", "--vram", str(2**50)]])
def test_it_refuses_with_exit_1_and_a_reason(model: Path, tmp_path: Path, more: Sequence[str]) -> None:
    command = [sys.executable, str(Path("tests/realengine/llama_server.py").resolve()), "--model", str(model), *more]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: cannot load the model: ")
