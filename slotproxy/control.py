"""The control API: the operator's desk as HTTP on a unix socket. Who may open the socket may do everything.

An answer is one JSON object, or a stream of them, a line each, of which the last says `done`. What is asked for when
the daemon stops isn't answered any more: streams end without `done`, questions get a 503. Only who waits for a swap
hears how it was given up, as long as that can be.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from slotproxy.cli_parts import MOST_TOKENS
from slotproxy.desk import Desk, Json
from slotproxy.doctor import Doctor
from slotproxy.ending import Ending, Stopping, stopped
from slotproxy.events_desk import events
from slotproxy.ledger_desk import LedgerDesk
from slotproxy.presence import unless
from slotproxy.refusal import Refusal
from slotproxy.reload import Reload
from slotproxy.slots_desk import SlotsDesk
from slotproxy.told import Told
from swap.ports import Fault
from swap.reading import Say

T = TypeVar("T")
Work = Callable[[Json], Coroutine[Any, Any, Json]]
Telling = Callable[[Json, Say], Coroutine[Any, Any, Json]]
Stream = Callable[[Json], AsyncGenerator[Json, None]]


def build_control(desk: Desk, reload: Reload, ending: Ending) -> Starlette:
    """The application behind the socket; nothing is begun, and nothing waited for, once `ending.stop` is set."""
    routes = _Routes(ending)
    routes.get("/status", desk.status)
    routes.get("/gpu", desk.gpu)
    routes.get("/slots", SlotsDesk(desk).slots)
    routes.post("/slots/cancel", lambda body: SlotsDesk(desk).cancel(_text(body, "id")))
    routes.get("/doctor", Doctor(desk).examine)
    routes.get("/pairs", desk.evidence.pairs)
    routes.told("/pairs", lambda _, say: desk.evidence.pairs(say))
    routes.told("/plan", lambda body, say: _plan(desk, body, say))
    routes.told("/drift", lambda body, say: desk.drift.drift(*_perhaps(body), say=say))
    routes.told("/stage", lambda body, say: desk.stage(*_target(body), say=say), goes_on=True)
    routes.told("/pairs/adopt", lambda body, say: _adopt(desk, body, say), goes_on=True)
    _about_the_ledger(routes, LedgerDesk(desk.evidence))
    routes.post("/correct", lambda body: desk.correct(_perhaps(body)[0]))
    routes.post("/abort", lambda _: _now(desk.abort))
    routes.post("/reload", lambda _: reload.reload())
    routes.post("/release", lambda _: _now(desk.release))
    routes.stream("/swap", lambda body: _swap(desk, body), until=ending.card_left)
    routes.stream("/hold", lambda body: desk.hold(_seconds(body, "seconds")))
    routes.stream("/events", lambda body: _events(desk, body))
    handlers: dict[Any, Any] = {
        Refusal: _refused,
        Fault: _faulted,
        Stopping: _stopping,
        HTTPException: _unknown,
        Exception: _broke,
    }
    return Starlette(routes=routes.made, exception_handlers=handlers)


def _about_the_ledger(routes: _Routes, ledger: LedgerDesk) -> None:
    def asked(work: Callable[..., Coroutine[Any, Any, Json]]) -> Telling:
        return lambda body, say: work(*_target(body), _text(body, "reason", "text"), say=say)

    routes.get("/pairs/check", ledger.check)
    routes.post("/pairs/log", lambda body: ledger.log(*_perhaps(body)))
    routes.post("/pairs/repair", lambda body: ledger.repair(_text(body, "reason", "text")))
    routes.told("/pairs/export", lambda body, say: ledger.export(*_target(body), say=say))
    routes.told("/pairs/attest", asked(ledger.attest), goes_on=True)
    routes.told("/pairs/revoke", asked(ledger.revoke), goes_on=True)


def _plan(desk: Desk, body: Json, say: Say) -> Coroutine[Any, Any, Json]:
    return desk.plan(*_target(body), trial=_flag(body, "trial"), rehash=_flag(body, "rehash"), say=say)


def _adopt(desk: Desk, body: Json, say: Say) -> Coroutine[Any, Any, Json]:
    return desk.evidence.adopt(_text(body, "engine"), rehash=_flag(body, "rehash"), say=say)


def _events(desk: Desk, body: Json) -> AsyncGenerator[Json, None]:
    decisions = desk.controller.hands.decisions
    return events(decisions, last=_count(body, "last"), follow=_flag(body, "follow"))


def _swap(desk: Desk, body: Json) -> AsyncGenerator[Json, None]:
    return desk.swap(
        *_target(body),
        trial=_flag(body, "trial"),
        cut=_flag(body, "cut"),
        stage=_flag(body, "stage", default=True),
        drain=_seconds(body, "drain"),
        tokens=_count(body, "tokens"),
        rehash=_flag(body, "rehash"),
        and_back=_flag(body, "and_back"),
    )


# ------------------------------------------------------------------------------------------------- HTTP


class _Routes:
    def __init__(self, ending: Ending) -> None:
        self._stop = ending.stop
        self.made: list[Route] = []

    def get(self, path: str, work: Callable[[], Coroutine[Any, Any, Json]]) -> None:
        async def endpoint(_: Request) -> Response:
            return JSONResponse(await self._unless_stopping(work()))

        self.made.append(Route(path, endpoint, methods=["GET"]))

    def post(self, path: str, work: Work) -> None:
        async def endpoint(request: Request) -> Response:
            return JSONResponse(await self._unless_stopping(work(await _body(request))))

        self.made.append(Route(path, endpoint, methods=["POST"]))

    def told(self, path: str, work: Telling, *, goes_on: bool = False) -> None:
        async def endpoint(request: Request) -> Response:
            body = await _body(request)
            return Told(lambda say: work(body, say), self._stop, goes_on=goes_on)

        self.made.append(Route(path, endpoint, methods=["POST"]))

    def stream(self, path: str, work: Stream, *, until: asyncio.Event | None = None) -> None:
        """`until`: what has begun before the stop is told on until this is set."""

        end = until or self._stop

        async def endpoint(request: Request) -> Response:
            items = work(await _body(request))
            first = await self._unless_stopping(anext(items), end)  # what is refused at once is an error, not a stream
            return StreamingResponse(self._lines(first, items, end), media_type="application/x-ndjson")

        self.made.append(Route(path, endpoint, methods=["POST"]))

    async def _lines(self, first: Json, items: AsyncGenerator[Json, None], end: asyncio.Event) -> AsyncIterator[str]:
        item: Json | None = first
        async with aclosing(items):
            while item is not None:
                yield json.dumps(item) + "\n"
                try:
                    item = await unless(_next(items), stopped(end))
                except Stopping:
                    return

    async def _unless_stopping(self, work: Coroutine[Any, Any, T], end: asyncio.Event | None = None) -> T:
        if self._stop.is_set():
            work.close()
            raise Stopping
        return await unless(work, stopped(end or self._stop))


async def _next(items: AsyncGenerator[Json, None]) -> Json | None:
    return await anext(items, None)


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


def _perhaps(body: Json) -> tuple[str | None, str | None]:
    """As `_target`, but where no engine is named, all are meant."""
    return _target(body) if body.get("engine") is not None else (None, None)


def _text(body: Json, name: str, what: str = "a name") -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise Refusal(f"`{name}` must be {what}", "", 2)
    return value


def _flag(body: Json, name: str, *, default: bool = False) -> bool:
    value = body.get(name, default)
    if not isinstance(value, bool):
        raise Refusal(f"`{name}` must be true or false", "", 2)
    return value


def _seconds(body: Json, name: str) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0:
        raise Refusal(f"`{name}` must be a number of seconds", "", 2)
    return float(value)


def _count(body: Json, name: str) -> int | None:
    value = body.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= MOST_TOKENS):
        raise Refusal(f"`{name}` must be a number from 1 to {MOST_TOKENS}", "", 2)
    return value


# ------------------------------------------------------------------------------------------------- what went wrong


async def _refused(_: Request, error: Refusal) -> Response:
    return _error(400 if error.code == 2 else 409, error.what, error.mend, error.code)


async def _faulted(_: Request, error: Fault) -> Response:
    return _error(409, error.what, error.mend, 3)


async def _stopping(_: Request, __: Stopping) -> Response:
    return _error(503, "slotproxy is stopping", "start it again: slotproxy serve", 6)


async def _unknown(request: Request, error: HTTPException) -> Response:
    what = f"{request.method} {request.url.path}: {error.detail}"
    return _error(error.status_code, what, "is slotctl of the daemon's version?", 2)


async def _broke(_: Request, error: Exception) -> Response:
    return _error(500, f"slotproxy itself failed: {error!r}", "its log says more", 6)


def _error(status: int, what: str, mend: str, code: int) -> Response:
    return JSONResponse({"error": what, "mend": mend, "code": code}, status)
