"""The Strata simulator's start, its VRAM, its faults and its end: an engine of its own for each test."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from dataclasses import fields
from pathlib import Path

import pytest

import engines.strata.simulator as package
from engines.simvram import uses
from engines.strata.profile import PROFILE
from engines.strata.simulator.knobs import FAULTS, Knobs
from tests.engines.strata_sim import LIMIT, RawStream, Simulator, chat, free_port, spawned, started, until

CHAT = "/v1/chat/completions"
GiB = 1024**3


@pytest.fixture
def card(tmp_path: Path) -> Path:
    folder = tmp_path / "card"
    folder.mkdir()
    return folder


def taken(card: Path) -> int:
    return sum(use.bytes for use in uses(card))


# ------------------------------------------------------------------------------------------------ start


def test_the_port_is_closed_until_it_is_ready_though_the_vram_is_taken_before(tmp_path: Path, card: Path) -> None:
    with started(tmp_path, "--sim-load", "1.5", "--sim-card", str(card), wait=False) as strata:
        until(lambda: taken(card) or strata.open())
        assert not strata.open()
        strata.ready()
        assert strata.get("/health") == {"status": "ok", "engine": "strata", "loaded": True}


def test_a_port_in_use_is_found_before_anything_is_loaded(tmp_path: Path, card: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        flags = ("--port", str(other.getsockname()[1]), "--sim-load", "3600", "--sim-card", str(card))
        with started(tmp_path, *flags, wait=False) as strata:
            code, errors = strata.ended()
    assert code == 1
    assert errors.startswith("error: cannot listen on 127.0.0.1:")
    assert not (card / "allocations").exists()


def test_a_first_load_that_fails_ends_it_with_exit_1_and_the_reason(tmp_path: Path, card: Path) -> None:
    (card / "total").write_text(str(4 * GiB))
    with started(tmp_path, "--sim-card", str(card), "--sim-vram", str(5 * GiB), wait=False) as strata:
        code, errors = strata.ended()
    assert code == 1
    first = errors.splitlines()[0]
    assert first == f"error: cannot load the model: only {4 * GiB} bytes are free, {5 * GiB} wanted"


@pytest.mark.parametrize("config", [{"model": "/none/x.gguf"}, {"unknown": 1}])
def test_a_bad_configuration_ends_it_with_exit_1(tmp_path: Path, config: dict[str, object]) -> None:
    with started(tmp_path, config=config, wait=False) as strata:
        code, errors = strata.ended()
    assert (code, errors[:7]) == (1, "error: ")


def test_it_can_exit_after_its_load_with_any_code(tmp_path: Path, card: Path) -> None:
    with started(tmp_path, "--sim-card", str(card), "--sim-fault", "exit-after-load:7", wait=False) as strata:
        code, errors = strata.ended()
    assert (code, errors[:7]) == (7, "error: ")
    assert taken(card) == 0


def test_it_can_load_for_ever(tmp_path: Path, card: Path) -> None:
    with started(tmp_path, "--sim-card", str(card), "--sim-fault", "never-ready", wait=False) as strata:
        until(lambda: taken(card))
        assert not strata.open()
        assert strata.process.poll() is None


# ------------------------------------------------------------------------------------------------ VRAM


def test_it_takes_what_is_free_less_a_reserve_and_is_slow_when_that_was_little(tmp_path: Path, card: Path) -> None:
    (card / "total").write_text(str(3 * GiB))
    with started(tmp_path, "--sim-card", str(card), "--sim-full", str(100 * GiB)) as strata:
        assert taken(card) == strata.get("/metrics")["vram_bytes"] == 2 * GiB
        with RawStream(strata, chat(sim_tokens=20, reasoning_effort="none")) as stream:
            stream.rest()
        first, last = strata.events("started")[0], strata.events("finished")[0]
        assert last["time"] - first["time"] >= 20 * 0.001 * 50


def test_killing_the_server_leaves_the_engine_alive_with_its_vram(tmp_path: Path, card: Path) -> None:
    with started(tmp_path, "--sim-card", str(card), "--sim-vram", str(GiB)) as strata:
        engine = strata.get("/metrics")["engine_pid"]
        strata.process.kill()
        strata.process.wait(LIMIT)
        assert not strata.open()
        assert [use.pid for use in uses(card)] == [engine]
        os.kill(engine, signal.SIGTERM)
        until(lambda: taken(card) == 0)


def test_unload_gives_the_vram_back_and_the_next_request_takes_it_again(tmp_path: Path, card: Path) -> None:
    with started(tmp_path, "--sim-card", str(card), "--sim-vram", str(GiB)) as strata:
        strata.post("/unload", {})
        assert strata.get("/health") == {"status": "ok", "engine": "strata", "loaded": False}
        assert taken(card) == 0
        assert strata.post(CHAT, chat()).status_code == 200
        assert strata.get("/health")["loaded"] is True
        assert taken(card) == GiB


def test_a_reload_that_fails_is_the_requests_error_and_the_server_stays(tmp_path: Path) -> None:
    faults = tmp_path / "faults"
    with started(tmp_path, "--sim-fault-file", str(faults)) as strata:
        strata.post("/unload", {})
        faults.write_text("fail-load")
        assert strata.post(CHAT, chat()).status_code == 503
        assert strata.get("/health")["loaded"] is False
        faults.unlink()
        assert strata.post(CHAT, chat()).status_code == 200


# ------------------------------------------------------------------------------------------------ faults


def test_an_engine_that_dies_mid_stream_sends_an_error_and_then_done(tmp_path: Path) -> None:
    with started(tmp_path, "--sim-fault", "crash:2") as strata:
        with RawStream(strata, chat()) as stream:
            body = stream.rest()
        assert body.count(b"reasoning_content") == 2
        assert re.search(rb'data: \{"error".*\n\ndata: \[DONE\]\n\n$', body)
        assert_dead(strata)


def test_a_killed_engine_answers_health_with_200_and_every_request_with_an_error(tmp_path: Path) -> None:
    with started(tmp_path) as strata:
        os.kill(strata.get("/metrics")["engine_pid"], signal.SIGKILL)
        until(lambda: strata.get("/health")["loaded"] is False)
        assert_dead(strata)


def assert_dead(strata: Simulator) -> None:
    """Health stays 200, and a new stream is opened, then broken, then marked as done."""
    assert strata.get("/health") == {"status": "ok", "engine": "strata", "loaded": False}
    with RawStream(strata, chat()) as stream:
        assert re.search(rb'"role":"assistant".*\n\ndata: \{"error".*\n\ndata: \[DONE\]\n\n$', stream.rest())
    with RawStream(strata, chat(max_tokens=5), "/v1/messages") as stream:
        assert b"event: error" in stream.rest()
        assert b"message_stop" not in stream.seen
    probe = PROFILE.probe("any", 4)
    answer = strata.post(probe.path, json.loads(probe.body))
    assert answer.status_code == 503
    assert not probe.judge(answer.status_code, answer.content)


def test_an_engine_that_hangs_mid_stream_holds_its_turn_for_ever(tmp_path: Path) -> None:
    with started(tmp_path, "--sim-fault", "hang:2") as strata, RawStream(strata, chat()) as hung:
        hung.read_until(b"reasoning_content", times=2)
        hung.leave()
        with RawStream(strata, chat("next")) as queued:
            queued.read_until(b"role")
            assert queued.silent(1.0)
        assert strata.get("/health")["loaded"] is True


def test_faults_in_the_fault_file_come_and_go(tmp_path: Path) -> None:
    faults = tmp_path / "faults"
    with started(tmp_path, "--sim-fault-file", str(faults)) as strata:
        assert strata.post(CHAT, chat()).status_code == 200
        faults.write_text("crash:1\n")
        assert strata.post(CHAT, chat()).status_code == 503


# ------------------------------------------------------------------------------------------------ stop


def test_sigterm_while_it_loads_has_no_handler(tmp_path: Path, card: Path) -> None:
    flags = ("--sim-card", str(card), "--sim-fault", "never-ready")
    with started(tmp_path, *flags, wait=False) as strata:
        until(lambda: taken(card))
        strata.process.send_signal(signal.SIGTERM)
        assert strata.process.wait(LIMIT) == -signal.SIGTERM
        assert taken(card)  # and nobody told the engine


def test_sigterm_when_ready_ends_it_with_exit_0_and_frees_the_vram(tmp_path: Path, card: Path) -> None:
    with started(tmp_path, "--sim-card", str(card)) as strata:
        strata.process.send_signal(signal.SIGTERM)
        assert strata.ended()[0] == 0
        assert taken(card) == 0


def test_a_slow_unpin_keeps_the_server_and_the_vram_but_not_the_port(tmp_path: Path, card: Path) -> None:
    with started(tmp_path, "--sim-card", str(card), "--sim-unpin", "2") as strata:
        strata.process.send_signal(signal.SIGTERM)
        until(lambda: not strata.open())
        assert strata.process.poll() is None
        assert taken(card)
        assert strata.ended()[0] == 0


def test_the_vram_can_be_released_late(tmp_path: Path, card: Path) -> None:
    with started(tmp_path, "--sim-card", str(card), "--sim-linger", "2") as strata:
        strata.process.send_signal(signal.SIGTERM)
        assert strata.ended()[0] == 0
        assert taken(card)
        until(lambda: taken(card) == 0)


@pytest.mark.parametrize("group", [False, True])
def test_sigterm_mid_stream_makes_a_cut_answer_look_whole(tmp_path: Path, group: bool) -> None:
    with started(tmp_path) as strata, RawStream(strata, chat(sim_tokens=100_000)) as stream:
        stream.read_until(b"reasoning_content")
        with RawStream(strata, chat("queued")) as queued:
            queued.read_until(b"role")
            os.killpg(strata.process.pid, signal.SIGTERM) if group else strata.process.send_signal(signal.SIGTERM)
            body = stream.rest()
            if not group:  # else the engine may be gone before the server knows that it is told to stop
                assert b"[DONE]" not in queued.rest()  # a clean end that says nothing
        assert strata.ended()[0] == 0
    assert re.search(rb'"finish_reason":"length".*\n\ndata: \[DONE\]\n\n$', body)


# ------------------------------------------------------------------------------------------------ container


def container_env(tmp_path: Path, **more: str) -> dict[str, str]:
    model = tmp_path / "pack.gguf"
    model.write_bytes(b"GGUF")
    knobs = {"STRATA_SIM_LOAD": "0", "STRATA_SIM_UNPIN": "0", "STRATA_SIM_DATA": str(tmp_path / "data")}
    return {"MODEL": str(model), **knobs, **more}


def served_context(tmp_path: Path, **env: str) -> int:
    port = int(env["PORT"])
    command = ["engines.strata.simulator.container", "--context", "ignored"]
    with spawned(command, port, tmp_path, container_env(tmp_path, **env)) as strata:
        return int(strata.get("/settings")["context"])


def test_a_container_runs_what_was_baked_first_until_it_is_reinstalled(tmp_path: Path) -> None:
    port = str(free_port())
    assert served_context(tmp_path, PORT=port, CONTEXT="1000") == 1000
    assert served_context(tmp_path, PORT=port, CONTEXT="2000") == 1000
    assert served_context(tmp_path, PORT=port, CONTEXT="2000", REINSTALL="1") == 2000
    assert (tmp_path / "data/config/strata-pack.json").is_file()


@pytest.mark.parametrize("env", [{"MODEL": ""}, {"CONTEXT": "many"}])
def test_a_container_with_a_bad_environment_ends_with_exit_1(tmp_path: Path, env: dict[str, str]) -> None:
    command = ["engines.strata.simulator.container"]
    with spawned(command, 0, tmp_path, container_env(tmp_path, **env), wait=False) as strata:
        code, errors = strata.ended()
    assert (code, errors[:7]) == (1, "error: ")


def test_every_knob_and_every_fault_is_in_the_documentation() -> None:
    documented = set(re.findall(r"^    ([a-z-]+)(?::[A-Z]+)?  ", package.__doc__ or "", re.MULTILINE))
    assert documented - {"knob"} == {field.name.replace("_", "-") for field in fields(Knobs)} | set(FAULTS)
