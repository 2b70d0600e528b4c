"""A body of which only the top level is read, and no more is changed than must be."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_a_default_never_replaces_what_the_client_set_not_even_by_null() -> None:
    raw = b'{"temperature":null,"top_p":0.0,"stop":["a"],"think":true,"format":"x"}'
    defaults = {"temperature": 0, "top_p": 1, "stop": ["b", "c"], "think": {"on": False}, "format": {"a": 1}}
    assert sent(raw, None, **defaults) == raw
    assert sent(raw, None, **defaults, n=1) == raw[:-1] + b',"n":1}'


def test_an_object_that_the_client_sent_is_completed_by_the_defaults_at_every_level() -> None:
    defaults: dict[str, Any] = {"kwargs": {"think": False, "a": {"x": 1, "y": {"z": [1]}}, "b": {}}}
    raw = b'{"kwargs": { "foo" : 1e3,"a":{"x" :null, "big": 9007199254740993 } },"m":[ 1 ]}'
    assert sent(raw, None, **defaults) == (
        b'{"kwargs":{"foo":1e3,"a":{"x":null,"big":9007199254740993,"y":{"z":[1]}},"think":false,"b":{}},"m":[ 1 ]}'
    )


@pytest.mark.parametrize("said", [b'{"a": { "x":1 , "x":2, "z" : [ ] }}', b'{"a": []}', b'{"a":null}', b'{"a":"{}"}'])
def test_an_object_that_lacks_nothing_keeps_its_bytes(said: bytes) -> None:
    assert Payload.parse(said).changed(None, {"a": {"x": 5, "z": [1]}}) == [said]


def test_an_object_is_read_only_where_a_default_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = Payload.parse(b'{"a":{"b":{"c":1}},"d":{"e":1},"f":{}}')
    read: list[bytes] = []
    parse = Payload.parse

    def counted(raw: Any) -> Payload:
        read.append(bytes(raw))
        return parse(raw)

    monkeypatch.setattr(Payload, "parse", counted)
    payload.changed("m", {"a": {"b": 1, "n": 2}, "d": 5, "x": {"y": 1}})
    assert read == [b'{"b":{"c":1}}']


def test_what_is_pinned_is_set_whatever_the_client_set() -> None:
    for said in (b'{"id_slot":3}', b'{"id_slot":null}', b'{"id_slot":{"a":1}}', b"{}", b'{"id_slot":1,"id_slot":2}'):
        assert b"".join(Payload.parse(said).changed(None, {}, {"id_slot": 0})) == b'{"id_slot":0}'
    same = b'{ "id_slot" : 0 }'
    assert Payload.parse(same).changed(None, {"id_slot": 7}, {"id_slot": 0}) == [same]


LEAF = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=2))
NAMES = st.sampled_from(["a", "b", "ü", "model"])
TREE = st.recursive(LEAF, lambda inner: st.dictionaries(NAMES, inner, max_size=3), max_leaves=12)


def completed(said: Any, default: Any) -> Any:
    """What the client said wins at every level; only objects are merged."""
    if not isinstance(said, dict) or not isinstance(default, dict):
        return said
    return {
        **default,
        **{key: completed(value, default[key]) if key in default else value for key, value in said.items()},
    }


@given(st.dictionaries(NAMES, TREE, max_size=3), st.dictionaries(NAMES, TREE, max_size=3), st.booleans())
def test_any_body_is_completed_by_any_defaults(said: Any, defaults: Any, spaced: bool) -> None:
    raw = json.dumps(said, ensure_ascii=spaced, indent=1 if spaced else None).encode()
    changed = b"".join(Payload.parse(raw).changed(None, defaults))
    assert json.loads(changed) == completed(said, defaults)
    assert completed(said, defaults) != said or changed == raw


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
