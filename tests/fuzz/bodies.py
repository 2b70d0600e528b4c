"""Requests' bodies at random through the proxy, on real sockets: only what must be changed is changed.

The engine calls the model something else, and the slot has defaults, one of them inside an object of the client's own.
What the engine gets is taken apart by the tokenizer here, which is slow and knows nothing but brackets and quotes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import hypothesis
import structlog
from hypothesis import strategies as st
from structlog.typing import EventDict

from engines.spec import CHAT
from slotproxy.config import SlotSettings
from tests.corpus.sending import cut
from tests.fuzz.rounds import EXAMPLES, rounds
from tests.slotproxy.rig import Client, Proxy, Upstream, chunk, engine, proxied, saying, whole

Members = list[tuple[bytes, bytes]]  # names, in their quotes, and values, as they are written
CALLED = "the-engine's-own-name"
OTHERS = {"temperature": 0, "chat_template_kwargs": {"enable_thinking": False, "nested": {"depth": 1}}}
_SPACE, _MARK = b" \t\r\n", b"\xef\xbb\xbf"

# -------------------------------------------------------------------------------------------------- the slow tokenizer


def members(text: bytes) -> Members:
    """Of an object, which may have white space around it."""
    text = text.removeprefix(_MARK).strip(_SPACE)
    assert text[:1] == b"{", text
    assert text[-1:] == b"}", text
    found = []
    for part in _split(text[1:-1], b","):
        name, value = _split(part, b":")[0], part[len(_split(part, b":")[0]) + 1 :]
        found.append((name.strip(_SPACE), value.strip(_SPACE)))
    return [] if found == [(b"", b"")] else found


def _split(text: bytes, mark: bytes) -> list[bytes]:
    """At each `mark` that stands in no string and no brackets."""
    parts, start, depth, quoted, at = [], 0, 0, False, 0
    while at < len(text):
        byte = text[at : at + 1]
        if quoted and byte == b"\\":
            at += 1
        elif byte == b'"':
            quoted = not quoted
        elif not quoted and byte in b"[{":
            depth += 1
        elif not quoted and byte in b"]}":
            depth -= 1
        elif not quoted and depth == 0 and byte == mark:
            parts.append(text[start:at])
            start = at + 1
        at += 1
    return [*parts, text[start:]]


def name_of(quoted: bytes) -> str:
    text: str = json.loads(quoted.decode(errors="surrogateescape"), strict=False)
    return text


def last_ones(text: bytes) -> dict[str, bytes]:
    """What parsers make of it: of a name that comes twice the last value counts."""
    return {name_of(name): value for name, value in members(text)}


# ------------------------------------------------------------------------------------------------------- what is drawn

_NUMBERS = "0 -0 1 1.0 1.00 -0.0 1e400 -1E-400 1e+2 9007199254740993 0.1000000000000000055511151231257827"
_TEXTS = [
    rb"",
    rb"text",
    rb"\u20ac\/\"\\\b\n",
    rb"\ud83e\udd99",
    rb"\ud83e",
    rb"\udd99\ud83e",
    rb"\\ud83e",
    rb"\\\"},{\"model\":\"x\"",
    "€🦙\u2028\x7f".encode(),
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b'"}]'.replace(b'"', b""),
    rb"\u0000",
    b"x" * 500,
]
_NAMES = [
    rb"",
    rb"n",
    rb"n",
    rb"Model",
    rb"mod\u0065ls",
    rb"\u20ac",
    "é".encode(),
    rb"a\"b",
    rb"temp\u0065rature",
    rb"\\",
]
_MODEL = [rb'"model"', rb'"\u006dodel"', rb'"m\u006fd\u0065l"']
_gap = st.sampled_from([b"", b"", b"", b" ", b"\n  ", b"\t\r\n"])
_numbers = st.one_of(st.sampled_from(_NUMBERS.split()), st.integers(), st.floats(allow_nan=False, allow_infinity=False))
_texts = st.one_of(
    st.sampled_from(_TEXTS),
    st.text(st.characters(codec="utf-8", min_codepoint=32, exclude_characters='"\\'), max_size=9).map(str.encode),
)
_scalars = st.one_of(
    _numbers.map(lambda number: str(number).encode()),
    _texts.map(lambda text: b'"' + text + b'"'),
    st.sampled_from([b"true", b"false", b"null", b"[" * 99 + b"]" * 99, b'{"a":' * 99 + b"1" + b"}" * 99]),
)
_names = st.sampled_from(_NAMES).map(lambda name: b'"' + name + b'"')


def _array(items: list[bytes], gap: bytes) -> bytes:
    return b"[" + gap + (gap + b"," + gap).join(items) + gap + b"]"


def _object(found: Members, gap: bytes) -> bytes:
    return b"{" + gap + (gap + b"," + gap).join(name + gap + b":" + gap + value for name, value in found) + gap + b"}"


_values = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.builds(_array, st.lists(inner, max_size=3), _gap),
        st.builds(_object, st.lists(st.tuples(_names, inner), max_size=3), _gap),
    ),
    max_leaves=6,
)
_inner = st.lists(
    st.tuples(st.sampled_from([b'"enable_thinking"', b'"nested"', b'"other"', rb'"n\u0065sted"']), _values), max_size=3
)
_kwargs = st.one_of(st.just(b"null"), _values, st.builds(_object, _inner, _gap))


@dataclass(frozen=True, slots=True)
class Body:
    text: bytes
    pieces: list[bytes]
    chunked: bool


@st.composite
def bodies(draw: st.DrawFn) -> Body:
    found = draw(st.lists(st.tuples(_names, _values), max_size=5))
    if draw(st.booleans()):
        found.append((b'"chat_template_kwargs"', draw(_kwargs)))
    found = draw(st.permutations(found))
    for model in draw(st.sampled_from([[], [b"null"], [b'"m"'], [rb'"\u006d"'], [b'"other"', b'"m"']])):
        found = [*found, (draw(st.sampled_from(_MODEL)), model)]
    if len(found) > 1 and draw(st.booleans()):
        found = [found[-1], *found[:-1]] if found[-2][1] != b'"other"' else found
    text = draw(st.sampled_from([b"", b"", _MARK])) + draw(_gap) + _object(found, draw(_gap)) + draw(_gap)
    cuts = draw(st.lists(st.integers(0, len(text)), max_size=4))
    return Body(text, cut(text, cuts), draw(st.booleans()))


# ------------------------------------------------------------------------------------------------------- the comparing


def compare(sent: bytes, came: bytes) -> None:
    """Raises AssertionError where the engine got something else than it must get."""
    before, after = last_ones(sent), last_ones(came)
    expected = dict(before)
    if before.get("model", b"null") != b"null":
        expected["model"] = json.dumps(CALLED).encode()
    if "temperature" not in expected:
        expected["temperature"] = b"0"
    assert set(after) == {*expected, "chat_template_kwargs"}
    _compare_defaults(
        before.get("chat_template_kwargs"), after.pop("chat_template_kwargs"), OTHERS["chat_template_kwargs"]
    )
    expected.pop("chat_template_kwargs", None)
    assert after == expected
    order = [name for name in before if name in after]
    assert [name for name in after if name in before] == order


def _compare_defaults(said: bytes | None, came: bytes, default: object) -> None:
    if said is None:
        assert json.loads(came) == default
    elif said[:1] != b"{" or not isinstance(default, dict):
        assert came == said
    else:
        before, after = last_ones(said), last_ones(came)
        assert list(after) == [*before, *(name for name in default if name not in before)]
        for name, value in after.items():
            _compare_defaults(before.get(name), value, default.get(name))


class Desk:
    """The proxy, and the engine's socket behind it."""

    def __init__(self, proxy: Proxy, upstream: Upstream, log: list[EventDict]) -> None:
        self._proxy, self._upstream, self._log = proxy, upstream, log

    async def check(self, body: Body) -> None:
        async with Client.at(self._proxy.port) as client:
            await _ask(client, body)
            got = await client.rest()
        assert got.startswith(b"HTTP/1.1 200 "), (body.text, got)
        (seen,) = self._upstream.seen
        self._upstream.seen.clear()
        self._log.clear()
        try:
            compare(body.text, seen.body)
        except AssertionError as error:
            raise AssertionError(f"{body.text!r} became {seen.body!r}: {error}") from error


async def _ask(client: Client, body: Body) -> None:
    framing = b"transfer-encoding: chunked" if body.chunked else b"content-length: %d" % len(body.text)
    client.writer.write(b"POST %b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n%b\r\n\r\n" % (CHAT.encode(), framing))
    for piece in body.pieces:
        client.writer.write(chunk(piece) if body.chunked else piece)
        await asyncio.sleep(0)
    if body.chunked:
        client.writer.write(b"0\r\n\r\n")


@contextlib.asynccontextmanager
async def desk() -> AsyncIterator[Desk]:
    slots = {"anonymous": SlotSettings("anonymous", defaults=OTHERS)}
    upstream = Upstream(saying(whole(b"{}")))
    async with upstream, proxied(engine(upstream.url), models={"m": {"strata": CALLED}}, slots=slots) as proxy:
        with structlog.testing.capture_logs() as log:
            yield Desk(proxy, upstream, log)


def examples(count: int, seed: int) -> None:
    """So many of them. Raises what an example has found, as small as it can be made."""
    with asyncio.Runner() as runner, _on(runner) as at:

        @hypothesis.seed(seed)
        @hypothesis.settings(max_examples=count, **EXAMPLES)
        @hypothesis.given(bodies())
        def example(body: Body) -> None:
            runner.run(at.check(body))

        example()


@contextlib.contextmanager
def _on(runner: asyncio.Runner) -> Iterator[Desk]:
    """One proxy for all examples."""
    opened = desk()
    try:
        yield runner.run(opened.__aenter__())
    finally:
        runner.run(opened.__aexit__(None, None, None))


def fuzz(minutes: float, seed: int) -> str:
    """What rounds of them have found; empty: nothing."""
    return rounds(examples, 500, minutes, seed)
