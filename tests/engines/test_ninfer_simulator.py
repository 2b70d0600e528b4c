"""NInfer's simulator from its start to its end: what it refuses, when it listens, what it holds, how it goes."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path

import httpx
import pytest

from engines import simvram
from engines.ninfer import simulator
from engines.ninfer.sample import write_artifact
from engines.ninfer.simulator.options import Knobs, UsageError, parse
from engines.spec import GiB
from tests.engines.ninfer_child import MODEL, PATIENCE, ROOT, ask, child, eventually

BOX = "--max-context 260000 --kv-capacity 260000 --kv-dtype fp8 --spec mtp --draft-tokens 3 --lm-head-draft"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "engines.ninfer.simulator", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def catches_sigterm(pid: int) -> bool:
    """Whether the process has a handler for SIGTERM: as PID 1 of a container it is deaf without one."""
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    assert caught is not None
    return bool(int(caught[1], 16) & 1 << (signal.SIGTERM - 1))


# --------------------------------------------------------------------------------------- command line


def test_it_needs_nothing_but_the_standard_library() -> None:
    script = f"""import sys
sys.path.insert(0, {str(ROOT)!r})
import engines.ninfer.simulator
print(*{{name.split(".")[0] for name in sys.modules}} - set(sys.stdlib_module_names) - {{"__main__"}})"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["engines"]


def test_without_arguments_it_prints_help_and_calls_that_success() -> None:
    done = run()
    assert done.returncode == 0
    assert done.stdout.startswith("usage: ninfer-serve <model.ninfer>")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("a.ninfer --flash-attention", "unknown argument: --flash-attention"),
        ("a.ninfer --Host x", "unknown argument: --Host"),
        ("a.ninfer b.ninfer", "unknown argument: b.ninfer"),
        ("a.ninfer --model b.ninfer", "unknown argument: --model"),
        ("--port 9", "artifact path is required"),
        ("a.ninfer --port", "--port needs a value"),
        ("a.ninfer --port x", "invalid port: x"),
        ("a.ninfer --port 70000", "--port must be in [1,65535]"),
        ("a.ninfer --kv-dtype fp4", "invalid kv-dtype: fp4"),
        ("a.ninfer --kv-capacity much", "invalid kv-capacity: much"),
        ("a.ninfer --max-concurrency 9", "--max-concurrency must be in [1,8]"),
        ("a.ninfer --sim-vram 9apples", "invalid sim-vram: 9apples"),
    ],
)
def test_a_command_line_that_no_build_would_take_is_refused(line: str, error: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(line.split(), {})
    assert str(caught.value) == error


def test_a_knob_is_an_environment_variable_or_a_flag_and_the_flag_wins() -> None:
    environment = {"NINFER_SIM_LOAD_S": "9", "NINFER_SIM_READS": "3", "NINFER_SIM_VRAM": "1.5GiB"}
    launch, knobs = parse(["--model=a.ninfer", "--sim-load-s", "2", "--sim-never-ready"], environment)
    assert launch.artifact == Path("a.ninfer")
    assert (knobs.load_s, knobs.reads, knobs.vram, knobs.never_ready) == (2.0, 3, 3 * GiB // 2, True)


def test_a_misspelt_knob_is_refused_not_ignored() -> None:
    with pytest.raises(UsageError, match="unknown variable: NINFER_SIM_LOADS"):
        parse(["a.ninfer"], {"NINFER_SIM_LOADS": "9"})


def test_every_knob_is_documented() -> None:
    assert simulator.__doc__ is not None
    for knob in fields(Knobs):
        assert re.search(rf"^    {knob.name.upper()} ", simulator.__doc__, re.MULTILINE), knob.name


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["v2.ninfer", "--flash-attention"], "unknown argument: --flash-attention"),
        (["none.ninfer"], "cannot open artifact '{folder}/none.ninfer': No such file or directory"),
        (["v3.ninfer"], "artifact magic is not NInfer v2"),
        (["v2.ninfer", "--sim-reads=3"], "artifact magic is not NInfer v3"),
        (["short.ninfer"], "artifact is truncated"),
        (["page.ninfer"], "{folder}/page.ninfer: not a .ninfer file"),
    ],
)
def test_a_refusal_is_an_error_line_then_the_usage_and_exit_1(tmp_path: Path, arguments: list[str], error: str) -> None:
    for version in (2, 3):
        write_artifact(tmp_path / f"v{version}.ninfer", version)
    (tmp_path / "short.ninfer").write_bytes((tmp_path / "v2.ninfer").read_bytes()[:-1])
    (tmp_path / "page.ninfer").write_text("<html>")
    done = run("--model", str(tmp_path / arguments[0]), *arguments[1:], "--port", "0")
    errors = [line for line in done.stderr.splitlines() if line != "ninfer-serve: loading model..."]
    assert done.returncode == 1
    assert errors[0].startswith(f"error: {error.format(folder=tmp_path)}")
    assert errors[1].startswith("usage: ninfer-serve")


def test_the_boxs_own_command_line_is_understood(tmp_path: Path) -> None:
    write_artifact(tmp_path / "a.ninfer", 2)
    flags = ["--model", str(tmp_path / "a.ninfer"), *BOX.split(), "--preserve-thinking", "--host", "127.0.0.1"]
    with child(tmp_path, ready=False) as busy:
        busy.wait_ready()
        done = run(*flags, "--port", str(busy.port))
        assert done.returncode == 1
        assert done.stderr.startswith(f"error: failed to bind 127.0.0.1:{busy.port}: Address already in use")


def test_another_version_is_refused_before_a_byte_of_vram_is_taken(tmp_path: Path) -> None:
    with child(tmp_path, version=3, ready=False, card=tmp_path / "card", load_s=30) as engine:
        assert engine.wait_exit() == 1
        assert not (tmp_path / "card").exists()


def test_each_build_reads_one_version(tmp_path: Path) -> None:
    with child(tmp_path, version=3, reads=3) as engine, engine.client() as http:
        assert http.get("/v1/models").json()["data"][0]["id"] == MODEL


# --------------------------------------------------------------------------------------- loading


def test_while_it_loads_six_connections_get_no_answer_and_the_seventh_none_at_all(tmp_path: Path) -> None:
    with child(tmp_path, ready=False, load_s=60) as engine:
        engine.wait_output("loading model...")
        address = ("127.0.0.1", engine.port)
        held = [socket.create_connection(address, timeout=PATIENCE) for _ in range(6)]
        try:
            with pytest.raises(TimeoutError):
                socket.create_connection(address, timeout=1.0)
            held[0].sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            held[0].settimeout(0.5)
            with pytest.raises(TimeoutError):
                held[0].recv(1)
        finally:
            for one in held:
                one.close()


def test_it_has_no_signal_handler_until_it_is_ready(tmp_path: Path) -> None:
    with child(tmp_path, ready=False, load_s=60) as engine:
        engine.wait_output("loading model...")
        assert not catches_sigterm(engine.process.pid)
    with child(tmp_path) as engine:
        assert catches_sigterm(engine.process.pid)


def test_outside_a_container_sigterm_while_loading_ends_it_at_once(tmp_path: Path) -> None:
    with child(tmp_path, ready=False, load_s=60) as engine:
        engine.wait_output("loading model...")
        assert engine.end() == -signal.SIGTERM


def test_a_request_sent_while_it_loads_is_answered_when_it_is_ready(tmp_path: Path) -> None:
    with child(tmp_path, ready=False, load_s=1) as engine, engine.client() as http:
        engine.wait_output("loading model...")
        assert http.get("/health").json() == {"status": "ok"}
        assert "listening on http://127.0.0.1:" in engine.text


@pytest.mark.parametrize("code", [1, 134])
def test_it_can_die_when_it_has_loaded(tmp_path: Path, code: int) -> None:
    with child(tmp_path, ready=False, exit_after_load=code) as engine:
        assert engine.wait_exit() == code
        assert "error: CUDA error" in engine.text
        assert "listening on" not in engine.text


def test_it_can_load_for_ever(tmp_path: Path) -> None:
    with child(tmp_path, ready=False, never_ready=1) as engine:
        engine.wait_output("loading model...")
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(f"{engine.url}/health", timeout=0.7, trust_env=False)
        assert engine.process.poll() is None


# --------------------------------------------------------------------------------------- VRAM


def test_vram_is_taken_while_it_loads_and_free_when_it_is_killed(tmp_path: Path) -> None:
    card = tmp_path / "card"
    with child(tmp_path, ready=False, load_s=60, card=card, vram="30GiB") as engine:
        eventually(lambda: simvram.free_bytes(card) == 2 * GiB)
        assert [use.pid for use in simvram.uses(card)] == [engine.process.pid]
        engine.end(signal.SIGKILL)
        assert simvram.free_bytes(card) == 32 * GiB


def test_vram_can_be_released_late(tmp_path: Path) -> None:
    card = tmp_path / "card"
    with child(tmp_path, card=card, vram="30GiB", linger_s=1.5) as engine:
        assert engine.end() == 0
        assert simvram.free_bytes(card) == 2 * GiB
        eventually(lambda: simvram.free_bytes(card) == 32 * GiB)


def test_too_little_vram_ends_it_before_it_loads(tmp_path: Path) -> None:
    card = tmp_path / "card"
    with simvram.Allocation(card, "other", 31 * GiB), child(tmp_path, ready=False, card=card, load_s=60) as engine:
        assert engine.wait_exit() == 1
        assert re.search(
            rf"^error: .* but only {GiB} bytes are free before loading weights$", engine.text, re.MULTILINE
        )


def test_with_kv_capacity_auto_it_starts_small_instead(tmp_path: Path) -> None:
    card = tmp_path / "card"
    (tmp_path / "card").mkdir()
    (card / "baseline").write_text(str(6 * GiB))
    with child(tmp_path, ["--kv-capacity", "auto"], card=card, vram="30GiB"):
        assert [use.bytes for use in simvram.uses(card)] == [26 * GiB]


# --------------------------------------------------------------------------------------- the end


def test_idle_it_ends_soon_after_sigterm_with_exit_0(tmp_path: Path) -> None:
    with child(tmp_path) as engine, engine.client() as http:
        http.get("/health")
        start = time.monotonic()
        assert engine.end() == 0
        assert 0.25 < time.monotonic() - start < 4  # an idle connection doesn't keep it


def test_it_can_refuse_sigterm(tmp_path: Path) -> None:
    with child(tmp_path, ignore_sigterm=1) as engine, engine.client() as http:
        engine.process.terminate()
        time.sleep(0.6)
        assert http.get("/health").status_code == 200


@pytest.mark.parametrize("prefill_tps", [3000, 0.01])
def test_a_stream_is_cut_at_sigterm_without_a_last_chunk(tmp_path: Path, prefill_tps: float) -> None:
    request = ask(stream=True, max_tokens=10_000)
    with (
        child(tmp_path, prefill_tps=prefill_tps) as engine,
        engine.client() as http,
        http.stream("POST", "/v1/chat/completions", json=request) as answer,
    ):
        engine.process.terminate()
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"):
            answer.read()
        assert engine.wait_exit() == 0
        assert [line["how"] for line in engine.log("over")] == ["cut"]


def test_a_plain_request_runs_to_its_end_after_sigterm(tmp_path: Path) -> None:
    with child(tmp_path, decode_ms=20) as engine, engine.client() as http:
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(http.post, "/v1/chat/completions", json=ask(max_tokens=50))
            engine.wait_log("received", 1)
            engine.process.terminate()
        assert answer.result().json()["usage"]["completion_tokens"] == 50
        assert engine.wait_exit() == 0
