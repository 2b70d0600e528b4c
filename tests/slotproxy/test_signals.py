"""What `slotproxy serve` does on a signal: it ends, or reloads. Real processes; engines are the simulators.

All tests share a house whose pairs are verified. Each leaves one engine running, and the next one adopts it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
import yaml

from engines.spec import GiB
from tests.slotproxy.programs import (
    LIMIT,
    Serve,
    chat,
    ended_engines,
    engines,
    quick_house,
)

MARGIN = 10.0  # seconds that a busy machine may take on top of a limit


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A configuration; Strata runs, and NInfer is verified, too."""
    folder = tmp_path_factory.mktemp("ending")
    with ended_engines(folder):
        house = quick_house(folder, stop_limit="4s")
        with Serve(house, name="first") as serve:
            serve.event("slotproxy is up")
            for engine in ("ninfer", "strata"):
                assert swapped(serve, engine, trial=True)[0] == 0
            assert serve.end(signal.SIGTERM) == 0
        yield house


def changed(house: Path, name: str, **changes: object) -> Path:
    path = house.with_name(f"{name}.yml")
    path.write_text(yaml.safe_dump({**yaml.safe_load(house.read_text()), **changes}, sort_keys=False))
    return path


def up(house: Path) -> int:
    """How many engines run. Strata's are several processes in one session."""
    sessions = set()
    for pid in engines(house.parent):
        with contextlib.suppress(ProcessLookupError):
            sessions.add(os.getsid(pid))
    return len(sessions)


def serves(serve: Serve) -> str:
    return str(serve.event("an engine serves")["pair"])


def swapped(serve: Serve, engine: str, *, pair: str | None = None, trial: bool = False) -> tuple[int, str]:
    """Code and words of the last line, as slotctl gets it; 6 where it never came. A slotctl takes longer to start."""
    last: dict[str, Any] = {}
    transport = httpx.HTTPTransport(uds=str(serve.control))
    with (
        contextlib.suppress(httpx.TransportError),
        httpx.Client(transport=transport, base_url="http://x", timeout=LIMIT) as client,
        client.stream("POST", "/swap", json={"engine": engine, "pair": pair, "trial": trial}) as lines,
    ):
        for line in lines.iter_lines():
            last = json.loads(line)
    return (int(last["code"]), str(last["text"])) if last.get("done") else (6, "")


def whole_stream(url: str) -> tuple[str, float]:
    """All that came, up to the end or the break of the connection; and when that was."""
    text = ""
    try:
        with httpx.stream("POST", url, json=chat(100_000, stream=True), timeout=LIMIT) as answer:
            for piece in answer.iter_text():
                text += piece
    except httpx.HTTPError:
        pass
    return text, time.monotonic()


class Sender:
    """A client by hand: it sends a request's head and what is given of its body, and reads when it is told to."""

    def __init__(self, serve: Serve, body: bytes, length: int) -> None:
        host, _, port = serve.url.removeprefix("http://").partition(":")
        self._socket = socket.create_connection((host, int(port)), LIMIT)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n"
        self._socket.sendall(head.encode() + body)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def first(self) -> bytes:
        """What comes first."""
        return self._socket.recv(65536)

    def all(self) -> bytes:
        """What comes, up to the end or the break of the connection."""
        got = b""
        try:
            while data := self._socket.recv(65536):
                got += data
        except ConnectionResetError:
            pass
        return got


def test_case_43_it_ends_in_time_with_an_endless_stream_a_held_request_and_whatever_else_is_under_way(
    house: Path,
) -> None:
    """Also a swap that drains, with its slotctl, a client that is still sending, and one that follows a hold."""
    limited = changed(house, "case-43", stop_limit="8s")
    with Serve(limited, name="case-43") as serve, ThreadPoolExecutor() as pool, contextlib.ExitStack() as clients:
        url = f"{serve.url}/v1/chat/completions"
        assert serves(serve) == "strata:current"
        before = engines(house.parent)
        stream = pool.submit(whole_stream, url)
        serve.until(lambda: serve.status()["gate"]["in_flight"] == 1)
        swap = pool.submit(serve.slotctl, "swap", "to-ninfer")
        serve.until(lambda: serve.status()["state"] == "draining")
        hold = pool.submit(serve.slotctl, "hold")
        serve.until(lambda: serve.status()["hold"])
        held = pool.submit(lambda: httpx.post(url, json=chat(), timeout=LIMIT))
        serve.until(lambda: serve.status()["gate"]["waiting"] == 1)
        sending = clients.enter_context(Sender(serve, b"{", length=100))

        began = time.monotonic()
        serve.signal(signal.SIGTERM)
        answer = held.result()
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 0
        assert "stopping" in answer.json()["error"]["message"]
        late = sending.first()
        assert late.startswith(b"HTTP/1.1 503")
        assert b"retry-after" in late.lower()
        assert serve.end() == 0
        assert time.monotonic() - began < 8 + MARGIN, "stop_limit is 8 s"
        text, ended = stream.result()
        assert ended - began > 3, "it may finish, as long as there is time"
        assert '"error"' in text
        assert "the proxy stops" in text, "we have ended it, with our own words"
        assert "[DONE]" not in text
        assert _told(swap) == (4, "strata:current serves again: given up by the operator; slotproxy is stopping")
        assert hold.result().returncode == 6
        assert engines(house.parent) == before != []
        assert serve.troubles == []


def _told(swap: Future[subprocess.CompletedProcess[str]]) -> tuple[int, str]:
    ended = swap.result()
    return ended.returncode, ended.stderr.strip().splitlines()[-1].removeprefix("slotctl: ")


def test_a_second_signal_ends_it_at_once_also_with_a_client_that_does_not_read(house: Path) -> None:
    with Serve(changed(house, "long", stop_limit="60s"), name="twice") as serve:
        assert serves(serve) == "strata:current"
        before = engines(house.parent)
        body = json.dumps(chat(100_000, stream=True)).encode()
        with Sender(serve, body, len(body)) as idle:
            serve.until(lambda: serve.status()["gate"]["in_flight"] == 1)
            serve.signal(signal.SIGTERM)
            serve.until(lambda: httpx.post(f"{serve.url}/v1/chat/completions", json=chat()).status_code == 503)
            began = time.monotonic()
            serve.signal(signal.SIGINT)
            assert serve.end() == 0
            assert time.monotonic() - began < 3 * 2 + MARGIN, "only last words are left"
            assert b"[DONE]" not in idle.all()
        assert engines(house.parent) == before


# Draining is case 43's; staging takes no time here. What holds it in that phase: a file of the card's folder.
PHASES = {
    "checking": ("delays/memory", "3"),
    "stopping": None,
    "freeing": ("foreign/trainer", f"{4 * GiB} 1 trainer"),
    "starting": None,
    "warming": None,
}


@contextlib.contextmanager
def held(house: Path, hold: tuple[str, str] | None) -> Iterator[None]:
    if hold is None:
        yield
        return
    file = house.parent / "card" / hold[0]
    file.parent.mkdir(exist_ok=True)
    file.write_text(hold[1])
    try:
        yield
    finally:
        file.unlink()


def test_a_signal_in_each_phase_of_a_swap_leaves_one_engine_to_the_next_daemon(house: Path) -> None:
    """Case 45: where nothing holds it there, it may be in the next phase already. The truth is what is there."""
    told: dict[str, int] = {}
    with ThreadPoolExecutor() as pool:
        for where, hold in PHASES.items():
            with Serve(house, name=where) as serve:
                serving = serves(serve)
                assert up(house) == 1
                before = len(serve.log)  # a start has phases, too
                with held(house, hold):
                    swap = pool.submit(swapped, serve, "ninfer" if serving == "strata:current" else "strata")
                    serve.until(lambda: where in {line.get("phase") for line in serve.log[before:]})  # noqa: B023
                    began = time.monotonic()
                    serve.signal(signal.SIGTERM)
                    assert serve.end() == 0
                assert time.monotonic() - began < 4 + MARGIN
                told[where] = swap.result()[0]
                assert told[where] in (0, 4, 6)
                assert up(house) <= 1
                assert up(house) == 1 or told[where] == 6
    with Serve(house, name="last") as serve:
        assert serves(serve)
        assert up(house) == 1
        assert serve.end(signal.SIGTERM) == 0
    assert (told["checking"], told["freeing"]) == (4, 6)


def test_on_stop_says_that_the_engine_is_stopped_too_and_the_next_start_brings_it_back(house: Path) -> None:
    with Serve(changed(house, "stops", on_stop="stop", stop_limit="20s"), name="stops") as serve:
        serving = serves(serve)
        assert serve.end(signal.SIGTERM) == 0
        assert engines(house.parent) == []
        assert serve.event(f"{serving.partition(':')[0]} is stopped")["kind"] == "stopped"
        assert serve.troubles == []
    with Serve(house, name="back") as serve:
        assert serves(serve) == serving
        assert up(house) == 1
        assert serve.end(signal.SIGTERM) == 0


# ------------------------------------------------------------------------------------------------- reload


class Edited:
    """A copy of the house's file that is edited under a daemon's feet."""

    def __init__(self, house: Path) -> None:
        self.path = changed(house, "edited")
        self.keys = yaml.safe_load(self.path.read_text())

    def write(self, **changes: object) -> None:
        self.keys.update(changes)
        self.path.write_text(yaml.safe_dump(self.keys, sort_keys=False))


def asked(serve: Serve, key: str = "") -> int:
    headers = {"x-api-key": key} if key else {}
    return httpx.post(f"{serve.url}/v1/chat/completions", json=chat(), headers=headers, timeout=LIMIT).status_code


def began(pids: list[int]) -> dict[int, str]:
    """When each started, as the kernel has it."""
    return {pid: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19] for pid in pids}


def test_a_reload_is_whole_or_not_at_all_and_leaves_the_engine_that_serves_alone(house: Path) -> None:
    edited = Edited(house)
    with Serve(edited.path, name="reloads") as serve:
        holder = serves(serve).partition(":")[0]
        before = began(engines(house.parent))

        good = edited.path.read_text()
        edited.path.write_text(good + "listne: 1\n")
        told = serve.slotctl("reload")
        assert (told.returncode, told.stdout) == (2, "")
        assert "listne: unknown key" in told.stderr
        serve.signal(signal.SIGHUP)
        refusal = "the configuration isn't taken over: nothing has changed"
        serve.until(lambda: sum(line["event"] == refusal for line in serve.log) == 2)
        assert asked(serve) == 200

        (house.parent / "voice").write_text("one\n")
        again = {**edited.keys["engines"]["ninfer"]["pairs"], "again": edited.keys["engines"]["ninfer"]["pairs"]["v2"]}
        edited.keys["engines"]["ninfer"]["pairs"] = again
        edited.keys["engines"][holder]["stop_grace"] = "11s"
        edited.write(slots={"voice": {"key_file": "voice"}}, models={"other": {"ninfer": "x"}, "*": True})
        told = serve.slotctl("reload")
        assert told.returncode == 0, told.stderr
        assert set(told.stdout.splitlines()) == {
            "the configuration is taken over",
            "  models.qwen3.8-27b: removed",
            "  models.other: added",
            "  models.*: added",
            "  slots.anonymous: removed",
            "  slots.voice: added",
            "  engines.ninfer.pairs.again: added",
            f"  engines.{holder}.stop_grace: 10.0 s → 11.0 s",
        }
        assert (asked(serve, "one"), asked(serve, "two"), asked(serve)) == (200, 401, 401)
        assert began(engines(house.parent)) == before

        (house.parent / "voice").write_text("two\n")
        serve.signal(signal.SIGHUP)
        serve.until(lambda: asked(serve, "two") == 200)
        assert asked(serve, "one") == 401
        (house.parent / "voice").write_text("two\n# the next one\nthree\n")
        edited.write(slots={"voice": {"key_file": "voice", "id_slot": 1, "by_path": True}})
        told = serve.slotctl("reload")
        lines = ["voice.keys: changed", "voice.id_slot: none → 1", "voice.by_path: False → True"]
        assert told.stdout.splitlines()[1:] == [f"  slots.{line}" for line in lines]
        assert (asked(serve, "two"), asked(serve, "three"), asked(serve)) == (200, 200, 401)

        kept = edited.keys["engines"]
        edited.write(engines={name: one for name, one in kept.items() if name != holder}, default=None, models={})
        told = serve.slotctl("reload")
        assert told.returncode == 3
        assert f"engines.{holder} can't be removed now; it is on the card" in told.stderr
        edited.write(engines=kept)
        assert serve.slotctl("reload").returncode == 0
        assert swapped(serve, "ninfer", pair="again") == (0, "ninfer:again serves")
        assert up(house) == 1
        assert serve.end(signal.SIGTERM) == 0
