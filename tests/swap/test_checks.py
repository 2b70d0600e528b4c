"""Checking: what may have the card, and that everything which speaks against it is said at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from engines.ninfer.profile import PROFILE as NINFER
from engines.ninfer.sample import write_artifact
from engines.openai.profile import PROFILE as OPENAI
from engines.spec import ComposeService, Engine, GiB, Pair
from swap.checks import Checker, Refusal, Verdict
from swap.hashing import Hasher
from swap.ledger import key
from swap.ports import (
    CannotStage,
    CardUnknown,
    Evidence,
    Foreign,
    Mount,
    Outcome,
    Recipe,
    Status,
    Unreachable,
)
from tests.swap.fakes import REAL, FakeCard, FakeLedger, FakeRuntime, recipe_for

FILES = {"v2": "qwen3_8_27b_nvfp4.ninfer", "v3": "qwen3_8_27b_nvfp4_v3.ninfer"}
IMAGES = {"v2": "ninfer:local", "v3": "ninfer:v3"}


@dataclass
class Box:
    """The first user's box: NInfer with its two pairs, v2 verified and in a stopped container."""

    folder: Path
    card: FakeCard = field(default_factory=FakeCard)

    def __post_init__(self) -> None:
        self.models = self.folder / "models"
        self.models.mkdir()
        for version, name in ((2, FILES["v2"]), (3, FILES["v3"])):
            write_artifact(self.models / name, version, objects=1190)
        self.engine = Engine(
            name="ninfer",
            profile=NINFER,
            url="http://127.0.0.1:8095",
            vram=30 * GiB,
            pairs={name: Pair("ninfer", name, IMAGES[name], (self.models / FILES[name],)) for name in FILES},
            deployed="v2",
            container="ninfer-eval",
            compose=ComposeService(self.folder / "docker-compose.yml", "ninfer-eval"),
        )
        recipes = {name: recipe_for(IMAGES[name], FILES[name], models=str(self.models)) for name in FILES}
        self.runtime = FakeRuntime("ninfer", self.card, recipes)
        self.runtime.create(recipes["v2"])
        self.ledger = FakeLedger()
        self.hasher = Hasher(self.folder / "hashes.json")
        self.headroom, self.baseline = GiB // 4, 0

    @property
    def checker(self) -> Checker:
        return Checker(
            engines={"ninfer": self.engine},
            runtimes={"ninfer": self.runtime},
            card=self.card,
            ledger=self.ledger,
            hasher=self.hasher,
            headroom=self.headroom,
            baseline=self.baseline,
        )

    async def judge(self, pair: str | None = None, *, trial: bool = False, may_stage: bool = True) -> Verdict:
        return await self.checker.judge("ninfer", pair, trial=trial, may_stage=may_stage)

    async def record(self, pair: str, outcome: Outcome = Outcome.SERVED, **more: Any) -> None:
        """It ran on this card as it is declared now."""
        subject = await self.checker.subject_of(self.engine, self.runtime.recipes[pair], self.engine.pairs[pair])
        when = "2026-01-02T03:04:05Z"
        self.ledger.record(Evidence(subject, "", outcome, f"ninfer:{pair}", when, "trial", REAL, **more))

    def edit_pair(self, name: str, **changes: Any) -> None:
        pairs = {**self.engine.pairs, name: replace(self.engine.pairs[name], **changes)}
        self.engine = replace(self.engine, pairs=pairs)

    def edit_file(self, name: str, **changes: Any) -> Recipe:
        """Edit what the compose file declares for this pair."""
        self.runtime.recipes[name] = replace(self.runtime.recipes[name], **changes)
        return self.runtime.recipes[name]


@pytest.fixture
def bare(tmp_path: Path) -> Box:
    """The box on its first day: nothing has run. (Made where no event loop is blocked by it.)"""
    return Box(tmp_path)


@pytest.fixture
async def box(bare: Box) -> Box:
    """The box with evidence of v2."""
    await bare.record("v2", extra={"artifact_version": 2})
    return bare


def only(refusals: Sequence[Refusal]) -> str:
    """The one refusal's text; each must say what to do as well."""
    (refusal,) = refusals
    assert refusal.mend
    return f"{refusal.what}; {refusal.mend}"


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


async def test_secrets_are_not_in_the_subject(box: Box) -> None:
    recipe = box.runtime.recipes["v2"]
    box.edit_file("v2", env=(("API_KEY", "hunter2"),), command=(*recipe.command, "--api-key", "hunter3"))
    subject = (await box.judge(trial=True)).subject
    assert "hunter" not in repr(subject)


# ------------------------------------------------------------------------------------------------- the artifact trap


@pytest.mark.parametrize("trial", [False, True])
@pytest.mark.parametrize("source", ["pair", "label", "ledger"])
async def test_a_v2_image_with_the_v3_file_is_refused_also_with_trial(box: Box, source: str, trial: bool) -> None:
    v3 = box.models / FILES["v3"]
    box.edit_pair("v2", artifacts=(v3,), reads=2 if source == "pair" else None)
    labels = (("slotproxy.ninfer.reads", "2"),) if source == "label" else ()
    box.edit_file("v2", command=("--model", f"/models/{FILES['v3']}"), image_labels=labels)
    if source != "ledger":
        box.ledger = FakeLedger()
    verdict = await box.judge(trial=trial)
    text = only(verdict.refusals)
    assert "reads artifacts of version 2" in text
    assert f"{v3} is version 3" in text
    assert verdict.artifact_version == 3


async def test_what_the_operator_states_goes_before_label_and_ledger(box: Box) -> None:
    box.edit_pair("v2", reads=3)
    box.edit_file("v2", image_labels=(("slotproxy.ninfer.reads", "2"),))
    assert "version 3 (the pair's `reads`)" in only((await box.judge()).refusals)


async def test_a_label_that_is_no_version_is_only_a_warning(box: Box) -> None:
    box.edit_file("v2", image_labels=(("slotproxy.ninfer.reads", "two"),))
    verdict = await box.judge()
    assert verdict.allowed
    assert "two" in verdict.warnings[0]


async def test_a_renamed_v3_file_under_the_v2_name_is_refused(box: Box) -> None:
    (box.models / FILES["v3"]).replace(box.models / FILES["v2"])
    assert "is version 3" in only((await box.judge(trial=True)).refusals)


# ------------------------------------------------------------------------------------------------- image and artifact


async def test_a_compose_file_that_ignores_the_pairs_variables_is_caught(box: Box) -> None:
    box.runtime.recipes["v3"] = box.runtime.recipes["v2"]
    verdict = await box.judge("v3", trial=True)
    first, second = verdict.refusals
    assert "names the image ninfer:v3, but" in first.what
    assert "gives ninfer:local" in first.what
    assert f"names the artifact {box.models / FILES['v3']}, but" in second.what
    assert FILES["v2"] in second.what
    assert verdict.subject is None


@pytest.mark.parametrize(
    ("named", "given", "same"),
    [
        ("ninfer", "ninfer:latest", True),
        ("docker.io/library/ninfer:v3", "ninfer:v3", True),
        ("host:5000/ninfer", "host:5000/ninfer:latest", True),
        ("ninfer:local", "ninfer:v3", False),
        ("other/ninfer:v3", "ninfer:v3", False),
        ("the id", "ninfer:v3", True),
        ("sha256:" + "9" * 64, "ninfer:v3", False),
    ],
)
async def test_an_image_may_be_named_in_any_way_that_means_it(box: Box, named: str, given: str, same: bool) -> None:
    declared = box.edit_file("v2", image=given)
    box.edit_pair("v2", image=declared.image_id if named == "the id" else named)
    assert (await box.judge()).allowed is same


async def test_a_symlink_is_followed_to_what_it_means(box: Box) -> None:
    link = box.folder / "current.ninfer"
    link.symlink_to(box.models / FILES["v2"])
    box.edit_pair("v2", artifacts=(link,))
    assert (await box.judge()).allowed
    link.unlink()
    link.symlink_to(box.models / FILES["v3"])
    assert "names the artifact" in only((await box.judge()).refusals)


async def test_parts_of_a_split_artifact_need_not_be_on_the_command_line(box: Box) -> None:
    part = box.models / (FILES["v2"] + ".part-0001")
    write(part, "part")
    box.edit_pair("v2", artifacts=(box.models / FILES["v2"], part))
    subject = (await box.judge(trial=True)).subject
    assert subject is not None
    assert [file.path for file in subject.files] == [str(box.models / FILES["v2"]), str(part)]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("missing", "does not exist"),
        ("truncated", "is truncated"),
        ("directory", "is a directory"),
        ("fifo", "is not a regular file"),
        ("garbage", "not a .ninfer file"),
    ],
)
async def test_an_artifact_that_cant_run_is_refused_by_name(box: Box, damage: str, words: str) -> None:
    spoil(box.models / FILES["v2"], damage)
    text = only((await box.judge(trial=True)).refusals)
    assert words in text
    assert str(box.models / FILES["v2"]) in text


async def test_an_artifact_that_no_mount_holds_is_refused(box: Box) -> None:
    box.edit_file("v2", mounts=(Mount("models", "/models", read_only=True, kind="volume"),))
    assert f"to read /models/{FILES['v2']}, which no bind mount" in (await box.judge(trial=True)).refusals[0].what


async def test_an_artifact_inside_the_image_is_covered_by_the_images_id(box: Box) -> None:
    box.edit_pair("v2", artifacts=())
    box.edit_file("v2", mounts=())
    verdict = await box.judge(trial=True)
    assert verdict.allowed
    assert verdict.subject is not None
    assert verdict.subject.files == ()


async def test_a_command_line_without_an_artifact_needs_at_least_the_mount(box: Box) -> None:
    box.engine = replace(box.engine, profile=OPENAI)
    assert (await box.judge(trial=True)).allowed
    box.edit_file("v2", mounts=())
    assert "doesn't mount" in only((await box.judge(trial=True)).refusals)


async def test_a_path_relative_to_the_working_directory_is_found(box: Box) -> None:
    box.edit_file("v2", command=("--model", f"../models/{FILES['v2']}"), working_dir="/srv")
    assert (await box.judge(trial=True)).allowed


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


async def test_without_staging_what_differs_outside_the_pair_is_a_warning(box: Box) -> None:
    box.edit_file("v2", healthcheck="CMD curl")
    verdict = await box.judge(may_stage=False)
    assert verdict.allowed
    assert not verdict.stage
    assert "healthcheck" in verdict.warnings[0]


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
    text = only((await box.judge(may_stage=False)).refusals)
    assert "docker update --restart=no ninfer-eval" in text


async def test_a_moved_tag_is_shown(box: Box) -> None:
    box.runtime.sight = replace(box.runtime.sight, tag_id="sha256:" + "12" * 32)
    verdict = await box.judge()
    assert verdict.allowed
    assert "means ninfer:local (121212121212) now" in verdict.warnings[0]


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


# ------------------------------------------------------------------------------------------------- helpers


def write(path: Path, text: str) -> None:
    path.write_text(text)


def spoil(path: Path, damage: str) -> None:
    content = path.read_bytes()
    path.unlink()
    if damage == "directory":
        path.mkdir()
    elif damage == "fifo":
        os.mkfifo(path)
    elif damage != "missing":
        path.write_bytes(content[:-1] if damage == "truncated" else b"garbage " * 1000)
