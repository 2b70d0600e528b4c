"""A body of which only the top level is read, and no more is changed than must be."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from slotproxy.payload import Payload
from slotproxy.protocols import ApiError


def sent(raw: bytes, model: str | None, **defaults: Any) -> bytes:
    return b"".join(Payload.parse(raw).changed(model, defaults))


def test_a_body_that_needs_no_change_keeps_its_bytes() -> None:
    for raw in (b' {"model": "m", "model":\t"m"} ', b"\xff\xfe", b"", b"[1]", b'{"stream":true}'):
        assert Payload.parse(raw).changed(None, {}) == [raw]
    assert b"".join(Payload.parse(b'{"model" :"m"}').changed("m", {"model": "x"})) == b'{"model" :"m"}'


def test_a_changed_body_keeps_the_bytes_of_all_other_values() -> None:
    nested = b'[ {"role":"user","content":"\\u20ac \xe2\x82\xac","n":1.0,"big":123456789012345678901234567890} ]'
    changed = sent(b'{"messages": ' + nested + b', "model":"m", "seed": 1e3}', "mm", top_k=5)
    assert nested in changed
    assert b":1e3" in changed
    assert json.loads(changed)["model"] == "mm"
    assert json.loads(changed)["top_k"] == 5


def test_of_a_duplicate_key_the_last_value_stays_when_the_body_is_changed() -> None:
    twice = b'{"model":"a","n":1,"model":"b","n":2}'
    assert Payload.parse(twice).model == "b"
    assert sent(twice, "c") == b'{"model":"c","n":2}'


def test_a_default_never_replaces_what_the_client_set_not_even_by_null_or_in_part() -> None:
    changed = sent(b'{"temperature":null,"think":{"a":1}}', None, temperature=0, think={"on": False}, n=1)
    assert changed == b'{"temperature":null,"think":{"a":1},"n":1}'


@pytest.mark.parametrize("raw", [b"", b"hello", b"[1]", b'{"a":1', b"[" * 100_000, b'{"a":' + b"[" * 100_000])
def test_what_is_no_json_object_is_told_when_something_must_change(raw: bytes) -> None:
    payload = Payload.parse(raw)
    assert payload.model is None
    assert payload.streams is False
    with pytest.raises(ApiError) as refused:
        payload.changed(None, {"n": 1})
    assert refused.value.status == 400


def test_a_model_that_is_no_string_is_told() -> None:
    with pytest.raises(ApiError) as refused:
        _ = Payload.parse(b'{"model": 5}').model
    assert refused.value.status == 400


def test_a_large_body_is_changed_without_a_copy_of_it() -> None:
    raw = b'{"model":"m","image":"' + b"A" * (8 << 20) + b'"}'
    tracemalloc.start()
    try:
        changed = Payload.parse(raw).changed("n", {})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(b"".join(changed)) == len(raw)
    assert peak < len(raw) / 8
