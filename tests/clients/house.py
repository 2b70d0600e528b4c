"""A real `slotproxy serve` and three engines: llama.cpp's real server, and NInfer's and Strata's simulators.

    with House(folder) as house:
        house.serve("llama")                    # a swap, unless it serves already
        house.direct, house.through             # where to ask the holder, and slotproxy
        with house.changing_to("ninfer"):       # the card is between the two for as long as the block takes

Everything is a child process; the card is a folder. Methods block, and are bounded.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import yaml

from engines.spec import MiB
from slotproxy import demo_files
from tests.realengine import llama_server
from tests.realengine.tiny_gguf import make_tiny_gguf
from tests.slotproxy.programs import LIMIT, MODEL, Json, Serve, ended_engines, free_port, quick_house, until

NAMES = {"llama": "tiny", "ninfer": MODEL, "strata": demo_files.STRATA_MODEL}
"""What each engine calls the model, also in its answers."""
SLOTS: dict[str, Json] = {"app": {}, "narrow": {"max_in_flight": 1, "max_waiting": 1}, "hasty": {"max_hold": "900ms"}}
"""Each has its own name as its key."""
PING = "200ms"
SIDE_BY_SIDE = 8  # requests that NInfer takes at once: as many clients can be in the middle of an answer
IN_THE_WAY = 1400 * MiB  # fits beside an engine, but leaves less than a start asks for


@dataclass(frozen=True, slots=True)
class Target:
    """Where a client asks, as whom, and for what."""

    url: str
    model: str
    key: str = "app"
    id: str | None = None  # the request's, in `X-Request-Id`

    @property
    def headers(self) -> dict[str, str]:
        return {"x-request-id": self.id} if self.id else {}


class House:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._urls: dict[str, str] = {}
        self.phases: list[str] = []  # what the last swap said
        self._write()

    def __enter__(self) -> Self:
        self._stack.enter_context(ended_engines(self.folder))
        self._daemon = self._stack.enter_context(Serve(self.folder / "slotproxy.yml", PYTHONASYNCIODEBUG=""))
        transport = httpx.HTTPTransport(uds=str(self._daemon.control))
        self._control = self._stack.enter_context(httpx.Client(transport=transport, base_url="http://x", timeout=LIMIT))
        self.url = self._daemon.url
        self.until(lambda: self.status()["serving"])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    # ---------------------------------------------------------------------------------- where clients ask

    @property
    def holder(self) -> str:
        return str(self.status()["holder"])

    @property
    def direct(self) -> Target:
        """The engine itself, by its own name for the model."""
        holder = self.holder
        return Target(self._urls[holder], NAMES[holder])

    @property
    def through(self) -> Target:
        return Target(self.url, MODEL)

    # ---------------------------------------------------------------------------------- the operator

    def status(self) -> Json:
        answer: Json = self._control.get("/status").json()
        return answer

    @property
    def gate(self) -> Json:
        gate: Json = self.status()["gate"]
        return gate

    @property
    def at_rest(self) -> bool:
        """Nobody waits, nobody has a place."""
        return not any(self.gate[name] for name in ("waiting", "in_flight", "settling"))

    def until(self, truth: Callable[[], object]) -> None:
        self._daemon.until(truth)

    def serve(self, engine: str) -> None:
        if self.holder != engine:
            assert self._swap(engine) == 0

    def order(self, engine: str) -> threading.Thread:
        """The same in the background; `join` it."""
        thread = threading.Thread(target=self.serve, args=(engine,))
        thread.start()
        return thread

    @contextmanager
    def changing_to(self, engine: str) -> Iterator[None]:
        """The old engine is gone, and the new one can't start, until the block is left: then it has, and serves."""
        trainer = self.folder / "card" / "foreign" / "trainer"
        trainer.parent.mkdir(exist_ok=True)
        trainer.write_text(f"{IN_THE_WAY} 1 trainer\n")
        with ThreadPoolExecutor(1) as pool:
            swap = pool.submit(self._swap, engine)
            try:
                self.until(lambda: self.status()["state"] == "freeing")
                yield
            finally:
                trainer.unlink()
            assert swap.result(LIMIT) == 0

    def received(self, id: str) -> int:
        """How often the simulators were sent the request of that id."""
        seen = [line for line in self._log() if line["event"] == "received"]
        return sum(id in (line.get("id"), line.get("request_id")) for line in seen)

    def count(self, event: str, **facts: str) -> int:
        """How many lines of the simulators' logs tell of this."""
        return sum(line["event"] == event and line.items() >= facts.items() for line in self._log())

    def _log(self) -> Iterator[Json]:
        for log in self.folder.glob("*.jsonl"):
            yield from map(json.loads, log.read_text().splitlines())

    def fault(self, words: str) -> None:
        """Strata's, from its next request on; none: no more."""
        (self.folder / "fault").write_text(words)

    def _swap(self, engine: str) -> int:
        with self._control.stream("POST", "/swap", json={"engine": engine}) as answer:
            lines = [json.loads(line) for line in answer.iter_lines()]
        self.phases = [f"{line['phase']}: {line['text']}" for line in lines if "phase" in line]
        return int(lines[-1]["code"])

    # ---------------------------------------------------------------------------------- how it is set up

    def _write(self) -> None:
        path = quick_house(self.folder)
        house = yaml.safe_load(path.read_text())
        house["engines"] |= {"llama": self._llama()}
        ninfer, strata = house["engines"]["ninfer"], house["engines"]["strata"]
        for pair in ninfer["pairs"].values():
            pair["command"] += ["--max-concurrency", str(SIDE_BY_SIDE), "--sim-workers", "24"]
        ninfer["env"] |= {"NINFER_SIM_REQUEST_LOG": str(self.folder / "ninfer.jsonl"), "NINFER_SIM_DECODE_MS": "4"}
        ninfer["env"] |= {"NINFER_SIM_STOP_S": "0", "NINFER_SIM_PREFILL_TPS": "1e6", "NINFER_SIM_PREFIXES": "0"}
        ninfer["concurrency"] = SIDE_BY_SIDE
        strata["env"] |= {"STRATA_SIM_REQUEST_LOG": str(self.folder / "strata.jsonl"), "STRATA_SIM_DECODE": "2"}
        strata["env"] |= {"STRATA_SIM_UNPIN": "0", "STRATA_SIM_FAULT_FILE": str(self.folder / "fault")}
        for engine in house["engines"].values():
            engine["require"] = "candidate"  # no trials: what matters here is what clients see
        self._urls = {name: engine["url"] for name, engine in house["engines"].items()}
        house |= {"default": "ninfer", "models": {MODEL: NAMES}, "slots": {n: self._slot(n) for n in SLOTS}}
        house |= {"limits": {"first_ping": PING, "ping_every": PING}, "drain": "20s", "freeing": "60s"}
        path.write_text(yaml.safe_dump(house, sort_keys=False))

    def _slot(self, name: str) -> dict[str, Any]:
        (self.folder / name).write_text(name)
        return {"key_file": name, **SLOTS[name]}

    def _llama(self) -> dict[str, Any]:
        model, port = make_tiny_gguf(self.folder / "models" / "tiny.gguf"), free_port()
        command = [sys.executable, llama_server.__file__, "--model", str(model), "--port", str(port)]
        card = ["--card-folder", str(self.folder / "card"), "--vram", str(demo_files.VRAM_BYTES)]
        return {
            "profile": "llamacpp",
            "url": f"http://127.0.0.1:{port}",
            "command": [*command, "--embeddings", *card],
            # `ended_engines` finds it by this
            "env": {"LLAMA_SIM_CARD": str(self.folder / "card")},
            "vram": demo_files.VRAM,
            "stop_grace": "10s",
            "pairs": {"tiny": {"artifact": str(model)}},
        }


__all__ = ["MODEL", "NAMES", "House", "Target", "until"]
