"""What the simulated engine still has of a conversation, and what that saves it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engines.ninfer_child import child

CHAT = "/v1/chat/completions"
LONG = "the quick brown fox jumps over the lazy dog " * 40  # 440 tokens
OTHER = "pack my box with five dozen liquor jugs " * 40


def turn(http: httpx.Client, *said: str) -> dict[str, Any]:
    """The answer's timings. What was said, in turns: user, assistant, user…"""
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(said)]
    body = {
        "model": "qwen3.8-27b",
        "messages": messages,
        "max_tokens": 8,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    answer = http.post(CHAT, json=body).json()
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == answer["timings"]["cache_n"]
    return {**answer["timings"], "said": answer["choices"][0]["message"]["content"]}


@pytest.fixture
def http(tmp_path: Path) -> Iterator[httpx.Client]:
    with child(tmp_path, prefill_tps=100_000) as engine, engine.client() as client:
        yield client


def test_the_next_turn_of_a_conversation_needs_a_prefill_for_what_is_new_alone(http: httpx.Client) -> None:
    first = turn(http, LONG)
    assert (first["cache_n"], first["prompt_n"]) == (0, 440)
    second = turn(http, LONG, first["said"], "go on")
    assert second["cache_n"] >= 440 + 8
    assert second["prompt_n"] < 8
    assert second["prompt_ms"] < first["prompt_ms"]


def test_another_conversation_takes_the_place_of_the_first(http: httpx.Client) -> None:
    said = turn(http, LONG)["said"]
    assert turn(http, OTHER)["cache_n"] == 0
    assert turn(http, LONG, said, "go on")["cache_n"] == 0


def test_what_was_changed_in_the_middle_counts_up_to_there(http: httpx.Client) -> None:
    turn(http, LONG)
    half = len(LONG) // 2
    assert abs(turn(http, LONG[:half] + OTHER)["cache_n"] - half // 4) <= 2


def test_the_same_prompt_again_computes_its_last_token_anew(http: httpx.Client) -> None:
    turn(http, LONG)
    assert turn(http, LONG)["prompt_n"] in (1, 2)


@pytest.mark.parametrize(("keeps", "cached"), [(0, False), (1, False), (2, True)])
def test_a_build_keeps_as_many_conversations_as_its_knob_says(tmp_path: Path, keeps: int, cached: bool) -> None:
    with child(tmp_path, prefill_tps=100_000, prefixes=keeps) as engine, engine.client() as http:
        said = turn(http, LONG)["said"]
        turn(http, OTHER)
        assert (turn(http, LONG, said, "go on")["cache_n"] > 440) == cached
