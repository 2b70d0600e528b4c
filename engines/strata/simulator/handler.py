"""HTTP/1.0: routes, who may ask, one request at a time, streams that end when the connection closes."""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import json
import select
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any

from engines.strata.simulator.asking import Ask, BadRequest, prompt_of, read_ask, read_json
from engines.strata.simulator.dialects import KEEP_ALIVE, Chat, Dialect, Messages, Output, seed_of
from engines.strata.simulator.knobs import Knobs
from engines.strata.simulator.requestlog import RequestLog
from engines.strata.simulator.settings import Settings
from engines.strata.simulator.supervisor import EngineGone, Supervisor

if TYPE_CHECKING:
    from engines.strata.simulator.server import Server

LOOK = 0.1  # seconds between looks at a silent engine
NOTICE = 0.4  # seconds between looks whether the client is still there


class House:
    """What all connections share. `turn` is held by the one request that runs; others wait for it without limit."""

    def __init__(self, settings: Settings, knobs: Knobs, supervisor: Supervisor, log: RequestLog) -> None:
        self.settings, self.knobs, self.supervisor, self.log = settings, knobs, supervisor, log
        self.turn = threading.Lock()
        self.present: set[int] = set()  # requests that run or wait
        self.effort = "high"

    def health(self) -> dict[str, Any]:
        """`ok` whenever the port is open; only `loaded` tells whether there is an engine."""
        return {"status": "ok", "engine": "strata", "loaded": self.supervisor.loaded}

    def models(self) -> dict[str, Any]:
        model = {"id": "strata", "object": "model", "owned_by": "strata", "max_model_len": self.settings.context}
        return {"object": "list", "data": [model]}

    def metrics(self) -> dict[str, Any]:
        busy = self.turn.locked()
        process = self.supervisor.process
        return {
            "requests": self.supervisor.requests,
            "busy": busy,
            "queued": max(0, len(self.present) - int(busy)),
            "vram_bytes": self.supervisor.vram,
            "engine_pid": process.pid if process is not None else None,
        }

    def shown_settings(self) -> dict[str, Any]:
        return self.settings.shown() | {"reasoning_effort": self.effort}

    def change(self, body: dict[str, Any]) -> dict[str, Any]:
        self.effort = str(body.get("reasoning_effort", self.effort))
        return self.shown_settings()

    def unload(self, _body: dict[str, Any]) -> dict[str, Any]:
        with self.turn:
            self.supervisor.unload()
        return {"status": "unloaded"}

    def count(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"input_tokens": max(1, len(prompt_of(body)) // 4)}


class Client:
    """The connection to one client: whether it is still there, and how long it has heard nothing."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.heard = self.looked = time.monotonic()
        self.gone = False

    def send(self, data: bytes) -> None:
        """Sends all of it, however slowly it is read; a client that left makes no error, it is `gone`."""
        try:
            self.connection.sendall(data)
            self.heard = time.monotonic()
        except OSError:
            self.gone = True

    def left(self) -> bool:
        """Looks every NOTICE seconds at most; a connection that is closed for writing counts as left."""
        now = time.monotonic()
        if not self.gone and now - self.looked >= NOTICE:
            self.looked = now
            with contextlib.suppress(OSError):
                readable, _, _ = select.select([self.connection], [], [], 0)
                self.gone = bool(readable) and self.connection.recv(1, socket.MSG_PEEK) == b""
        return self.gone

    def silent_for(self) -> float:
        return time.monotonic() - self.heard


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"
    server_version = "strata-sim"
    disable_nagle_algorithm = True  # events leave when they are made
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        """Requests go to the request log, not to standard error."""

    @property
    def house(self) -> House:
        return self.server.house

    def do_GET(self) -> None:
        routes = {
            "/health": self.house.health,
            "/v1/models": self.house.models,
            "/metrics": self.house.metrics,
            "/settings": self.house.shown_settings,
        }
        if not self.refused():
            answer = routes.get(self.route)
            self.reply(200, answer()) if answer else self.missing()

    def do_POST(self) -> None:
        dialects: dict[str, type[Chat | Messages]] = {"/v1/chat/completions": Chat, "/v1/messages": Messages}
        others: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "/v1/messages/count_tokens": self.house.count,
            "/settings": self.house.change,
            "/unload": self.house.unload,
        }
        if self.refused():
            return
        try:
            if self.route in dialects:
                self.infer(dialects[self.route])
            elif self.route in others:
                self.reply(200, others[self.route](read_json(self.body())))
            else:
                self.missing()
        except BadRequest as bad:
            self.reply(400, error(str(bad), "invalid_request_error"))

    @property
    def route(self) -> str:
        return self.path.partition("?")[0]

    def refused(self) -> bool:
        """With a key: 401 without it, but for /health. Without one: 403 for an unknown Host, or any Origin."""
        if key := self.house.settings.api_key:
            given = self.headers.get("x-api-key") or self.headers.get("Authorization", "").removeprefix("Bearer ")
            if self.route != "/health" and given != key:
                self.reply(401, error("wrong or missing API key", "authentication_error"))
                return True
        elif not known_host(self.headers.get("Host", "")) or "Origin" in self.headers:
            self.reply(403, error("unknown Host, or an Origin: set an API key to allow it", "forbidden"))
            return True
        return False

    def body(self) -> bytes:
        if "Transfer-Encoding" in self.headers:
            raise BadRequest("a chunked body can't be read: send Content-Length")
        try:
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))
        except ValueError as bad:
            raise BadRequest("Content-Length is no number") from bad

    def reply(self, status: int, answer: dict[str, Any]) -> None:
        data = json.dumps(answer, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def missing(self) -> None:
        self.reply(404, error(f"no route {self.command} {self.route}", "not_found"))

    def infer(self, dialect: type[Chat | Messages]) -> None:
        """One completion: queued at once, its stream opened at once, and then its turn, even if the client left."""
        house, raw = self.house, self.body()
        n = house.log.number()
        seen = {"path": self.route, "id": self.headers.get("X-Request-Id"), "sha256": hashlib.sha256(raw).hexdigest()}
        house.log.write("received", n, **seen)
        ask = read_ask(read_json(raw), house.knobs, house.effort)
        answer, client = dialect(ask, n), Client(self.connection)
        house.present.add(n)
        try:
            if ask.stream:
                self.open_stream(client, answer)
            with house.turn:
                if not house.supervisor.stopping:
                    house.log.write("started", n, **seen)
                    outcome = self.answer(ask, answer, client)
                    house.log.write(outcome, n, **seen)
        finally:
            house.present.discard(n)

    def open_stream(self, client: Client, answer: Dialect) -> None:
        """The headers and the first event, sent before the request's turn: then silence."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-cache")
        with contextlib.suppress(OSError):
            self.end_headers()
        client.send(answer.opening())

    def answer(self, ask: Ask, answer: Dialect, client: Client) -> str:
        """Generate and send; returns finished, cancelled (the client left) or failed (the engine is dead)."""
        output = Output()
        try:
            if not self.generate(ask, answer, client, output):
                return "cancelled"
        except EngineGone as gone:
            if ask.stream:
                client.send(answer.broken(str(gone)))
            else:
                self.reply(503, answer.failure(str(gone), "server_error"))
            return "failed"
        if ask.stream:
            client.send(answer.closing(output))
        else:
            self.reply(200, answer.whole(output))
        return "finished"

    def generate(self, ask: Ask, answer: Dialect, client: Client, output: Output) -> bool:
        """True when it came to its end. Comments keep the stream alive only here, while the engine runs."""
        with contextlib.closing(self.house.supervisor.generate(ask, seed_of(ask), LOOK)) as reports:
            for report in reports:
                if client.left():
                    return False
                if report is None:
                    if ask.stream and client.silent_for() >= self.house.knobs.keep_alive:
                        client.send(KEEP_ALIVE)
                elif "end" in report:
                    output.finish = report["end"]
                else:
                    output.add(report["kind"], report["text"])
                    if ask.stream:
                        client.send(answer.piece(report["kind"], report["text"]))
        return True


def known_host(host: str) -> bool:
    """An address or localhost, with or without a port: no name that a web page could have pointed here."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def error(message: str, kind: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": None}}
