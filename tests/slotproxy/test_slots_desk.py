"""`slotctl slots`: who waits, since when, and why, at real sockets; and the operator's word that ends one of them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engines.spec import CHAT, MESSAGES, Settling
from slotproxy import render_slots
from slotproxy.app import build_app
from slotproxy.config import SlotSettings
from slotproxy.desk import Json
from slotproxy.forward import engine_client
from slotproxy.outcomes import End, Outcome, Outcomes, Record
from slotproxy.refusal import Refusal
from slotproxy.slots_desk import SlotsDesk
from slotproxy.visits import Visits
from tests.slotproxy.office import Office
from tests.slotproxy.rig import (
    ALL_APIS,
    AT_ONCE,
    DONE,
    SSE,
    Client,
    Conversation,
    Seen,
    Upstream,
    ask,
    chunk,
    delta,
    engine,
    eventually,
    serving,
)

SLOTS = {
    "anonymous": SlotSettings("anonymous", max_waiting=7),
    "voice": SlotSettings("voice", keys=frozenset((b"f" * 32,)), priority=9),
}


class Noted(Outcomes):
    def __init__(self) -> None:
        super().__init__()
        self.ends: list[tuple[str, End]] = []

    def add(self, record: Record, end: End) -> None:
        super().add(record, end)
        self.ends.append((record.id, end))


@dataclass
class Place:
    """The client port of a whole office, in front of an engine's socket."""

    office: Office
    desk: SlotsDesk
    port: int
    up: Upstream
    outcomes: Noted

    async def ask(self, client: Client, id: str, path: str = CHAT, **more: object) -> None:
        await client.post(path, ask(**more), b"x-request-id: %b" % id.encode())

    async def are(self, **doing: str) -> dict[str, Json]:
        """Waits until the open requests do that, by id; what is said of each."""
        async with asyncio.timeout(10):
            while True:
                said = {request["id"]: request for request in (await self.desk.slots())["requests"]}
                if {name: request["doing"] for name, request in said.items()} == doing:
                    return said
                await asyncio.sleep(0.01)


class Engine:
    """Streams an event and then waits to be told; knows when a client has left."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.left = 0
        self.probed = asyncio.Event()  # what settling waits for

    async def __call__(self, talk: Conversation, seen: Seen) -> None:
        if b"max_tokens" in seen.body:
            await self.probed.wait()
            await talk.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            return
        await talk.send(SSE, chunk(delta()))
        async with asyncio.TaskGroup() as group:
            gone = group.create_task(talk.left())
            goes = group.create_task(self.go_on.wait())
            await asyncio.wait((gone, goes), return_when=asyncio.FIRST_COMPLETED)
            self.left += gone.done()
            gone.cancel()
            goes.cancel()
        await talk.send(chunk(DONE), b"0\r\n\r\n")


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    office = Office(tmp_path)
    yield office
    office.close()


@contextlib.asynccontextmanager
async def house(office: Office, settling: Settling = Settling.AT_ONCE) -> AsyncIterator[tuple[Place, Engine]]:
    outcomes, behave = Noted(), Engine()
    settings = office.desk.in_force.settings
    office.desk.in_force.settings = dataclasses.replace(settings, slots=SLOTS, models={"*": {}})
    profile = dataclasses.replace(ALL_APIS, settling=settling)
    async with office.serving(), Upstream(behave) as up, engine_client() as http:
        app = build_app(
            office.desk.in_force,
            office.slots,
            http,
            outcomes=outcomes,
            visits=office.desk.visits,
            engine=lambda name: engine(up.url, name=name, profile=profile, probe_model="m"),
        )
        async with serving(app) as (_, port):
            try:
                yield Place(office, SlotsDesk(office.desk), port, up, outcomes), behave
            finally:
                behave.go_on.set()
                behave.probed.set()
                office.slots.end("the test is over")
                office.slots.cut()


async def test_each_request_is_shown_with_what_it_does_and_why(office: Office) -> None:
    async with contextlib.AsyncExitStack() as held:
        place, behave = await held.enter_async_context(house(office))
        first, second, third, slow = [await held.enter_async_context(Client.at(place.port)) for _ in range(4)]
        await place.ask(first, "one", stream=True)
        await place.are(one="answering")
        await place.ask(second, "two")
        await place.are(one="answering", two="waiting")
        await place.ask(third, "three")
        slow.writer.write(
            b"POST %b HTTP/1.1\r\nhost: x\r\nx-request-id: slow\r\ncontent-length: 9\r\n\r\n{" % CHAT.encode()
        )
        said = await place.are(one="answering", two="waiting", three="waiting", slow="sending")
        assert said["one"]["why"] == "at strata"
        assert said["two"]["why"] == "for its turn at strata"
        assert said["three"]["why"] == "for its turn at strata, 1 of its slot before it"
        assert said["slow"]["why"] == "its body is still coming"
        assert list(said) == ["one", "two", "three", "slow"]
        assert (said["three"]["slot"], said["three"]["model"], said["three"]["position"]) == ("anonymous", "m", 2)
        assert 0 <= said["two"]["since"] <= said["two"]["age"] < 10
        anonymous, voice = (await place.desk.slots())["slots"]
        assert {
            "waiting": 2,
            "answering": 1,
            "sending": 1,
            "settling": 0,
            "max_waiting": 7,
        }.items() <= anonymous.items()
        assert anonymous["longest_wait"] > 0
        assert {"name": "voice", "waiting": 0, "priority": 9, "longest_wait": 0.0}.items() <= voice.items()
        behave.go_on.set()
        await place.are(slow="sending")


async def test_a_request_that_waits_says_for_what_hold_swap_its_own_limit(office: Office) -> None:
    async with contextlib.AsyncExitStack() as held:
        place, _ = await held.enter_async_context(house(office))
        client, other = [await held.enter_async_context(Client.at(place.port)) for _ in range(2)]
        place.office.slots.hold(None)
        await place.ask(client, "one", stream=True)
        assert (await place.are(one="waiting"))["one"]["why"] == "while the operator holds requests"
        place.office.slots.release()
        await place.are(one="answering")
        settings = place.office.desk.in_force.settings
        limited = dataclasses.replace(SLOTS["anonymous"], max_in_flight=1)
        place.office.desk.in_force.settings = dataclasses.replace(settings, slots={**SLOTS, "anonymous": limited})
        await place.ask(other, "two", stream=True)
        why = (await place.are(one="answering", two="waiting"))["two"]["why"]
        assert why == "for its slot's own turn: 1 at strata is all that slot anonymous may have there"
        place.office.slots.close()
        why = (await place.are(one="answering", two="waiting"))["two"]["why"]
        assert why == "for an engine to be ready"


async def test_a_request_in_a_swap_says_which(office: Office) -> None:
    async with house(office) as (place, _), Client.at(place.port) as client:
        office.ninfer.hang("start")
        async with asyncio.TaskGroup() as tasks:
            swap = tasks.create_task(place.office.swapped("ninfer", "v2"))
            await eventually(lambda: place.office.controller.state.serving is None)
            await place.ask(client, "one", stream=True)
            why = (await place.are(one="waiting"))["one"]["why"]
            assert re.fullmatch("for an engine to be ready, a swap to ninfer:v2 is [a-z]+", why)
            office.ninfer.let_go("start")
            await swap
            await place.are(one="answering")


# ------------------------------------------------------------------------------------------------- cancel


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_a_stream_that_is_cancelled_ends_in_band_and_its_engine_is_left_at_once(
    office: Office, path: str
) -> None:
    async with house(office) as (place, behave), Client.at(place.port) as client:
        await place.ask(client, "one", path, stream=True)
        await client.until(b"hi")
        answer = await place.desk.cancel("one")
        assert answer["text"] == "cancelled request one of slot anonymous, which was answering"
        assert b"cancelled by the operator" in await client.rest()
        assert not client.ended_whole
        await eventually(lambda: behave.left == 1, AT_ONCE)
        assert [(name, end.outcome, end.how) for name, end in place.outcomes.ends] == [
            ("one", Outcome.CUT, "cancelled")
        ]
        await place.are()


@pytest.mark.parametrize("phase", ["sending", "waiting", "before a byte"])
async def test_what_is_cancelled_before_it_is_answered_gets_a_status_that_no_client_tries_again(
    office: Office, phase: str
) -> None:
    async with house(office) as (place, _), Client.at(place.port) as client:
        if phase == "waiting":
            place.office.slots.hold(None)
        if phase == "sending":
            head = b"POST %b HTTP/1.1\r\nhost: x\r\nx-request-id: one\r\ncontent-length: 9\r\n\r\n{"
            client.writer.write(head % CHAT.encode())
            await place.are(one="sending")
        else:
            await place.ask(client, "one")
            await place.are(one="waiting" if phase == "waiting" else "answering")
        await place.desk.cancel("one")
        got = await client.until(b"}}")
        if phase == "before a byte":  # the engine had begun its answer: there is no other status any more
            return
        assert got.startswith(b"HTTP/1.1 410 ")
        assert json.loads(client.body)["error"]["code"] == "cancelled"
        view = place.office.slots.view()
        assert (view.waiting, view.in_flight) == (0, 0)
        assert place.up.seen == []


async def test_a_cancelled_request_keeps_its_place_until_the_engine_is_really_free(office: Office) -> None:
    async with contextlib.AsyncExitStack() as held:
        place, behave = await held.enter_async_context(house(office, Settling.COMPLETION))
        client, next_one = [await held.enter_async_context(Client.at(place.port)) for _ in range(2)]
        await place.ask(client, "one", stream=True)
        await client.until(b"hi")
        await place.ask(next_one, "two", stream=True)
        await place.are(one="answering", two="waiting")
        await place.desk.cancel("one")
        said = await place.are(one="settling", two="waiting")
        assert said["one"]["why"] == "it has ended, strata isn't free yet"
        with pytest.raises(Refusal, match="request one is at its end already"):
            await place.desk.cancel("one")
        behave.probed.set()
        await place.are(two="answering")


async def test_what_its_client_has_left_cannot_be_cancelled_and_goes_on_settling(office: Office) -> None:
    async with house(office, Settling.COMPLETION) as (place, _), Client.at(place.port) as client:
        await place.ask(client, "one", stream=True)
        await client.until(b"hi")
        client.writer.close()
        await place.are(one="settling")
        with pytest.raises(Refusal, match="request one is at its end already"):
            await place.desk.cancel("one")
        await asyncio.sleep(0.1)
        assert (await place.are(one="settling"))["one"]["why"] == "it has ended, strata isn't free yet"


@pytest.mark.parametrize("how", ["cancelled", "cut"])
async def test_a_whole_answer_stays_one_whose_engine_keeps_the_connection_open(office: Office, how: str) -> None:
    """Its last words are there; an error behind them would make a client throw them away."""

    async def behave(talk: Conversation, _: Seen) -> None:
        await talk.send(SSE, chunk(delta()), chunk(DONE))
        await talk.left()

    async with house(office) as (place, _), Client.at(place.port) as client:
        place.up._behave = behave
        await place.ask(client, "one", stream=True)
        await client.until(DONE)
        await place.desk.cancel("one") if how == "cancelled" else office.slots.cut()
        got = await client.until(b"\r\n0\r\n\r\n")
        assert b"error" not in got
        await place.are()
        assert [end.outcome for _, end in place.outcomes.ends] == [Outcome.SERVED]


async def test_others_go_on_and_the_connection_serves_the_next_request(office: Office) -> None:
    async with contextlib.AsyncExitStack() as held:
        place, behave = await held.enter_async_context(house(office))
        client, other = [await held.enter_async_context(Client.at(place.port)) for _ in range(2)]
        place.office.slots.hold(None)
        await place.ask(client, "one")
        await place.ask(other, "two", stream=True)
        await place.are(one="waiting", two="waiting")
        await place.desk.cancel("one")
        await client.until(b"cancelled by the operator")
        place.office.slots.release()
        behave.go_on.set()
        await other.until(DONE)
        client.got = b""
        await place.ask(client, "three", stream=True)
        await client.until(DONE)


async def test_an_id_is_told_by_its_beginning_and_never_guessed(office: Office) -> None:
    async with contextlib.AsyncExitStack() as held:
        place, _ = await held.enter_async_context(house(office))
        place.office.slots.hold(None)
        for name in ("abc-1", "abc-2", "abc", "xyz", "xyz"):
            await place.ask(await held.enter_async_context(Client.at(place.port)), name)
        await eventually(lambda: len(place.office.desk.visits) == 5)
        for wrong, why in [
            ("ab", "ab may mean 3 requests: abc-1, abc-2, abc"),
            ("nobody", "no request nobody is open"),
        ]:
            with pytest.raises(Refusal, match=why):
                await place.desk.cancel(wrong)
        with pytest.raises(Refusal):
            await place.desk.cancel("")
        assert (await place.desk.cancel("abc"))["cancelled"] == ["abc"]
        assert (await place.desk.cancel("abc-2"))["cancelled"] == ["abc-2"]
        assert (await place.desk.cancel("xy"))["text"].count("cancelled request xyz") == 2, (
            "clients may send one id twice"
        )


def test_a_request_that_has_ended_is_forgotten_however_it_ended() -> None:
    visits, record = Visits(), Record("one", "/")
    visits.begin(record, lambda: True)
    visits.over(record)
    assert (list(visits), visits.called("one")) == ([], [])


# ------------------------------------------------------------------------------------------------- as it is shown


def test_a_table_of_slots_and_one_of_requests() -> None:
    slot = {"name": "agents", "priority": 1, "waiting": 2, "sending": 1, "answering": 1, "settling": 1}
    limits = {"longest_wait": 75.0, "max_in_flight": 1, "max_waiting": 32, "max_hold": 600.0}
    request = {"id": "one", "slot": "agents", "model": "m", "received": 2048, "age": 80.0, "doing": "waiting"}
    shown = render_slots.slots(
        {"slots": [slot | limits], "requests": [request | {"since": 1.25, "why": "for its turn"}]}
    )
    assert re.fullmatch(r"slot +priority +waiting +at the engine +longest wait +limits", shown[0])
    assert re.fullmatch(
        r"agents +1 +2, 1 sending +1, 1 settling +1 min 15 s +1 in flight, 32 waiting, 10 min 0 s hold", shown[1]
    )
    assert re.fullmatch(r"one +agents +m +2KiB +1 min 20 s +waiting +1.2 s +for its turn", shown[4])
    assert render_slots.slots({"slots": [slot | limits], "requests": []})[-1] == "no request is open"
