"""Keys, prompts and answers reach nothing that is written: through the whole stack, in every way a request can end."""

from __future__ import annotations

import json
import signal
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from engines.spec import CHAT, COUNT_TOKENS, EMBEDDINGS, MESSAGES, RESPONSES
from tests.slotproxy.programs import LIMIT, Serve, free_port, get, until

PROMPT, TOOL, QUERY = "mark-prompt-3f1a", "mark-tool-output-77b2", "mark-query-c0de"
KEY, WRONG, ENGINES, COOKIE = "mark-slots-key-9d9d", "mark-wrong-key-1111", "mark-engines-key-4242", "mark-cookie-5e5e"
MARK = b"mark-"  # what they all begin with

ASK: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": f"error: {PROMPT}"},
        {"role": "tool", "tool_call_id": "1", "content": TOOL},
    ],
}
HOWS = [
    "echo",
    *(f"{kind} {status}" for kind in ("status", "page") for status in (400, 404, 429, 500, 503)),
    "status 200",
    *("stream delta done", "stream delta", "stream delta error", "stream error done", "stream"),
    *("no-http", "no-chunk", "no-media-type"),
]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Only the configuration, the keys' files and the engine's own log know a secret."""
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "keys").mkdir()
    (folder / "keys" / "voice").write_text(KEY)
    (folder / "keys" / "engine").write_text(ENGINES)
    port = free_port()
    engine = {
        "profile": "openai",
        "url": f"http://127.0.0.1:{port}",
        "command": [sys.executable, str(Path(__file__).with_name("quoting.py")), str(port)],
        "vram": "1GiB",
        "api_key_file": "keys/engine",
        "passthrough": ["/v1/audio/speech"],
        "pairs": {"only": {"artifact": []}},
    }
    config = {
        "listen": "127.0.0.1:0",
        "control": str(folder / "control.sock"),
        "state": str(folder / "state"),
        "card": {"simulated": "32GiB", "folder": str(folder / "card")},
        "limits": {"max_body": "100KiB", "first_ping": "1s", "ping_every": "1s"},
        "on_stop": "stop",
        "notify": {"command": ["/bin/sh", "-c", f"cat >> {folder / 'heard'}; env >> {folder / 'heard'}"]},
        "engines": {"quoting": engine},
        "slots": {"voice": {"key_file": "keys/voice"}},
    }
    path = folder / "slotproxy.yml"
    path.write_text(yaml.safe_dump(config))
    with Serve(path) as serve:
        serve.event("slotproxy is up")
        assert serve.slotctl("swap", "to-quoting", "--trial").returncode == 0
        yield serve
        serve.end(signal.SIGTERM)


@pytest.fixture
def client(house: Serve) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {KEY}", "cookie": COOKIE}
    with httpx.Client(base_url=house.url, headers=headers, timeout=LIMIT, verify=False, trust_env=False) as client:
        yield client


def sent(client: httpx.Client, how: str, path: str = CHAT, **more: Any) -> str:
    """The answer's body, as far as it came."""
    asked = {"headers": {"x-how": how}, "params": {"q": QUERY}, "json": ASK | {"stream": True}} | more
    text = b""
    try:
        with client.stream("POST", path, **asked) as answer:
            for chunk in answer.iter_raw():
                text += chunk
    except httpx.TransportError:
        pass
    return text.decode(errors="replace")


def written(house: Serve) -> dict[str, bytes]:
    """All that slotproxy has written anywhere, and all that it tells people."""
    folder = house.control.parent
    files = [one for one in folder.rglob("*") if one.is_file() and not {"keys", "processes"} & set(one.parts)]
    found = {str(one.relative_to(folder)): one.read_bytes() for one in files}
    for asked in ("/status", "/slots", "/gpu", "/doctor", "/pairs"):
        found[asked] = json.dumps(get(house.control, asked)).encode()
    return found


def clean(house: Serve) -> dict[str, bytes]:
    """`written()`, when none of it has a secret in it."""
    found = written(house)
    told = {name: data[max(0, data.index(MARK) - 200) :][:400] for name, data in found.items() if MARK in data}
    assert not told
    return found


def outcomes(house: Serve) -> set[tuple[str, str]]:
    return {(line["outcome"], line.get("how", "")) for line in house.log if line["event"] == "request"}


def test_whatever_an_engine_says_to_a_client_is_the_clients_alone(house: Serve, client: httpx.Client) -> None:
    told = {how: sent(client, how) for how in HOWS}
    assert all(PROMPT in told[how] for how in HOWS if how[:4] in ("echo", "stat", "page") or "delta" in how)
    for path in (RESPONSES, MESSAGES, COUNT_TOKENS, EMBEDDINGS, "/v1/audio/speech"):
        for how in ("status 500", "stream error", "stream delta"):
            sent(client, how, path)
    until(lambda: ("truncated", "cut_short") in outcomes(house))
    kinds = {("served", ""), ("failed", "status"), ("failed", "in-band"), ("failed", "no_answer")}
    assert kinds <= outcomes(house)
    troubles = [line["why"] for line in house.log if line["event"] == "an error of the engine's own"]
    ids = {line["id"] for line in house.log if line["event"] == "request"}
    assert troubles
    assert all(why.startswith(("HTTP 50", "in-band")) and why.split("request ")[1] in ids for why in troubles)
    counted = house.status()["requests"]
    assert counted["served"]["count"] > 0
    assert counted["failed"]["how"].keys() >= {"status", "in-band", "no_answer"}
    assert PROMPT not in str(clean(house))


def test_what_we_refuse_ourselves_is_not_quoted_either(house: Serve, client: httpx.Client) -> None:
    large = json.dumps(ASK | {"x": PROMPT * 20_000})
    refused = [
        client.post(CHAT, content=f'{{"model": "m", "messages": {PROMPT}', headers={"x-how": "page 400"}),
        client.post(CHAT, content=f'["{PROMPT}"]', headers={"x-how": "page 400"}),
        client.post(CHAT, json=ASK | {"model": [PROMPT]}),
        client.post(CHAT, content=large),
        client.post(CHAT, json=ASK, headers={"authorization": f"Bearer {WRONG}"}),
        client.post(CHAT, json=ASK, headers={"authorization": "", "x-api-key": WRONG}),
        client.get("/v1/models", headers={"authorization": f"Bearer {WRONG}"}),
        client.get(CHAT, params={"q": QUERY}),
        client.get("/nowhere", params={"q": QUERY}),
        client.get(f"/v1/models/{QUERY}"),
        client.get("/v1/realtime", params={"q": QUERY}, headers={"upgrade": "websocket", "connection": "upgrade"}),
        client.request("BREW", CHAT, params={"q": QUERY}),
    ]
    assert {answer.status_code for answer in refused} <= {400, 401, 404, 405, 413, 501}
    clean(house)


RAW = [
    f"{PROMPT} {QUERY} NOTHTTP\r\n\r\n",
    f"POST {CHAT}?{QUERY} HTTP/1.1\r\nhost: x\r\n{PROMPT} : {KEY}\r\n\r\n",
    f"POST {CHAT}?{QUERY} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n{PROMPT}\r\n",
    f"POST {CHAT}?{QUERY} HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 7\r\n\r\n{PROMPT}",
    f"POST {CHAT}?{QUERY}# HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n",
    f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\ncontent-length: 99999\r\n\r\n{PROMPT}",
    f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\nx-request-id: {PROMPT} {PROMPT}\r\n\r\n",
    f"GET /v1/models/%ff{PROMPT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n\r\n",
    f"GET http://{PROMPT}/ HTTP/1.1\r\nhost: {PROMPT}\r\n\r\n",
]


@pytest.mark.parametrize("said", RAW)
def test_what_is_no_request_at_all_is_not_quoted(house: Serve, said: str) -> None:
    host, _, port = house.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), LIMIT) as raw:
        raw.sendall(said.encode())
        raw.shutdown(socket.SHUT_WR)
        while raw.recv(65536):
            pass
    assert MARK not in house.err.encode()


def test_who_waits_leaves_is_cut_off_or_meets_a_death_is_not_quoted(house: Serve, client: httpx.Client) -> None:
    in_pings = ["status 400", "status 503", "page 500", "no-media-type"]  # told in a stream that has begun
    assert house.slotctl("hold").returncode == 0
    with ThreadPoolExecutor(len(in_pings)) as pool:
        asked = [pool.submit(sent, client, how) for how in in_pings]
        until(lambda: [one["sent"] > 0 for one in get(house.control, "/slots")["requests"]] == [True] * len(in_pings))
        clean(house)
        assert house.slotctl("release").returncode == 0
    assert all(one.result().startswith(": keep-alive") and PROMPT in one.result() for one in asked)
    with pytest.raises(httpx.ReadTimeout):
        client.post(CHAT, json=ASK, headers={"x-how": "silence"}, timeout=httpx.Timeout(LIMIT, read=0.3))
    until(lambda: ("cancelled", "left") in outcomes(house))
    before = len([line for line in house.log if line["event"] == "request"])
    sent(client, "death")
    until(lambda: len([line for line in house.log if line["event"] == "request"]) > before)
    assert sent(client, "echo"), "it is back"
    found = clean(house)
    heard = until((house.control.parent / "heard").read_bytes)
    assert MARK not in heard
    assert {"state/journal.json", "state/events.jsonl", "state/ledger.jsonl"} <= set(found)


def test_a_fault_of_the_daemons_own_at_its_end_quotes_nobody(house: Serve, client: httpx.Client) -> None:
    """The last test: it stops the engine, and the daemon with what is in flight."""
    assert sent(client, "echo")
    assert house.end(signal.SIGTERM) == 0
    folder = house.control.parent
    for one in (folder / "slotproxy.err", folder / "slotproxy.out", folder / "state" / "events.jsonl"):
        assert MARK not in one.read_bytes()
