"""What is still in an engine's cache, whose client comes back soon, and whose turn that makes it."""

from __future__ import annotations

import asyncio
import itertools
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.spec import Api
from slotproxy.config import SlotSettings
from slotproxy.conversation import SHORTEST, Conversation, conversation_of
from slotproxy.gate import SlotGate
from slotproxy.places import Place
from slotproxy.turns import PATIENCE, Turns, Waiter
from slotproxy.warmth import Warmth
from tests.simulated_time import in_simulated_time
from tests.slotproxy.gate_clients import moment

WAIT = 0.25
TURNS = 3
SLOT = SlotSettings("agents")


def said(*texts: str, spaces: bool = False) -> Conversation:
    messages = [{"role": "user", "content": text} for text in texts]
    raw = json.dumps(messages, indent=2 if spaces else None).encode()
    found = conversation_of(Api.CHAT, {"messages": msgspec.Raw(raw)})
    assert found is not None
    return found


def text(seed: str, size: int = 4000) -> str:
    return "".join(f"{seed}{number} " for number in range(size // 4))[:size]


A, B = text("a"), text("b")
SYSTEM = text("s", 20_000)


# ------------------------------------------------------------------------------------------------- what they share


@pytest.mark.parametrize("spaces", [False, True])
def test_the_next_turn_shares_what_the_last_one_had(spaces: bool) -> None:
    before, after = said(A, spaces=spaces), said(A, "an answer", "go on", spaces=spaces)
    assert after.shares(before.remembered()) > 0.9 * len(before.said)
    assert said(B, spaces=spaces).shares(before.remembered()) == 0


def test_what_was_changed_in_the_middle_is_shared_up_to_there() -> None:
    before = said(A, B)
    shared = said(A, text("c")).shares(before.remembered())
    assert 0.35 * len(before.said) < shared <= 0.5 * len(before.said)


def test_a_mark_that_a_client_moves_to_its_newest_message_changes_little() -> None:
    """Anthropic's clients do so with `cache_control`."""
    marked = [{"role": "user", "content": A, "cache_control": {"type": "ephemeral"}}]
    before = conversation_of(Api.MESSAGES, {"messages": msgspec.Raw(json.dumps(marked).encode())})
    assert before is not None
    assert said(A, "an answer", "go on").shares(before.remembered()) > 0.9 * len(before.said)


@pytest.mark.parametrize(
    ("api", "field"),
    [(Api.CHAT, "messages"), (Api.MESSAGES, "messages"), (Api.RESPONSES, "input"), (Api.COMPLETIONS, "prompt")],
)
def test_each_protocol_says_it_in_a_field_of_its_own(api: Api, field: str) -> None:
    raw = msgspec.Raw(json.dumps(A).encode())
    assert conversation_of(api, {field: raw}) is not None
    assert conversation_of(api, {"another": raw}) is None


def test_what_is_short_or_says_nothing_is_no_conversation() -> None:
    short = msgspec.Raw(b'"' + b"x" * (SHORTEST - 3) + b'"')
    assert conversation_of(Api.CHAT, {"messages": short}) is None
    assert conversation_of(Api.CHAT, None) is None
    assert conversation_of(Api.EMBEDDINGS, {"input": msgspec.Raw(json.dumps(A).encode())}) is None


# ------------------------------------------------------------------------------------------------- what is known


def warmth(keeps: int = 1) -> Warmth:
    known = Warmth(WAIT)
    known.opened(keeps)
    return known


def test_an_engine_has_the_conversations_that_it_had_last_as_many_as_it_keeps() -> None:
    for keeps, has in [(0, [False, False]), (1, [False, True]), (2, [True, True])]:
        known = warmth(keeps)
        known.begun(said(A), 0)
        known.begun(said(B), 0)
        assert [known.shares(said(one, "an answer", "go on")) > 0 for one in (A, B)] == has


def test_a_conversation_that_goes_on_takes_no_further_room() -> None:
    known = warmth(2)
    known.begun(said(A), 0)
    known.begun(said(B), 0)
    known.begun(said(B, "1", "2"), 0)
    assert known.shares(said(A, "1", "2"))


def test_another_engine_has_nothing() -> None:
    known = warmth()
    known.begun(said(A), 0)
    known.opened(1)
    assert known.shares(said(A, "1", "2")) == 0


def test_of_two_that_begin_alike_the_one_that_goes_on_shares_more() -> None:
    known = warmth()
    known.begun(said(SYSTEM, A), 0)
    assert known.shares(said(SYSTEM, A, "1", "2")) > known.shares(said(SYSTEM, B)) > 0


def test_a_beginning_that_many_have_in_common_makes_no_conversation() -> None:
    """A system prompt that is shorter than what was said after it."""
    known = warmth()
    known.begun(said(A, text("c", 12_000)), 0)
    assert known.shares(said(A, text("d", 12_000))) == 0


def test_only_a_client_that_has_come_back_soon_is_waited_for() -> None:
    known = warmth()
    talk = known.begun(said(A), 0)
    known.ended(talk, 10.0)
    assert known.awaited(0, 10.0) is None, "nothing is known of it yet"
    known.came(said(A, "1", "2"), 10.1)
    talk = known.begun(said(A, "1", "2"), 0)
    assert known.awaited(0, 10.2) is None, "it is at the engine"
    known.ended(talk, 20.0)
    assert known.awaited(0, 20.1) == 20.0 + WAIT
    assert known.awaited(1, 20.1) is None, "nobody of a higher priority waits for it"
    assert known.awaited(0, 20.0 + WAIT) is None
    assert known.awaited(0, 20.1) is None, "it was waited for in vain"


def test_a_client_that_took_its_time_is_waited_for_no_more() -> None:
    known = warmth()
    for since, comes in [(0.0, 0.1), (1.0, 9.0)]:
        known.ended(known.begun(said(A), 0), since)
        known.came(said(A), comes)
    known.ended(known.begun(said(A), 0), 10.0)
    assert known.awaited(0, 10.0) is None


# ------------------------------------------------------------------------------------------------- whose turn


def waiting(*names: str, warm: int = TURNS) -> Turns[Waiter]:
    turns: Turns[Waiter] = Turns(warm)
    for number, name in enumerate(names):
        turns.add(Waiter(SlotSettings(name, priority=name.count("!")), size=number, since=0.0))
    return turns


def take(turns: Turns[Waiter], *warm: int) -> int:
    """The number of whose turn it is; the engine still has those in `warm`."""
    turn = turns.next({}, lambda waiter: waiter.size in warm)
    assert turn is not None
    return turns.take(turn).size


def test_who_goes_on_with_what_the_engine_has_goes_before_its_own_slot_and_its_equals() -> None:
    assert take(waiting("a", "a", "b"), 1) == 1
    assert take(waiting("a", "b", "b"), 2) == 2
    assert take(waiting("a", "b", warm=0), 1) == 0


def test_but_before_no_higher_slot() -> None:
    assert take(waiting("a!", "b"), 1) == 0


def test_only_so_many_times_in_a_row() -> None:
    turns = waiting("a", *["b"] * 20)
    assert [take(turns, *range(1, 21)) for _ in range(TURNS + 1)] == [1, 2, 3, 0]


def test_a_turn_that_was_its_anyway_is_none_of_them() -> None:
    turns = waiting("a", "a", "a", "a", "a", "a", "a", "a", "b")
    for slot in (0, 8):
        assert take(turns) == slot
    assert [take(turns, 1), take(turns, 2)] == [1, 2]
    assert turns.may_be_warm


def test_a_fair_turn_asks_nobody_what_the_engine_has() -> None:
    turns = waiting(*["a!"] * 10, "b", "b")
    assert [take(turns, 11) for _ in range(PATIENCE + 1)] == [0, 1, 2, 3, 10]


SLOTS = tuple(SlotSettings(f"s{number}", priority=number % 3) for number in range(4))


@given(
    victim=st.sampled_from(SLOTS),
    script=st.lists(st.tuples(st.integers(0, 2 ** len(SLOTS) - 1), st.integers(0, 3)), min_size=80, max_size=120),
)
def test_nobody_starves_whatever_the_engine_has(victim: SlotSettings, script: list[tuple[int, int]]) -> None:
    """An adversary chooses before each turn who waits beside the victim, and what is in the cache. In vain."""
    turns: Turns[Waiter] = Turns(TURNS)
    turns.add(first := Waiter(victim, size=-1, since=0.0))
    for past, (bits, warm) in enumerate(script, start=1):
        for number, slot in enumerate(SLOTS):
            if bits >> number & 1 and turns.of(slot.name) < 3:
                turns.add(Waiter(slot, size=number, since=0.0))
        turn = turns.next({}, lambda waiter, warm=warm: waiter.size == warm)  # type: ignore[misc]
        assert turn is not None
        if turns.take(turn) is first:
            return
        assert past < (PATIENCE + 1) * (TURNS + 1) * len(SLOTS)


# ------------------------------------------------------------------------------------------------- at the gate


class Agent:
    """One conversation: each turn takes a second at the engine, and the next comes `pause` after its end."""

    def __init__(
        self, gate: SlotGate, served: list[str], name: str, *, pause: float, slot: SlotSettings = SLOT
    ) -> None:
        self.gate, self.served, self.name, self.pause, self.slot = gate, served, name, pause, slot

    async def talk(self, turns: int) -> None:
        texts = [text(self.name)]
        for _ in range(turns):
            place = await self.gate.enter(self.slot, size=1, conversation=said(*texts))
            assert isinstance(place, Place)
            self.served.append(self.name)
            await asyncio.sleep(1)
            place.leave()
            texts += ["an answer", "go on"]
            await asyncio.sleep(self.pause)


def warm_gate(keeps: int = 1, wait: float = WAIT) -> SlotGate:
    clock = asyncio.get_running_loop().time
    gate = SlotGate(
        max_waiting=100, max_waiting_bytes=100, warm_turns=TURNS, warm_wait=wait, prefixes={"ninfer": keeps}, now=clock
    )
    gate.open("ninfer", 1)
    return gate


async def two_agents(gate: SlotGate, turns: int, pause: float) -> str:
    served: list[str] = []
    async with asyncio.TaskGroup() as agents:
        agents.create_task(Agent(gate, served, "a", pause=pause).talk(turns))
        await moment()
        agents.create_task(Agent(gate, served, "b", pause=pause).talk(turns))
    return "".join(served)


def changes(served: str) -> int:
    return sum(one != other for one, other in itertools.pairwise(served))


@in_simulated_time
async def test_two_agents_have_several_turns_in_a_row_each() -> None:
    served = await two_agents(warm_gate(), 16, pause=0.1)
    assert sorted(served) == ["a"] * 16 + ["b"] * 16
    assert changes(served) <= 32 / (TURNS + 1) + 3
    assert all(len(list(run)) <= TURNS + 2 for _, run in itertools.groupby(served[:-8])), "and no more"


@pytest.mark.parametrize("how", ["no wait", "slow clients", "no cache"])
@in_simulated_time
async def test_without_wait_or_cache_or_quick_clients_they_take_turns(how: str) -> None:
    gate = warm_gate(keeps=0 if how == "no cache" else 1, wait=0.0 if how == "no wait" else WAIT)
    started = asyncio.get_running_loop().time()
    served = await two_agents(gate, 8, pause=0.9 if how == "slow clients" else 0.1)
    assert changes(served) >= 13
    idle = asyncio.get_running_loop().time() - started - 16
    assert idle < 1.1, "a place that stayed free for nobody"


@in_simulated_time
async def test_a_higher_slot_never_waits_for_a_conversation() -> None:
    gate, clock = warm_gate(), asyncio.get_running_loop().time
    served: list[str] = []
    async with asyncio.TaskGroup() as clients:
        clients.create_task(Agent(gate, served, "a", pause=0.2).talk(3))
        await asyncio.sleep(2.25)  # its second turn has ended, and the place is kept for the third
        asked = clock()
        place = await gate.enter(SlotSettings("voice", priority=1), size=1)
        assert isinstance(place, Place)
        assert clock() == asked
        place.leave()


@in_simulated_time
async def test_a_place_that_stays_free_is_nobodys_when_the_gate_closes() -> None:
    gate = warm_gate()
    served: list[str] = []
    async with asyncio.TaskGroup() as clients:
        agent = clients.create_task(Agent(gate, served, "a", pause=0.1).talk(2))
        await asyncio.sleep(1.5)
        other = clients.create_task(gate.enter(SLOT, size=1))
        await agent
        gate.close()
        assert await gate.drained(0)
        await asyncio.sleep(10 * WAIT)
        assert not other.done()
        gate.open("strata", 1)
        place = await other
        assert isinstance(place, Place)
        place.leave()


@in_simulated_time
async def test_a_client_that_left_in_the_middle_is_not_waited_for() -> None:
    gate, clock = warm_gate(), asyncio.get_running_loop().time
    served: list[str] = []
    await Agent(gate, served, "a", pause=0.1).talk(1)
    place = await gate.enter(SLOT, size=1, conversation=said(text("a"), "an answer", "go on"))
    assert isinstance(place, Place)
    place.settle()
    place.leave()
    asked = clock()
    other = await gate.enter(SLOT, size=1)
    assert isinstance(other, Place)
    assert clock() == asked
    other.leave()


@in_simulated_time
async def test_where_several_go_at_once_no_place_stays_free() -> None:
    gate, clock = warm_gate(), asyncio.get_running_loop().time
    gate.open("ninfer", 2)
    served: list[str] = []
    await Agent(gate, served, "a", pause=0.1).talk(2)
    place = await gate.enter(SLOT, size=1, conversation=said(text("a"), "an answer", "go on", "an answer", "go on"))
    assert isinstance(place, Place)
    place.leave()
    asked = clock()
    other = await gate.enter(SLOT, size=1)
    assert isinstance(other, Place)
    assert clock() == asked
    other.leave()
