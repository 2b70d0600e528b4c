"""Checking: what may have the card, and that everything which speaks against it is said at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.ninfer.sample import write_artifact
from engines.spec import GiB
from swap.findings import Refusal
from swap.ledger import key
from swap.ports import (
    CannotStage,
    CardUnknown,
    Foreign,
    Outcome,
    Status,
    Unreachable,
)
from tests.swap.box import FILES, Box, only, write


@pytest.fixture
def bare(tmp_path: Path) -> Box:
    """The box on its first day: nothing has run. (Made where no event loop is blocked by it.)"""
    return Box(tmp_path)


@pytest.fixture
async def box(bare: Box) -> Box:
    """The box with evidence of v2."""
    await bare.record("v2", extra={"artifact_version": 2})
    return bare


# ------------------------------------------------------------------------------------------------- the rule


async def test_the_deployed_verified_pair_is_allowed_and_needs_no_staging(box: Box) -> None:
    verdict = await box.judge()
    assert (verdict.label, verdict.allowed, verdict.stage) == ("ninfer:v2", True, False)
    assert verdict.verified is not None
    assert verdict.verified.pair == "ninfer:v2"
    assert verdict.artifact_version == 2
    assert verdict.differences == ()
    assert verdict.warnings == ()


async def test_judging_changes_nothing(box: Box) -> None:
    before = box.runtime.sight
    await box.judge("v3", trial=True)
    assert box.runtime.sight == before
    assert set(box.runtime.calls) <= {"look", "declared"}


async def test_a_perfect_header_is_no_evidence(box: Box) -> None:
    verdict = await box.judge("v3")
    text = only(verdict.refusals)
    assert "ninfer:v3 never ran on this card" in text
    assert "slotctl swap to-ninfer:v3 --trial" in text
    assert verdict.artifact_version == 3
    assert not verdict.allowed


async def test_a_trial_lifts_the_missing_evidence_and_says_that_it_would_stage(box: Box) -> None:
    verdict = await box.judge("v3", trial=True)
    assert verdict.allowed
    assert verdict.verified is None
    assert verdict.stage
    assert {one.field for one in verdict.differences} == {"image", "command"}


async def test_a_pair_that_failed_says_so_and_when(box: Box) -> None:
    await box.record("v3", Outcome.FAILED, reason="exit 1")
    assert "(tried on 2026-01-02T03:04:05Z: exit 1)" in only((await box.judge("v3")).refusals)
    assert (await box.judge("v3", trial=True)).allowed


async def test_other_bytes_under_the_same_name_are_another_pair(box: Box) -> None:
    await asyncio.to_thread(write_artifact, box.models / FILES["v2"], 2, payload=b"\1" * 4096)
    assert "never ran" in only((await box.judge()).refusals)


async def test_a_configuration_file_belongs_to_the_pair(box: Box) -> None:
    baked = box.folder / "baked.json"
    write(baked, '{"context": 1}')
    box.edit_pair("v2", config_files=(baked,))
    assert "never ran" in only((await box.judge()).refusals)
    before = (await box.judge(trial=True)).subject
    write(baked, '{"context": 2}')
    after = (await box.judge(trial=True)).subject
    assert before is not None
    assert after is not None
    assert [Path(file.path).name for file in after.files] == [FILES["v2"], "baked.json"]
    assert key(before) != key(after)


@pytest.mark.parametrize(
    "edit",
    [
        {"image_id": "sha256:" + "12" * 32},  # a rebuild under the same tag
        {"env": (("PATH", "/usr/bin"), ("NEW", "1"))},
        {"entrypoint": ("other-serve",)},
        {"user": "1000"},
    ],
)
async def test_an_edit_of_the_pair_needs_a_trial(box: Box, edit: dict[str, Any]) -> None:
    box.edit_file("v2", **edit)
    verdict = await box.judge()
    assert "never ran" in only(verdict.refusals)
    assert verdict.stage
    assert all(one.pair for one in verdict.differences)
    assert (await box.judge(trial=True)).allowed


async def test_an_edit_outside_the_pair_needs_no_trial_and_is_staged(box: Box) -> None:
    box.edit_file("v2", healthcheck="CMD curl")
    verdict = await box.judge()
    assert verdict.allowed
    assert verdict.stage
    assert [(one.field, one.pair) for one in verdict.differences] == [("healthcheck", False)]


async def test_the_same_image_under_another_id_is_the_verified_pair(bare: Box) -> None:
    bare.runtime.create(bare.edit_file("v2", image_content="sha256:content"))
    await bare.record("v2")
    bare.edit_file("v2", image_id="sha256:" + "12" * 32)  # the other image store, or a rebuild that changed a label
    verdict = await bare.judge()
    assert verdict.allowed
    assert [(one.field, one.pair) for one in verdict.differences] == [("image id (the same content)", False)]
    bare.edit_file("v2", image_content="sha256:another")
    assert "never ran" in only((await bare.judge()).refusals)


async def test_secrets_are_not_in_the_subject(box: Box) -> None:
    recipe = box.runtime.recipes["v2"]
    box.edit_file("v2", env=(("API_KEY", "hunter2"),), command=(*recipe.command, "--api-key", "hunter3"))
    subject = (await box.judge(trial=True)).subject
    assert "hunter" not in repr(subject)


# ------------------------------------------------------------------------------------------------- container and host


async def test_without_staging_a_container_of_another_pair_is_refused(box: Box) -> None:
    verdict = await box.judge("v3", trial=True, may_stage=False)
    text = only(verdict.refusals)
    assert "isn't what ninfer:v3 declares: image, command" in text
    assert "slotctl stage ninfer:v3" in text
    assert not verdict.stage


async def test_without_a_compose_file_a_container_of_another_pair_is_refused(box: Box) -> None:
    box.engine = replace(box.engine, compose=None)
    assert "engines.ninfer.compose" in only((await box.judge("v3", trial=True)).refusals)


async def test_without_staging_what_differs_outside_the_pair_is_refused_too(box: Box) -> None:
    box.edit_file("v2", healthcheck="CMD curl")
    assert "isn't what ninfer:v2 declares: healthcheck" in only((await box.judge(may_stage=False)).refusals)


async def test_an_absent_container_is_staged_or_refused(box: Box) -> None:
    box.runtime.sight = replace(box.runtime.sight, status=Status.ABSENT, id="", recipe=None)
    assert (await box.judge()).stage
    assert "there is no container ninfer-eval" in only((await box.judge(may_stage=False)).refusals)


async def test_a_process_is_declared_by_the_configuration_so_nothing_forbids_to_stage_it(box: Box) -> None:
    box.engine = replace(box.engine, container=None, compose=None)
    verdict = await box.judge("v3", trial=True, may_stage=False)
    assert verdict.allowed
    assert verdict.stage


async def test_a_restart_policy_is_refused_where_it_would_take_effect(box: Box) -> None:
    declared = box.runtime.recipes["v2"]
    box.edit_file("v2", restart="unless-stopped")
    assert "'unless-stopped'" in only((await box.judge()).refusals)
    box.runtime.recipes["v2"] = declared
    box.runtime.create(replace(declared, restart="always"))
    assert (await box.judge()).allowed  # the recreated one has none
    refusals = (await box.judge(may_stage=False)).refusals
    assert "docker update --restart=no ninfer-eval" in refusals[-1].mend


async def test_a_foreign_container_is_refused(box: Box) -> None:
    box.runtime.fail("look", Foreign("ninfer-eval was made by project other", "remove or rename it"))
    verdict = await box.judge()
    assert "project other" in only(verdict.refusals)
    assert verdict.sight is None


async def test_docker_gone_is_said_once_and_the_rest_is_still_checked(box: Box) -> None:
    gone = Unreachable("Docker doesn't answer", "start it")
    box.runtime.fail("look", gone)
    box.runtime.fail("declared", gone)
    box.engine = replace(box.engine, vram=40 * GiB)
    first, second = (await box.judge()).refusals
    assert first == Refusal("Docker doesn't answer", "start it")
    assert "can never fit" in second.what


async def test_a_pair_that_cant_be_declared_is_refused(box: Box) -> None:
    box.runtime.fail("declared", CannotStage("there is no image ninfer:local", "build it"))
    verdict = await box.judge()
    assert only(verdict.refusals) == "there is no image ninfer:local; build it"
    assert verdict.declared is None


# ------------------------------------------------------------------------------------------------- the card


@pytest.mark.parametrize(
    ("need", "fits"),  # GiB: vram, headroom, baseline, reserved
    [
        ((31, 1, 0, 0), True),
        ((31, 1, 0, 1), False),
        ((31, 1, 1, 0), False),
        ((30, 1, 1, 0), True),
        ((30, 0, 0, 2), True),
    ],
)
async def test_a_need_beyond_the_card_is_refused(box: Box, need: tuple[int, ...], fits: bool) -> None:
    vram, box.headroom, box.baseline, box.card.reserved = (size * GiB for size in need)
    box.engine = replace(box.engine, vram=vram)
    verdict = await box.judge()
    assert verdict.allowed is fits
    if not fits:
        assert "can never fit" in only(verdict.refusals)


async def test_a_card_that_another_holds_now_is_no_refusal(box: Box) -> None:
    box.card.allocations["strata"] = 31 * GiB
    assert (await box.judge()).allowed


@pytest.mark.parametrize(
    ("held", "baseline", "told"),  # GiB
    [(3, 0, True), (3, 2, True), (3, 3, False), (1, 0, False), (20, 0, False)],
    ids=["a desktop", "more than is told", "just that", "room enough", "no desktop"],
)
async def test_a_desktop_beside_which_it_cant_fit_is_told_and_is_no_refusal(
    box: Box, held: int, baseline: int, told: bool
) -> None:
    """It may be gone by then; and whoever isn't told in the configuration is in the way only now."""
    box.engine = replace(box.engine, vram=29 * GiB)
    box.headroom, box.baseline = GiB, 0
    box.card.foreign["Xorg"] = held * GiB
    box.baseline = baseline * GiB
    verdict = await box.judge()
    warning = (
        "pid 2000 (Xorg, 3.0 GiB, in no container) would leave ninfer too little of the card: 29.0 GiB and 1.0 GiB "
        "headroom don't fit beside 3.0 GiB of 32.0 GiB; if that is a desktop, say so by card.baseline "
        f"(now {baseline:.1f} GiB) and run ninfer with less"
    )
    assert list(verdict.warnings) == ([warning] if told else [])
    assert verdict.allowed is (baseline < 3)


async def test_an_unknown_card_is_refused_once_with_its_mend(box: Box) -> None:
    box.card.unknown = CardUnknown("driver and library differ (18)", "reboot")
    assert only((await box.judge()).refusals) == "driver and library differ (18); reboot"


async def test_all_refusals_are_told_at_once(box: Box) -> None:
    box.engine = replace(box.engine, vram=40 * GiB)
    box.edit_file("v3", restart="always")
    verdict = await box.judge("v3", may_stage=False)
    told = " | ".join(refusal.what for refusal in verdict.refusals)
    for words in ("isn't what ninfer:v3 declares", "can never fit", "restart policy", "never ran"):
        assert words in told


@pytest.mark.parametrize(
    ("engine", "pair", "words"),
    [
        ("vllm", None, "there is no engine 'vllm'; the configuration has: ninfer"),
        ("ninfer", "v9", "ninfer has no pair 'v9'; the configuration has: v2, v3"),
        ("ninfer", "", "ninfer has no pair ''; the configuration has: v2, v3"),
    ],
)
async def test_an_unknown_name_lists_the_known_ones(box: Box, engine: str, pair: str | None, words: str) -> None:
    assert only((await box.checker.judge(engine, pair, trial=True)).refusals) == words


# ------------------------------------------------------------------------------------------------- which pair is it


async def test_a_container_is_told_by_what_it_runs(box: Box) -> None:
    for name in FILES:
        created = replace(box.runtime.recipes[name], healthcheck="other")
        assert await box.checker.pair_of(box.engine, created) == name
    stranger = replace(box.runtime.recipes["v2"], command=("--model", "/models/other.ninfer"))
    assert await box.checker.pair_of(box.engine, stranger) is None


async def test_a_pair_that_cant_be_declared_isnt_what_runs(box: Box) -> None:
    created = box.runtime.recipes["v3"]
    del box.runtime.recipes["v2"]
    assert await box.checker.pair_of(box.engine, created) == "v3"


async def test_of_two_pairs_that_differ_in_environment_alone_the_exact_one_is_told(box: Box) -> None:
    small = replace(box.runtime.recipes["v2"], env=(("CONTEXT", "1024"),))
    box.runtime.recipes["v3"] = small
    assert await box.checker.pair_of(box.engine, small) == "v3"
    edited = replace(small, env=(("CONTEXT", "2048"),))
    assert await box.checker.pair_of(box.engine, edited) == "v2"  # the deployed one comes first


async def test_docker_gone_is_not_none_of_them(box: Box) -> None:
    box.runtime.fail("declared", Unreachable("Docker doesn't answer"))
    with pytest.raises(Unreachable):
        await box.checker.pair_of(box.engine, box.runtime.recipes["v2"])


@pytest.mark.parametrize(
    ("ports", "fits"),
    [
        (("127.0.0.1:8095->8080/tcp",), True),
        (("*:9000->9000/tcp", "*:8095->8080/tcp"), True),
        (("*:any->8095/tcp",), True),  # Docker picks one
        ((), True),  # on the host's network, say
        (("127.0.0.1:8096->8095/tcp",), False),
    ],
)
async def test_what_publishes_other_ports_than_the_one_where_it_is_asked_is_refused(
    box: Box, ports: tuple[str, ...], fits: bool
) -> None:
    box.edit_file("v2", ports=ports)
    verdict = await box.judge(trial=True)
    assert verdict.allowed is fits
    if not fits:
        assert only(verdict.refusals).startswith(
            "ninfer:v2 publishes 127.0.0.1:8096->8095/tcp, but is asked at http://127.0.0.1:8095; correct "
        )
