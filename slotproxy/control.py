"""The control API: the operator's desk as HTTP on a unix socket. Who may open the socket may do everything."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from slotproxy.desk import Desk, Json, Refusal
from swap.ports import Fault

CONNECT_LIMIT = 2.0  # seconds that a live daemon has to accept on its socket


class SocketTaken(Exception):
    """A live daemon has the control socket."""


def build_control(desk: Desk) -> Starlette:
    """The application behind the socket."""
    routes = [
        _get("/status", desk.status),
        _get("/gpu", desk.gpu),
        _get("/pairs", desk.pairs),
        _post("/plan", lambda body: desk.plan(*_target(body), trial=bool(body.get("trial")))),
        _post("/stage", lambda body: desk.stage(*_target(body))),
        _post("/pairs/adopt", lambda body: desk.adopt(_text(body, "engine"))),
        _post("/abort", lambda _: _now(desk.abort)),
        _post("/release", lambda _: _now(desk.release)),
        _stream(
            "/swap", lambda body: desk.swap({**body, "engine": _target(body)[0], "drain": _seconds(body, "drain")})
        ),
        _stream("/hold", lambda body: desk.hold(_seconds(body, "seconds"))),
    ]
    return Starlette(routes=routes, exception_handlers={Refusal: _refused, Fault: _faulted})


def open_socket(path: Path) -> socket.socket:
    """Listen at `path`: refused while a live daemon does, taken over from a dead one.

    Raises SocketTaken, OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_socket():
        if _alive(path):
            raise SocketTaken(
                f"{path}: a slotproxy is running there already; stop it first, or give this one another `control:`"
            )
        path.unlink()
    elif path.exists():
        raise SocketTaken(f"{path} is there and is no socket; remove it, or give another `control:`")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o117)  # the socket is there with its final mode, never for a moment with a wider one
    try:
        listening.bind(str(path))
    finally:
        os.umask(before)
    listening.listen(64)
    return listening


def _alive(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knock:
        knock.settimeout(CONNECT_LIMIT)
        try:
            knock.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # it doesn't answer, or we may not ask: somebody has it
        return True


def remove_socket(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


# ------------------------------------------------------------------------------------------------- HTTP

Work = Callable[[Json], Awaitable[Json]]


def _get(path: str, work: Callable[[], Awaitable[Json]]) -> Route:
    async def endpoint(_: Request) -> Response:
        return JSONResponse(await work())

    return Route(path, endpoint, methods=["GET"])


def _post(path: str, work: Work) -> Route:
    async def endpoint(request: Request) -> Response:
        return JSONResponse(await work(await _body(request)))

    return Route(path, endpoint, methods=["POST"])


def _stream(path: str, work: Callable[[Json], AsyncIterator[Json]]) -> Route:
    async def endpoint(request: Request) -> Response:
        items = work(await _body(request))
        first = await anext(items)  # what is refused at once is an error, not a stream

        async def lines() -> AsyncIterator[str]:
            yield json.dumps(first) + "\n"
            async for item in items:
                yield json.dumps(item) + "\n"

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    return Route(path, endpoint, methods=["POST"])


async def _now(work: Callable[[], Json]) -> Json:
    return work()


async def _body(request: Request) -> Json:
    raw = await request.body()
    try:
        body = json.loads(raw or b"{}")
    except ValueError as error:
        raise Refusal(f"the body is no JSON: {error}", "", 2) from error
    if not isinstance(body, dict):
        raise Refusal("the body must be a JSON object", "", 2)
    return body


def _target(body: Json) -> tuple[str, str | None]:
    pair = body.get("pair")
    if pair is not None and not isinstance(pair, str):
        raise Refusal("`pair` must be a name", "", 2)
    return _text(body, "engine"), pair


def _text(body: Json, name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise Refusal(f"`{name}` must be a name", "", 2)
    return value


def _seconds(body: Json, name: str) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise Refusal(f"`{name}` must be a number of seconds", "", 2)
    return float(value)


async def _refused(_: Request, error: Any) -> Response:
    status = 400 if error.code == 2 else 409
    return JSONResponse({"error": error.what, "mend": error.mend, "code": error.code}, status)


async def _faulted(_: Request, error: Any) -> Response:
    return JSONResponse({"error": error.what, "mend": error.mend, "code": 3}, 409)
