"""One client's request from its body to its end: slot, body, model, place, engine, answer."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import re
import time

import structlog
from starlette.types import Receive, Scope, Send

from engines.spec import Api, Engine, Settling
from slotproxy.arrival import Held, read_body
from slotproxy.config import SlotSettings
from slotproxy.conversation import conversation_of
from slotproxy.credentials import without_keys
from slotproxy.forward import Call, Exchange, NeverSeen
from slotproxy.house import House
from slotproxy.logs import frames
from slotproxy.outcomes import Doing, End, Outcome, Record
from slotproxy.payload import Payload, Piece, not_json
from slotproxy.places import Answer, Expired, Place, Refused, no_slot
from slotproxy.presence import Beat, ClientGone, Cut, cut_off, gone, unless
from slotproxy.protocols import ApiError
from slotproxy.reply import REFUSED, Reply
from slotproxy.scan import Scan
from slotproxy.settle import settle
from slotproxy.slots import fields_for
from slotproxy.willing import Willing, willing
from slotproxy.wire import PATHS, PROTOCOLS
from swap.ends import Moment, Tried

_NAME = re.compile(r"[A-Za-z0-9._:/@+-]{1,100}")  # of a model; what isn't like one may be anything, and isn't logged
_RETRY_LATER = 5.0  # seconds: whoever waited so long already may as well come back soon
_AGAIN = (0.2, 1.0)  # seconds until a request that the engine can't have seen waits for a place again: at first, then


class Visit:
    """One request. However it ends, the client is told, one line is logged, and the place is left."""

    def __init__(self, house: House, scope: Scope, receive: Receive, send: Send, api: Api) -> None:
        self._house = house
        self._scope = scope
        self._receive = receive
        self._api, self._protocol = api, PROTOCOLS[api]
        self._record = Record(scope["state"]["id"], scope["path"])
        write = house.patience.write
        self._reply = Reply(scope, receive, send, api=api, record=self._record, write_limit=write)
        self._payload = Payload(b"", None)
        self._held = Held(house.room)
        self._willing = Willing()
        self._in_time = math.inf  # seconds after which its client should have heard from us
        self._place: Place | None = None
        self._exchange: Exchange | None = None
        self._ended = False
        self._task: asyncio.Task[object] | None = None
        self._cancelled = False  # by the operator
        self._doubted = False  # the engine gave an error of its own: it is examined in this place

    async def run(self) -> None:
        self._task = asyncio.current_task()
        self._house.visits.begin(self._record, self._cancel)
        try:
            await self._told()
            await self._settled()
        finally:
            self._house.visits.over(self._record)
            self._leave()
            self._held.give_back()

    def _cancel(self) -> bool:
        """The operator ends it, wherever it is. False: it has ended, or is about to."""
        if self._ended or self._cancelled or self._task is None:
            return False
        self._cancelled = True
        return self._task.cancel()

    # -------------------------------------------------------------------------------------------- how it ends

    async def _told(self) -> None:
        """Serve, and tell client and log how it ended."""
        try:
            self._end(await self._serve())
            if not self._doubted:
                self._leave()  # the engine is free, however slowly the client reads
            await self._reply.end()
        except ApiError as error:
            await self._fail(error)
        except ClientGone as error:
            self._end(self._gone(error))
            await self._reply.abort()
        except Cut:
            what = "ended by the operator: the card is needed for another engine, or the proxy stops"
            await self._stopped(ApiError(503, what, "cut", _RETRY_LATER, Outcome.CUT))
        except asyncio.CancelledError:
            if self._cancelled and self._task is not None and self._task.uncancel() == 0:
                await self._stopped(ApiError(410, "cancelled by the operator", "cancelled", outcome=Outcome.CUT))
                return
            self._end(End(Outcome.CUT, "stopping", "the proxy stops"))
            raise
        except Exception as error:
            log = structlog.get_logger("slotproxy")
            log.error("a fault of slotproxy's own", id=self._record.id, **frames(error))
            what = "slotproxy itself failed; its log says more under this request's id"
            await self._fail(ApiError(500, what, "internal_error", outcome=Outcome.FAILED))

    def _gone(self, error: ClientGone) -> End:
        """How it ended with its client: that may have been turned away in the middle of its request."""
        refused: ApiError | None = self._scope["state"].get(REFUSED)
        if refused is not None:
            self._record.status = self._record.status or refused.status
            return End(Outcome.REFUSED, refused.code)  # the words may quote what came
        whole = self._exchange is not None and self._exchange.whole  # many close as soon as they see the marker
        return End(Outcome.SERVED) if whole else End(Outcome.CANCELLED, error.how)

    async def _stopped(self, error: ApiError) -> None:
        """By the operator; whose answer is whole need not hear of it, though its engine hasn't ended it yet."""
        if self._exchange is None or not self._exchange.whole:
            await self._fail(error)
            return
        self._end(End(Outcome.SERVED))
        with contextlib.suppress(ClientGone):
            await self._reply.end()

    async def _fail(self, error: ApiError) -> None:
        self._record.status = self._record.status or error.status
        self._end(error.end)
        await self._reply.fail(error)

    def _end(self, end: End) -> None:
        """One line and one count, for the first end only: a client may still leave while it is told of that end."""
        if not self._ended:
            self._ended = True
            self._house.outcomes.add(self._record, end)

    async def _settled(self) -> None:
        """Keep the place while the engine goes on with what nobody waits for any more."""
        exchange, place = self._exchange, self._place
        if exchange is None or place is None or place.cut.is_set():
            return
        self._record.now(Doing.SETTLING)
        if self._doubted:
            await self._examined(place)
        if not exchange.at_work:
            return
        if exchange.engine.profile.settling is not Settling.COMPLETION:
            return
        place.settle()
        try:
            await unless(settle(self._house.client, exchange.engine, exchange.call.model), cut_off(place.cut))
        except Cut:
            return

    async def _examined(self, place: Place) -> None:
        """Keep the place while the engine is asked what it is worth: nobody else runs into it meanwhile."""
        place.settle()
        with contextlib.suppress(Cut):
            await unless(self._house.supervision.examine(place.run), cut_off(place.cut))

    def _leave(self) -> None:
        if self._place:
            self._place.leave()

    # -------------------------------------------------------------------------------------------- how it goes

    async def _serve(self) -> End:
        slot = self._house.slots.of(self._scope)
        self._record.slot = slot.name
        self._willing = willing(self._scope["headers"])
        await self._read()
        self._record.now(Doing.WAITING)
        if self._api is Api.OTHER and self._scope["method"] in ("GET", "HEAD"):
            return await self._ask_aside(self._engine(self._house.gate.view().engine), slot)
        pauses = itertools.chain(_AGAIN, itertools.repeat(_AGAIN[-1]))
        slot = self._still(slot)
        place = await self._enter(slot)
        while True:
            try:
                return await self._ask(self._engine(place.engine), place.cut, slot)
            except NeverSeen as error:
                if self._record.held >= self._longest(slot):
                    raise _unreachable(place.engine, error) from None
            await self._pause(place, min(next(pauses), self._longest(slot) - self._record.held))
            slot = self._still(slot)
            place = await self._enter(slot, again=place)

    async def _pause(self, place: Place, seconds: float) -> None:
        """Keep the place a while, so that nobody else runs into the same; a swap need not wait for it."""
        place.settle()
        self._record.now(Doing.WAITING)
        self._record.retried = True
        await unless(asyncio.sleep(seconds), gone(self._receive), beat=self._beat())
        self._record.held += seconds

    async def _ask_aside(self, engine: Engine, slot: SlotSettings) -> End:
        """Ask without a place: what only looks keeps nobody waiting."""
        try:
            return await self._ask(engine, asyncio.Event(), slot)
        except NeverSeen as error:
            raise _unreachable(engine.name, error) from None

    async def _read(self) -> None:
        """The body, and what can be said of it without any engine. Raises ApiError, ClientGone."""
        patience, scan = self._house.patience, Scan()
        body = await read_body(
            self._receive,
            self._scope["headers"],
            self._held,
            limit=self._house.settings.limits.max_body,
            patience=patience.body,
            within=patience.whole_body,
            scan=scan if self._protocol.model else None,
        )
        self._record.received = len(body)
        self._in_time = self._willing.in_time(time.monotonic() - self._record.started)
        if not self._protocol.model:
            self._payload = Payload(body, None)
            return
        self._payload = Payload(body, scan.fields(body))
        if self._payload.fields is None and not self._house.models.every_name:
            raise not_json()
        model = self._payload.model
        self._house.models.check(model)
        if model is not None and _NAME.fullmatch(model) and not self._house.slots.is_key(model):
            self._record.model = model

    def _still(self, slot: SlotSettings) -> SlotSettings:
        """The slot as it is configured now: a reload may have come since. Raises ApiError where there is none left."""
        if (now := self._house.settings.slots.get(slot.name)) is not None:
            return now
        gone = no_slot(slot.name)
        raise ApiError(gone.status, gone.reason, "unavailable", gone.retry_after)

    async def _enter(self, slot: SlotSettings, *, again: Place | None = None) -> Place:
        """Wait for a place, at most as long as the slot allows. Raises ApiError, ClientGone."""
        answer = await unless(self._entered(slot, again), gone(self._receive), beat=self._beat())
        match answer:
            case Place():
                return answer
            case Expired():
                raise ApiError(503, answer.reason, "wait_expired", _RETRY_LATER, Outcome.EXPIRED)
            case Refused():
                code = "too_many_requests" if answer.status == 429 else "unavailable"
                raise ApiError(answer.status, answer.reason, code, answer.retry_after)

    async def _entered(self, slot: SlotSettings, again: Place | None) -> Answer:
        within = max(0.0, self._longest(slot) - self._record.held)
        talk = conversation_of(self._api, self._payload.fields)
        answer = await self._house.gate.enter(
            slot, size=self._record.received, within=within, again=again, id=self._record.id, conversation=talk
        )
        match answer:
            case Place():
                self._place = answer  # known here already, so that it is left even if nobody takes the result
                self._held.give_back()
                self._record.held += answer.held
            case Expired():
                self._record.held += answer.waited
        return answer

    def _beat(self) -> Beat | None:
        """Pings for a client that waits for a stream."""
        if not self._pinged:
            return None
        limits = self._house.settings.limits
        every = min(limits.ping_every, self._in_time)
        first = every if self._reply.started else min(limits.first_ping, self._in_time)
        return Beat(first, every, self._reply.keep_alive)

    @property
    def _pinged(self) -> bool:
        """Whether its client can be told, while it waits, that we are still there."""
        return bool(self._protocol.ends) and self._payload.streams

    def _longest(self, slot: SlotSettings) -> float:
        """How many seconds it may be held: also no longer than the client waits, if all it can hear is the end."""
        longest = min(slot.max_hold, self._willing.hold)
        return longest if self._pinged else min(longest, self._in_time)

    async def _ask(self, engine: Engine, cut: asyncio.Event, slot: SlotSettings) -> End:
        """The exchange with the engine. Raises NeverSeen, ApiError, ClientGone, Cut."""
        self._record.engine = engine.name
        self._record.now(Doing.ANSWERING)
        call = self._call(engine, slot)
        self._exchange = exchange = Exchange(self._house.client, engine, call, self._reply, self._record)
        # Once pings have begun they go on until the engine's first byte: a prefill is as silent as a queue.
        beat = self._beat() if self._reply.started else None
        try:
            await unless(self._open(exchange), gone(self._receive), cut_off(cut), beat=beat)
            return await unless(exchange.relay(), gone(self._receive), cut_off(cut))
        finally:
            await exchange.close()
            self._report(exchange)

    async def _open(self, exchange: Exchange) -> None:
        """Raises NeverSeen also where the connection was made, by who stood there for an engine that had ended."""
        try:
            await exchange.open()
        except ApiError as error:
            place = self._place
            if place is None or not exchange.unanswered:
                raise
            tried = Tried(place.run, exchange.sent, closed=Moment())
            if await self._house.supervision.ended_before(place.engine, tried):
                raise NeverSeen(error.message) from None
            raise

    def _report(self, exchange: Exchange) -> None:
        """What this says of the engine."""
        if self._place is None:
            return
        supervision, run = self._house.supervision, self._place.run
        if exchange.answered:
            supervision.answered(run)
        elif complaint := exchange.complaint:
            self._doubted = supervision.error(run, f"{complaint}, request {self._record.id}")
        elif exchange.unanswered:
            supervision.unreached(run)

    def _engine(self, name: str | None) -> Engine:
        """The engine that is to be asked. Raises ApiError: 503 none serves, 404 it doesn't have the path."""
        if name is None:
            raise ApiError(503, "no engine is serving now", "unavailable", _RETRY_LATER)
        engine, path = self._house.engine(name), self._scope["path"]
        if path not in PATHS and path not in engine.profile.client_paths and path not in engine.passthrough:
            raise ApiError(404, f"{name} is serving now and has no {path}", "path_not_served")
        return engine

    def _call(self, engine: Engine, slot: SlotSettings) -> Call:
        """What the engine is sent. Raises ApiError: it doesn't have the model."""
        scope, payload = self._scope, self._payload
        model: str | None = None
        body: list[Piece] = [payload.raw]
        if self._protocol.model:
            self._house.models.check(payload.model)  # again: a reload may have come since
            model = self._house.models.sent_to(engine.name, payload.model)
            body = payload.changed(model, *fields_for(slot, engine.profile, self._api))
        query = without_keys(scope["query_string"])
        return Call(self._api, scope["method"], scope["path"], query, scope["headers"], body, model or "")


def _unreachable(engine: str, error: NeverSeen) -> ApiError:
    return ApiError(502, f"{engine} can't be reached: {error}", "unreachable", outcome=Outcome.FAILED)
