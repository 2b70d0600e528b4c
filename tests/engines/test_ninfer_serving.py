"""NInfer's simulator while it serves: its routes, its queue, its streams, and what it does to clients that leave."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from engines.ninfer.simulator import words
from tests.engines.ninfer_child import MODEL, PATIENCE, Child, ask, child

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """One that nothing happens to."""
    with child(tmp_path_factory.mktemp("ninfer"), decode_ms=1) as running:
        yield running


@pytest.fixture
def http(engine: Child) -> Iterator[httpx.Client]:
    with engine.client() as client:
        yield client


def datas(text: str) -> list[Any]:
    """What an SSE body says, event by event."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def stream(port: int, path: str, body: dict[str, Any]) -> socket.socket:
    """A streaming request on a socket of its own, which the test closes when it likes."""
    raw = json.dumps(body).encode()
    sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
    sock.sendall(head.encode() + raw)
    return sock


# --------------------------------------------------------------------------------------- protocols


def test_a_chat_is_answered_with_known_words_and_names_the_engine(http: httpx.Client) -> None:
    answer = http.post(CHAT, json=ask(max_tokens=14, chat_template_kwargs={"enable_thinking": False})).json()
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "".join(words(14))}
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["system_fingerprint"] == "ninfer-sim"
    assert answer["usage"]["completion_tokens"] == 14
    assert {"cache_n", "prompt_n", "predicted_n", "predicted_per_second"} <= answer["timings"].keys()


def test_without_max_tokens_it_stops_by_itself_and_thinks_unless_told_not_to(http: httpx.Client) -> None:
    choice = http.post(CHAT, json=ask()).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["reasoning_content"] == "".join(words(4))
    assert choice["message"]["content"] == "".join(words(32)[4:])


def test_a_chat_stream_is_role_deltas_finish_usage_done(http: httpx.Client) -> None:
    answer = http.post(CHAT, json=ask(stream=True, max_tokens=14, stream_options={"include_usage": True}))
    *chunks, finish, usage, done = datas(answer.text)
    assert answer.headers["content-type"] == "text/event-stream"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[1:]]
    assert [delta.get("reasoning_content", "") for delta in deltas[:4]] == ["one ", "card ", "moves ", ""]
    assert "".join(delta.get("content", "") for delta in deltas) == "".join(words(14)[3:])
    assert finish["choices"][0]["finish_reason"] == "length"
    assert finish["timings"]["predicted_n"] == 14
    assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], 15)
    assert done == "[DONE]"
    assert "🚚".encode() in answer.content


def test_openais_own_client_understands_it(engine: Child) -> None:
    with openai.OpenAI(base_url=f"{engine.url}/v1", api_key="any", max_retries=0) as client:
        chunks = list(client.chat.completions.create(**ask(stream=True, max_tokens=3)))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "".join(words(3))
        with client.responses.stream(model=MODEL, input="hi", max_output_tokens=3) as events:
            final = events.get_final_response()
        assert (final.status, final.output_text) == ("completed", "".join(words(3)))
        assert [model.id for model in client.models.list()] == [MODEL]


def test_anthropics_own_client_understands_it(engine: Child) -> None:
    say: Any = {"model": "any label", "messages": [{"role": "user", "content": "hi"}]}
    with anthropic.Anthropic(base_url=engine.url, api_key="any", max_retries=0) as client:
        with client.messages.stream(
            max_tokens=16, thinking={"type": "enabled", "budget_tokens": 1024}, **say
        ) as events:
            final = events.get_final_message()
        assert [block.type for block in final.content] == ["thinking", "text"]
        assert final.stop_reason == "max_tokens"
        assert client.messages.create(max_tokens=3, **say).usage.output_tokens == 3
        assert client.messages.count_tokens(**say).input_tokens == 1


def test_a_response_can_follow_another_of_the_same_process_only(http: httpx.Client) -> None:
    first = http.post(RESPONSES, json={"model": MODEL, "input": "x" * 400}).json()
    second = http.post(RESPONSES, json={"model": MODEL, "input": "y", "previous_response_id": first["id"]}).json()
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    lost = http.post(RESPONSES, json={"model": MODEL, "input": "y", "previous_response_id": "resp_of-another"})
    assert (lost.status_code, lost.json()["error"]["code"]) == (400, "previous_response_not_found")


def test_streams_of_each_protocol_end_with_its_own_mark(http: httpx.Client) -> None:
    messages = http.post(MESSAGES, json=ask(stream=True, max_tokens=2)).text
    responses = http.post(RESPONSES, json={"model": MODEL, "input": "hi", "stream": True, "max_output_tokens": 2}).text
    assert datas(messages)[-1] == {"type": "message_stop"}
    assert datas(responses)[-1]["type"] == "response.completed"
    assert [event["sequence_number"] for event in datas(responses)] == list(range(len(datas(responses))))


@pytest.mark.parametrize(
    ("route", "body", "status", "code"),
    [
        ("POST " + CHAT, ask() | {"model": "other"}, 404, "model_not_found"),
        ("POST " + RESPONSES, {"model": "other", "input": "x"}, 404, "model_not_found"),
        ("GET /v1/models/other", None, 404, "model_not_found"),
        ("POST /v1/completions", ask(), 404, "not_found"),
        ("POST /v1/embeddings", ask(), 404, "not_found"),
        ("GET /metrics", None, 404, "not_found"),
        ("POST " + CHAT, [], 400, "invalid_request"),
        ("POST " + CHAT, {"model": MODEL}, 400, "invalid_request"),
        ("POST " + CHAT, ask(max_tokens=-1), 400, "invalid_request"),
        ("POST " + CHAT, ask("x" * 40_000), 400, "invalid_request"),  # more than --max-context
    ],
)
def test_what_it_does_not_serve(http: httpx.Client, route: str, body: object, status: int, code: str) -> None:
    answer = http.request(*route.split(), json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_bodies_may_be_chunked_or_broken_or_too_large(http: httpx.Client, tmp_path: Path) -> None:
    raw = json.dumps(ask(max_tokens=1)).encode()
    assert http.post(CHAT, content=iter([raw[:9], raw[9:]])).status_code == 200
    assert http.post(CHAT, content=b"{").status_code == 400
    with child(tmp_path, ["--max-request-mib", "1"]) as small, small.client() as other:
        assert other.post(CHAT, content=iter([b"x" * 600_000] * 2)).status_code == 413


def test_the_key_opens_all_but_health(tmp_path: Path) -> None:
    with child(tmp_path, ["--api-key", "secret", "--model-id", "mine"]) as engine, engine.client() as http:
        assert http.get("/health").status_code == 200
        assert http.get("/v1/models").json()["error"]["code"] == "invalid_api_key"
        assert http.get("/v1/models", headers={"Authorization": "Bearer secret"}).json()["data"][0]["id"] == "mine"
        assert http.post(MESSAGES, json=ask()).json()["error"]["type"] == "authentication_error"
        assert http.post(MESSAGES, json=ask(), headers={"x-api-key": "secret"}).status_code == 200


def test_the_request_log_tells_who_was_received_and_how_it_ended(engine: Child, http: httpx.Client) -> None:
    before = len(engine.log("over"))
    http.post(CHAT, json=ask(max_tokens=3), headers={"X-Request-Id": "r-1"})
    over = engine.wait_log("over", before + 1)[-1]
    received = [line for line in engine.log() if line["request_id"] == "r-1"]
    assert len(received) == 1
    assert (over["number"], over["how"], over["tokens"]) == (received[0]["number"], "done", 3)


# --------------------------------------------------------------------------------------- connections


def test_eight_idle_connections_delay_the_ninth_by_their_keep_alive(engine: Child) -> None:
    idle = [engine.client() for _ in range(8)]
    start = time.monotonic()
    try:
        for client in idle:
            client.get("/health")
        with engine.client() as ninth:
            assert ninth.get("/health", timeout=PATIENCE).status_code == 200
        assert time.monotonic() - start > 4.9
    finally:
        for client in idle:
            client.close()


def test_a_connection_is_closed_after_its_hundredth_request(engine: Child) -> None:
    with engine.client() as http:
        answers = [http.get("/health").headers.get("connection") for _ in range(100)]
    assert answers == [None] * 99 + ["close"]


# --------------------------------------------------------------------------------------- the queue


def test_one_request_runs_at_a_time_in_their_order(tmp_path: Path) -> None:
    with child(tmp_path, decode_ms=10) as engine, engine.client() as http, ThreadPoolExecutor(3) as pool:
        waiting = []
        for number in range(3):
            headers = {"X-Request-Id": str(number)}
            waiting.append(pool.submit(http.post, CHAT, json=ask(max_tokens=20), headers=headers))
            engine.wait_log("received", number + 1)
        assert [one.result().status_code for one in waiting] == [200] * 3
        over = engine.wait_log("over", 3)
        assert [line["number"] for line in over] == [1, 2, 3]
        gaps = [later["time"] - sooner["time"] for sooner, later in itertools.pairwise(over)]
        assert min(gaps) > 0.15


@pytest.mark.parametrize(("path", "status", "word"), [(CHAT, 429, "server_overloaded"), (MESSAGES, 529, "overloaded")])
def test_a_full_queue_refuses_at_once(tmp_path: Path, path: str, status: int, word: str) -> None:
    flags = ["--max-pending-requests", "0"]
    with (
        child(tmp_path, flags) as engine,
        engine.client() as http,
        stream(engine.port, CHAT, ask(stream=True, max_tokens=100_000)),
    ):
        engine.wait_log("received", 1)
        answer = http.post(path, json=ask(stream=True))
        assert answer.status_code == status
        assert word in answer.text


@pytest.mark.parametrize(("path", "status", "word"), [(CHAT, 503, "request_queue_timeout"), (MESSAGES, 504, "timeout")])
def test_who_waits_too_long_is_refused_but_a_stream_ends_clean_and_empty(
    tmp_path: Path, path: str, status: int, word: str
) -> None:
    with (
        child(tmp_path, ["--pending-timeout-ms", "300"]) as engine,
        engine.client() as http,
        stream(engine.port, CHAT, ask(stream=True, max_tokens=100_000)),
    ):
        engine.wait_log("received", 1)
        plain = http.post(path, json=ask())
        streamed = http.post(path, json=ask(stream=True))
    assert plain.status_code == status
    assert word in plain.text
    assert (streamed.status_code, streamed.text) == (200, "")


def test_a_client_that_leaves_the_queue_takes_no_turn(tmp_path: Path) -> None:
    with child(tmp_path) as engine:
        first = stream(engine.port, CHAT, ask(stream=True, max_tokens=100_000))
        engine.wait_log("received", 1)
        stream(engine.port, CHAT, ask(stream=True)).close()
        over = engine.wait_log("over", 1)
        assert [(line["number"], line["how"], line["tokens"]) for line in over] == [(2, "cancelled", 0)]
        first.close()


# --------------------------------------------------------------------------------------- prefill and decode


def test_nothing_is_sent_in_a_prefill_and_a_client_that_leaves_does_not_free_the_engine(tmp_path: Path) -> None:
    long = ask("x" * 600, stream=True)  # 150 tokens: three seconds
    with child(tmp_path, prefill_tps=50, keepalive_s=0.2) as engine, engine.client() as http:
        leaving = stream(engine.port, CHAT, long)
        engine.wait_log("received", 1)
        assert leaving.recv(65536).endswith(b"\r\n\r\n")
        leaving.settimeout(0.6)
        with pytest.raises(TimeoutError):
            leaving.recv(1)
        leaving.close()
        assert http.post(CHAT, json=ask(max_tokens=1)).status_code == 200
        first, second = engine.wait_log("over", 2)
        assert (first["number"], first["how"], first["tokens"]) == (1, "cancelled", 0)
        assert first["time"] - engine.log()[0]["time"] > 2.9
        assert second["how"] == "done"


@pytest.mark.parametrize("leave", ["close", "half close"])
def test_a_client_that_leaves_while_tokens_come_frees_the_engine(tmp_path: Path, leave: str) -> None:
    with child(tmp_path, decode_ms=20) as engine, engine.client() as http:
        with stream(engine.port, CHAT, ask(stream=True, max_tokens=100_000)) as leaving:
            while b"card" not in leaving.recv(65536):
                pass
            leaving.shutdown(socket.SHUT_WR) if leave == "half close" else leaving.close()
            assert http.post(CHAT, json=ask(max_tokens=1)).status_code == 200
        assert [line["how"] for line in engine.wait_log("over", 2)] == ["cancelled", "done"]


def test_a_silent_stream_is_kept_alive(tmp_path: Path) -> None:
    with child(tmp_path, decode_ms=400, keepalive_s=0.1) as engine, engine.client() as http:
        text = http.post(CHAT, json=ask(stream=True, max_tokens=2)).text
    assert text.count(": keep-alive\n\n") >= 2
    assert datas(text)[-1] == "[DONE]"


# --------------------------------------------------------------------------------------- faults


def test_an_error_in_a_stream_is_an_event_and_no_done_follows(tmp_path: Path) -> None:
    with child(tmp_path, error_after_tokens=3) as engine, engine.client() as http:
        chat = datas(http.post(CHAT, json=ask(stream=True)).text)
        messages = datas(http.post(MESSAGES, json=ask(stream=True)).text)
        responses = datas(http.post(RESPONSES, json={"model": MODEL, "input": "x", "stream": True}).text)
        assert http.post(CHAT, json=ask()).status_code == 500
        assert http.post(CHAT, json=ask(max_tokens=3)).status_code == 200
    assert chat[-1]["error"]["type"] == "server_error"
    assert messages[-1]["type"] == "error"
    assert responses[-1]["type"] == "response.failed"


def test_it_can_die_in_the_middle_of_a_stream(tmp_path: Path) -> None:
    with child(tmp_path, crash_after_tokens=3) as engine, engine.client() as http:
        with pytest.raises(httpx.HTTPError):
            http.post(CHAT, json=ask(stream=True))
        assert engine.wait_exit() == 134


def test_it_can_fall_silent_in_the_middle_until_the_client_leaves(tmp_path: Path) -> None:
    with child(tmp_path, hang_after_tokens=3, keepalive_s=0.1) as engine, engine.client() as http:
        with pytest.raises(httpx.ReadTimeout):
            http.post(CHAT, json=ask(stream=True), timeout=1.0)
        assert http.post(CHAT, json=ask(max_tokens=3)).status_code == 200
        assert engine.wait_log("over", 2)[0]["tokens"] == 3


def test_after_an_engine_wide_failure_only_a_restart_helps(tmp_path: Path) -> None:
    with child(tmp_path, fail_after_requests=2) as engine, engine.client() as http:
        answers = [http.post(CHAT, json=ask(max_tokens=1)) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 503, 503]
        assert answers[-1].json()["error"]["code"] == "unavailable"
        assert http.get("/health").status_code == 503
        assert engine.process.poll() is None


def test_eight_busy_streams_hide_even_its_health(tmp_path: Path) -> None:
    with child(tmp_path) as engine:
        busy = [stream(engine.port, CHAT, ask(stream=True, max_tokens=100_000)) for _ in range(8)]
        engine.wait_log("received", 8)
        start = time.monotonic()
        timer = threading.Timer(0.8, busy[0].close)
        timer.start()
        with engine.client() as http:
            assert http.get("/health").status_code == 200
        assert time.monotonic() - start > 0.75
        timer.join()
        for one in busy:
            one.close()
