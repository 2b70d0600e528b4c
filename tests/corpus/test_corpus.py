"""A choice of `python -m tests.corpus`, always another one, and short streams cut at each of their offsets."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from engines.spec import CHAT, Api
from slotproxy.outcomes import Outcome
from slotproxy.reply import Reply
from slotproxy.wire import PROTOCOLS
from tests.corpus import framings
from tests.corpus.__main__ import answers, main
from tests.corpus.answer import Answer, Ending, stream
from tests.corpus.sending import CHUNKED, CLOSE_1_0, TRANSPORTS, at_each_offset, by_the_byte, some, whole
from tests.corpus.through import road
from tests.fuzz.event_streams import at_end, verdict
from tests.slotproxy.rig import ALL_APIS, DONE, delta

ALL = answers()


async def test_every_answer_of_the_corpus_arrives_as_it_was_sent() -> None:
    chance = random.Random(seed := random.randrange(10**6))
    print(f"seed {seed}")
    async with road() as way:
        for answer in ALL:
            for sending in some(answer, chance):
                await way.go(sending)
    assert way.sent == 2 * len(ALL)


@pytest.mark.parametrize("framing", ["LF", "mixed line ends", "byte order mark"])
async def test_a_short_stream_arrives_as_it_was_sent_wherever_it_is_cut(framing: str) -> None:
    (answer,) = (each for each in framings.short() if each.name == f"short, {framing}")
    async with road() as way:
        for transport in (CLOSE_1_0, CHUNKED) if framing == "LF" else (CLOSE_1_0,):
            for sending in at_each_offset(answer, transport):
                await way.go(sending)
    assert way.sent >= 2 * (len(answer.body) - 1)


async def test_a_client_of_http_1_0_gets_the_same_bytes() -> None:
    async with road() as way:
        for answer in ALL[:12]:
            await way.go(whole(answer, CHUNKED), version=b"1.0")


# ------------------------------------------------------------------------------------------- does the corpus see it?


def test_each_answers_outcome_is_what_a_simple_reader_says_of_its_events() -> None:
    apis = ALL_APIS.client_paths
    streams = [
        answer
        for answer in ALL
        if answer.events and b"Vary" not in dict(answer.headers) and PROTOCOLS[apis.get(answer.path, Api.OTHER)].ends
    ]
    assert len(streams) > 100
    for answer in streams:
        complete, failed = verdict(apis[answer.path], at_end(answer.body))
        if len(answer.body) > 1 << 20:
            continue  # more than the observer keeps
        said = Outcome.FAILED if failed else Outcome.SERVED if complete else Outcome.TRUNCATED
        assert answer.outcome is said, answer.name
        assert (answer.ending is Ending.TOLD) or said is not Outcome.TRUNCATED, answer.name


def test_names_are_given_once() -> None:
    assert len({answer.name for answer in ALL}) == len(ALL)


async def test_a_cut_reaches_the_proxy_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = stream("a stream", CHAT, delta(), DONE)
    pieces = _written(monkeypatch, lambda data: data)
    async with road() as way:
        for sending in by_the_byte(answer):
            pieces.clear()
            await way.go(sending)
            assert len(pieces) > 0.9 * len(answer.body), sending


HARM: list[Callable[[bytes], bytes]] = [
    lambda data: data[:-1],
    lambda data: data + b"\n",
    lambda data: data.replace(b"\r\n", b"\n"),
    lambda data: data.decode(errors="replace").encode(),
    lambda data: b"" if data.startswith(b":") else data,
]


@pytest.mark.parametrize("harm", HARM, ids=["lost", "added", "line ends", "decoded", "comments"])
async def test_what_harms_bytes_is_seen(harm: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Answer(
        "a stream", CHAT, b": hi\r\n\r\ndata: \xff\xc3\xa9\r\n\r\ndata: [DONE]\r\n\r\n", b"text/event-stream"
    )
    _written(monkeypatch, harm)
    async with road() as way:
        for transport in TRANSPORTS:
            with pytest.raises(AssertionError, match=transport):
                await way.go(whole(answer, transport))


def _written(monkeypatch: pytest.MonkeyPatch, change: Callable[[bytes], bytes]) -> list[bytes]:
    """Every piece that is handed to the client, which gets what `change` makes of it."""
    pieces: list[bytes] = []
    write = Reply.write

    async def written(reply: Reply, data: bytes) -> None:
        pieces.append(data)
        await write(reply, change(data))

    monkeypatch.setattr(Reply, "write", written)
    return pieces


def test_the_command_sends_what_it_is_told_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "ninfer count_tokens", "--seed", "1"]) == 0
    assert "1 answers sent 50 times" in capsys.readouterr().out
    assert main(["--only", "no such answer"]) == 1


def test_the_paths_of_the_corpus_are_those_of_all_protocols() -> None:
    assert {ALL_APIS.client_paths.get(answer.path, Api.OTHER) for answer in ALL} == set(Api)
