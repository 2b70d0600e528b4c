"""The fields of a JSON object, found a slice at a time: the same as the decoder finds, however it is cut."""

from __future__ import annotations

import json
import time
import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotproxy import scan
from slotproxy.payload import Payload
from slotproxy.scan import DEEPEST, MOST_FIELDS, Scan

Found = dict[str, bytes] | None

SCALARS = (
    "0",
    "-1.5e3",
    "12345678",
    "true",
    "false",
    "null",
    '""',
    '"[{,:"',
    r'"a\"b\\"',
    r'"\\"',
    r'"\u12aB\n"',
    '"ж"',
)
NAMES = ('""', '"a"', r'"\\k\""', '"k:,["', r'"\u0041"')
GAPS = ("", "", "", " ", "\n\t")
SPOILT = ("{", "}", "[", "]", ",", ":", '"', "\\", " ", "0", "e", "u", "\x01", "x")


def spaced(part: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(st.sampled_from(GAPS), part, st.sampled_from(GAPS)).map("".join)


def listed(open: str, parts: st.SearchStrategy[str], close: str) -> st.SearchStrategy[str]:
    return st.lists(spaced(parts), max_size=5).map(lambda inner: open + ",".join(inner) + close)


def members(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(spaced(st.sampled_from(NAMES)), spaced(values)).map(":".join)


long_texts = st.integers(0, 150).map(lambda length: '"' + "x" * length + '"')
values = st.recursive(
    st.sampled_from(SCALARS) | long_texts,
    lambda inner: listed("[", inner, "]") | listed("{", members(inner), "}"),
    max_leaves=20,
)
objects = spaced(listed("{", members(values), "}"))


@st.composite
def spoilt(draw: st.DrawFn) -> str:
    """One that somebody has changed a little, or cut off."""
    text = draw(objects)
    at = draw(st.integers(0, len(text)))
    return text[:at] + draw(st.sampled_from(SPOILT) | st.just("")) + text[at + draw(st.sampled_from((0, 1, 1000))) :]


def decoded(raw: bytes) -> Found:
    """What the decoder finds in one go."""
    try:
        fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return None
    return {name: bytes(value) for name, value in fields.items()}


def scanned(raw: bytes, piece: int = 1 << 20) -> Found:
    """What a scan finds of a body that comes in such pieces."""
    seen, body = Scan(), bytearray()
    for at in range(0, len(raw), piece):
        body += raw[at : at + piece]
        while seen.advance(body):
            pass
    fields = seen.fields(body)
    return None if fields is None else {name: bytes(value) for name, value in fields.items()}


@pytest.fixture
def tiny_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each body has many, and none is taken at once."""
    monkeypatch.setattr(scan, "SLICE", 40)
    monkeypatch.setattr(scan, "_at_once", lambda _: None)


@pytest.mark.usefixtures("tiny_slices")
class TestSlices:
    @given(objects | spoilt(), st.sampled_from((1, 7, 1000)))
    def test_of_every_body_the_same_is_found_as_by_the_decoder(self, text: str, piece: int) -> None:
        raw = text.encode()
        assert scanned(raw, piece) == decoded(raw)

    @pytest.mark.parametrize(
        "odd", [r"\u12ab", r"\\", r"\"", r"\\\"", r"\\\\", "é", "€", "😀", '",', '":', '","b":["', '"]', '"}', '\\"}']
    )
    def test_a_slice_may_end_anywhere(self, odd: str) -> None:
        for frame in ('{"a":"%s"}', '{"a":["%s"]}', '{"a":{"%s":1}}', '{"a":[{"b":"%s"},0]}', '{"a":{"%s'):
            for length in range(25, 75):
                raw = frame.replace("%s", "x" * length + odd).encode()
                assert scanned(raw) == decoded(raw), raw

    @pytest.mark.parametrize("half", [r"\ud83d", r"\uDE00", r"\ud83d\u0041", r"\ud83d\\ud83d", r"\ud83dx"])
    def test_half_a_surrogate_pair_is_text_and_keeps_its_bytes(self, half: str) -> None:
        for length in range(60):
            text = '["' + "x" * length + half + '"]'
            raw = b'{"model":"m","input":%b}' % text.encode()
            assert scanned(raw) == {"model": b'"m"', "input": text.encode()}
            assert b"".join(Payload.parse(raw).changed("n", {})) == raw.replace(b'"m"', b'"n"')

    @pytest.mark.parametrize("bad", [r"\ud83", r"\ud8_0", r"\\\ud8z0", "\\ud83d\x01", r"\x"])
    def test_a_broken_escape_is_none(self, bad: str) -> None:
        for length in range(60):
            assert scanned(b'{"input":["' + b"x" * length + bad.encode() + b'"]}') is None

    @pytest.mark.parametrize("bad", ["01", "1.", "tru", "+1", "-", "NaN", "1e", "0x1", "truefalse", "1 2", ""])
    def test_what_is_no_value_is_none(self, bad: str) -> None:
        for frame in ('{"a":%s}', '{"a":[%s]}', '{"a":{"b":%s},"c":0}'):
            assert scanned((" " * 9 + frame % bad).encode()) == ({"a": b"[]"} if frame % bad == '{"a":[]}' else None)

    def test_one_byte_order_mark_may_stand_before_it(self) -> None:
        mark, rest = b"\xef\xbb\xbf", b' {"a":1, "b":"' + b"x" * 50 + b'"}'
        assert scanned(rest) is not None
        assert scanned(mark + rest) == scanned(rest)
        assert Payload.parse(mark + rest).changed(None, {}) == [mark + rest]
        changed = b"".join(Payload.parse(mark + b'{"model":"m"}').changed("n", {}))
        assert changed == b'{"model":"n"}'
        for wrong in (mark * 2 + rest, b" " + mark + rest, mark[:2] + rest, mark):
            assert scanned(wrong) is None

    def test_what_lies_behind_is_refused_too(self) -> None:
        for rest in (b"x", b"}", b"{}", b",", b'"', b"\0"):
            assert scanned(b'{"a":"' + b"x" * 50 + b'"}' + b" " * 50 + rest) is None


def test_a_field_with_half_a_surrogate_pair_in_its_name_goes_through_a_change() -> None:
    raw = rb'{"\ud83d":1,"gr\u00f6\u00dfe":2,"model":"m"}'
    changed = b"".join(Payload.parse(raw).changed("n", {}))
    assert json.loads(changed) == {"\ud83d": 1, "größe": 2, "model": "n"}


def test_so_many_fields_and_no_more() -> None:
    for size in (1, 100):  # small enough to be decoded at once, and not
        fields = [b'"%d":"%b"' % (n, b"x" * size) for n in range(MOST_FIELDS + 1)]
        assert scanned(b"{%b}" % b",".join(fields[:MOST_FIELDS])) is not None
        assert scanned(b"{%b}" % b",".join(fields)) is None


def test_what_is_nested_too_deep_is_none() -> None:
    padding = b'"%b"' % (b"x" * scan.SLICE)
    for depth, readable in ((DEEPEST - 1, True), (DEEPEST + 9, False), (1_000_000, False)):
        raw = b'{"a":%b%b%b}' % (b"[" * depth, padding, b"]" * depth)
        assert (scanned(raw) is not None) == readable, depth


@pytest.mark.parametrize("endless", [b" ", b"1", b"[", b"{", b"]", b'"', b"\\", b",", b'"a":', b"x"])
def test_what_never_ends_costs_one_look_at_each_byte(endless: bytes) -> None:
    """Looking at all of it again with each piece would take minutes."""
    assert scanned(b'{"a":[' + endless * ((4 << 20) // len(endless)), piece=4096) is None


@pytest.mark.parametrize(
    "part", [b"0," + b" " * 65_000, b'"%b",' % (b"x" * 65_530), b"[" + b" " * 40_000 + b"],", b"7,"]
)
def test_every_two_steps_take_a_slice(part: bytes) -> None:
    raw = b'{"a":[' + part * ((2 << 20) // len(part)) + b"0]}"
    seen, steps = Scan(), 1
    while seen.advance(raw):
        steps += 1
    assert seen.fields(raw) is not None
    assert steps < 2 * len(raw) / scan.SLICE + 5


def test_a_large_body_is_scanned_without_a_copy_of_it() -> None:
    raw = bytearray(b'{"model":"m","image":["' + b"A" * (8 << 20) + b'"]}')
    tracemalloc.start()
    try:
        fields = Scan().fields(raw)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert fields
    assert memoryview(fields["image"]).nbytes > 8 << 20
    assert peak < 16 * scan.SLICE


@pytest.mark.parametrize("field", [b'"a":[]', b'"a":""', b'"a":{}'])
def test_many_small_fields_cost_little_wherever_they_stand(field: bytes) -> None:
    """As many looks at a whole slice would take half a minute, and nobody else would have a turn."""
    distinct = [field.replace(b"a", b"a%d" % number) for number in range(scan.MOST_FIELDS - 1)]
    for fields in ([field] * 20_000, [*distinct, b'"z":["%b"]' % (b"x" * 2 * scan.SLICE)]):
        raw, one = b"{%b}" % b",".join(fields), scan.Scan()
        began = time.process_time()
        while one.advance(raw):
            pass
        found = one.fields(raw)
        assert time.process_time() - began < 2.0
        assert (found is None) == (len(fields) > scan.MOST_FIELDS)
