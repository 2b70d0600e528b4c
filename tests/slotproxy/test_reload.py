"""A reload over the world in memory: whole or not at all, and no engine that runs is touched by it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from engines.spec import Engine, Pair
from slotproxy.config import ConfigError, Limits, Settings, SlotSettings
from slotproxy.places import Place, Refused
from slotproxy.refusal import Refusal
from swap import refit
from swap.decisions import Kind
from swap.moves import Aborted, Code, Rest
from swap.ports import Fault, Runtime
from swap.refit import engine_of
from swap.state import phase
from tests.simulated_time import in_simulated_time
from tests.slotproxy.office import SLOT, Office
from tests.swap.fakes import FakeRuntime
from tests.swap.world import until

PROVEN = ("strata:current", "ninfer:v2", "ninfer:v3")


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    with capture_logs():
        office = Office(tmp_path)
        held = office.desk.in_force
        held.settings = replace(held.settings, engines=dict(office.engines))  # the file's own, as in life
        yield office
    office.close()


async def reload(office: Office, **changes: Any) -> list[str]:
    """With this in the file; what has changed."""
    new = replace(office.desk.settings, **changes)
    office.reload.load = lambda _: new
    return list((await office.reload.reload())["changes"])


async def refused(office: Office, **changes: Any) -> Refusal:
    before, engines = office.desk.in_force.settings, dict(office.controller.engines)
    with pytest.raises(Refusal) as no:
        await reload(office, **changes)
    assert office.desk.in_force.settings is before
    assert office.controller.engines == engines
    last = office.hands.decisions.last(1)[0]
    assert (last.kind, last.text) == (Kind.RELOADED, "the configuration isn't taken over: nothing has changed")
    assert no.value.what in last.why
    return no.value


def engines(office: Office, name: str, **changes: Any) -> dict[str, Any]:
    now = office.desk.settings.engines
    return {**now, name: replace(now[name], **changes)}


# ------------------------------------------------------------------------------------------------- or not at all


@in_simulated_time
async def test_a_file_that_is_broken_changes_nothing(office: Office) -> None:
    def broken(_: Path) -> Settings:
        raise ConfigError("slotproxy.yml: drain: 5 has no unit")

    async with office.serving():
        office.reload.load = broken
        with pytest.raises(Refusal) as no:
            await office.reload.reload()
        assert (no.value.what, no.value.code) == ("slotproxy.yml: drain: 5 has no unit", 2)
        assert office.hands.decisions.last(1)[0].why == f"{no.value.what}; correct it, and reload again"


@in_simulated_time
async def test_what_needs_a_restart_refuses_all_of_it(office: Office) -> None:
    async with office.serving():
        no = await refused(office, port=1, drain=1.0)
        assert (no.what, no.code) == ("listen can't change while slotproxy runs", 3)
        assert "systemctl restart slotproxy" in no.mend


@in_simulated_time
async def test_what_cannot_fit_the_card_is_refused(office: Office) -> None:
    async with office.serving():
        no = await refused(office, engines=engines(office, "ninfer", vram=33 * 1024**3))
        assert no.code == 2
        assert "engines.ninfer.vram" in no.what


@in_simulated_time
async def test_the_engine_on_the_card_cannot_be_removed_or_become_another_container(office: Office) -> None:
    async with office.serving("strata:current"):
        others = {name: one for name, one in office.desk.settings.engines.items() if name != "strata"}
        no = await refused(office, engines=others)
        assert (no.what, no.code) == ("engines.strata can't be removed now", 3)
        no = await refused(office, engines=engines(office, "strata", container="strata-2"))
        assert "container and compose of engines.strata can't change now" in no.what
        assert office.up == {"strata"}


@in_simulated_time
async def test_in_the_middle_of_a_swap_it_is_refused_and_afterwards_it_is_not(office: Office) -> None:
    async with office.serving("strata:current", verified=PROVEN):
        place = await office.request()
        ticket = office.order("ninfer:v2")
        await until(lambda: phase(office.controller.state) == "draining")
        no = await refused(office, drain=1.0)
        assert (no.what, no.mend) == ("a swap to ninfer:v2 is under way", "reload when that has ended")
        place.leave()
        await until(lambda: office.slots.view().engine == "ninfer")
        assert await reload(office, drain=1.0) == ["drain: 1 min 0 s → 1.0 s"]
        assert office.hands.times.drain == 1.0
        assert ticket.order.engine == "ninfer"


@in_simulated_time
async def test_a_swap_that_begins_while_a_reload_prepares_itself_refuses_it(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a new container takes to be made is long enough for that."""
    async with office.serving("strata:current", verified=PROVEN):
        place, loop = await office.request(), asyncio.get_running_loop()

        def make(_: Engine) -> Runtime:
            loop.call_soon_threadsafe(office.order, "ninfer:v2")
            return office.ninfer

        monkeypatch.setattr(office.shelf, "make", make)
        no = await refused(office, engines=engines(office, "ninfer", container="ninfer-2"))
        assert (no.mend, no.code) == ("reload when that has ended", 3)
        place.leave()
        await until(lambda: office.up == {"ninfer"})


@in_simulated_time
async def test_news_that_the_machine_has_not_heard_yet_come_first(office: Office) -> None:
    """Of an engine that is being removed: it would be stopped by nobody who knows it."""
    async with office.serving("strata:current") as controller:
        assert refit.busy(controller) == ""
        controller._events.put_nowait(Aborted())
        assert refit.busy(controller) == "something has just happened to an engine"
        await until(lambda: not refit.busy(controller))


@in_simulated_time
async def test_while_a_container_is_staged_by_hand_it_is_refused(office: Office) -> None:
    async with office.serving("strata:current"):
        office.ninfer.hang("stage")
        async with asyncio.TaskGroup() as tasks:
            staging = tasks.create_task(office.desk.stage("ninfer", "v3"))
            await until(lambda: office.ninfer.calls[-1:] == ["stage"])
            no = await refused(office, drain=1.0)
            assert no.what == "a container is being staged"
            office.ninfer.let_go("stage")
            await staging


# ------------------------------------------------------------------------------------------------- engines


@in_simulated_time
async def test_an_entry_that_changed_leaves_the_engine_that_serves_as_it_is_and_says_so(office: Office) -> None:
    async with office.serving("strata:current", verified=PROVEN) as controller:
        sight, url = office.strata.sight, office.engines["strata"].url
        calls = [call for call in office.strata.calls if call != "look"]
        said = await reload(office, engines=engines(office, "strata", url="http://127.0.0.1:9", concurrency=3))
        assert said[-1] == "strata: entry changed; it is left as it is, the next swap to it runs what is declared now"
        assert office.hands.decisions.last(1)[0].why == "; ".join(said), "who sends SIGHUP gets no answer"
        await asyncio.sleep(60)
        assert office.strata.sight == sight
        assert [call for call in office.strata.calls if call != "look"] == calls
        assert engine_of(controller, "strata").url == url, "it still listens there"
        places = [await office.slots.enter(SLOT, size=1) for _ in range(3)]
        assert all(isinstance(place, Place) for place in places), "its concurrency is ours alone, and holds at once"
        for place in places:
            assert isinstance(place, Place)
            place.leave()
        assert (await office.swap("ninfer:v2")).code == Code.SERVES
        assert engine_of(controller, "ninfer").url == office.engines["ninfer"].url
        assert (await office.swap("strata")).code == Code.SERVES
        assert engine_of(controller, "strata").url == "http://127.0.0.1:9"


@in_simulated_time
async def test_an_entry_that_changed_while_its_engine_is_tried_again_says_so_too(office: Office) -> None:
    """A swap to it, also from the dark, is what runs the edit."""
    async with office.serving("strata:current"):
        office.strata.fail("start", Fault("no room", "make some", passing=True), times=3)
        office.strata.exit(1)
        await until(lambda: isinstance(office.controller.state.doing, Rest))
        said = await reload(office, engines=engines(office, "strata", env={"KV": "q8"}))
        assert (
            said[-1]
            == "strata: entry changed; it is tried again as it was, the next swap to it runs what is declared now"
        )


@in_simulated_time
async def test_a_new_pair_can_be_swapped_to_and_one_that_is_gone_serves_on(office: Office) -> None:
    async with office.serving("ninfer:v2", verified=("strata:current", "ninfer:v2")):
        ninfer = office.desk.settings.engines["ninfer"]
        v4 = Pair("ninfer", "v4", "ninfer:v3", ninfer.pairs["v3"].artifacts)
        office.ninfer.recipes["v4"] = office.ninfer.recipes["v3"]
        said = await reload(office, engines=engines(office, "ninfer", pairs={"v4": v4}, deployed="v4"))
        assert "engines.ninfer.pairs.v4: added" in said
        assert said[-1] == "ninfer:v2 isn't declared any more; it is left as it is until the next swap"
        assert office.slots.view().engine == "ninfer"
        assert (await office.swap("ninfer:v4", trial=True)).code == Code.SERVES


@in_simulated_time
async def test_an_engine_that_is_removed_is_known_no_more_and_comes_back_as_it_is_declared_then(office: Office) -> None:
    async with office.serving("strata:current", verified=PROVEN) as controller:
        assert (await office.swap("ninfer:v2")).code == Code.SERVES
        assert (await office.swap("strata")).code == Code.SERVES
        before = dict(office.desk.settings.engines)
        assert await reload(office, engines={"strata": before["strata"]}) == ["engines.ninfer: removed"]
        with pytest.raises(Refusal, match="there is no engine 'ninfer'"):
            await office.desk.plan("ninfer", None, trial=False)
        assert list(controller.hands.runtimes) == ["strata"]
        assert {unit.engine for unit in controller.hands.known} == {"strata"}
        await until(lambda: not office.ninfer._listeners)

        office.shelf.runtimes["ninfer"] = office.ninfer
        again = {**before, "ninfer": replace(before["ninfer"], stop_grace=3.0)}
        assert await reload(office, engines=again) == ["engines.ninfer: added"]
        await until(lambda: office.ninfer._listeners)
        assert (await office.swap("ninfer:v2")).code == Code.SERVES
        assert engine_of(controller, "ninfer").stop_grace == 3.0
        assert office.up == {"ninfer"}


@in_simulated_time
async def test_a_stopped_engine_may_become_another_container(office: Office) -> None:
    async with office.serving("strata:current", verified=PROVEN):
        other = FakeRuntime("ninfer", office.card, office.ninfer.recipes)
        other.create(other.recipes["v2"])
        office.shelf.runtimes["ninfer"] = other
        await reload(office, engines=engines(office, "ninfer", container="ninfer-2"))
        office.readiness._runtimes["ninfer"] = other  # what answers there
        assert (await office.swap("ninfer:v2")).code == Code.SERVES
        assert other.sight.running
        assert not office.ninfer.sight.running


# ------------------------------------------------------------------------------------------------- slots


@in_simulated_time
async def test_who_waits_keeps_its_turn_and_a_slot_that_is_gone_is_answered(office: Office) -> None:
    other = SlotSettings("other")
    async with office.serving("strata:current"):
        await reload(office, slots={SLOT.name: SLOT, "other": other})
        office.slots.hold(None)
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(office.slots.enter(SLOT, size=1))
            await asyncio.sleep(1)
            gone = tasks.create_task(office.slots.enter(other, size=1))
            await asyncio.sleep(1)
            said = await reload(office, slots={SLOT.name: replace(SLOT, priority=7)}, limits=Limits(max_waiting=1))
            assert said == ["limits.max_waiting: 512 → 1", "slots.someone.priority: 0 → 7", "slots.other: removed"]
            assert await gone == Refused(503, "slot other isn't configured any more", 1.0)
            assert not first.done()
            assert office.slots.view().waiting == 1
            full = await office.slots.enter(SLOT, size=1)
            assert isinstance(full, Refused)
            assert full.status == 429
            office.slots.release()
            place = await first
            assert isinstance(place, Place)
            place.leave()
