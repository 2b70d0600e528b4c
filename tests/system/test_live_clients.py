"""Clients of a real house while the card changes hands: they see a pause, never an error."""

from __future__ import annotations

import json
import time
from collections import Counter

import httpx
import pytest

from engines.spec import MiB
from tests.system.clients import TOKENS, Background, Streamers
from tests.system.house import LIMIT, House
from tests.system.relay import Relay
from tests.system.tenants import MODEL
from tests.system.watch import Watch

pytestmark = [pytest.mark.docker, pytest.mark.slow]

CLIENTS = 8
PROMPT = 2.5  # seconds for what takes one at most
IN_THE_WAY = 1400 * MiB  # it fits beside an engine, but leaves less than a start asks for
LASTING = 150  # tokens; at NInfer a third of a second: a swap finds it in the middle of one
LONG = 2000  # tokens; at NInfer four seconds
SWAPS = ("llama", "ninfer") * 3


def test_eight_clients_stream_through_six_swaps_and_none_sees_an_error(house: House) -> None:
    with Relay(house.port) as relay, Watch(house) as watch, Streamers(relay.url, CLIENTS, LASTING) as clients:
        answered_by("ninfer", CLIENTS, clients, house)
        for engine in SWAPS:
            assert f"{engine}:" in house.ok("swap", f"to-{engine}")
            answered_by(engine, CLIENTS // 2, clients, house)
    faults = [fault for answer in clients.answers if (fault := answer.fault(LASTING))]
    assert not faults, faults[:5]
    assert len(relay.connections) == len(clients.answers)
    assert {connection.requests for connection in relay.connections} == {1}
    assert all(connection.whole_stream for connection in relay.connections)
    watch.check()
    assert watch.seen_up == {"ninfer", "llama"}
    asked = Counter(line.get("request_id") for line in house.requests("ninfer") if line["event"] == "received")
    assert {asked[answer.id] for answer in clients.answers if answer.engine == "ninfer"} == {1}


def answered_by(engine: str, count: int, clients: Streamers, house: House) -> None:
    """Wait until this engine has answered so many more."""
    before = clients.by(engine)
    house.wait(lambda: clients.by(engine) >= before + count, f"answers by {engine}")


def test_one_client_asks_fifty_times_over_five_holds_and_three_swaps_and_sees_no_error(house: House) -> None:
    with Relay(house.port) as relay, Streamers(relay.url, 1) as client:
        for swap_to in ("llama", "", "ninfer", "", "llama"):
            house.ok("hold")
            asked, answered = len(relay.connections), len(client.answers)
            assert house.status()["gate"]["in_flight"] == 0
            if swap_to:
                house.ok("swap", f"to-{swap_to}")
            assert len(client.answers) == answered <= asked <= answered + 1
            house.ok("release")
            answered_by(swap_to or house.status()["holder"], 8, client, house)
        house.wait(lambda: len(client.answers) >= 50, "fifty answers")
    assert [fault for answer in client.answers if (fault := answer.fault(TOKENS))] == []
    assert len(relay.connections) == len(client.answers)
    assert sum(answer.held_ms > 0 for answer in client.answers) >= 5


def test_hold_returns_when_nothing_is_in_flight_any_more(house: House) -> None:
    long = Background(house.url, tokens=LONG).wait_begun()
    house.ok("hold")
    assert long.over
    assert long.answer().fault(LONG) == ""


def test_a_hold_for_some_time_ends_by_itself(house: House) -> None:
    with house.order("hold", "--for", "2s") as hold:
        house.wait(lambda: house.status()["hold"], "the hold")
        held = Background(house.url).answer()
        assert hold.wait(LIMIT) == 0
    assert held.fault(TOKENS) == ""
    assert 0 < held.held_ms <= 2500
    assert house.gate() == ("open", "ninfer")


def test_a_model_keeps_its_name_over_a_swap_and_the_list_answers_during_it(house: House) -> None:
    """Case 23, with a real client."""
    names = house.get("/v1/models")
    in_the_way = house.occupy(IN_THE_WAY)
    with house.order("swap", "to-llama") as swap:
        house.wait(lambda: house.status()["state"] == "freeing", "the swap to wait for memory")
        held = Background(house.url)
        for _ in range(10):
            began = time.monotonic()
            assert house.get("/v1/models") == names
            assert time.monotonic() - began < PROMPT
            time.sleep(0.1)
        assert not held.over
        in_the_way.unlink()
        assert swap.wait(LIMIT) == 0
    answer = held.answer()
    assert answer.fault(TOKENS) == ""
    assert answer.engine == "llama"
    assert 1000 <= answer.held_ms <= (answer.ended - answer.began) * 1000
    assert house.get("/v1/models") == names
    assert [model["id"] for model in json.loads(names)["data"]] == [MODEL]


def test_a_client_leaves_in_a_prefill_and_the_next_is_answered_once_when_the_engine_is_free(house: House) -> None:
    before = len(house.requests("ninfer"))
    body = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "word " * 7200}]}  # 3 s of prefill
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{house.url}/v1/chat/completions", json=body, timeout=0.5, trust_env=False)
    house.wait(lambda: len(house.requests("ninfer")) > before, "the engine to have it")
    answer = Background(house.url).answer()
    assert answer.fault(TOKENS) == ""
    log = house.requests("ninfer")[before:]
    left = log[0]
    over = next(line for line in log if line["event"] == "over" and line["number"] == left["number"])
    assert over["how"] == "cancelled"
    asked = [line for line in log if line.get("request_id") == answer.id]
    assert len(asked) == 1
    assert asked[0]["time"] > over["time"] > left["time"] + 1
    assert answer.held_ms >= 1000


def test_an_engine_is_killed_and_only_the_request_in_flight_is_told(house: House) -> None:
    run = house.run_of("ninfer")
    with Relay(house.port) as relay, Watch(house) as watch:
        in_flight = Background(relay.url, tokens=10_000).wait_begun()
        waiting = [Background(house.url) for _ in range(4)]
        house.wait(lambda: house.status()["gate"]["waiting"] == len(waiting), "four to wait")
        house.bed.client.kill(run[0])
        killed = time.monotonic()
        broken = in_flight.answer()
        answers = [client.answer() for client in waiting]
    assert "not a whole answer" in broken.error
    assert broken.ended - killed < PROMPT
    assert b"[DONE]" not in relay.connections[0].received
    assert not relay.connections[0].received.endswith(b"0\r\n\r\n")
    assert [answer.fault(TOKENS) for answer in answers] == [""] * len(answers)
    assert {answer.engine for answer in answers} == {"ninfer"}
    again = house.run_of("ninfer")
    assert again[0] == run[0]
    assert again[1] != run[1]
    watch.check()
