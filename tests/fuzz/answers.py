"""Answers at random through the proxy, on real sockets: any body, any framing, cut anywhere, with any headers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import hypothesis
from hypothesis import strategies as st

from engines.spec import CHAT, COMPLETIONS, COUNT_TOKENS, EMBEDDINGS, MESSAGES, RESPONSES, Api
from slotproxy.outcomes import Outcome
from slotproxy.wire import PATHS, PROTOCOLS
from tests.corpus.answer import EVENTS, Answer, Ending
from tests.corpus.odd import PASSED
from tests.corpus.sending import TRANSPORTS, Sending, in_chunks, in_writes
from tests.corpus.through import Road, road
from tests.fuzz.event_streams import at_end, streams, verdict
from tests.fuzz.rounds import EXAMPLES, rounds

_PATHS = [CHAT, COMPLETIONS, COUNT_TOKENS, EMBEDDINGS, MESSAGES, PASSED, RESPONSES]
_TOKEN = "!#$%&'*+-.^_`|~09azAZ"
_STATUSES = [b"200 OK", b"201", b"299 Odd", b"400 Bad Request", b"404 Gone?", b"429 Busy", b"500 ", b"503 No", b"599 X"]
_TAKEN = {  # what belongs to the framing, or is ours
    *("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
    *("proxy-authenticate", "proxy-authorization", "content-length", "content-type", "content-encoding", "request-id"),
}

_names = st.text(_TOKEN, min_size=1, max_size=20).filter(lambda name: name.lower() not in _TAKEN)
_values = st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=30)
_headers = st.lists(
    st.tuples(_names.map(str.encode), _values.map(lambda value: value.strip().encode("latin-1"))), max_size=5
)
_bodies = st.one_of(st.binary(max_size=300), st.text(max_size=100).map(str.encode), st.just(bytes(range(256)) * 300))


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    """A stream of events, or bytes that say nothing to anybody."""
    path, headers = draw(st.sampled_from(_PATHS)), tuple(draw(_headers))
    if draw(st.booleans()):
        return _of_events(path, draw(streams()), headers)
    status = draw(st.sampled_from(_STATUSES))
    failed = int(status[:3]) >= 500 or int(status[:3]) == 429
    outcome = Outcome.FAILED if failed else Outcome.SERVED
    return Answer("bytes", path, draw(_bodies), b"application/octet-stream", headers, status, outcome)


def _of_events(path: str, body: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> Answer:
    api = PATHS.get(path, Api.OTHER)
    events = at_end(body)
    complete, failed = verdict(api, events)
    outcome = Outcome.FAILED if failed else Outcome.SERVED
    if PROTOCOLS[api].ends and not complete and not failed:
        outcome = Outcome.TRUNCATED
    told = outcome is Outcome.TRUNCATED or (failed and not complete and _unnoticed(api, events))
    return Answer(
        "events", path, body, EVENTS, headers, outcome=outcome, ending=Ending.TOLD if told else Ending.AS_IT_IS
    )


def _unnoticed(api: Api, events: list[tuple[bytes, bytes]]) -> bool:
    """Anthropic's clients go by an event's name alone: they pass over an error that has another, or none."""
    first = next(name for n, (name, _) in enumerate(events) if verdict(api, events[: n + 1])[1])
    return PROTOCOLS[api].anthropic and first != b"error"


@st.composite
def sendings(draw: st.DrawFn) -> Sending:
    answer = draw(answers())
    cuts = draw(st.lists(st.integers(0, len(answer.body) + 300), max_size=8))
    if draw(st.booleans()):
        return in_writes(answer, draw(st.sampled_from(TRANSPORTS)), cuts, f"cut at {cuts}")
    return in_chunks(answer, cuts, f"cut at {cuts}", one_write=draw(st.booleans()), odd=draw(st.booleans()))


def examples(count: int, seed: int) -> None:
    """So many of them. Raises what an example has found, as small as it can be made."""
    with asyncio.Runner() as runner, _on(runner) as way:

        @hypothesis.seed(seed)
        @hypothesis.settings(max_examples=count, **EXAMPLES)
        @hypothesis.given(sendings(), st.sampled_from([b"1.1", b"1.1", b"1.0"]))
        def example(sending: Sending, version: bytes) -> None:
            runner.run(way.go(sending, version=version))

        example()


@contextlib.contextmanager
def _on(runner: asyncio.Runner) -> Iterator[Road]:
    """One road for all examples: each would have to build it otherwise."""
    opened = road()
    try:
        yield runner.run(opened.__aenter__())
    finally:
        runner.run(opened.__aexit__(None, None, None))


def fuzz(minutes: float, seed: int) -> str:
    """What rounds of them have found; empty: nothing."""
    return rounds(examples, 500, minutes, seed)
