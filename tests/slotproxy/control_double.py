"""A small daemon that speaks the control API: it holds a card, swaps between pairs, and goes wrong in a way if told to.

In a thread of the test (`serving`), or as a process that can be killed: `python -m … SOCKET FAULT`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

GiB = 1024**3
TICK = 0.2  # seconds
STATEMENT = '{"_type":"https://in-toto.io/Statement/v1"}'
ARTIFACT = {"path": "/srv/models/v3.ninfer", "size": 22 * GiB, "sha256": "55" * 32}
SIDES = {"declared": None, "created": None, "running": None, "verified": None, "trial": ""}
DRIFT = [
    SIDES
    | {"field": "image", "declared": "ninfer:v3", "created": "ninfer:local", "severity": "stale", "mend": "stage it"},
    SIDES | {"field": "init", "declared": "yes", "created": "no", "severity": "beside", "mend": "stage it"},
]


class Daemon:
    """`fault`: `restored` (a swap fails, code 4), `dark` (5), `slow` (a swap waits in its drain until it is aborted),
    `silent` (a swap stops ticking), `late` (a plan is refused when it has taken a while), `gpu` (no NVML), `ill` (the
    doctor finds a problem), `well` (it finds nothing), `mute` (answers nothing that is slotproxy's).
    """

    def __init__(self, fault: str = "", plan_takes: float = 0.0) -> None:
        self.fault, self.plan_takes = fault, plan_takes
        self.reset()

    def reset(self) -> None:
        self.pair = "strata:current"
        self.policy: list[str] = []
        self.verified = {"strata:current", "ninfer:v2"}
        self.hold: float | None = None
        self.held = False
        self.orders: list[dict[str, Any]] = []
        self.plans: list[dict[str, Any]] = []
        self.words: list[dict[str, Any]] = []
        self.broken = False
        self.aborted = asyncio.Event()

    def app(self) -> Starlette:
        if self.fault == "mute":
            return Starlette()
        posts = {
            "/plan": self.plan,
            "/swap": self.swap,
            "/abort": self.abort,
            "/drift": self.drift,
            "/stage": self.stage,
            "/pairs": self.pairs,
            "/pairs/adopt": self.adopt,
            "/pairs/attest": self.word,
            "/pairs/revoke": self.word,
            "/pairs/export": self.export,
            "/pairs/log": self.log,
            "/pairs/repair": self.repair,
            "/hold": self.set_hold,
            "/release": self.release,
        }
        gets = {
            "/status": self.status,
            "/pairs/check": self.check,
            "/gpu": self.gpu,
            "/doctor": self.doctor,
        }
        routes = [Route(path, answer, methods=["POST"]) for path, answer in posts.items()]
        return Starlette(routes=[*routes, *(Route(path, answer) for path, answer in gets.items())])

    async def status(self, request: Request) -> Response:
        gate = {"state": "open", "engine": self.pair.split(":")[0], "reason": None, "waiting": 2, "waiting_bytes": 2048}
        engines = {"strata": {"status": "running", "id": "ab" * 32, "pair": "strata:current", "url": "http://x:1"}}
        return JSONResponse(
            {
                "pid": 4711,
                "version": "0.1.0",
                "state": "serving",
                "holder": self.pair.split(":")[0],
                "pair": self.pair,
                "serving": True,
                "verified": self.pair in self.verified,
                "proof": "verified" if self.pair in self.verified else "not verified",
                "policy": self.policy,
                "since": "2026-01-02T03:04:05Z",
                "gate": gate | {"in_flight": 1, "settling": 0, "longest_wait": 1.5},
                "hold": {"left": self.hold} if self.held else None,
                "swap": None,
                "dark": None,
                "card": {
                    "name": "Card",
                    "uuid": "GPU-1",
                    "driver": "1",
                    "total": 32 * GiB,
                    "free": GiB,
                    "used": 31 * GiB,
                },
                "engines": engines,
                "warnings": ["the tree has moved"],
            }
        )

    async def plan(self, request: Request) -> Response:
        return _stream(self._plan(await request.json()))

    async def _plan(self, order: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        self.plans.append(order)
        left = self.plan_takes
        while left > 0:
            yield {"tick": True}
            await asyncio.sleep(TICK)
            left -= TICK
        if self.plan_takes:
            yield {"phase": "checking", "text": "hashing /srv/models/v3.ninfer: 1.0 of 22.0 GiB", "elapsed": 2.0}
        if self.fault == "late":
            yield {"done": True, "code": 3, "text": "the disk stalls", "mend": "look after it"}
            return
        label = f"{order['engine']}:{order['pair'] or 'v2'}"
        allowed = label in self.verified or order["trial"]
        yield (
            {
                "done": True,
                "label": label,
                "allowed": allowed,
                "refusals": [] if allowed else [{"what": f"{label} never ran on this card", "mend": "use --trial"}],
                "warnings": [],
                "drift": DRIFT,
                "would_run": {
                    "image": "ninfer:v3",
                    "image_id": "sha256:1",
                    "argv": ["a", "b c"],
                    "artifacts": [ARTIFACT],
                },
                "stage": True,
                "verified": {"when": "2026-01-01", "how": "trial"} if label in self.verified else None,
            }
        )

    async def drift(self, request: Request) -> Response:
        return _stream(self._drift(await request.json()))

    async def _drift(self, order: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        self.orders.append(order)
        same = {"label": self.pair, "deployed": True, "status": "running", "created_as": self.pair, "container": "c"}
        proof = {"proof": "verified", "verified": {"when": "2026-01-01", "how": "trial"}, "before": None}
        engines = [same | proof | {"drift": [], "refusals": [], "differs": False}]
        if order["engine"] is None:
            other = {"label": "ninfer:v3", "status": "exited", "created_as": "ninfer:v2", "proof": "not verified"}
            refusals = [{"what": "v3.ninfer is truncated", "mend": "copy it again"}]
            engines.append(other | {"drift": DRIFT, "refusals": refusals, "differs": True})
        yield {"done": True, "engines": engines, "differs": len(engines) > 1}

    async def swap(self, request: Request) -> Response:
        order = await request.json()
        self.orders.append(order)
        label = f"{order['engine']}:{order['pair'] or 'v2'}"
        if label not in self.verified and not order["trial"]:
            return _refusal(f"{label} never ran on this card", "slotctl swap to-… --trial")
        return _stream(self._swap(label))

    async def _swap(self, label: str) -> AsyncIterator[dict[str, Any]]:
        yield {"phase": "checking", "text": f"hashing\u2028{label}\x1b[2J", "elapsed": 0.04}
        yield {"phase": "draining", "text": "2 requests in flight", "elapsed": 1.23}
        if self.fault == "silent":
            await asyncio.sleep(60)
        while self.fault == "slow" and not self.aborted.is_set():
            yield {"tick": True}
            await asyncio.sleep(TICK)
        if self.aborted.is_set() or self.fault == "restored":
            yield {"done": True, "code": 4, "text": f"{label} exited 1; {self.pair} serves again", "serving": self.pair}
            return
        if self.fault == "dark":
            yield {"done": True, "code": 5, "text": "nothing serves: foreign holds 31GiB", "serving": None}
            return
        await asyncio.sleep(2 * TICK)
        self.pair = label
        self.verified.add(label)
        yield {"done": True, "code": 0, "text": f"{label} serves", "serving": label}

    async def abort(self, request: Request) -> Response:
        if self.fault != "slow":
            return _refusal("no swap is under way", "slotctl status shows what is")
        self.aborted.set()
        return JSONResponse({"code": 0, "text": "given up"})

    async def stage(self, request: Request) -> Response:
        differences = [{"field": "image", "declared": "b", "created": "a", "pair": True}]
        return _one({"code": 0, "text": "ninfer:v2 is staged", "id": "c0ffee", "differences": differences})

    async def pairs(self, request: Request) -> Response:
        seen = {
            "deployed": True,
            "state": "verified",
            "when": "2026-01-01",
            "how": "trial",
            "ready_in": 9.5,
            "vram_peak": 30 * GiB,
            "tokens_per_second": 160.25,
            "image": "i",
        }
        known = [{"label": label, "last_failure": None} | seen for label in sorted(self.verified)]
        failed = {"when": "2026-01-03", "reason": "exit 1"}
        return _one({"pairs": [*known, {"label": "ninfer:v3", "state": "never ran", "last_failure": failed}]})

    async def adopt(self, request: Request) -> Response:
        engine = (await request.json())["engine"]
        if engine not in self.pair:
            return _refusal(f"{engine} isn't serving", f"slotctl swap to-{engine} --trial")
        return _one({"code": 0, "text": f"{self.pair} is verified"})

    async def word(self, request: Request) -> Response:
        self.words.append({"path": request.url.path, **await request.json()})
        return _one({"code": 0, "text": "it is recorded"})

    async def export(self, request: Request) -> Response:
        order = await request.json()
        label = f"{order['engine']}:{order['pair'] or 'v2'}"
        if label not in self.verified:
            return _refusal(f"{label} is candidate, not verified", "see `slotctl pairs`")
        return _one({"label": label, "line": STATEMENT})

    async def log(self, request: Request) -> Response:
        self.words.append({"path": request.url.path, **await request.json()})
        card = {"name": "Card", "uuid": "GPU-1", "driver": "1", "simulated": False}
        seen = {"when": "2026-01-01", "pair": "ninfer:v2", "how": "trial", "card": card, "ready_in": 9.5}
        served = seen | {"outcome": "served", "tokens_per_second": 160.25, "reason": ""}
        failed = seen | {"outcome": "failed", "ready_in": None, "card": card | {"simulated": True}, "reason": "exit\n1"}
        repair = {"outcome": "repair", "when": "2026-01-02", "first": 3, "last": 4, "reason": "an editor"}
        return JSONResponse({"lines": [served, failed, repair], "problems": []})

    async def check(self, request: Request) -> Response:
        broken = {"line": 3, "why": "line 3 was changed"} if self.broken else None
        problems = ["the ledger is broken: line 3 was changed"] if self.broken else []
        said = {"file": "/s/ledger.jsonl", "whole": not self.broken, "lines": 5, "counting": 2 if self.broken else 5}
        return JSONResponse(said | {"broken": broken, "problems": problems})

    async def repair(self, request: Request) -> Response:
        if not self.broken:
            return _refusal("nothing is broken in the ledger", "")
        self.broken = False
        return JSONResponse({"code": 0, "text": "the ledger goes on: lines 3 to 5 count for nothing"})

    async def gpu(self, request: Request) -> Response:
        if self.fault == "gpu":
            return JSONResponse({"error": "NVML: driver/library version mismatch", "mend": "reboot"})
        holder = {"pid": 4711, "bytes": 31 * GiB, "name": "strata", "container": "strata"}
        card = {"name": "Card", "uuid": "GPU-1", "driver": "1", "total": 32 * GiB, "free": GiB, "used": 31 * GiB}
        return JSONResponse(card | {"reserved": 0, "processes": [holder, {"pid": 1, "bytes": None}]})

    async def doctor(self, request: Request) -> Response:
        problem = {"where": "ninfer:v2", "what": "its file\nis gone", "mend": "restore it", "severity": "problem"}
        warning = {"where": "slotproxy", "what": "requests are held", "mend": "", "severity": "warning"}
        findings = {"ill": [problem, warning], "": [warning]}.get(self.fault, [])
        code = 3 if self.fault == "ill" else 0
        seen = ["Docker 20.10.24, API 1.41", "compose 2.40.3"]
        return JSONResponse({"code": code, "version": "0.1.0", "findings": findings, "seen": seen})

    async def set_hold(self, request: Request) -> Response:
        self.held, self.hold = True, (await request.json())["seconds"]
        return _stream(self._hold())

    async def _hold(self) -> AsyncIterator[dict[str, Any]]:
        yield {"phase": "draining", "text": "1 request in flight", "elapsed": 0.0}
        await asyncio.sleep(TICK)
        yield {"done": True, "code": 0, "text": "held: nothing is in flight"}

    async def release(self, request: Request) -> Response:
        self.held = False
        return JSONResponse({"code": 0, "text": "released"})


def _refusal(what: str, mend: str) -> Response:
    return JSONResponse({"error": what, "mend": mend, "code": 3}, status_code=409)


def _one(answer: dict[str, Any]) -> Response:
    """A stream of one line."""

    async def lines() -> AsyncIterator[dict[str, Any]]:
        yield {"done": True, **answer}

    return _stream(lines())


def _stream(lines: AsyncIterator[dict[str, Any]]) -> Response:
    async def text() -> AsyncIterator[str]:
        async for line in lines:
            yield json.dumps(line, ensure_ascii=False) + "\n"

    return StreamingResponse(text(), media_type="application/x-ndjson")


def _server(socket: Path, daemon: Daemon) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(
            daemon.app(),
            uds=str(socket),
            log_config=None,
            log_level="error",
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=1,
        )
    )


@contextmanager
def serving(socket: Path, daemon: Daemon) -> Iterator[Daemon]:
    server = _server(socket, daemon)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield daemon
    finally:
        server.should_exit = True
        thread.join(20)


def wait_until(true: Any, limit: float = 20.0) -> None:
    until = time.monotonic() + limit
    while not true():
        assert time.monotonic() < until, "it didn't come to pass"
        time.sleep(0.02)


if __name__ == "__main__":
    _server(Path(sys.argv[1]), Daemon(sys.argv[2])).run()
