"""The Strata simulator while it serves: one engine for the module, ready at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from engines.strata.profile import PROFILE
from tests.engines.strata_sim import LIMIT, RawStream, Simulator, chat, started, until

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


@pytest.fixture(scope="module")
def strata(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulator]:
    with started(tmp_path_factory.mktemp("strata"), "--sim-keep-alive", "0.3") as simulator:
        yield simulator


def test_the_profiles_sign_and_probe_find_it_ready(strata: Simulator) -> None:
    assert PROFILE.sign is not None
    health = httpx.get(strata.url + PROFILE.sign.path)
    assert PROFILE.sign.judge(health.status_code, health.content)
    probe = PROFILE.probe("any", 4)
    answer = httpx.post(strata.url + probe.path, content=probe.body, timeout=LIMIT)
    assert probe.judge(answer.status_code, answer.content)


def test_a_whole_answer_is_the_same_every_time_and_names_the_engine(strata: Simulator) -> None:
    first, second = (strata.post(CHAT, chat(reasoning_effort="none")).json() for _ in range(2))
    message = first["choices"][0]["message"]
    assert message == second["choices"][0]["message"]
    assert message["content"].startswith("strata ")
    assert message["content"].endswith("end.")
    assert first["system_fingerprint"] == "strata-sim"
    assert (first["model"], first["choices"][0]["finish_reason"]) == ("any", "stop")


def test_with_nothing_set_it_thinks_and_every_way_to_say_less_is_understood(strata: Simulator) -> None:
    def thought(**more: Any) -> int:
        message = strata.post(CHAT, chat(sim_tokens=1, **more)).json()["choices"][0]["message"]
        return len(message.get("reasoning_content", "").split())

    assert thought() == 16
    assert thought(reasoning_effort="low") == 4
    assert thought(reasoning_effort="none") == 0
    assert thought(chat_template_kwargs={"enable_thinking": False}) == 0


def test_a_stream_opens_with_a_role_and_ends_with_finish_usage_and_done(strata: Simulator) -> None:
    with RawStream(
        strata, chat(sim_tokens=3, stream_options={"include_usage": True}, reasoning_effort="low")
    ) as stream:
        head, _, body = stream.rest().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200")
    assert b"Content-Length" not in head
    *events, done = [line.removeprefix(b"data: ") for line in body.split(b"\n\n") if line]
    assert done == b"[DONE]"
    first, *pieces, finish, usage = [json.loads(event) for event in events]
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert [next(iter(piece["choices"][0]["delta"])) for piece in pieces] == ["reasoning_content"] * 4 + ["content"] * 3
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert usage["usage"]["completion_tokens"] == 7


def test_the_openai_client_reads_its_stream(strata: Simulator) -> None:
    with openai.OpenAI(base_url=strata.url + "/v1", api_key="none", max_retries=0) as client:
        chunks = list(
            client.chat.completions.create(
                model="x", messages=[{"role": "user", "content": "hi"}], stream=True, max_tokens=20
            )
        )
    assert chunks[-1].choices[0].finish_reason == "length"


def test_the_anthropic_client_reads_its_stream_and_counts_tokens(strata: Simulator) -> None:
    with anthropic.Anthropic(base_url=strata.url, api_key="none", max_retries=0) as client:
        with client.messages.stream(model="x", max_tokens=100, messages=[{"role": "user", "content": "hi"}]) as stream:
            message = stream.get_final_message()
        counted = client.messages.count_tokens(model="x", messages=[{"role": "user", "content": "hi " * 40}])
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.stop_reason == "end_turn"
    assert counted.input_tokens > 10


def test_one_request_at_a_time_and_a_queued_stream_gets_its_role_and_then_silence(strata: Simulator) -> None:
    with RawStream(strata, chat(sim_tokens=100_000)) as running:
        running.read_until(b"reasoning_content")
        with RawStream(strata, chat("second")) as queued:
            queued.read_until(b'"role":"assistant"')
            assert queued.silent(1.0)  # three times the interval of keep-alives
            assert strata.get("/metrics")["queued"] == 1
            running.leave()
            assert b"[DONE]" in queued.rest()


def test_keep_alives_come_while_the_engine_is_silent_in_a_prefill(tmp_path: Path) -> None:
    with (
        started(tmp_path, "--sim-keep-alive", "0.2", "--sim-prefill", "10") as strata,
        RawStream(strata, chat("x" * 40_000)) as stream,
    ):
        stream.read_until(b": keep-alive\n\n: keep-alive\n\n")


def test_a_client_that_leaves_frees_the_engine(strata: Simulator) -> None:
    before = len(strata.events("cancelled"))
    with RawStream(strata, chat(sim_tokens=100_000)) as stream:
        stream.read_until(b"reasoning_content")
    until(lambda: len(strata.events("cancelled")) == before + 1)
    assert strata.post(CHAT, chat()).status_code == 200


def test_a_client_that_left_while_queued_still_takes_its_turn(strata: Simulator) -> None:
    with RawStream(strata, chat(sim_tokens=100_000)) as running:
        running.read_until(b"reasoning_content")
        with RawStream(strata, chat("ghost", sim_tokens=100_000)) as queued:
            queued.read_until(b"role")
        ghost = strata.events("received")[-1]["n"]
        assert ghost not in [event["n"] for event in strata.events("started")]
    until(lambda: ghost in [event["n"] for event in strata.events("cancelled")])
    assert ghost in [event["n"] for event in strata.events("started")]


def test_the_log_has_each_request_by_its_id_once(strata: Simulator) -> None:
    strata.post(CHAT, chat(), **{"X-Request-Id": "a-b-c"})
    for event in ("received", "started", "finished"):
        assert [line["id"] for line in strata.events(event)].count("a-b-c") == 1


@pytest.mark.parametrize("path", ["/health", "/v1/models"])
@pytest.mark.parametrize("header", [{"Host": "strata"}, {"Host": "strata:8095"}, {"Origin": "http://localhost"}])
def test_without_a_key_an_unknown_host_or_an_origin_is_refused(
    strata: Simulator, path: str, header: dict[str, str]
) -> None:
    assert httpx.get(strata.url + path, headers=header).status_code == 403
    assert httpx.get(strata.url + path).status_code == 200


def test_a_chunked_body_is_refused(strata: Simulator) -> None:
    answer = httpx.post(strata.url + CHAT, content=iter([json.dumps(chat()).encode()]))
    assert answer.status_code == 400
    assert "Content-Length" in answer.json()["error"]["message"]


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", b'{"messages": [], "max_tokens": 0}'])
def test_a_bad_body_is_refused(strata: Simulator, body: bytes) -> None:
    assert httpx.post(strata.url + CHAT, content=body).status_code == 400


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings", "/v1/responses", "/nowhere"])
def test_it_has_no_other_routes(strata: Simulator, path: str) -> None:
    assert strata.post(path, chat()).status_code == 404


def test_its_metrics_are_json_and_its_settings_can_be_changed_by_anyone(strata: Simulator) -> None:
    assert strata.get("/metrics")["requests"] >= 0
    assert strata.post("/settings", {"reasoning_effort": "none"}).json()["reasoning_effort"] == "none"
    assert "reasoning_content" not in strata.post(CHAT, chat()).json()["choices"][0]["message"]
    strata.post("/settings", {"reasoning_effort": "high"})


def test_with_a_key_only_its_owner_is_served_but_health_is_for_all(tmp_path: Path) -> None:
    with started(tmp_path, config={"api_key": "secret"}) as strata:
        assert strata.get("/health")["loaded"] is True
        assert strata.post(CHAT, chat()).status_code == 401
        assert strata.post(CHAT, chat(), Authorization="Bearer secret", Origin="http://x").status_code == 200
        assert strata.post(MESSAGES, chat(), **{"x-api-key": "secret"}).status_code == 200
        assert "secret" not in httpx.get(strata.url + "/settings", headers={"x-api-key": "secret"}).text
