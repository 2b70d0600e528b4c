"""Routes: from a request on the wire to the engine and back."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engines.ninfer.simulator.chat import Chat
from engines.ninfer.simulator.engine import ClientGone, Cut, Engine, Job, Refused
from engines.ninfer.simulator.messages import Messages
from engines.ninfer.simulator.options import Knobs, Launch
from engines.ninfer.simulator.responses import Responses
from engines.ninfer.simulator.shapes import Answer, Ask, BadRequest, Shape
from engines.ninfer.simulator.wire import Closed, Connection, Request
from engines.simtools import call_of

_SHAPES: dict[str, type[Shape]] = {
    "/v1/chat/completions": Chat,
    "/v1/responses": Responses,
    "/v1/messages": Messages,
    "/v1/messages/count_tokens": Messages,
}
_EXPLAINED = {
    "overloaded": "the server is at its limit of running and waiting requests",
    "timeout": "the request waited too long for its turn",
    "unavailable": "the engine has failed and takes no more requests",
    "lost": "CUDA error: no CUDA-capable device is detected",
    "failed": "the engine failed in the middle of this request",
}


class RequestLog:
    """One JSON line when a request is received, one when it is over. Lines of several engines may share a file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._numbers = itertools.count(1)

    def received(self, request: Request) -> int:
        number = next(self._numbers)
        digest = hashlib.sha256(request.body).hexdigest()
        facts = {"path": request.path, "request_id": request.headers.get("x-request-id"), "sha256": digest}
        self._write(number, "received", **facts)
        return number

    def over(self, number: int, how: str, tokens: int) -> None:
        self._write(number, "over", how=how, tokens=tokens)

    def _write(self, number: int, event: str, **facts: Any) -> None:
        if self._path is None:
            return
        line = {"event": event, "number": number, "pid": os.getpid(), "time": time.time(), **facts}
        with self._path.open("ab", buffering=0) as file:
            file.write(json.dumps(line).encode() + b"\n")


class _Listener:
    """The client as the engine sees it while it works for it."""

    def __init__(self, connection: Connection, stopping: threading.Event, *, stream: bool, silence: float) -> None:
        self._connection, self._stopping, self._stream = connection, stopping, stream
        self._silence = silence if stream else 0
        self._last = time.monotonic()

    def check_stop(self) -> None:
        if self._stream and self._stopping.is_set():
            raise Cut

    def check_gone(self) -> None:
        self.check_stop()
        if self._connection.gone:
            raise ClientGone

    def tend(self) -> None:
        self.check_gone()
        if self._silence and time.monotonic() - self._last >= self._silence:
            self.send(b": keep-alive\n\n")

    def send(self, piece: bytes) -> None:
        try:
            self._connection.send_piece(piece)
        except Closed:
            raise ClientGone from None
        self._last = time.monotonic()


class Service:
    """What is behind the routes. `handle` runs in many threads at once."""

    def __init__(self, launch: Launch, knobs: Knobs, model: str, stopping: threading.Event) -> None:
        self._launch, self._knobs, self._model = launch, knobs, model
        self._stopping = stopping
        self._engine = Engine(launch, knobs)
        self._log = RequestLog(knobs.request_log)
        self._said: dict[str, str] = {}  # response id -> prompt and answer, for previous_response_id

    def handle(self, request: Request, connection: Connection) -> None:
        if request.path == "/health":
            self._health(connection)
        elif not self._allowed(request):
            shape = _SHAPES.get(request.path, Chat)()
            connection.send_json(401, shape.error(401, "invalid_api_key", "missing or invalid API key"))
        elif request.method == "GET" and request.path.startswith("/v1/models"):
            self._models(request.path, connection)
        elif request.method == "POST" and request.path in _SHAPES:
            self._post(request, connection, _SHAPES[request.path]())
        else:
            connection.send_json(404, Chat().error(404, "not_found", f"no route {request.method} {request.path}"))

    def _health(self, connection: Connection) -> None:
        if self._engine.failed and not self._knobs.lying_health:
            connection.send_json(503, {"status": "unavailable"})
        else:
            connection.send_json(200, {"status": "ok"})

    def _allowed(self, request: Request) -> bool:
        key = self._launch.api_key
        given = (request.headers.get("authorization"), request.headers.get("x-api-key"))
        return not key or f"Bearer {key}" == given[0] or key == given[1]

    def _models(self, path: str, connection: Connection) -> None:
        model = {"id": self._model, "object": "model", "created": int(time.time()), "owned_by": "ninfer"}
        if path == "/v1/models":
            connection.send_json(200, {"object": "list", "data": [model]})
        elif path == f"/v1/models/{self._model}":
            connection.send_json(200, model)
        else:
            connection.send_json(404, Chat().error(404, "model_not_found", f"no model {path[len('/v1/models/') :]!r}"))

    def _post(self, request: Request, connection: Connection, shape: Shape) -> None:
        number = self._log.received(request)
        how, answer = "bad request", None
        try:
            ask = self._understand(request, shape)
            if request.path.endswith("/count_tokens"):
                how = "done"
                connection.send_json(200, {"input_tokens": ask.prompt_tokens})
                return
            answer = Answer(f"{os.getpid()}-{number}", ask.model, ask.prompt_tokens)
            how = self._answer(ask, answer, shape, connection)
        except BadRequest as bad:
            connection.send_json(bad.status, shape.error(bad.status, bad.code, str(bad)))
        finally:
            self._log.over(number, how, answer.timing.tokens if answer else 0)

    def _understand(self, request: Request, shape: Shape) -> Ask:
        try:
            body = json.loads(request.body)
        except (ValueError, RecursionError):
            raise BadRequest("request body is not valid JSON") from None
        if not isinstance(body, dict):
            raise BadRequest("request body is not a JSON object")
        tool, arguments = call_of(body)
        ask = dataclasses.replace(shape.read(body), tool=tool, arguments=arguments)
        if shape.model_matters and ask.model != self._model:
            raise BadRequest(f"model '{ask.model}' not found", 404, "model_not_found")
        if ask.previous and ask.previous not in self._said:
            text = f"Previous response with id '{ask.previous}' not found."
            raise BadRequest(text, 400, "previous_response_not_found")
        if ask.prompt_tokens > self._launch.max_context:
            raise BadRequest(f"the prompt has {ask.prompt_tokens} tokens, the context {self._launch.max_context}")
        return ask

    def _job(self, ask: Ask) -> Job:
        tokens = ask.max_tokens or self._launch.default_max_tokens
        thinking = not self._launch.no_thinking if ask.thinking is None else ask.thinking
        thoughts = min(4, tokens // 4) if thinking else 0
        if ask.tool:
            tokens = min(ask.max_tokens or sys.maxsize, thoughts + len(ask.arguments))
        return Job(self._said.get(ask.previous, "") + ask.prompt, tokens, thoughts)

    def _answer(self, ask: Ask, answer: Answer, shape: Shape, connection: Connection) -> str:
        """Returns how it ended, for the log."""
        job = self._job(ask)
        answer.prompt_tokens, answer.tool, answer.cut = job.prompt_tokens, ask.tool, _is_cut(ask, job)
        shape.begin(answer)
        client = _Listener(connection, self._stopping, stream=ask.stream, silence=self._knobs.keepalive_s)
        try:
            self._engine.enter(job)
        except Refused as refused:
            return self._refuse(refused, shape, connection)
        try:
            if ask.stream:
                connection.start_stream()
                self._stream(job, ask, answer, shape, client)
                connection.end_stream()
            else:
                self._collect(job, ask, answer, client)
                connection.send_json(200, shape.whole())
            if ask.store:
                self._said[f"resp_{answer.id}"] = self._said.get(ask.previous, "") + ask.prompt + answer.said
            return "done"
        except Refused as refused:
            return self._fail(refused, ask, shape, connection)
        except (ClientGone, Closed):
            connection.close()
            return "cancelled"
        except Cut:
            connection.close()
            return "cut"
        finally:
            self._engine.leave(job)

    def _stream(self, job: Job, ask: Ask, answer: Answer, shape: Shape, client: _Listener) -> None:
        makes = {"thought": shape.thought, "word": shape.piece, "argument": shape.argument}
        for index, (kind, text) in enumerate(self._tokens(job, ask, answer, client)):
            for piece in [*(shape.opening() if index == 0 else []), *makes[kind](text)]:
                client.send(piece)
        for piece in shape.closing():
            client.send(piece)

    def _collect(self, job: Job, ask: Ask, answer: Answer, client: _Listener) -> None:
        for _ in self._tokens(job, ask, answer, client):
            pass

    def _tokens(self, job: Job, ask: Ask, answer: Answer, client: _Listener) -> Iterator[tuple[str, str]]:
        """What each token is, and its text, which the answer has then."""
        self._engine.wait_turn(job, client)
        for index, text in enumerate(self._engine.run(job, client, answer.timing)):
            if index < job.thoughts:
                answer.thoughts.append(text)
                yield "thought", text
            elif ask.tool:
                answer.arguments.append(ask.arguments[index - job.thoughts])
                yield "argument", answer.arguments[-1]
            else:
                answer.text.append(text)
                yield "word", text

    def _fail(self, refused: Refused, ask: Ask, shape: Shape, connection: Connection) -> str:
        if not ask.stream:
            return self._refuse(refused, shape, connection)
        with contextlib.suppress(Closed):
            if refused.why == "failed":  # a stream that waited too long ends with no event at all
                connection.send_piece(shape.failure(_EXPLAINED["failed"]))
            connection.end_stream()
        return refused.why

    def _refuse(self, refused: Refused, shape: Shape, connection: Connection) -> str:
        status, code = shape.statuses[refused.why]
        if refused.why == "timeout" and status == 503:
            status = self._knobs.pending_status
        connection.send_json(status, shape.error(status, code, _EXPLAINED[refused.why]))
        return refused.why


def _is_cut(ask: Ask, job: Job) -> bool:
    """Whether `max_tokens` ends the answer: words end there always, a call only where it is longer."""
    return job.tokens < job.thoughts + len(ask.arguments) if ask.tool else ask.max_tokens is not None
