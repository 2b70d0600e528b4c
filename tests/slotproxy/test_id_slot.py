"""A slot's requests are answered by its KV slot, whatever the client says: llama.cpp's real server, on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from engines.llamacpp.profile import PROFILE as LLAMACPP
from engines.profiles import PROFILES
from engines.spec import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES, Api
from slotproxy.config import SlotSettings
from tests.engines.strata_sim import LIMIT, Simulator, free_port, spawned, until
from tests.realengine.tiny_gguf import make_tiny_gguf
from tests.slotproxy.rig import ALL_APIS, Upstream, ask, browser, engine, proxied, saying, whole

PINNED = {
    "zero": SlotSettings("zero", by_path=True, id_slot=0),
    "two": SlotSettings("two", by_path=True, id_slot=2, defaults={"id_slot": 1}),
    "free": SlotSettings("free", by_path=True),
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulator]:
    folder = tmp_path_factory.mktemp("llama")
    model, port = make_tiny_gguf(folder / "tiny.gguf"), free_port()
    command = ["tests.realengine.llama_server", "--model", str(model), "--port", str(port), "--parallel", "3"]
    with spawned(command, port, folder, {}, wait=False) as server:
        until(lambda: _ready(server))
        yield server


def _ready(server: Simulator) -> bool:
    assert server.process.poll() is None
    try:
        return httpx.get(server.url + "/health", timeout=2.0).status_code == 200
    except httpx.TransportError:
        return False


async def _tasks(server: Simulator) -> list[int]:
    """The number of the last request of each of its KV slots."""
    async with browser(server.url) as client:
        return [slot.get("id_task", -1) for slot in (await client.get("/slots")).json()]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
@pytest.mark.parametrize("said", [{}, {"id_slot": 1}, {"id_slot": None}, {"id_slot": 1, "stream": True}])
async def test_the_kv_slot_of_the_slot_answers_whatever_the_client_says(
    llama: Simulator, path: str, said: dict[str, Any]
) -> None:
    body = ask(max_tokens=2, max_output_tokens=2, prompt="hello", input="hello", **said)
    llamacpp = engine(llama.url, name="llama", profile=LLAMACPP, concurrency=3)
    async with proxied(llamacpp, slots=PINNED) as proxy, browser(proxy.url) as client:
        for name, mine in (("two", 2), ("zero", 0), ("two", 2), ("two", 2)):
            before = await _tasks(llama)
            answer = await client.post(f"/slot/{name}{path}", json=body, timeout=LIMIT)
            assert answer.status_code == 200, answer.text
            after = await _tasks(llama)
            assert [number for number in range(3) if after[number] != before[number]] == [mine]


async def test_a_pinned_slot_keeps_its_cache_whatever_others_send(llama: Simulator) -> None:
    def body(words: str) -> dict[str, Any]:
        return {"model": "m", "messages": [{"role": "user", "content": words * 40}], "max_tokens": 1}

    llamacpp = engine(llama.url, name="llama", profile=LLAMACPP)
    async with proxied(llamacpp, slots=PINNED) as proxy, browser(proxy.url) as client:
        cached = []
        for name, words in (("zero", "apple "), ("two", "pear "), ("two", "plum "), ("zero", "apple ")):
            answer = await client.post(f"/slot/{name}{CHAT}", json=body(words), timeout=LIMIT)
            cached.append((answer.json()["timings"]["cache_n"], answer.json()["timings"]["prompt_n"]))
    (hit, fresh), (_, other) = cached[3], cached[2]
    assert hit > 10 * fresh
    assert other > fresh


@pytest.mark.parametrize(
    ("path", "sent"), [(CHAT, 2), (COMPLETIONS, 2), (RESPONSES, 2), (MESSAGES, 1), (EMBEDDINGS, None)]
)
async def test_it_is_said_only_where_the_profile_has_it(path: str, sent: int | None) -> None:
    """Llama.cpp passes over it in messages; what stands there is then the default, as nobody pins."""
    async with Upstream(saying(whole(b"{}"))) as up:
        for profile, expected in ((LLAMACPP, sent), (ALL_APIS, 1 if path != EMBEDDINGS else None)):
            async with proxied(engine(up.url, profile=profile), slots=PINNED) as proxy, browser(proxy.url) as client:
                await client.post(f"/slot/two{path}", json=ask())
                assert up.seen[-1].json.get("id_slot") == expected
                await client.post(f"/slot/free{path}", json=ask(id_slot=9))
                assert up.seen[-1].json["id_slot"] == 9


def test_only_llamacpp_has_kv_slots_that_a_request_can_name() -> None:
    assert {name: dict(profile.kv_slot) for name, profile in PROFILES.items() if profile.kv_slot} == {
        "llamacpp": dict.fromkeys((Api.CHAT, Api.COMPLETIONS, Api.RESPONSES), "id_slot")
    }
