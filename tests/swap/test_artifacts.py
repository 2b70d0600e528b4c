"""The artifact trap: what is declared must be the pair's image and files, whole, and of the version that it reads."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from engines.artifacts.sample_gguf import write_gguf
from engines.llamacpp.profile import PROFILE as LLAMACPP
from engines.ninfer.sample import write_artifact
from engines.openai.profile import PROFILE as OPENAI
from swap.ports import Fault, Mount
from tests.swap.box import FILES, Box, only, spoil, write
from tests.swap.fakes import FakeLedger


@pytest.fixture
def bare(tmp_path: Path) -> Box:
    """The box on its first day: nothing has run. (Made where no event loop is blocked by it.)"""
    return Box(tmp_path)


@pytest.fixture
async def box(bare: Box) -> Box:
    """The box with evidence of v2."""
    await bare.record("v2", extra={"artifact_version": 2})
    return bare


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


@pytest.mark.parametrize(
    ("target", "fits"),
    [
        (FILES["v2"], True),
        (f"../models/{FILES['v2']}", True),
        (f"/models/{FILES['v2']}", False),  # dangles here, and is right in the container: we couldn't read it
        (f"{{models}}/{FILES['v2']}", False),  # is right here, and dangles in the container
        (f"{{models}}/old/{FILES['v2']}", False),
        (f"old/{FILES['v2']}", False),  # a folder that is linked so
    ],
)
async def test_a_link_means_what_the_container_sees(box: Box, target: str, fits: bool) -> None:
    (box.models / "old").symlink_to(box.models)
    link = box.models / "current.ninfer"
    link.symlink_to(target.format(models=box.models))
    box.edit_pair("v2", artifacts=(link,))
    box.edit_file("v2", command=("--model", "/models/current.ninfer"))
    verdict = await box.judge(trial=True)
    assert verdict.allowed is fits
    if not fits and link.exists():
        assert "which a link leads elsewhere in its container than here" in only(verdict.refusals)


async def test_a_link_is_followed_by_the_mounts_that_the_container_has(box: Box) -> None:
    """Absolute, and right on both sides: what is mounted has the same paths there."""
    link = box.models / "current.ninfer"
    link.symlink_to(box.models / FILES["v2"])
    box.edit_pair("v2", artifacts=(link,))
    there = Mount(str(box.models), str(box.models), read_only=True)
    box.edit_file("v2", command=("--model", str(link)), mounts=(there,))
    assert (await box.judge(trial=True)).allowed


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
        ("loop", "Too many levels of symbolic links"),
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


@pytest.mark.parametrize("kind", ["volume", "tmpfs"])
async def test_what_covers_a_bind_mount_from_within_is_what_the_engine_reads(box: Box, kind: str) -> None:
    """The file of that name in the bind mount is there, and whole; the engine can't see it."""
    outer = Mount(str(box.folder), "/data", read_only=True)
    box.edit_file("v2", command=("--model", f"/data/models/{FILES['v2']}"), mounts=(outer,))
    assert (await box.judge(trial=True)).allowed
    box.edit_file("v2", mounts=(outer, Mount("models", "/data/models", read_only=True, kind=kind)))
    assert f"to read /data/models/{FILES['v2']}, which no bind mount" in (await box.judge(trial=True)).refusals[0].what


async def test_an_artifact_inside_the_image_is_covered_by_the_images_id(box: Box) -> None:
    box.edit_pair("v2", artifacts=())
    box.edit_file("v2", mounts=())
    verdict = await box.judge(trial=True)
    assert verdict.allowed
    assert verdict.subject is not None
    assert verdict.subject.files == ()
    assert "ninfer:v2 names no file: its evidence covers image and command line alone" in verdict.warnings


async def test_a_command_line_without_an_artifact_needs_at_least_the_mount(box: Box) -> None:
    box.engine = replace(box.engine, profile=OPENAI)
    assert (await box.judge(trial=True)).allowed
    box.edit_file("v2", mounts=())
    assert "doesn't mount" in only((await box.judge(trial=True)).refusals)


async def test_a_path_relative_to_the_working_directory_is_found(box: Box) -> None:
    box.edit_file("v2", command=("--model", f"../models/{FILES['v2']}"), working_dir="/srv")
    assert (await box.judge(trial=True)).allowed


async def test_what_another_engine_served_with_the_same_executable_says_nothing_of_this_ones_version(bare: Box) -> None:
    await bare.record("v2", extra={"artifact_version": 3})
    (one,) = bare.ledger.evidence()
    bare.ledger = FakeLedger()
    bare.ledger.record(replace(one, subject=replace(one.subject, engine="strata")))
    assert (await bare.judge(trial=True)).allowed


async def test_an_engine_that_reads_every_version_is_given_any(box: Box) -> None:
    for pair, version in (("v2", 3), ("v3", 2)):
        box.engine = replace(box.engine, profile=LLAMACPP)
        model = box.models / f"{pair}.gguf"
        await asyncio.to_thread(write_gguf, model)
        box.edit_pair(pair, artifacts=(model,))
        box.edit_file(pair, command=("--model", f"/models/{model.name}"))
        await box.record(pair, extra={"artifact_version": version})
        assert (await box.judge(pair)).allowed


async def test_a_part_that_is_missing_refuses_and_is_named(box: Box) -> None:
    await asyncio.to_thread(write_artifact, box.models / FILES["v3"], 3, parts=2)
    (box.models / f"{FILES['v3']}.part-0002").unlink()
    text = only((await box.judge("v3", trial=True)).refusals)
    assert f"its part {FILES['v3']}.part-0002 isn't whole: it does not exist" in text


async def test_each_part_of_each_artifact_on_the_command_line_is_part_of_the_pair_in_order(box: Box) -> None:
    draft = box.models / "draft.ninfer"
    await asyncio.to_thread(write_artifact, box.models / FILES["v3"], 3, parts=2)
    await asyncio.to_thread(write_artifact, draft, 3, parts=1)
    box.edit_file("v3", command=("--model", f"/models/{FILES['v3']}", "--draft-model", "/models/draft.ninfer"))
    subject = (await box.judge("v3", trial=True)).subject
    assert subject is not None
    parts = [f"{FILES['v3']}.part-0001", f"{FILES['v3']}.part-0002", "draft.ninfer", "draft.ninfer.part-0001"]
    assert [file.path for file in subject.files] == [str(box.models / name) for name in (FILES["v3"], *parts)]


async def test_the_parts_of_a_draft_model_that_only_the_pair_names_belong_to_it_too(box: Box) -> None:
    draft, notes = box.models / "draft.ninfer", box.models / "notes"
    await asyncio.to_thread(write_artifact, draft, 3, parts=1)
    write(notes, "no artifact")
    box.edit_pair("v2", artifacts=(box.models / FILES["v2"], draft, notes))
    subject = (await box.judge(trial=True)).subject
    assert subject is not None
    names = (FILES["v2"], "draft.ninfer", "draft.ninfer.part-0001", "notes")
    assert [file.path for file in subject.files] == [str(box.models / name) for name in names]


@pytest.mark.parametrize("part", ["a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "draft.gguf"])
async def test_one_bit_in_a_file_of_a_split_gguf_or_in_a_draft_model_makes_another_pair(box: Box, part: str) -> None:
    for number in range(2):
        await asyncio.to_thread(write_gguf, box.models / f"a-0000{number + 1}-of-00002.gguf", split=(number, 2))
    await asyncio.to_thread(write_gguf, box.models / "draft.gguf")
    box.engine = replace(box.engine, profile=LLAMACPP)
    box.edit_pair("v2", artifacts=(box.models / "a-00001-of-00002.gguf",))
    box.edit_file("v2", command=("-m", "/models/a-00001-of-00002.gguf", "-md", "/models/draft.gguf"))
    await box.record("v2")
    assert (await box.judge()).allowed
    flip(box.models / part)
    assert "never ran on this card as it is now" in only((await box.judge()).refusals)


async def test_an_edited_chat_template_makes_another_pair(box: Box) -> None:
    model, template = box.models / "a.gguf", box.models / "t.jinja"
    await asyncio.to_thread(write_gguf, model)
    write(template, "template")
    box.engine = replace(box.engine, profile=LLAMACPP)
    box.edit_pair("v2", artifacts=(model,))
    box.edit_file("v2", command=("-m", "/models/a.gguf", "--chat-template-file", "/models/t.jinja"))
    await box.record("v2")
    assert (await box.judge()).allowed
    flip(template)
    assert "never ran on this card as it is now" in only((await box.judge()).refusals)
    template.unlink()
    assert f"{template} does not exist" in only((await box.judge(trial=True)).refusals)


async def test_configuration_in_a_volume_is_refused_and_that_of_the_image_is_known_with_it(box: Box) -> None:
    model = box.models / "a.gguf"
    await asyncio.to_thread(write_gguf, model)
    box.engine = replace(box.engine, profile=LLAMACPP)
    box.edit_pair("v2", artifacts=(model,))
    recipe = box.edit_file("v2", command=("-m", "/models/a.gguf", "--grammar-file", "/etc/own/g"))
    assert (await box.judge(trial=True)).allowed
    volume = Mount("own", "/etc/own", read_only=True, kind="volume")
    box.edit_file("v2", mounts=(*recipe.mounts, volume))
    assert "is to read /etc/own/g, which no bind mount" in only((await box.judge(trial=True)).refusals)


async def test_the_artifact_that_a_variable_names_must_be_the_pairs(box: Box) -> None:
    box.edit_file("v2", command=("/entrypoint.sh",), env=(("NINFER_MODEL", f"/models/{FILES['v3']}"),))
    text = "; ".join(refusal.what for refusal in (await box.judge(trial=True)).refusals)
    assert f"names the artifact {box.models / FILES['v2']}, but" in text


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


async def test_what_the_subject_needs_and_cant_be_read_is_named(box: Box) -> None:
    spoil(box.models / FILES["v2"], "garbage")
    with pytest.raises(Fault, match=f"{box.models / FILES['v2']}: not a .ninfer file"):
        await box.checker.subject_of(box.engine, box.runtime.recipes["v2"], box.engine.pairs["v2"])
