"""The operator's desk: what it says is what is true, in each phase; what it is asked for happens, or is refused."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from engines.ninfer.sample import write_artifact
from engines.spec import GiB, Source
from slotproxy.refusal import Refusal
from swap import adoption
from swap.contents import VERSION
from swap.decisions import Kind
from swap.moves import Rest
from swap.ports import CardUnknown, Outcome, Unreachable
from swap.state import phase
from tests.slotproxy.office import Office
from tests.swap.repositories import commit, head, needs_git, repository
from tests.swap.world import FILES, moment, until


@pytest.fixture
def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    monkeypatch.setattr(adoption, "MARGIN", 0.0)  # here files are made, and engines started, in one moment
    with capture_logs():
        office = Office(tmp_path)
        yield office
    office.close()


# ------------------------------------------------------------------------------------------------- status


async def test_status_is_true_in_each_phase_of_a_swap(office: Office) -> None:
    phases: list[tuple[object, ...]] = []

    async def look(expected: str) -> None:
        await until(lambda: phase(office.controller.state) == expected)
        now = await office.desk.status()
        assert now["swap"]["target"] == "ninfer:v2"
        assert now["swap"]["phase"] == now["state"] == expected
        phases.append((expected, now["pair"], now["serving"], now["gate"]["state"]))

    async with office.serving(), asyncio.TaskGroup() as tasks:
        place = await office.request()
        for call in ("stop", "start"):
            office.strata.hang(call)
            office.ninfer.hang(call)
        office.readiness.never.add("ninfer:local")
        office.ninfer.hang("declared")
        swap = tasks.create_task(office.swapped("ninfer"))
        await look("checking")
        office.ninfer.let_go("declared")
        await look("draining")
        place.leave()
        await look("stopping")
        office.strata.let_go("stop")
        await look("starting")
        office.ninfer.let_go("start")
        await look("warming")
        office.readiness.never.clear()
        told = await swap
        after = await office.desk.status()
    assert phases == [
        ("checking", "strata:current", True, "open"),
        ("draining", "strata:current", True, "closed"),
        ("stopping", "strata:current", False, "closed"),
        ("starting", None, False, "closed"),
        ("warming", "ninfer:v2", False, "closed"),
    ]
    assert (after["state"], after["pair"], after["serving"], after["swap"]) == ("serving", "ninfer:v2", True, None)
    assert (after["verified"], after["dark"], after["gate"]["engine"]) == (True, None, "ninfer")
    assert told[-1] | {"elapsed": 0} == {
        "done": True,
        "code": 0,
        "text": "ninfer:v2 serves",
        "serving": "ninfer:v2",
        "elapsed": 0,
    }


async def test_a_swap_that_failed_is_told_as_such_while_the_old_engine_comes_back(office: Office) -> None:
    async with office.serving(), asyncio.TaskGroup() as tasks:
        office.ninfer.exits_on_start = 1
        office.strata.hang("start")
        swap = tasks.create_task(office.swapped("ninfer"))
        await until(lambda: office.controller.state.failure and phase(office.controller.state) == "starting")
        now = await office.desk.status()
        assert now["swap"]["failure"].startswith("ninfer:v2 exited with code 1")
        assert (now["serving"], now["dark"]) == (False, None)
        office.strata.let_go("start")
        assert (await swap)[-1]["code"] == 4


async def test_who_serves_does_so_since_it_became_ready_whatever_is_asked_meanwhile(office: Office) -> None:
    async with office.serving():
        before = office.controller.serving_since
        await office.swapped("ninfer", "v3")  # refused, after a check
        assert office.controller.serving_since == before
        assert (await office.desk.status())["since"] == office.desk._since()


async def test_a_passing_darkness_says_why_and_when_it_is_tried_again(office: Office) -> None:
    office.strata.fail("look", Unreachable("Docker is gone", "start it"), times=1000)
    async with office.running():
        dark = (await office.desk.status())["dark"]
        assert dark["passing"] is True
        assert dark["reason"] == "Docker is gone; start it"
        assert 0 < dark["retry_in"] <= 5
        assert (await office.desk.status())["engines"]["strata"]["error"] == "Docker is gone; start it"


async def test_a_darkness_that_needs_a_person_says_so(office: Office) -> None:
    async with office.running(verified=()):
        now = await office.desk.status()
        assert now["dark"]["passing"] is False
        assert now["dark"]["retry_in"] is None
        assert "strata:current never ran on this card" in now["dark"]["reason"]
        assert (now["state"], now["holder"], now["gate"]["state"]) == ("dark", None, "refusing")


async def test_a_card_that_cannot_be_read_spoils_nothing_else(office: Office) -> None:
    async with office.serving():
        office.card.unknown = CardUnknown("driver and library differ (18)", "reboot")
        now = await office.desk.status()
        assert now["card"] == {"error": "driver and library differ (18); reboot"}
        assert now["serving"] is True
        assert await office.desk.gpu() == {"error": "driver and library differ (18)", "mend": "reboot"}


# ------------------------------------------------------------------------------------------------- pairs


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda desk: desk.plan("gpt", None, trial=False), "the engines are strata, ninfer"),
        (lambda desk: desk.plan("ninfer", "v4", trial=False), "its pairs are v2, v3"),
        (lambda desk: desk.stage("ninfer", "v4"), "its pairs are v2, v3"),
        (lambda desk: desk.evidence.adopt("gpt"), "the engines are strata, ninfer"),
        (lambda desk: anext(desk.swap("ninfer", "v4")), "its pairs are v2, v3"),
    ],
)
async def test_an_unknown_name_is_bad_usage_and_the_known_ones_are_named(
    ask: Callable[[Any], Any], said: str, office: Office
) -> None:
    async with office.serving():
        with pytest.raises(Refusal) as refusal:
            await ask(office.desk)
    assert (refusal.value.code, refusal.value.mend) == (2, said)


@needs_git
async def test_plan_warns_of_a_source_tree_that_moved_and_allows_what_it_allowed(office: Office) -> None:
    tree = repository(office.folder / "ninfer-src")
    pinned, now = head(tree), commit(tree)
    v2 = replace(office.engines["ninfer"].pairs["v2"], source=Source(tree, pinned))
    ninfer = office.engines["ninfer"]
    office.engines["ninfer"] = replace(ninfer, pairs={**ninfer.pairs, "v2": v2})
    async with office.serving():
        plan = await office.desk.plan("ninfer", "v2", trial=False)
        (warning,) = plan["warnings"]
        assert warning.startswith(
            f"the source tree {tree} of ninfer:v2 is at {now[:7]}, not at {pinned[:7]}: a rebuild"
        )
        assert plan["allowed"] is True
        assert (await office.desk.plan("ninfer", "v3", trial=True))["warnings"] == []


async def test_pairs_tells_what_is_verified_what_failed_and_what_never_ran(office: Office) -> None:
    async with office.serving(verified=("strata:current",)):
        office.ninfer.exits_on_start = 1
        assert (await office.swapped("ninfer", "v2", trial=True))[-1]["code"] == 4
        pairs = {one["label"]: one for one in (await office.desk.evidence.pairs())["pairs"]}
    assert {label: one["state"] for label, one in pairs.items()} == {
        "strata:current": "verified",
        "ninfer:v2": "failed",
        "ninfer:v3": "candidate",
    }
    assert "exited with code 1" in pairs["ninfer:v2"]["last_failure"]["reason"]
    assert [label for label, one in pairs.items() if one["deployed"]] == ["strata:current", "ninfer:v2"]


async def test_pairs_tells_where_the_image_that_served_is_gone(office: Office) -> None:
    served = office.ninfer.recipes["v2"]
    async with office.serving():
        office.ninfer.recipes["v2"] = replace(served, image_id="sha256:" + "5" * 64)  # a rebuild
        assert await _image_gone(office) is False
        office.ninfer.gone.add(served.image_id)
        assert await _image_gone(office) is True
        del office.ninfer.recipes["v2"]  # nor is there another of its name
        assert await _image_gone(office) is True
        office.ninfer.fail("has_image", Unreachable("Docker is gone"))
        assert await _image_gone(office) is None


async def _image_gone(office: Office) -> object:
    pairs = {one["label"]: one for one in (await office.desk.evidence.pairs())["pairs"]}
    assert pairs["strata:current"]["image_gone"] is False
    assert pairs["ninfer:v3"]["image_gone"] is False  # it never served
    return pairs["ninfer:v2"]["image_gone"]


async def test_the_image_of_what_is_adopted_is_kept(office: Office) -> None:
    async with office.serving(verified=()):
        await office.desk.evidence.adopt("strata")
        assert office.strata.sight.recipe is not None
        assert office.strata.kept == [office.strata.sight.recipe.image_id]


async def test_a_verified_pair_whose_file_is_gone_is_said_to_have_been_verified(office: Office) -> None:
    async with office.serving(verified=("strata:current", "ninfer:v2")):
        file = office.folder / "models" / FILES["v2"]
        file.rename(file.with_name("aside"))
        (gone,) = [one for one in (await office.desk.evidence.pairs())["pairs"] if one["label"] == "ninfer:v2"]
        file.with_name("aside").rename(file)
        (back,) = [one for one in (await office.desk.evidence.pairs())["pairs"] if one["label"] == "ninfer:v2"]
    assert (gone["state"], gone["before"]["when"]) == ("declared", back["when"])
    assert (back["state"], back["before"]) == ("verified", None)


async def test_two_who_ask_for_the_pairs_at_once_share_one_reading_of_the_files(office: Office) -> None:
    async with office.serving() as controller:
        await until(lambda: all(known.subject for known in controller.hands.known.values()))  # read what serves
        sizes = 0
        for name in (*FILES.values(), "strata.gguf"):
            path = office.folder / "models" / name
            path.touch()
            sizes += path.stat().st_size
        await asyncio.sleep(0.2)  # a file written just now is read again: its times can't tell two writes apart
        before = office.checker._hasher.bytes_read
        await asyncio.gather(
            office.desk.evidence.pairs(), office.desk.evidence.pairs(), office.desk.plan("ninfer", "v2", trial=False)
        )
        assert office.checker._hasher.bytes_read - before == sizes


async def test_what_serves_unverified_is_adopted_with_a_proof_of_its_own(office: Office) -> None:
    async with office.serving(verified=()):
        while (now := await office.desk.status())["verified"] is None:  # it is found out while it serves
            await moment()
        assert now["verified"] is False
        for engine in ("ninfer", "strata"):
            office.readiness.never = {"strata:1"} if engine == "strata" else set()
            with pytest.raises(Refusal) as refusal:
                await office.desk.evidence.adopt(engine)
            assert refusal.value.code == 3
        assert office.evidence_of("strata:current") == []
        office.readiness.never = set()
        assert (await office.desk.evidence.adopt("strata"))["code"] == 0
        assert office.evidence_of("strata:current") == [Outcome.SERVED]
        evidence = office.ledger.evidence()[-1]
        assert (evidence.how, evidence.tokens, evidence.vram_peak) == ("adopt", 64, 30 * GiB)
        assert evidence.tokens_per_second == pytest.approx(100)
        assert (await office.desk.status())["verified"] is True
        assert (await office.desk.plan("strata", None, trial=False))["allowed"] is True


async def test_what_runs_and_was_refused_is_adopted_and_serves_from_then_on(office: Office) -> None:
    async with office.serving(verified=()) as controller:
        office.strata.stop_by_hand()
        while not controller.state.person:
            await moment()
        office.ninfer.start_by_hand()
        while not controller.state.up:
            await moment()
        assert office.slots.view().state == "refusing"
        assert (await office.desk.evidence.adopt("ninfer"))["code"] == 0
        assert office.evidence_of("ninfer:v2") == [Outcome.SERVED]
        while office.slots.view().state != "open":
            await moment()
        assert office.slots.view().engine == "ninfer"


# ------------------------------------------------------------------------------------------------- plan and stage


async def test_a_plan_shows_no_secret_of_the_command_line(office: Office) -> None:
    async with office.serving():
        v2 = office.ninfer.recipes["v2"]
        office.ninfer.recipes["v2"] = replace(v2, command=(*v2.command, "--api-key", "hunter2", "--hf-token=hunter3"))
        plan = await office.desk.plan("ninfer", "v2", trial=True)
    assert plan["would_run"]["argv"][-3:] == ["--api-key", "(hidden)", "--hf-token=(hidden)"]
    assert "hunter" not in f"{plan}"


async def test_a_plan_tells_what_would_run_and_changes_nothing(office: Office) -> None:
    async with office.serving():
        plan = await office.desk.plan("ninfer", "v3", trial=False)
        trial = await office.desk.plan("ninfer", "v3", trial=True)
    assert (plan["allowed"], trial["allowed"]) == (False, True)
    assert [one["what"] for one in plan["refusals"]] == ["ninfer:v3 never ran on this card"]
    assert plan["stage"] is True
    assert {(one["field"], one["severity"]) for one in plan["drift"]} == {("image", "stale"), ("command", "stale")}
    assert plan["would_run"]["image"] == "ninfer:v3"
    assert plan["would_run"]["artifacts"][0]["path"].endswith(FILES["v3"])
    assert "ninfer stage" not in " ".join(office.happened)


async def test_a_plan_of_a_trial_says_what_the_trial_would_say(office: Office) -> None:
    async with office.serving(verified=()):
        plan = await office.desk.plan("ninfer", "v3", trial=True)
        assert [one["what"] for one in plan["refusals"]] == [
            "strata:current serves and isn't verified, so nothing verified could be restored if the trial fails"
        ]
        assert [one["mend"] for one in plan["refusals"]] == ["`slotctl pairs adopt strata` first"]
        assert plan["refusals"][0]["what"] in (await office.swapped("ninfer", "v3", trial=True))[-1]["text"]
        await office.desk.evidence.adopt("strata")
        assert (await office.desk.plan("ninfer", "v3", trial=True))["allowed"] is True


async def test_staging_makes_the_stopped_container_and_says_in_what_it_differed(office: Office) -> None:
    async with office.serving():
        made = await office.desk.stage("ninfer", "v3")
        assert made["text"] == "ninfer:v3 is staged"
        assert {one["field"] for one in made["differences"]} == {"image", "command"}
        assert office.ninfer.sight.id == made["id"]
        assert office.card.allocations.keys() == {"strata"}
        again = await office.desk.stage("ninfer", "v3")
        assert (again["text"], again["id"]) == ("ninfer:v3 is staged already", made["id"])


async def test_what_can_never_run_is_not_staged(office: Office) -> None:
    await asyncio.to_thread(write_artifact, office.folder / "models" / FILES["v2"], 3)  # the artifact trap
    object.__setattr__(office.engines["ninfer"].pairs["v2"], "reads", 2)
    async with office.serving(verified=("strata:current",)):
        before = office.ninfer.sight
        with pytest.raises(Refusal, match="reads artifacts of version 2") as refusal:
            await office.desk.stage("ninfer", "v2")
        assert refusal.value.code == 3
        assert office.ninfer.sight is before


async def test_what_runs_is_not_staged(office: Office) -> None:
    async with office.serving():
        office.strata.recipes["current"] = office.ninfer.recipes["v2"]
        with pytest.raises(Refusal) as refusal:
            await office.desk.stage("strata", None)
        assert refusal.value.code == 3


async def test_a_plan_reads_no_file_while_clients_wait_for_the_card_that_is_moved(office: Office) -> None:
    said: list[str] = []
    async with office.serving(), asyncio.TaskGroup() as tasks:
        office.readiness.never.add("ninfer:local")
        swap = tasks.create_task(office.swapped("ninfer"))
        await until(lambda: phase(office.controller.state) == "warming")
        client = tasks.create_task(office.request())
        await until(lambda: office.slots.view().waiting == 1)
        plan = tasks.create_task(office.desk.plan("ninfer", "v3", trial=True, rehash=True, say=said.append))
        await until(lambda: "waiting: clients wait for the card" in said)
        office.readiness.never.clear()
        assert (await swap)[-1]["code"] == 0
        (await client).leave()
        assert (await plan)["allowed"]


async def test_the_pairs_are_told_later_and_why_while_clients_wait_for_the_card(office: Office) -> None:
    said: list[str] = []
    async with office.serving(), asyncio.TaskGroup() as tasks:
        office.readiness.never.add("ninfer:local")
        swap = tasks.create_task(office.swapped("ninfer"))
        await until(lambda: phase(office.controller.state) == "warming")
        client = tasks.create_task(office.request())
        await until(lambda: office.slots.view().waiting == 1)
        (office.folder / "models" / FILES["v3"]).touch()
        pairs = tasks.create_task(office.desk.evidence.pairs(said.append))
        await until(lambda: "waiting: clients wait for the card" in said)
        office.readiness.never.clear()
        assert (await swap)[-1]["code"] == 0
        (await client).leave()
        assert len((await pairs)["pairs"]) == 3


async def test_a_plan_in_the_dark_is_made_though_clients_wait(office: Office) -> None:
    office.strata.fail("look", Unreachable("Docker is gone", "start it"), times=1000)
    async with office.running(verified=("ninfer:v2",)), asyncio.TaskGroup() as tasks:
        client = tasks.create_task(office.request())
        await until(lambda: office.slots.view().waiting == 1)
        await until(lambda: isinstance(office.controller.state.doing, Rest))
        assert (await office.desk.plan("ninfer", None, trial=False, rehash=True))["judged"]
        client.cancel()


@pytest.mark.parametrize("order", ["plan", "swap", "adopt"])
async def test_bytes_that_rotted_are_found_when_they_are_read_again_and_take_verified_away(
    office: Office, order: str
) -> None:
    async with office.serving("ninfer:v2"):
        await asyncio.sleep(0.1)  # the files are at rest by now
        plan = await office.desk.plan("ninfer", None, trial=False)
        assert plan["allowed"]
        honest = plan["would_run"]["artifacts"][0]["sha256"]
        hasher = office.checker._hasher
        assert hasher._known is not None
        for place, known in tuple(hasher._known.items()):  # the memory is wrong in place of the disk
            if known.sha256 == honest:
                hasher._known[place] = msgspec.structs.replace(known, sha256="00" * 32)
        if order == "plan":
            plan = await office.desk.plan("ninfer", None, trial=True, rehash=True)
            said = plan["warnings"][0]
        elif order == "swap":
            said = " ".join(item.get("text", "") for item in await office.swapped("ninfer", rehash=True))
        else:
            said = await _refused(office, "ninfer", rehash=True)
        assert "'s bytes changed though its times didn't" in said


# ------------------------------------------------------------------------------------------------- swap and abort


async def test_a_swap_tells_its_phases_and_goes_on_when_nobody_listens(office: Office) -> None:
    async with office.serving():
        told = await office.swapped("ninfer")
        phases = [item["phase"] for item in told[:-1]]
        assert phases == ["checking", "staging", "draining", "stopping", "freeing", "starting", "warming"]
        async with aclosing(office.desk.swap("strata", None)) as items:
            await anext(items)
        await until(lambda: office.slots.view().engine == "strata")


async def test_who_waits_for_a_swap_hears_of_it_every_second(office: Office) -> None:
    async with office.serving():
        place = await office.request()
        async with aclosing(office.desk.swap("ninfer", None)) as items:
            told = [await anext(items) for _ in range(6)]
            assert {"tick": True} in told
            assert office.desk.abort()["code"] == 0
            *_, ended = [item async for item in items]
        assert ended["code"] == 4
        assert "given up by the operator" in ended["text"]
        place.leave()


async def test_nothing_to_give_up_is_refused(office: Office) -> None:
    async with office.serving():
        with pytest.raises(Refusal, match="no swap is under way") as refusal:
            office.desk.abort()
        assert refusal.value.code == 3


# ------------------------------------------------------------------------------------------------- hold


async def test_a_hold_returns_when_nothing_is_in_flight_and_lasts_until_it_is_released(office: Office) -> None:
    async with office.serving():
        assert [item["code"] async for item in office.desk.hold(None)] == [0]
        place = office.request()
        waiting = asyncio.ensure_future(place)  # noqa: TID251 - a client
        await until(lambda: office.slots.view().waiting == 1)
        assert (await office.desk.status())["hold"] == {"left": None}
        assert office.desk.release()["text"] == "released"
        (await waiting).leave()
        assert office.desk.release()["text"] == "no hold was set"


async def test_a_hold_its_release_and_its_expiry_are_in_the_event_log(office: Office) -> None:
    async with office.serving():
        before = len(office.hands.decisions.last())
        assert [item["code"] async for item in office.desk.hold(60.0)] == [0]
        office.desk.release()
        office.desk.release()
        assert [item["code"] async for item in office.desk.hold(0.01)] == [0]
        await until(lambda: office.hands.decisions.last()[-1].text == "the hold has expired")
        said = [(one.kind, one.text) for one in office.hands.decisions.last()[before:]]
        assert said == [
            (Kind.HOLD, "requests are held for 60 s"),
            (Kind.RELEASED, "the hold is released"),
            (Kind.HOLD, "requests are held for 0.01 s"),
            (Kind.RELEASED, "the hold has expired"),
        ]


async def test_a_hold_waits_for_requests_in_flight_with_a_sign_of_life(office: Office) -> None:
    async with office.serving():
        place = await office.request()
        async with aclosing(office.desk.hold(None)) as items:
            assert (await anext(items))["text"] == "1 in flight"
            assert await anext(items) == {"tick": True}
            place.leave()
            *_, ended = [item async for item in items]
        assert (ended["code"], ended["text"]) == (0, "requests are held until `slotctl release`; none is in flight")


async def test_a_hold_that_ends_too_early_is_no_success(office: Office) -> None:
    async with office.serving():
        place = await office.request()
        *_, ended = [item async for item in office.desk.hold(0.3)]
        assert (ended["code"], ended["text"]) == (4, "the hold ended before all requests in flight had")
        place.leave()


# ------------------------------------------------------------------------------------------------- adopting what ran


async def _refused(office: Office, engine: str, *, rehash: bool = False) -> str:
    with pytest.raises(Refusal) as refusal:
        await office.desk.evidence.adopt(engine, rehash=rehash)
    assert refusal.value.code == 3
    assert refusal.value.mend
    return refusal.value.what


@pytest.mark.parametrize("how", ["written", "renamed", "linked", "linked further on", "folder renamed"])
async def test_files_that_were_replaced_after_the_engine_started_are_never_adopted(office: Office, how: str) -> None:
    path, other = (office.folder / "models" / FILES[name] for name in ("v2", "v3"))
    if how == "linked further on":
        path.rename(real := path.with_name("real"))
        (link := path.with_name("link")).symlink_to(real.name)
        path.symlink_to(link.name)
    anew = office.folder / "anew"
    shutil.copytree(path.parent, anew)  # longer than the engine
    async with office.serving("ninfer:v2", verified=()):
        await asyncio.sleep(0.05)  # times of files have a grain
        if how == "linked further on":
            link.unlink()
            link.symlink_to(other.name)
        elif how == "written":
            await asyncio.to_thread(write_artifact, path, 3)
        elif how == "renamed":
            other.replace(path)
        elif how == "folder renamed":
            path.parent.rename(office.folder / "old")
            anew.rename(path.parent)
        else:
            path.unlink()
            path.symlink_to(other.name)
        assert f"{path} changed after ninfer:v2 was started" in await _refused(office, "ninfer")
        assert office.evidence_of("ninfer:v2") == []


async def test_files_that_are_hardly_older_than_the_start_are_not_adopted(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker says that it has started when it has read for a moment already."""
    async with office.serving("ninfer:v2", verified=()):
        monkeypatch.setattr(adoption, "MARGIN", 600.0)
        assert "less than 600 s before" in await _refused(office, "ninfer")
        monkeypatch.setattr(adoption, "MARGIN", 0.0)
        assert (await office.desk.evidence.adopt("ninfer"))["code"] == 0


async def test_what_answers_a_few_tokens_and_no_more_is_not_adopted(office: Office) -> None:
    async with office.serving("ninfer:v2", verified=()):
        office.readiness.most = 8
        assert "ninfer answered no completion of 64 tokens: no whole answer" in await _refused(office, "ninfer")
        assert office.evidence_of("ninfer:v2") == []
        assert office.slots.view().in_flight == 0


async def test_when_nobody_knows_since_when_it_runs_nothing_is_adopted(office: Office) -> None:
    async with office.serving("ninfer:v2", verified=()) as controller:
        assert controller.state.serving is not None
        controller.hands.known[controller.state.serving].started_at = ""
        assert "nobody can tell whether ninfer:v2 runs with these files" in await _refused(office, "ninfer")


async def test_files_that_change_while_it_is_asked_are_not_adopted(office: Office) -> None:
    path = office.folder / "models" / FILES["v2"]
    longer = path.stat().st_size + 1
    async with office.serving("ninfer:v2", verified=()):
        office.readiness.asked = lambda _: os.truncate(path, longer)
        assert "the files of ninfer:v2 changed meanwhile" in await _refused(office, "ninfer")
        assert office.evidence_of("ninfer:v2") == []


async def test_an_engine_that_is_started_anew_while_it_is_asked_is_not_adopted(office: Office) -> None:
    def start_anew(_: str) -> None:
        office.readiness.asked = lambda _: None
        office.ninfer.exit(0)
        office.ninfer.start_by_hand()

    async with office.serving("ninfer:v2", verified=()):
        office.readiness.asked = start_anew
        assert "ninfer:v2 was stopped meanwhile" in await _refused(office, "ninfer")
        assert office.evidence_of("ninfer:v2") == []


@pytest.mark.parametrize(
    ("engine", "pair", "said"), [("ninfer", "v3", "v2 was stopped"), ("strata", None, "strata does")]
)
async def test_an_adoption_that_waited_for_a_swap_makes_no_evidence_of_what_served_before(
    office: Office, engine: str, pair: str | None, said: str
) -> None:
    async with (
        office.serving("ninfer:v2", verified=("strata:current", "ninfer:v3")),
        asyncio.TaskGroup() as tasks,
    ):
        place = await office.request()
        swap = tasks.create_task(office.swapped(engine, pair))
        await until(lambda: phase(office.controller.state) == "draining")
        adoption = tasks.create_task(_refused(office, "ninfer"))
        await until(lambda: office.slots.view().waiting == 1)
        place.leave()
        assert (await swap)[-1]["code"] == 0
        assert said in await adoption
        assert office.evidence_of("ninfer:v2") == []


async def test_the_version_that_is_adopted_is_that_of_the_file_that_runs_whatever_is_declared_now(
    office: Office,
) -> None:
    async with office.serving("ninfer:v2", verified=()):
        office.ninfer.recipes["v2"] = office.ninfer.recipes["v3"]
        assert (await office.desk.evidence.adopt("ninfer"))["code"] == 0
    assert [one.extra[VERSION] for one in office.ledger.evidence()] == [2]
