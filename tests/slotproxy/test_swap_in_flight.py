"""Case 16: a swap neither kills a stream that is under way nor is blocked by it for ever. A real `slotproxy serve`.

All times in the ratio of a real box, at a tenth of them: a stream of 30 s, drains of 5 s and 60 s.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import httpx
import pytest

from engines.spec import CHAT, MESSAGES
from slotproxy.demo_files import DECODE
from tests.slotproxy.programs import LIMIT, Serve, chat, ended_engines, engines, quick_house

LASTS = 3.0  # seconds of a stream
TOKENS = round(LASTS * 1000 / DECODE)
SHORT, LONG = 0.5, 6.0
POOL = ThreadPoolExecutor(8)


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Both engines are proven; Strata serves."""
    folder = tmp_path_factory.mktemp("swaps")
    with ended_engines(folder), Serve(quick_house(folder)) as serve:
        serve.event("slotproxy is up")
        for engine in ("ninfer", "strata"):
            assert serve.slotctl("swap", f"to-{engine}", "--trial").returncode == 0
        yield serve


@dataclass
class Streamed:
    """What a client had of its stream."""

    engine: str
    text: str
    whole: bool  # its last chunk came


def streamed(serve: Serve, path: str = CHAT, tokens: int = TOKENS) -> Streamed:
    text, whole = "", True
    with httpx.stream("POST", serve.url + path, json=chat(tokens, stream=True), timeout=LIMIT) as answer:
        try:
            for piece in answer.iter_text():
                text += piece
        except httpx.RemoteProtocolError:
            whole = False
    return Streamed(answer.headers["x-slotproxy-engine"], text, whole)


def stream_begun(serve: Serve, path: str = CHAT, tokens: int = TOKENS) -> Future[Streamed]:
    serve.until(lambda: (serve.status()["gate"]["in_flight"], serve.status()["gate"]["waiting"]) == (0, 0))
    stream = POOL.submit(streamed, serve, path, tokens)
    serve.until(lambda: serve.status()["gate"]["in_flight"] == 1)
    return stream


def order(serve: Serve, engine: str, drain: float | None = None, cut: bool = False) -> Future[tuple[int, str]]:
    """As slotctl sends it, which takes longer to start than the drain may last: its code and last words."""
    body: dict[str, object] = {"engine": engine, "pair": None, "drain": drain, "cut": cut}
    return POOL.submit(_ordered, serve, body)


def _ordered(serve: Serve, body: dict[str, object]) -> tuple[int, str]:
    transport = httpx.HTTPTransport(uds=str(serve.control))
    with httpx.Client(transport=transport, base_url="http://x", timeout=LIMIT) as client:
        last = json.loads(client.post("/swap", json=body).text.splitlines()[-1])
    return int(last["code"]), str(last["text"])


def asked(serve: Serve) -> Future[httpx.Response]:
    """A short request that waits for its turn."""
    answer = POOL.submit(lambda: httpx.post(serve.url + CHAT, json=chat(), timeout=LIMIT))
    serve.until(lambda: serve.status()["gate"]["waiting"] >= 1)
    return answer


def check_whole(stream: Streamed, engine: str) -> None:
    assert (stream.engine, stream.whole) == (engine, True)
    assert stream.text.endswith("data: [DONE]\n\n")
    assert stream.text.count("data: ") > TOKENS
    assert '"error"' not in stream.text


def test_case_16_a_drain_that_is_too_short_for_a_stream_is_given_up_and_nothing_has_happened(serve: Serve) -> None:
    """Case 16: 30 s and 5 s. Who came meanwhile is answered by the engine that stayed."""
    before = engines(serve.control.parent)
    stream = stream_begun(serve)
    swap, waits = order(serve, "ninfer", SHORT), asked(serve)
    code, said = swap.result()
    assert code == 4
    assert said.startswith("strata:current serves again: 1 request in flight after 0.5 s")
    assert not stream.done(), "it was waited for, or cut"
    check_whole(stream.result(), "strata")
    assert waits.result().headers["x-slotproxy-engine"] == "strata"
    assert engines(serve.control.parent) == before


def test_case_16_a_drain_that_is_long_enough_lets_the_stream_end_and_two_orders_at_once_are_one_or_refused(
    serve: Serve,
) -> None:
    """Case 16: 30 s and 60 s. The same target joins, another is refused as busy, and nothing is cut."""
    stream = stream_begun(serve)
    first = order(serve, "ninfer", LONG)
    serve.until(lambda: serve.status()["state"] == "draining")
    waits = asked(serve)
    second, other = order(serve, "ninfer"), order(serve, "strata")
    code, said = other.result()
    assert code == 3
    assert "a swap to ninfer:v2 is under way" in said
    assert not stream.done(), "the stream was to be under way yet: make it longer"
    assert first.result()[0] == second.result()[0] == 0
    check_whole(stream.result(), "strata")
    assert waits.result().headers["x-slotproxy-engine"] == "ninfer"
    assert waits.result().status_code == 200
    assert serve.status()["holder"] == "ninfer"


def test_case_16_neighbour_cut_ends_an_endless_stream_in_band_and_the_swap_goes_on(serve: Serve) -> None:
    """Case 16: in messages, whatever serves by now."""
    holder = serve.status()["holder"]
    target = "strata" if holder == "ninfer" else "ninfer"
    stream = stream_begun(serve, MESSAGES, tokens=20_000)
    assert order(serve, target, SHORT, cut=True).result()[0] == 0
    ended = stream.result()
    assert not ended.whole
    name, data = ended.text.strip().split("\n\n")[-1].split("\n")
    assert name == "event: error"
    assert "ended by the operator" in json.loads(data.removeprefix("data: "))["error"]["message"]
    assert "message_stop" not in ended.text
    assert serve.status()["holder"] == target
