"""NInfer's profile: what it takes for ready, and which words of a command line are artifacts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engines.ninfer.profile import PROFILE
from engines.ninfer.sample import write_artifact
from engines.spec import Api, Settling
from tests.engines.ninfer_child import MODEL, child


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["ninfer-serve", "/models/a.ninfer", "--port", "8095"], ("/models/a.ninfer",)),
        (["ninfer-serve", "--model", "/models/a.ninfer", "--kv-dtype", "fp8"], ("/models/a.ninfer",)),
        (["--port", "1", "--model=/models/a.ninfer"], ("/models/a.ninfer",)),
        (["x", "/my models/a.ninfer"], ("/my models/a.ninfer",)),
        (["/m/a.ninfer.part-0001", "/m/a.ninfer"], ("/m/a.ninfer.part-0001", "/m/a.ninfer")),
        (["/m/a.ninfer", "--model", "/m/a.ninfer"], ("/m/a.ninfer",)),
        (["sh", "-c", "exec ninfer-serve /m/a.ninfer --host 0.0.0.0"], ("/m/a.ninfer",)),
        (["bash", "-lc", "ninfer-serve --model='/m/a b.ninfer'"], ("/m/a b.ninfer",)),
        (["sh", "-c", "ninfer-serve /m/a.ninfer 'oops"], ("/m/a.ninfer",)),
        (["ninfer-serve", "/m/a.ninfer.bak", "/m/ninfer", "--spec", "mtp"], ()),
        ([], ()),
    ],
)
def test_artifacts_are_found_by_their_ending(command: list[str], expected: tuple[str, ...]) -> None:
    assert PROFILE.artifacts(command, {}) == expected


def test_the_probe_is_a_tiny_chat_completion() -> None:
    probe = PROFILE.probe(MODEL, 3)
    body = json.loads(probe.body)
    assert probe.path == "/v1/chat/completions"
    assert (body["model"], body["max_tokens"], body["temperature"]) == (MODEL, 3, 0)
    assert not body.get("stream")


def test_the_facts_are_those_of_the_engine(tmp_path: Path) -> None:
    assert (PROFILE.name, PROFILE.default_port, PROFILE.concurrency) == ("ninfer", 8080, 1)
    assert PROFILE.settling is Settling.COMPLETION
    assert (PROFILE.stop_grace, PROFILE.start_deadline) == (60.0, 600.0)
    assert PROFILE.reads_label == "slotproxy.ninfer.reads"
    assert dict(PROFILE.client_paths) == {
        "/v1/chat/completions": Api.CHAT,
        "/v1/responses": Api.RESPONSES,
        "/v1/messages": Api.MESSAGES,
        "/v1/messages/count_tokens": Api.COUNT_TOKENS,
    }
    write_artifact(tmp_path / "a.ninfer", 3)
    assert PROFILE.read_artifact is not None
    assert PROFILE.read_artifact(tmp_path / "a.ninfer").version == 3


def test_sign_and_probe_tell_a_working_engine_from_a_useless_one(tmp_path: Path) -> None:
    assert PROFILE.sign is not None
    probe = PROFILE.probe(MODEL, 4)
    with child(tmp_path, fail_after_requests=1) as engine, engine.client() as http:
        health, answer = http.get(PROFILE.sign.path), http.post(probe.path, content=probe.body)
        assert PROFILE.sign.judge(health.status_code, health.content)
        assert probe.judge(answer.status_code, answer.content)
        health, answer = http.get(PROFILE.sign.path), http.post(probe.path, content=probe.body)
        assert not PROFILE.sign.judge(health.status_code, health.content)
        assert not probe.judge(answer.status_code, answer.content)


def test_the_probe_decides_where_an_older_build_calls_itself_healthy(tmp_path: Path) -> None:
    assert PROFILE.sign is not None
    probe = PROFILE.probe(MODEL, 4)
    with child(tmp_path, fail_after_requests=0, lying_health=1) as engine, engine.client() as http:
        health, answer = http.get(PROFILE.sign.path), http.post(probe.path, content=probe.body)
        assert PROFILE.sign.judge(health.status_code, health.content)
        assert not probe.judge(answer.status_code, answer.content)
