"""The control API over a real unix socket: answers, refusals, streams, and its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from slotproxy.claims import control_socket
from slotproxy.control_client import Control, Lost, Refused
from slotproxy.daemon import Daemon
from slotproxy.ending import Ending
from slotproxy.outcomes import Outcomes
from slotproxy.supervision import supervise
from swap.readiness import Readiness
from swap.state import phase
from tests.slotproxy.office import Office
from tests.swap.world import until


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    with capture_logs():
        office = Office(tmp_path)
        yield office
    office.close()


@asynccontextmanager
async def served(office: Office) -> AsyncIterator[tuple[httpx.AsyncClient, asyncio.Event]]:
    """The daemon without its client port: its control API at `control.sock`, and what stops it."""
    stop = asyncio.Event()
    settings, gate = office.desk.settings, office.slots
    ending, health, desk = Ending(stop), supervise(office.controller, gate), office.desk
    daemon = Daemon(
        desk.in_force, office.controller, desk, gate, Outcomes(), Readiness(), ending, health, office.reload
    )
    office.strata.run(office.strata.recipes["current"])
    await office.verify("strata:current", "ninfer:v2")
    transport = httpx.AsyncHTTPTransport(uds=str(settings.control))
    async with httpx.AsyncClient(transport=transport, base_url="http://slotproxy", timeout=30) as client:
        listening = control_socket(settings.control)
        control = await asyncio.to_thread(listening.__enter__)
        try:
            async with daemon.running(control):
                await office.controller.settled()
                yield client, stop
        finally:
            await asyncio.to_thread(listening.__exit__, None, None, None)


async def post(client: httpx.AsyncClient, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    answer = await client.post(path, content=body if isinstance(body, bytes) else json.dumps(body))
    return answer.status_code, answer.json()


# ------------------------------------------------------------------------------------------------- answers


async def test_what_is_asked_is_answered_by_the_desk(office: Office) -> None:
    async with served(office) as (client, _):
        assert (await client.get("/status")).json()["pair"] == "strata:current"
        assert (await client.get("/gpu")).json()["total"] == office.card.total
        pairs = (await client.get("/pairs")).json()
        assert len(pairs["pairs"]) == 3
        told = (await client.post("/pairs")).text.splitlines()[-1]  # where somebody wants to hear how far it is
        assert json.loads(told) == {"done": True, **pairs}
        assert (await post(client, "/plan", {"engine": "ninfer"}))[1]["allowed"] is True
        assert (await post(client, "/release", {}))[1] == {"code": 0, "text": "no hold was set"}


BAD_USAGE: list[tuple[str, Any, str]] = [
    ("/plan", b"{", "the body is no JSON"),
    ("/plan", b"\xff", "the body is no JSON"),
    ("/plan", [], "the body must be a JSON object"),
    ("/plan", {}, "`engine` must be a name"),
    ("/plan", {"engine": "ninfer", "pair": 2}, "`pair` must be a name"),
    ("/plan", {"engine": "ninfer", "trial": "no"}, "`trial` must be true or false"),
    ("/swap", {"engine": "ninfer", "drain": -1}, "`drain` must be a number of seconds"),
    ("/swap", {"engine": "ninfer", "drain": True}, "`drain` must be a number of seconds"),
    ("/swap", b'{"engine": "ninfer", "drain": NaN}', "`drain` must be a number of seconds"),
    ("/swap", {"engine": "ninfer", "trial": True, "tokens": 0}, "`tokens` must be a number from 1 to 10000"),
    ("/swap", {"engine": "ninfer", "trial": True, "tokens": True}, "`tokens` must be a number from 1 to 10000"),
    ("/swap", {"engine": "ninfer", "tokens": 8}, "`tokens` is a trial's"),
    ("/swap", {"engine": "gpt"}, "there is no engine 'gpt'"),
    ("/swap", {"engine": "ninfer", "and_back": True}, "`and_back` belongs to a trial"),
    ("/swap", {"engine": "ninfer", "trial": True, "and_back": 1}, "`and_back` must be true or false"),
    ("/hold", {"seconds": "1"}, "`seconds` must be a number of seconds"),
    ("/pairs/attest", {"engine": "ninfer"}, "`reason` must be text"),
    ("/pairs/revoke", {"engine": "ninfer", "reason": " "}, "the reason is empty"),
    ("/pairs/repair", {"reason": "two\nlines"}, "the reason must be one line"),
    ("/pairs/export", {"engine": "gpt"}, "there is no engine 'gpt'"),
    ("/pairs/log", {"engine": 5}, "`engine` must be a name"),
]


async def test_the_ledger_is_asked_and_written_over_the_socket(office: Office) -> None:
    async with served(office) as (client, _), Control(office.desk.settings.control) as control:
        asked = {"engine": "ninfer", "pair": None, "reason": "hot"}
        assert (await control.ask("GET", "/pairs/check"))["lines"] == 2
        assert "Statement/v1" in (await anext(control.follow("/pairs/export", asked)))["line"]
        for word in ("attest", "revoke"):
            assert (await anext(control.follow(f"/pairs/{word}", asked)))["code"] == 0
        lines = (await control.ask("POST", "/pairs/log", {"engine": "ninfer", "pair": "v2"}))["lines"]
        assert [one["outcome"] for one in lines] == ["served", "attested", "revoked"]
        status, answer = await post(client, "/pairs/repair", {"reason": "to be sure"})
        assert (status, answer["code"]) == (409, 3)
        assert answer["error"].startswith("nothing is broken")


async def test_bad_usage_is_told_with_exit_code_2_and_changes_nothing(office: Office) -> None:
    async with served(office) as (client, _):
        for path, body, said in BAD_USAGE:
            status, answer = await post(client, path, body)
            assert (status, answer["code"]) == (400, 2)
            assert answer["error"].startswith(said)
        assert office.controller.state.order is None
        assert office.slots.view().held_for is None


async def test_what_there_is_not_and_what_breaks_are_answers_too(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken() -> None:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(office.desk, "gpu", broken)
    async with served(office) as (client, _):
        answer = await client.get("/nonsense")
        assert (answer.status_code, answer.json()["error"]) == (404, "GET /nonsense: Not Found")
        answer = await client.get("/gpu")
        assert (answer.status_code, answer.json()["code"]) == (500, 6)
        assert "broken on purpose" in answer.json()["error"]
        assert (await client.get("/status")).status_code == 200


# ------------------------------------------------------------------------------------------------- streams


async def test_a_swap_is_a_stream_of_phases_whose_last_line_is_the_truth(office: Office) -> None:
    async with served(office) as (client, _), client.stream("POST", "/swap", json={"engine": "ninfer"}) as answer:
        lines = [json.loads(line) async for line in answer.aiter_lines()]
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert (lines[0]["phase"], lines[-1]["done"], lines[-1]["code"]) == ("checking", True, 0)


async def test_a_swap_goes_on_when_its_command_leaves(office: Office) -> None:
    async with served(office) as (client, _):
        office.ninfer.hang("declared")
        async with client.stream("POST", "/swap", json={"engine": "ninfer"}):
            pass
        office.ninfer.let_go("declared")
        await until(lambda: office.slots.view().engine == "ninfer")


# ------------------------------------------------------------------------------------------------- the end


async def test_when_it_stops_questions_are_refused_and_who_waits_for_a_swap_hears_that_it_is_undone(
    office: Office,
) -> None:
    async with served(office) as (client, stop), Control(office.desk.settings.control) as control:
        place = await office.request()
        async with asyncio.TaskGroup() as tasks:
            swap = tasks.create_task(_last(control, "/swap", {"engine": "ninfer"}))
            await until(lambda: phase(office.controller.state) == "draining")
            office.ninfer.hang("declared")
            plan = tasks.create_task(_refused(control, "/plan", {"engine": "ninfer"}))
            await until(lambda: "declared" in office.ninfer.calls[-1:])
            stop.set()
            told, refused = await swap, await plan
            status, late = await post(client, "/swap", {"engine": "ninfer"})
        assert (told["code"], told["text"]) == (
            4,
            "strata:current serves again: given up by the operator; slotproxy is stopping",
        )
        assert (refused.what, refused.code) == ("slotproxy is stopping", 6)
        assert (status, late["error"]) == (503, "slotproxy is stopping"), "nothing is begun any more"
        place.leave()
        assert office.up == {"strata"}
        assert office.controller.state.serving is not None, "the card stays where it is"


async def test_who_waits_for_a_swap_that_is_past_undoing_hears_no_end_of_it(office: Office) -> None:
    """slotctl then exits 6: nobody can say any more how it ends."""
    async with served(office) as (_, stop), Control(office.desk.settings.control) as control:
        office.strata.hang("stop")
        async with asyncio.TaskGroup() as tasks:
            swap = tasks.create_task(_ended(control, "/swap", {"engine": "ninfer"}))
            await until(lambda: phase(office.controller.state) == "stopping")
            stop.set()
            assert isinstance(await swap, Lost)


async def _last(control: Control, path: str, body: dict[str, Any]) -> dict[str, Any]:
    lines = [line async for line in control.follow(path, body)]
    return lines[-1]


async def _ended(control: Control, path: str, body: dict[str, Any]) -> Exception | None:
    try:
        async for _ in control.follow(path, body):
            pass
    except Lost as lost:
        return lost
    return None


async def _refused(control: Control, path: str, body: dict[str, Any]) -> Refused:
    with pytest.raises(Refused) as refused:
        async for _ in control.follow(path, body):
            pass
    return refused.value
