"""Every kind of client while the card changes hands: before, in, and after a swap, and a swap that waits for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.clients.answers import Json, model, read, same
from tests.clients.commands import BY_NAME, READERS, Command, every, needs
from tests.clients.crowd import ALL, Client, waiting
from tests.clients.house import MODEL, NAMES, House, Target
from tests.clients.sdks import sync_client

LONG = 300  # tokens: more than a second of NInfer's
SOME = ("chat-sync", "messages-stream-async", "curl-stream", "fetch-stream")
PROMPT = 20.0  # seconds that everybody together may take, for answers of a few hundredths each


@needs("curl")
@needs("wget")
@needs("node")
def test_all_of_them_are_answered_the_same_before_in_and_after_a_swap_and_once_each(house: House) -> None:
    house.serve("strata")
    before = [one.ask(house.through) for one in ALL if one.name in SOME]
    with ThreadPoolExecutor(len(ALL)) as pool, house.changing_to("ninfer"):
        asked = waiting(pool, ALL, house)
        assert not any(one.done() for one in asked.values())
        time.sleep(0.5)  # more than two pings
        house.until(lambda: house.gate["longest_wait"] >= 0.5)
    waited = {name: one.result(PROMPT) for name, one in asked.items()}
    assert {name: house.received(name) for name in waited} == dict.fromkeys(waited, 1)
    assert {name for name, answer in waited.items() if model(answer) not in (MODEL, "")} == set()
    after = {one.name: same(one.ask(house.through)) for one in ALL}
    assert {name: same(answer) for name, answer in waited.items()} == after
    assert {model(answer) for answer in before} == {NAMES["strata"]}
    assert house.at_rest


def test_pings_come_while_a_stream_waits_and_sdks_do_not_show_them(house: House) -> None:
    """What an SDK's user sees is compared above; here it is that there was something to see."""
    house.serve("strata")
    with ThreadPoolExecutor(2) as pool, house.changing_to("ninfer"):
        raw = pool.submit(BY_NAME["httpx"].ask, house.through, stream=True)
        events = pool.submit(streamed_by_anthropic, house.through)
        house.until(lambda: house.gate["waiting"] == 2 and house.gate["longest_wait"] >= 0.7)
    body, (seen, wire) = raw.result(PROMPT), events.result(PROMPT)
    assert body.count(b": keep-alive\n\n") >= 2
    assert wire.count(b"event: ping\n") >= 2
    assert "ping" not in seen
    assert seen[-1] == "message_stop"


def streamed_by_anthropic(target: Target) -> tuple[list[str], bytes]:
    """The types of the events that the SDK shows, and what came."""
    with (
        sync_client("anthropic", target) as client,
        client.messages.with_streaming_response.create(
            model=target.model, messages=[{"role": "user", "content": "hi"}], max_tokens=5, stream=True
        ) as answer,
    ):
        wire: list[bytes] = []
        decode = answer.http_response.iter_bytes

        def heard() -> object:
            for part in decode():
                wire.append(part)
                yield part

        answer.http_response.iter_bytes = heard
        return [event.type for event in answer.parse()], b"".join(wire)


def long_chat(command: Command) -> Callable[[Target], list[Json]]:
    return lambda target: read(command.ask(target, stream=True, max_tokens=LONG))


@needs("curl")
@needs("wget")
@needs("node")
def test_a_swap_waits_for_streams_in_flight_and_who_comes_meanwhile_for_the_swap(house: House) -> None:
    house.serve("strata")
    readers = [Client(f"long-{name}", long_chat(BY_NAME[name])) for name in READERS]
    with ThreadPoolExecutor(len(readers) + 1) as pool:
        with house.changing_to("ninfer"):
            running = waiting(pool, readers, house)
        with house.changing_to("strata"):  # right behind it: they are in the middle of their answers
            late = pool.submit(BY_NAME["httpx"].ask, replace(house.through, id="late"), stream=False)
            house.until(lambda: house.gate["waiting"] == 1)
        answers = [one.result(PROMPT) for one in running.values()]
    assert f"draining: {len(readers)} requests in flight" in house.phases
    for answer in answers:
        assert answer[-1] == "[DONE]"
        assert len(answer) == LONG + 3  # the role, each token, why it ended, that it ended
        assert {chunk["model"] for chunk in answer[:-1]} == {MODEL}
    assert model(read(late.result(PROMPT))) == NAMES["strata"]
    assert {house.received(name) for name in [*running, "late"]} == {1}


@pytest.mark.parametrize("command", every(["curl"]))
def test_the_real_engine_takes_over_from_a_simulated_one_and_gives_back(command: Command, house: House) -> None:
    """Both ways, while somebody waits."""
    house.serve("ninfer")
    for engine in ("llama", "ninfer"):
        with ThreadPoolExecutor(1) as pool, house.changing_to(engine):
            waits = pool.submit(command.ask, house.through, stream=True)
            house.until(lambda: house.gate["waiting"] == 1)
        answer = read(waits.result(PROMPT))
        assert (model(answer), answer[-1]) == (NAMES[engine], "[DONE]")
