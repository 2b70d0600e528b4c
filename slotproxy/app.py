"""What clients reach: inference calls through the gate, the list of models, the state of the house; nothing else.

Nothing here is behind Starlette's BaseHTTPMiddleware: it hides that a client has left. OPTIONS is answered with what
may be called. What web pages are told, and who isn't let in from one, is `slotproxy.cors`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engines.spec import Api, Engine
from slotproxy.arrival import STOPPING, bad_target, new_id, origin_form, request_id
from slotproxy.cors import Cors, by_a_foreign_name, from_a_page, is_preflight
from slotproxy.gate import SlotGate
from slotproxy.headers import Headers
from slotproxy.house import House, Patience
from slotproxy.in_force import InForce
from slotproxy.linger import Linger
from slotproxy.logs import frames
from slotproxy.outcomes import Outcomes
from slotproxy.protocols import ApiError, error_body, id_headers, spoken
from slotproxy.reply import ABORT
from slotproxy.slot_path import slot_named, without_slot
from slotproxy.supervision import Supervision, Unsupervised
from slotproxy.units import show
from slotproxy.visit import Visit
from slotproxy.visits import Visits
from slotproxy.wire import PATHS

_SHOWN = 100  # characters of a path that is told back


def build_app(
    in_force: InForce,
    gate: SlotGate,
    client: httpx.AsyncClient,
    *,
    outcomes: Outcomes | None = None,
    patience: Patience | None = None,
    supervision: Supervision | None = None,
    engine: Callable[[str], Engine] | None = None,
    visits: Visits | None = None,
) -> ClientPort:
    """The client port. `client` as `forward.engine_client()` makes it; serve it as `server.config()` says.

    `engine` gives one by name as it is to be reached; without it as it is configured.
    """
    house = House(
        in_force=in_force,
        gate=gate,
        client=client,
        outcomes=outcomes or Outcomes(),
        patience=patience or Patience(),
        supervision=supervision or Unsupervised(),
        engine=engine or (lambda name: in_force.settings.engines[name]),
        visits=Visits() if visits is None else visits,
    )
    return ClientPort(house)


class ClientPort:
    """Plain ASGI: each inference call is a `Visit`, all the rest is answered at once and takes no place."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._rest = _rest(house)
        self._take_paths()

    def configure(self) -> None:
        """The settings in force are other ones. Requests in flight go on."""
        self._house.configure()
        self._take_paths()

    def _take_paths(self) -> None:
        self._cors = Cors(self._house.settings.cors)
        engines = self._house.settings.engines
        self._paths = client_paths(engines)
        through = (path for engine in engines.values() for path in engine.passthrough)
        self._passthrough = frozenset(through).difference(self._paths)

    def for_pages(self, origin: bytes) -> Headers:
        """What a page of this origin is told beside an answer that isn't ours, see `slotproxy.unread`."""
        return self._cors.allowed(origin)

    def end(self) -> None:
        """Shut down for good: who waits, or is still sending, is answered. Requests in flight go on, see the gate."""
        self._house.gate.end(STOPPING)
        self._house.room.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._guarded(without_slot(origin_form(scope)), Linger(receive, send))
            case "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1008, "reason": "there are no WebSockets here"})
            case "lifespan":
                await _lifespan(receive, send)

    async def _guarded(self, scope: Scope, linger: Linger) -> None:
        """A fault of our own is an answer like any other, and its line in the log quotes nobody."""
        state = scope.setdefault("state", {})
        state["id"] = request_id(scope["headers"])
        if self._house.slots.is_key(state["id"]):
            state["id"] = new_id()  # who mistook the header must not find it in a log
        send = self._cors.told(scope["headers"], linger.send)
        try:
            await self._request(scope, linger.receive, send)
        except Exception as error:
            log = structlog.get_logger("slotproxy")
            log.error("a fault of slotproxy's own", id=state["id"], **frames(error))
            if not linger.started:
                await _refuse(scope, _broke())(scope, linger.receive, with_id(send, scope))
            elif ABORT in state:
                state[ABORT](True)

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        match self._who(scope):
            case Api() as api:
                await Visit(self._house, scope, receive, send, api).run()
            case answer:
                await answer(scope, receive, with_id(send, scope))

    def _who(self, scope: Scope) -> Api | ASGIApp:
        """An inference call's protocol, or what answers at once."""
        path, method = scope["path"], scope["method"]
        if bad := bad_target(scope):
            return _refuse(scope, bad)
        if any(name == b"upgrade" and b"websocket" in value.lower() for name, value in scope["headers"]):
            return _refuse(scope, ApiError(400, "there are no WebSockets here: send a POST", "no_websockets"))
        if method == "OPTIONS":
            return self._options(scope)
        if no := self._unwelcome(scope):
            return _refuse(scope, no)
        if api := self._call(path, method):
            return api
        if stranger := self._stranger(scope):
            return _refuse(scope, stranger)
        if path in self._paths:
            error = ApiError(405, f"{path} takes POST", "method_not_allowed")
            return _refuse(scope, error, {"allow": self._allowed(path)})
        return self._rest

    def _options(self, scope: Scope) -> Response:
        allowed = self._allowed(scope["path"])
        answer = Response(status_code=204, headers={"allow": allowed})
        if is_preflight(scope["headers"]):
            try:
                answer.raw_headers += self._cors.preflight(scope["headers"], allowed)
            except ApiError as no:
                return _refuse(scope, no)
        return answer

    def _unwelcome(self, scope: Scope) -> ApiError | None:
        """Why one who has no key of its own isn't let in, though there is a slot for such. None: it is let in."""
        headers, cors = scope["headers"], self._house.settings.cors
        page, name = from_a_page(headers, cors), by_a_foreign_name(headers, cors)
        if page is None and name is None:
            return None
        slot = self._house.slots.without_key(scope)
        if slot is None or (page is None and slot.allow_remote):
            return None
        return page or name

    def _call(self, path: str, method: str) -> Api | None:
        """The protocol of an inference call; None: it is none."""
        if method == "POST" and path in self._paths:
            return self._paths[path]
        return Api.OTHER if path in self._passthrough else None

    def _stranger(self, scope: Scope) -> ApiError | None:
        """Why a client may not use the slot that its path names; under that name it is told nothing else."""
        if slot_named(scope) is not None:
            try:
                self._house.slots.of(scope)
            except ApiError as error:
                return error
        return None

    def _allowed(self, path: str) -> str:
        if path in self._passthrough:
            return "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
        return "POST, OPTIONS" if path in self._paths else "GET, HEAD, OPTIONS"


def client_paths(engines: Mapping[str, Engine]) -> dict[str, Api]:
    """Every path that a client may post to, whoever serves."""
    known = {path: api for engine in engines.values() for path, api in engine.profile.client_paths.items()}
    return {**known, **PATHS}


def _rest(house: House) -> Starlette:
    """What is answered at once, always, also during a swap."""

    async def health(request: Request) -> Response:
        """Why nobody is let in is told to those alone who may ask: it may name files, or quote an engine."""
        view = dataclasses.asdict(house.gate.view())
        try:
            house.slots.of(request.scope)
        except ApiError:
            return JSONResponse({"status": "ok", "gate": view["state"]})
        kept = {key: view[key] for key in ("engine", "reason", "waiting", "in_flight")}
        return JSONResponse({"status": "ok", "gate": view["state"], **kept})

    async def models(request: Request) -> Response:
        house.slots.of(request.scope)
        entries = [_model(name) for name in house.models.names]
        ends = {"first_id": entries[0]["id"], "last_id": entries[-1]["id"]} if entries else {}
        return JSONResponse({"object": "list", "data": entries, "has_more": False, **ends})

    async def model(request: Request) -> Response:
        house.slots.of(request.scope)
        name = request.path_params["name"]
        if name not in house.models.names:
            raise ApiError(404, f"no model is called {show(name)} here", "model_not_found")
        return JSONResponse(_model(name))

    async def own_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return _refuse(request.scope, error)

    async def other_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = request.scope["path"][:_SHOWN]
        what = f"there is no {path} here" if error.status_code == 404 else f"{path}: {error.detail}"
        return _refuse(request.scope, ApiError(error.status_code, what, "not_found"), error.headers)

    async def fault(request: Request, _: Exception) -> Response:
        return _refuse(request.scope, _broke())  # it is raised on, see `ClientPort`

    rest = Starlette(
        routes=[Route("/health", health), Route("/v1/models", models), Route("/v1/models/{name:path}", model)],
        exception_handlers={ApiError: own_error, HTTPException: other_error, Exception: fault},
    )
    rest.router.redirect_slashes = False  # it would send clients to whatever `Host:` they name
    return rest


def _model(name: str) -> dict[str, Any]:
    """One model in the shape of both protocols. Its age is unknown, and must not change."""
    openai = {"id": name, "object": "model", "created": 0, "owned_by": "slotproxy"}
    return {**openai, "type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}


def _refuse(scope: Scope, error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
    body = error_body(spoken(scope["path"], scope["headers"]), error)
    return Response(body, error.status, headers, media_type="application/json")


def _broke() -> ApiError:
    return ApiError(500, "slotproxy itself failed; its log says more under this request's id", "internal_error")


def with_id(send: Send, scope: Scope) -> Send:
    """The answer carries the request's id."""
    own = id_headers(spoken(scope["path"], scope["headers"]), scope["state"]["id"])

    async def named(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *own]}
        await send(message)

    return named


async def _lifespan(receive: Receive, send: Send) -> None:
    """Nothing to start or stop here: the daemon owns what the application uses."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
