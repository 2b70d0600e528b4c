"""A state folder that can't be written: what serves goes on, swaps are refused and nothing recorded is lost."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from signal import SIGKILL, SIGTERM

import pytest
from structlog.testing import capture_logs

from slotproxy.desk import Json
from swap.decisions import Kind
from swap.journal import FileJournal
from swap.moves import Code
from swap.ports import Outcome
from swap.tickets import Ticket
from tests.simulated_time import in_simulated_time
from tests.slotproxy.office import Office
from tests.slotproxy.programs import Serve, ended_engines, engines, quick_house
from tests.swap.disks import SmallDisk, small_disk
from tests.swap.world import end_of, until


class DiskOffice(Office):
    """Its state folder is a disk of its own."""

    disk: SmallDisk

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def told(self) -> list[str]:
        """What the event log has of the disk."""
        return [f"{one.text}: {one.why}" for one in self.hands.decisions.last() if one.kind is Kind.DISK]

    async def plan(self) -> Json:
        return await self.desk.plan("ninfer", "v2", trial=False)

    def ids(self) -> list[str]:
        return [runtime.sight.id for runtime in self.runtimes.values()]


@pytest.fixture
def office(tmp_path: Path) -> Iterator[DiskOffice]:
    with small_disk(tmp_path / "state") as disk, capture_logs():
        office = DiskOffice(tmp_path)
        office.disk = disk
        yield office
        office.close()


# ------------------------------------------------------------------------------------------------- what can happen


def full(office: DiskOffice) -> Callable[[], None]:
    office.disk.fill()
    return office.disk.mend


def read_only(office: DiskOffice) -> Callable[[], None]:
    office.disk.make_read_only()
    return office.disk.mend


def moved(office: DiskOffice) -> Callable[[], None]:
    aside = office.folder / "moved"
    office.state.rename(aside)

    def mend() -> None:
        aside.rename(office.state)

    return mend


def replaced(office: DiskOffice) -> Callable[[], None]:
    """Somebody has made an empty one in its place."""
    back = moved(office)
    office.state.mkdir()

    def mend() -> None:
        office.state.rmdir()  # fails if anything was written there
        back()

    return mend


def locked_anew(office: DiskOffice) -> Callable[[], None]:
    """The lock isn't ours any more: another daemon may have the folder."""
    lock = office.state / "daemon.lock"
    lock.touch()
    return lock.unlink


Spoil = Callable[[DiskOffice], Callable[[], None]]
SAID: dict[Spoil, str] = {
    full: "the state folder {state} can't be written: No space left on device; make room or make it writable",
    read_only: "the state folder {state} can't be written: Read-only file system; make room or make it writable",
    moved: "the state folder {state} is gone; put it back as it was, or restart slotproxy with a new one",
    locked_anew: "{state}/daemon.lock isn't the one that slotproxy has locked; restart slotproxy",
    replaced: "another folder is at {state} than the state folder that slotproxy has locked; put it back as it was",
}


@pytest.fixture(params=list(SAID), ids=lambda spoil: spoil.__name__)
def spoil(request: pytest.FixtureRequest) -> Spoil:
    chosen: Spoil = request.param
    return chosen


@pytest.fixture
def house(spoil: Spoil, tmp_path: Path) -> Iterator[DiskOffice]:
    """On a disk of its own, where it has to be full or read-only."""
    with capture_logs():
        if spoil in (full, read_only):
            with small_disk(tmp_path / "state") as disk:
                office = DiskOffice(tmp_path)
                office.disk = disk
                yield office
                office.close()
        else:
            office = DiskOffice(tmp_path)
            yield office
            office.close()


@in_simulated_time
async def test_swaps_are_refused_with_the_reason_and_nothing_is_touched(house: DiskOffice, spoil: Spoil) -> None:
    said = SAID[spoil].format(state=house.state)
    async with house.serving():
        before = house.ids()
        spoil(house)
        house.story.clear()
        plan = await house.plan()
        assert (plan["allowed"], len(plan["refusals"])) == (False, 1)
        assert f"{plan['refusals'][0]['what']}; {plan['refusals'][0]['mend']}".startswith(said)
        ended = (await house.swapped("ninfer"))[-1]
        assert (ended["code"], ended["serving"]) == (Code.REFUSED, "strata:current")
        assert said.partition(";")[0] in ended["text"]
        assert (house.happened, house.ids()) == ([], before)
        assert (await house.desk.status())["warnings"][0].startswith(said)
        (told,) = house.told
        assert told.startswith(f"swaps are refused, what serves goes on: {said}")
        assert house.slots.view().engine == "strata"


@in_simulated_time
async def test_what_served_and_died_is_started_again_all_the_same(house: DiskOffice, spoil: Spoil) -> None:
    async with house.serving() as controller:
        before, run = house.ids(), house.strata.sight.started_at
        spoil(house)
        house.strata.exit(139)
        await until(lambda: house.strata.sight.started_at != run and controller.state.serving)
        assert (house.ids(), house.slots.view().engine) == (before, "strata")


@in_simulated_time
async def test_once_it_is_mended_it_is_said_and_swaps_work_again_by_themselves(house: DiskOffice, spoil: Spoil) -> None:
    async with house.serving():
        mend = spoil(house)
        assert (await house.plan())["allowed"] is False
        mend()
        assert (await house.swapped("ninfer"))[-1]["code"] == Code.SERVES
        assert house.told[1:] == [f"the state folder {house.state} can be written again: "]
        assert (await house.desk.status())["warnings"] == []
        assert house.ledger.evidence()[-1].pair == "ninfer:v2"


@in_simulated_time
async def test_what_was_recorded_counts_on_and_no_folder_is_made_in_the_old_ones_place(
    house: DiskOffice, spoil: Spoil
) -> None:
    async with house.serving():
        mend = spoil(house)
        house.strata.exit(1)
        rows = (await house.desk.evidence.pairs())["pairs"]
        assert {row["label"]: row["state"] for row in rows}["strata:current"] == "verified"
        await house.plan()
        assert (spoil is moved) == (not house.state.exists())
        mend()  # fails if the empty one isn't empty any more
        assert (await house.desk.evidence.pairs())["problems"] == []


@in_simulated_time
async def test_an_order_for_what_serves_already_needs_no_disk(house: DiskOffice, spoil: Spoil) -> None:
    async with house.serving():
        spoil(house)
        assert (await house.swapped("strata"))[-1]["code"] == Code.SERVES


# ------------------------------------------------------------------------------------------------- in mid-swap


@in_simulated_time
async def test_a_disk_that_fills_up_before_the_stop_gives_the_swap_up_and_what_served_never_stops(
    office: DiskOffice,
) -> None:
    async with office.serving():
        stops = office.strata.calls.count("stop")
        place = await office.request()
        ticket = office.order("ninfer:v2")
        await until(lambda: office.slots.view().state == "closed")  # it drains
        office.disk.fill()
        place.leave()
        ended = await end_of(ticket)
        assert ended.code == Code.RESTORED
        assert "the journal can't be written" in ended.text
        assert office.strata.calls.count("stop") == stops
        assert office.slots.view().engine == "strata"


@in_simulated_time
async def test_a_disk_that_fills_up_after_the_stop_keeps_nobody_from_being_put_back(office: DiskOffice) -> None:
    async with office.serving():
        office.when("strata stop [stop]", office.disk.fill)
        ended = (await office.swapped("ninfer"))[-1]
        assert (ended["code"], ended["serving"]) == (Code.RESTORED, "strata:current")
        assert "the journal can't be written" in ended["text"]


@in_simulated_time
async def test_what_has_started_serves_though_no_evidence_can_be_written_and_is_no_more_verified_than_before(
    office: DiskOffice,
) -> None:
    async with office.serving():
        office.when("ninfer start [start]", office.disk.fill)
        ended = (await office.swapped("ninfer", "v3", trial=True))[-1]
        assert (ended["code"], ended["serving"]) == (Code.SERVES, "ninfer:v3")
        assert "no evidence was written: the ledger" in ended["text"]
        assert (await office.desk.status())["verified"] is False
        office.disk.mend()
        assert Outcome.SERVED not in office.evidence_of("ninfer:v3")
        plan = await office.desk.plan("ninfer", "v3", trial=False)
        assert any("never" in one["what"] or "verified" in one["what"] for one in plan["refusals"])


@in_simulated_time
async def test_an_order_that_came_as_it_died_doesnt_keep_it_down(office: DiskOffice) -> None:
    """The start again is nobody's order, though one waits; and it comes first."""
    async with office.serving() as controller:
        office.disk.fill()
        orders: list[Ticket] = []
        office.strata.exit(139)
        office.when("strata look", lambda: orders.append(office.order("ninfer:v2")))  # a moment before it is known
        waits: list[bool] = []
        office.when("strata start [serving]", lambda: waits.append(controller.state.order is not None))
        await until(lambda: orders)
        assert (await end_of(orders[0])).code == Code.REFUSED
        assert waits == [True]
        await until(lambda: controller.state.serving)


# ------------------------------------------------------------------------------------------------- watched


@in_simulated_time
async def test_people_hear_of_it_before_they_swap_and_the_journal_is_brought_up_to_date_when_it_is_over(
    office: DiskOffice,
) -> None:
    async with office.serving() as controller, asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(office.desk.state.watch())
        await asyncio.sleep(100)
        assert office.told == []
        assert not (office.state / "probe").exists()
        office.disk.fill()
        await until(lambda: office.told)
        run = office.strata.sight.started_at
        office.strata.exit(139)
        await until(lambda: office.strata.sight.started_at != run and controller.state.serving)
        (office.state / "journal.json").unlink()
        office.disk.mend()
        await until((office.state / "journal.json").exists)
        entry = FileJournal(office.state / "journal.json").read()
        assert entry is not None
        assert (entry.step, entry.serving) == ("serving", "strata:current")
        assert len(office.told) == 2
        watching.cancel()


# ------------------------------------------------------------------------------------------------- at start


def test_a_daemon_on_a_state_folder_that_can_t_be_written_adopts_what_runs_and_refuses_swaps(tmp_path: Path) -> None:
    config = quick_house(tmp_path)
    (tmp_path / "state").mkdir(exist_ok=True)
    with small_disk(tmp_path / "state") as disk, ended_engines(tmp_path):
        with Serve(config) as first:
            first.event("slotproxy is up")
            assert first.slotctl("swap", "to-strata", "--trial").returncode == 0
            first.end(SIGKILL)
        runs = engines(tmp_path)
        disk.make_read_only()
        with Serve(config, name="second", folder=tmp_path / "logs") as second:
            second.event("slotproxy is up")
            second.until(lambda: second.status()["verified"])
            assert second.status()["pair"] == "strata:current"
            assert engines(tmp_path) == runs
            refused = second.slotctl("swap", "to-ninfer:v2", "--trial")
            said = f"the state folder {disk.path} can't be written: Read-only file system"
            assert (refused.returncode, said in refused.stderr) == (3, True)
            assert any(said in warning for warning in second.status()["warnings"])
            disk.mend()
            second.until(lambda: second.status()["warnings"] == [])
            assert second.end(SIGTERM) == 0


# ------------------------------------------------------------------------------------------------- without a container


def test_an_engine_without_a_container_that_dies_on_a_full_disk_serves_again_once_there_is_room(tmp_path: Path) -> None:
    """It must be on record before it runs; until it can be, clients wait."""
    config = quick_house(tmp_path)
    with small_disk(tmp_path / "state") as disk, ended_engines(tmp_path), Serve(config, folder=tmp_path) as serve:
        serve.event("slotproxy is up")
        assert serve.slotctl("swap", "to-strata", "--trial").returncode == 0
        disk.fill()
        for pid in engines(tmp_path):
            os.kill(pid, SIGKILL)
        serve.until(lambda: "can't be begun: No space left" in str(serve.status()["dark"]))
        dark = serve.status()["dark"]
        assert dark["passing"]
        assert "make room" in dark["reason"]
        disk.mend()
        serve.until(lambda: serve.status()["gate"]["state"] == "open")
