"""The doctor over the world in memory: each thing that is wrong is found, once, by its name, and nothing else is."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from engines.spec import Require, Source
from slotproxy import config, doctor
from slotproxy.config import ConfigError, Settings
from slotproxy.doctor import Doctor, Finding, Weight, once
from swap.creation import CreationFile
from swap.ports import CannotStage, CardUnknown, Fault, Foreign, Unreachable
from tests.slotproxy.office import Office
from tests.swap.repositories import commit, head, needs_git, repository
from tests.swap.world import FILES, until

Json = dict[str, Any]


@pytest.fixture
def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    """Its configuration on disk is what it runs on."""
    with capture_logs():
        office = Office(tmp_path)
        monkeypatch.setattr(config, "load", lambda _: office.desk.settings)
        yield office
    office.close()


async def examined(office: Office) -> Json:
    return await Doctor(office.desk).examine()


async def only(office: Office) -> Json:
    """The one thing that the doctor finds where strata serves."""
    async with office.serving():
        answer = await examined(office)
    (finding,) = answer["findings"]
    assert answer["code"] == {"problem": 3, "warning": 0}[finding["severity"]]
    return dict(finding)


def edit_engine(office: Office, name: str, **changes: Any) -> None:
    office.engines[name] = replace(office.engines[name], **changes)


# ------------------------------------------------------------------------------------------------- nothing wrong


async def test_where_nothing_is_wrong_nothing_is_found_and_what_was_seen_is_said(office: Office) -> None:
    async with office.serving():
        answer = await examined(office)
    assert (answer["code"], answer["findings"]) == (0, [])
    assert answer["seen"] == ["strata:current serves", "NVIDIA GeForce RTX 5090, driver 575.57, 32GiB"]


async def test_looking_changes_nothing(office: Office) -> None:
    async with office.serving():
        before = sorted(path.name for path in office.desk.settings.state.iterdir())
        office.story.clear()
        await examined(office)
        assert [line for line in office.happened if not line.startswith("card")] == []
        assert sorted(path.name for path in office.desk.settings.state.iterdir()) == before


# ------------------------------------------------------------------------------------------------- each thing alone


def restart_policy(office: Office) -> None:
    recipe = office.strata.recipes["current"]
    office.strata.recipes["current"] = recipe
    office.ninfer.create(replace(office.ninfer.recipes["v2"], restart="always"))


def foreign(office: Office) -> None:
    office.ninfer.fail("look", Foreign("the container ninfer-1 is of another project", "rename it"), times=1000)


def card(office: Office) -> None:
    office.card.unknown = CardUnknown("NVML can't tell the card's memory: driver and library differ (18)", "reboot")


def ledger(office: Office) -> None:
    office.desk.ledger.problems = lambda: ["line 3 was edited"]  # type: ignore[method-assign]


def no_state(office: Office) -> None:
    (office.folder / "state").rename(office.folder / "moved")


def held(office: Office) -> None:
    office.slots.hold(None)


def relaxed(office: Office) -> None:
    edit_engine(office, "ninfer", require=Require.CANDIDATE)


def artifact_gone(office: Office) -> None:
    (office.folder / "models" / FILES["v2"]).unlink()


def candidate_gone(office: Office) -> None:
    (office.folder / "models" / FILES["v3"]).unlink()


def too_big(office: Office) -> None:
    edit_engine(office, "ninfer", vram=40 * 1024**3)


FAULTS: list[tuple[Callable[[Office], None], str, str, str]] = [
    (restart_policy, "problem", "ninfer", "the container ninfer-1 has the restart policy 'always', it would come back"),
    (foreign, "problem", "ninfer, ninfer:v2, ninfer:v3", "the container ninfer-1 is of another project"),
    (card, "problem", "card, strata:current, ninfer:v2, ninfer:v3", "NVML can't tell the card's memory: driver and"),
    (ledger, "problem", "ledger", "line 3 was edited"),
    (no_state, "problem", "state", "the state folder {folder}/state is gone"),
    (held, "warning", "slotproxy", "requests are held"),
    (relaxed, "warning", "ninfer", "a pair is given the card when its files fit, proven or not (require: candidate)"),
    (artifact_gone, "problem", "ninfer:v2", "{folder}/models/qwen3_8_27b_nvfp4.ninfer"),
    (candidate_gone, "warning", "ninfer:v3", "{folder}/models/qwen3_8_27b_nvfp4_v3.ninfer"),
    (too_big, "problem", "ninfer:v2, ninfer:v3", "ninfer can never fit: it needs 40.00 GiB with 0.25 GiB headroom"),
]


@pytest.mark.parametrize(("spoil", "severity", "where", "what"), FAULTS, ids=[one[0].__name__ for one in FAULTS])
async def test_what_is_wrong_is_found_once_and_nothing_else_is(
    spoil: Callable[[Office], None], severity: str, where: str, what: str, office: Office
) -> None:
    async with office.serving():
        spoil(office)
        answer = await examined(office)
    (finding,) = answer["findings"]
    assert (finding["severity"], finding["where"]) == (severity, where)
    assert finding["what"].startswith(what.format(folder=office.folder))
    assert finding["mend"] or spoil is ledger
    assert answer["code"] == {"problem": 3, "warning": 0}[severity]


async def test_a_stranger_at_a_stopped_engines_address_is_named(office: Office) -> None:
    office.places["ninfer"].listen()
    finding = await only(office)
    assert finding["what"].startswith("ninfer is stopped, and pid ")
    assert finding["what"].endswith(f" listens at its address {office.engines['ninfer'].url}")


async def test_the_one_that_serves_may_listen_at_its_address(office: Office) -> None:
    office.places["strata"].listen()
    async with office.serving():
        assert (await examined(office))["findings"] == []


async def test_a_disk_that_is_nearly_full_is_told_before_it_is(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LITTLE", 2**80)
    assert (await only(office))["what"].startswith(f"the disk of the state folder {office.folder}/state has ")


async def test_what_an_interrupted_staging_left_is_told_once_no_staging_can_be_under_way_any_more(
    office: Office,
) -> None:
    creation = CreationFile.of("ninfer", office.desk.settings.state)
    async with office.serving():
        await asyncio.to_thread(creation.begin, None)
        assert (await examined(office))["findings"] == []
    os.utime(creation.begun, (0, 0))
    finding = await only(office)
    assert (finding["severity"], finding["where"]) == ("problem", "ninfer")
    assert str(creation.begun) in finding["what"]


async def test_a_configuration_that_is_broken_now_is_told(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(path: Path) -> Settings:
        raise ConfigError(f"{path}: listne: unknown key")

    monkeypatch.setattr(config, "load", load)
    finding = await only(office)
    assert finding["what"] == f"{office.folder}/slotproxy.yml: listne: unknown key"
    assert "won't start again" in finding["mend"]


async def test_a_configuration_that_was_edited_is_told(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "load", lambda _: replace(office.desk.settings, drain=1.0))
    finding = await only(office)
    assert finding["what"] == f"{office.folder}/slotproxy.yml was edited since slotproxy read it"
    assert finding["severity"] == "warning"


async def test_a_darkness_that_needs_a_person_is_told_with_its_reason(office: Office) -> None:
    async with office.running(verified=("ninfer:v2",)):
        answer = await examined(office)
    dark, never = answer["findings"]
    assert dark["what"].startswith(
        "nothing serves: nothing runs; strata:current can't be started: strata:current never"
    )
    assert (dark["severity"], never["where"], never["severity"]) == ("problem", "strata:current", "problem")
    assert answer["code"] == 3


async def test_a_darkness_that_a_swap_is_about_to_end_is_not_said_to_need_another(office: Office) -> None:
    async with office.running(verified=()), asyncio.TaskGroup() as tasks:
        office.ninfer.hang("stage")
        office.ninfer.create(office.ninfer.recipes["v3"])
        swap = tasks.create_task(office.swapped("ninfer", "v2", trial=True))
        await until(lambda: office.controller.state.order is not None)
        found = (await examined(office))["findings"]
        office.ninfer.let_go("stage")
        await swap
    (dark,) = [one for one in found if one["what"].startswith("nothing serves")]
    assert dark["mend"] == "an order is under way: `slotctl status`"


async def test_a_darkness_that_passes_is_a_warning_and_its_cause_a_problem(office: Office) -> None:
    office.strata.fail("look", Unreachable("Docker is gone", "start it", passing=True), times=1000)
    async with office.running():
        answer = await examined(office)
    cause, dark = answer["findings"]
    assert (cause["what"], cause["mend"], cause["severity"]) == ("Docker is gone", "start it", "problem")
    assert (dark["what"], dark["severity"]) == ("nothing serves: Docker is gone; start it", "warning")
    assert dark["mend"].startswith("it is tried again by itself, next in ")


async def test_an_engine_that_serves_without_evidence_is_told(office: Office) -> None:
    async with office.serving(verified=("ninfer:v2",)):
        (known,) = office.controller.hands.known.values()
        await until(lambda: known.verified is False)
        answer = await examined(office)
    found = {one["what"]: one for one in answer["findings"]}
    serves = "strata:current serves, and nothing is recorded that verifies it"
    assert found[serves]["mend"] == "`slotctl pairs adopt strata` makes evidence of it"


async def test_a_container_that_is_not_what_is_declared_is_a_warning_that_names_some_fields(office: Office) -> None:
    declared = office.ninfer.recipes["v2"]
    office.ninfer.create(
        replace(
            declared, command=(*declared.command, "--spec", "mtp"), user="root", ports=("*:8095->8095/tcp",), init=True
        )
    )
    finding = await only(office)
    assert (finding["where"], finding["severity"]) == ("ninfer:v2", "warning")
    assert finding["what"].startswith(
        "what is declared, created, running and verified differs in user, command, init, "
    )
    assert finding["what"].endswith(", and 1 more")
    assert finding["mend"] == "`slotctl drift ninfer` shows what would mend it"


@needs_git
async def test_a_source_tree_that_moved_is_a_warning_of_its_pair(office: Office) -> None:
    tree = repository(office.folder / "ninfer-src")
    pinned, now = head(tree), commit(tree)
    pairs = office.engines["ninfer"].pairs
    edit_engine(office, "ninfer", pairs={**pairs, "v3": replace(pairs["v3"], source=Source(tree, pinned))})
    finding = await only(office)
    assert (finding["where"], finding["severity"]) == ("ninfer:v3", "warning")
    assert f"is at {now[:7]}, not at {pinned[:7]}" in finding["what"]
    assert finding["mend"].startswith(f"`git -C {tree} checkout ")


# ------------------------------------------------------------------------------------------------- Docker


@dataclass
class FakeDocker:
    fault: Fault | None = None
    address: str = "unix:///nowhere.sock"

    async def version(self) -> Json:
        if self.fault is not None:
            raise self.fault
        return {"Version": "20.10.24", "ApiVersion": "1.41"}


def with_docker(office: Office, monkeypatch: pytest.MonkeyPatch, fault: Fault | None = None) -> None:
    async def compose_version(address: str) -> str:
        assert address == "unix:///nowhere.sock"
        if fault is not None:
            raise fault
        return "2.40.3"

    office.shelf.docker = FakeDocker()  # type: ignore[assignment]
    monkeypatch.setattr(doctor, "compose_version", compose_version)


async def test_the_versions_of_docker_and_compose_are_seen(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    with_docker(office, monkeypatch)
    async with office.serving():
        seen = (await examined(office))["seen"]
    assert {"Docker 20.10.24, API 1.41", "compose 2.40.3"} <= set(seen)


async def test_a_missing_compose_is_a_problem(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    with_docker(office, monkeypatch, CannotStage("there is no docker compose v2", "install it"))
    finding = await only(office)
    assert (finding["where"], finding["what"], finding["mend"]) == (
        "Docker",
        "there is no docker compose v2",
        "install it",
    )


async def test_a_docker_that_cannot_be_reached_is_one_problem_of_all_that_need_it(office: Office) -> None:
    gone = Unreachable("Docker can't be reached", "start it", passing=True)
    async with office.serving():
        office.shelf.docker = FakeDocker(gone)  # type: ignore[assignment]
        for runtime in office.runtimes.values():
            for call in ("look", "declared"):
                runtime.fail(call, gone, times=1000)
        found = (await examined(office))["findings"]
    assert [(one["what"], one["severity"]) for one in found if "Docker" in one["where"]] == [(gone.what, "problem")]
    assert found[0]["where"] == "Docker, strata, ninfer, strata:current, ninfer:v2, ninfer:v3"


# ------------------------------------------------------------------------------------------------- the doctor itself


async def test_a_check_that_breaks_is_a_finding_and_the_others_go_on(office: Office) -> None:
    def broken() -> list[str]:
        raise RuntimeError("broken on purpose")

    office.desk.ledger.problems = broken  # type: ignore[method-assign]
    async with office.serving():
        restart_policy(office)
        found = (await examined(office))["findings"]
    assert [(one["where"], one["severity"]) for one in found] == [("ledger", "problem"), ("ninfer", "problem")]
    assert "the check itself failed: RuntimeError('broken on purpose')" in found[0]["what"]


async def test_an_engine_that_is_called_like_a_check_takes_none_away(office: Office) -> None:
    ledger(office)
    office.engines["ledger"] = replace(office.engines.pop("ninfer"), name="ledger")
    office.runtimes["ledger"] = office.runtimes.pop("ninfer")
    assert "line 3 was edited" in [one["what"] for one in (await examined(office))["findings"]]


async def test_a_check_that_does_not_end_is_a_finding_and_the_others_go_on(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "LOOKING", 2.0)
    monkeypatch.setattr(doctor, "JUDGING", 2.0)
    async with office.serving():
        office.desk.ledger.problems = lambda: ["line 3 was edited"]  # type: ignore[method-assign]
        office.ninfer.hang("look")
        answer = await examined(office)
        office.ninfer.let_go("look")
    late, edited = sorted(answer["findings"], key=lambda one: one["where"] == "ledger")
    assert late["where"] == "ninfer, ninfer:v2, ninfer:v3"
    assert late["what"] == "this wasn't looked at to its end: it took longer than 2 s"
    assert edited["what"] == "line 3 was edited"


async def test_what_was_found_before_a_check_broke_counts(office: Office) -> None:
    restart_policy(office)
    edit_engine(office, "ninfer", url="http://no such host:1")
    async with office.serving():
        found = (await examined(office))["findings"]
    assert any("restart policy" in one["what"] for one in found)
    assert any("who listens at" in one["what"] for one in found)


def test_the_same_thing_is_as_bad_as_at_the_worst_of_its_places() -> None:
    mild, bad = Finding("a", "gone", "look", Weight.WARNING), Finding("b", "gone", "look", Weight.PROBLEM)
    assert once([mild, bad, mild]) == [Finding("a, b", "gone", "look", Weight.PROBLEM)]
    other = replace(bad, mend="look elsewhere")
    assert once([mild, other]) == [mild, other]


def test_a_card_that_tells_neither_identity_nor_memory_is_one_problem() -> None:
    both = [
        Finding("card", f"NVML can't tell the card's {what}: no driver", "load it") for what in ("identity", "memory")
    ]
    assert once(both) == [Finding("card", "NVML can't tell the card's identity: no driver", "load it")]


async def test_problems_come_before_warnings(office: Office) -> None:
    async with office.serving():
        held(office)
        restart_policy(office)
        assert [one["severity"] for one in (await examined(office))["findings"]] == ["problem", "warning"]


async def test_engines_that_differ_alike_are_each_told_with_their_own_mend_and_a_field_once(office: Office) -> None:
    async with office.serving():
        for runtime, pair in ((office.ninfer, "v2"), (office.strata, "current")):
            recipe = runtime.recipes[pair]
            runtime.recipes[pair] = replace(recipe, command=(*recipe.command, "--a", "--b"))
        found = [one for one in (await examined(office))["findings"] if one["what"].startswith("what is declared")]
    assert {one["what"] for one in found} == {"what is declared, created, running and verified differs in command"}
    assert {one["mend"].split("`")[1] for one in found} == {"slotctl drift strata", "slotctl drift ninfer"}
