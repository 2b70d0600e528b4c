"""Many at once: the herd when the card is there again, a swap that never ends, and who can't be kept waiting.

Cases 14, 15 and 17.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest

from engines.spec import CHAT, MESSAGES
from slotproxy.config import Limits, SlotSettings
from slotproxy.keys import digests
from slotproxy.outcomes import Outcome
from slotproxy.turns import PATIENCE
from tests.slotproxy.rig import (
    AT_ONCE,
    Client,
    Conversation,
    Proxy,
    Seen,
    Upstream,
    ask,
    browser,
    engine,
    eventually,
    proxied,
    whole,
)

HERD = 50


class Strict:
    """An engine that answers so many at once, each after `seconds`, and refuses the rest as a full one does."""

    def __init__(self, places: int = 1, seconds: float = 0.002) -> None:
        self._places, self._seconds = places, seconds
        self._busy = 0
        self.refused = 0
        self.served: list[str] = []  # the users, in the order in which it took them

    async def __call__(self, talk: Conversation, seen: Seen) -> None:
        if self._busy >= self._places:
            self.refused += 1
            await talk.send(whole(b'{"error":{"message":"server_overloaded"}}', status=b"429 Busy"))
            return
        self._busy += 1
        self.served.append(seen.json["user"])
        await asyncio.sleep(self._seconds)
        self._busy -= 1
        await talk.send(whole(b"{}"))


def key(name: str) -> bytes:
    return b"x-api-key: " + name.encode()


def slot(name: str, priority: int = 0) -> SlotSettings:
    return SlotSettings(name, keys=digests(name), priority=priority, max_waiting=1000)


@contextlib.asynccontextmanager
async def herd(proxy: Proxy, users: list[tuple[str, str]]) -> AsyncIterator[list[Client]]:
    """Clients that wait, in this order of arrival: (name, slot)."""
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for count, (user, its_slot) in enumerate(users, 1):
            client = await stack.enter_async_context(Client.at(proxy.port))
            await client.post(CHAT, ask(user=user), key(its_slot))
            await until_waiting(proxy, count)
            clients.append(client)
        yield clients


async def until_waiting(proxy: Proxy, count: int) -> None:
    async with asyncio.timeout(AT_ONCE):
        while proxy.gate.view().waiting < count:  # noqa: ASYNC110  (no event says so)
            await asyncio.sleep(0)


async def all_served(clients: list[Client]) -> None:
    await asyncio.gather(*(client.until(b"\r\n\r\n{}") for client in clients))
    assert all(client.got.startswith(b"HTTP/1.1 200 ") for client in clients)


# -------------------------------------------------------------------------------------------- 14: herd on resume


async def test_case_14_fifty_who_were_held_are_answered_in_order_one_at_a_time_and_none_twice() -> None:
    strict = Strict()
    names = [f"number {number}" for number in range(HERD)]
    async with Upstream(strict) as up, proxied(engine(up.url), opened=False) as proxy:
        async with herd(proxy, [(name, "") for name in names]) as clients:
            proxy.gate.open("strata", 1)
            await all_served(clients)
        await proxy.counted(Outcome.SERVED, HERD)
    assert strict.served == names
    assert strict.refused == 0


async def test_case_14_neighbour_two_places_and_two_priorities_the_urgent_first_and_nobody_refused() -> None:
    strict = Strict(places=2)
    slots = {name: slot(name, priority) for name, priority in (("voice", 10), ("agents", 0))}
    users = [(f"{name} {number}", name) for number in range(20) for name in ("agents", "voice")]
    async with (
        Upstream(strict) as up,
        proxied(engine(up.url), slots=slots, opened=False) as proxy,
        herd(proxy, users) as clients,
    ):
        proxy.gate.open("strata", 2)
        await all_served(clients)
    assert strict.refused == 0
    for name in slots:
        mine = [int(user.split()[1]) for user in strict.served if user.startswith(name)]
        assert sorted(mine) == list(range(20))
        assert all(later > earlier - 2 for earlier, later in itertools.pairwise(mine)), "out of order"
    half = Counter(user.split()[0] for user in strict.served[:20])
    assert half["voice"] > half["agents"] > 0


async def test_case_14_neighbour_those_who_left_meanwhile_take_no_turn() -> None:
    strict = Strict()
    users = [(f"number {number}", "") for number in range(HERD)]
    async with (
        Upstream(strict) as up,
        proxied(engine(up.url), opened=False) as proxy,
        herd(proxy, users) as clients,
    ):
        for client in clients[::2]:
            client.writer.close()
        await eventually(lambda: proxy.gate.view().waiting == HERD // 2)
        proxy.gate.open("strata", 1)
        await all_served(clients[1::2])
    assert strict.served == [f"number {number}" for number in range(1, HERD, 2)]


async def test_case_14_neighbour_a_herd_that_two_swaps_interrupt_is_answered_once_each_and_in_order() -> None:
    one, two = Strict(seconds=0.01), Strict(seconds=0.01)
    names = [f"number {number}" for number in range(HERD)]
    async with (
        Upstream(one) as up,
        Upstream(two) as other,
        proxied(engine(up.url), engine(other.url, name="ninfer"), opened=False) as proxy,
        herd(proxy, [(name, "") for name in names]) as clients,
    ):
        for run, (name, behind) in enumerate((("strata", one), ("ninfer", two))):
            proxy.gate.open(name, 1, str(run))
            await eventually(lambda behind=behind: len(behind.served) > 5)  # type: ignore[misc]
            proxy.gate.close()
            assert await proxy.gate.drained(AT_ONCE)
        proxy.gate.open("strata", 1, "the last")
        await all_served(clients)
    assert one.refused + two.refused == 0
    assert sorted(one.served + two.served, key=names.index) == names
    assert one.served == sorted(one.served, key=names.index)
    assert two.served == sorted(two.served, key=names.index)


# ------------------------------------------------------------------------------------ 15: a swap that never ends

CROWD = 1000
KEPT = 200
HOLD = 3.0  # seconds
BODY = json.dumps(ask(text="x" * 1000)).encode()


async def answer_of(proxy: Proxy, at_once: asyncio.Semaphore, kept: list[Client]) -> tuple[int, float, bytes]:
    """Status, how long it took in seconds, and head. Only so many connect at once; those who wait let others in."""
    async with at_once, Client.at(proxy.port) as client:
        await client.post(CHAT, BODY)
        began = time.monotonic()
        if len(kept) < KEPT:
            kept.append(client)
            at_once.release()
        try:
            await client.until(b"\r\n\r\n")
        finally:
            if client in kept:
                await at_once.acquire()
        head = client.got.partition(b"\r\n\r\n")[0].lower()
        return int(head.split()[1]), time.monotonic() - began, head


@pytest.mark.parametrize(
    "limits",
    [Limits(max_waiting=KEPT), Limits(max_waiting=CROWD, max_waiting_bytes=KEPT * len(BODY) + 10)],
    ids=["count", "bytes"],
)
async def test_case_15_a_thousand_in_a_swap_that_never_ends_are_held_up_to_a_bound_and_the_rest_told_at_once(
    limits: Limits,
) -> None:
    """Case 15: who is held too long is told, too, and no engine ever hears of them."""
    slots = {"anonymous": SlotSettings("anonymous", max_waiting=CROWD, max_hold=HOLD)}
    strict = Strict()
    async with Upstream(strict) as up, proxied(engine(up.url), slots=slots, limits=limits, opened=False) as proxy:
        at_once = asyncio.Semaphore(50)
        kept: list[Client] = []
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(answer_of(proxy, at_once, kept)) for _ in range(CROWD)]
            await eventually(lambda: proxy.gate.view().waiting == KEPT)
            assert proxy.gate.view().waiting_bytes == KEPT * len(BODY)
        answers = [one.result() for one in asked]
        refused = [took for status, took, _ in answers if status == 429]
        expired = [took for status, took, _ in answers if status == 503]
        assert (len(refused), len(expired)) == (CROWD - KEPT, KEPT)
        assert max(refused) < HOLD
        assert min(expired) >= HOLD * 0.9
        assert max(expired) < HOLD + AT_ONCE
        assert all(b"\r\nretry-after: " in head for _, _, head in answers)
        assert proxy.outcomes.counts == {Outcome.REFUSED: CROWD - KEPT, Outcome.EXPIRED: KEPT}
        proxy.gate.open("strata", 1)
        async with browser() as client:
            assert (await client.post(proxy.url + CHAT, json=ask(user="later"))).status_code == 200
    assert strict.served == ["later"]


async def test_case_15_one_deadline_is_over_all_waits_however_many_there_are() -> None:
    """Case 15: an engine that can't be reached, again and again, and then a closed gate."""
    hold = 1.5
    slots = {"anonymous": SlotSettings("anonymous", max_hold=hold)}
    async with proxied(engine("http://127.0.0.1:1"), slots=slots) as proxy, browser() as client:
        async with asyncio.TaskGroup() as group:
            began = time.monotonic()
            asked = group.create_task(client.post(proxy.url + MESSAGES, json=ask()))
            await asyncio.sleep(hold * 0.9)
            proxy.gate.close()
            answer = await asked
        assert hold * 0.9 <= time.monotonic() - began < hold * 1.8
        assert answer.status_code in (502, 503)
        assert proxy.gate.view().waiting == 0


async def test_case_15_neighbour_a_stream_that_was_pinged_hears_of_its_deadline_in_band() -> None:
    slots = {"anonymous": SlotSettings("anonymous", max_hold=0.5)}
    limits = Limits(first_ping=0.1, ping_every=0.1)
    async with proxied(engine("http://127.0.0.1:1"), slots=slots, limits=limits, opened=False) as proxy:
        async with Client.at(proxy.port) as client:
            await client.post(CHAT, ask(stream=True))
            await client.rest()
        await proxy.counted(Outcome.EXPIRED)
    assert client.body.startswith(b": keep-alive")
    assert b"waited 0.5 s" in client.body
    assert not client.ended_whole


# ----------------------------------------------------------------------------------------------- 17: starvation

LOOPS = ("loop-1", "loop-2", "loop-3")


@pytest.mark.parametrize(
    ("slot_of", "priority", "bound"),
    [
        (lambda _: "all", 0, 3),
        (lambda user: user, 0, 3),
        (lambda user: "fourth" if user == "fourth" else "loops", 0, 1),
        (lambda user: user, 10, (PATIENCE + 1) * 4),
        (lambda user: "fourth" if user == "fourth" else "loops", 10, (PATIENCE + 1) * 2),
    ],
    ids=["one slot", "a slot each", "one slot for the three", "of higher priority", "one slot of higher priority"],
)
async def test_case_17_three_in_a_tight_loop_keep_a_fourth_waiting_for_a_few_turns_and_no_more(
    slot_of: Callable[[str], str], priority: int, bound: int
) -> None:
    """Case 17: the bound is in turns. Two more may go while it is on its way to the line."""
    strict = Strict(seconds=0.02)
    names = {slot_of(user) for user in (*LOOPS, "fourth")}
    slots = {name: slot(name, 0 if name == "fourth" else priority) for name in names}
    async with Upstream(strict) as up, proxied(engine(up.url), slots=slots) as proxy, browser() as client:

        async def ask_as(user: str) -> int:
            headers = {"x-api-key": slot_of(user)}
            return (await client.post(proxy.url + CHAT, json=ask(user=user), headers=headers)).status_code

        async def loop(user: str) -> None:
            while "fourth" not in strict.served:
                assert await ask_as(user) == 200

        async with asyncio.TaskGroup() as group:
            for user in LOOPS:
                group.create_task(loop(user))
            await eventually(lambda: len(strict.served) > 10)
            before = len(strict.served)
            assert await ask_as("fourth") == 200
    assert strict.served.index("fourth") - before <= bound + 2
    assert strict.refused == 0
