"""What an operator is told of the differences between the declared and the created."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from swap.cells import aligned, shown
from swap.drift import Difference, differences, looks_secret, shown_line
from swap.ports import Mount, Recipe

OLD_ID, NEW_ID = "sha256:" + "a" * 64, "sha256:" + "b" * 64
CONTENT, OTHER = "sha256:" + "c" * 64, "sha256:" + "d" * 64
MODELS = Mount("/srv/models", "/models", read_only=True)
RECIPE = Recipe(
    image="ninfer:local",
    image_id=OLD_ID,
    image_content=CONTENT,
    entrypoint=("/init",),
    command=("ninfer-serve", "--model", "/models/v2.ninfer", "--max-context", "260000", "--kv-dtype", "fp8"),
    env=(("CUDA_VISIBLE_DEVICES", "0"), ("NINFER_API_KEY", "hunter2")),
    working_dir="/work",
    user="1000",
    mounts=(MODELS,),
    ports=("127.0.0.1:8095->8095/tcp",),
    devices=("nvidia gpu GPU-8f2c",),
    networks=("ninfer_default",),
    healthcheck="CMD true, every 10s",
    restart="no",
    stop_grace=60.0,
    init=True,
    config_hash="c0ffee",
    labels=(("team", "voice"),),
    image_labels=(("slotproxy.ninfer.reads", "2"),),
)
# what `differences` never looks at: the name alone (the content decides), what the id implies, what it isn't about;
# `image_content` is looked at with `image_id`, and has tests of its own
UNCOMPARED = {"image_content", "image", "image_labels", "contained"}
EDITS: dict[str, tuple[object, str, bool]] = {
    "image_id": (NEW_ID, "image id (the same content)", False),
    "entrypoint": (("/tini",), "entry point", True),
    "command": (("ninfer-serve",), "command", True),
    "env": ((("NINFER_API_KEY", "hunter2"),), "environment CUDA_VISIBLE_DEVICES", True),
    "working_dir": ("", "working directory", True),
    "user": ("0", "user", True),
    "mounts": ((replace(MODELS, read_only=False),), "mounts", True),
    "devices": (("nvidia gpu all",), "devices", True),
    "ports": ((), "ports", False),
    "networks": (("host",), "networks", False),
    "healthcheck": ("none", "healthcheck", False),
    "restart": ("always", "restart policy", False),
    "stop_grace": (None, "stop grace", False),
    "init": (False, "init", False),
    "labels": ((), "label team", False),
    "config_hash": ("decaf", "other settings (compose hash)", False),
}


def test_the_same_recipe_has_no_differences() -> None:
    assert differences(RECIPE, replace(RECIPE)) == ()


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_of_any_field_is_one_difference_of_its_kind(name: str) -> None:
    value, field, pair = EDITS[name]
    (difference,) = differences(replace(RECIPE, **{name: value}), RECIPE)  # type: ignore[arg-type]
    assert (difference.field, difference.pair) == (field, pair)
    assert difference.declared != difference.created


def test_no_field_of_a_recipe_is_forgotten() -> None:
    assert {field.name for field in fields(Recipe)} == EDITS.keys() | UNCOMPARED


def test_what_makes_another_pair_comes_first_the_image_before_all() -> None:
    edited = replace(RECIPE, **{name: value for name, (value, _, _) in EDITS.items()})  # type: ignore[arg-type]
    found = differences(replace(edited, image_content=OTHER), RECIPE)
    assert found[0].field == "image"
    assert [d.pair for d in found] == sorted((d.pair for d in found), reverse=True)


def test_the_hash_is_named_only_when_nothing_else_explains_it() -> None:
    edited = replace(RECIPE, config_hash="decaf", healthcheck="none")
    assert [d.field for d in differences(edited, RECIPE)] == ["healthcheck"]


def test_another_name_for_the_same_image_is_no_difference() -> None:
    assert differences(replace(RECIPE, image="ninfer:v2"), RECIPE) == ()


def test_another_id_with_the_same_content_is_the_same_pair_and_is_shown() -> None:
    (image,) = differences(replace(RECIPE, image_id=NEW_ID), RECIPE)
    assert image == Difference(
        "image id (the same content)", "ninfer:local (bbbbbbbbbbbb)", "ninfer:local (aaaaaaaaaaaa)", pair=False
    )


@pytest.mark.parametrize("contents", [(OTHER, CONTENT), ("", CONTENT), (CONTENT, ""), ("", "")])
def test_another_id_whose_content_is_another_or_gone_makes_another_pair(contents: tuple[str, str]) -> None:
    ours, theirs = contents
    declared = replace(RECIPE, image_id=NEW_ID, image_content=ours)
    (image,) = differences(declared, replace(RECIPE, image_content=theirs))
    assert (image.field, image.pair) == ("image", True)


def test_an_image_that_is_gone_is_still_the_one_of_its_id() -> None:
    assert differences(RECIPE, replace(RECIPE, image_content="")) == ()


def test_labels_are_compared_one_by_one_and_a_secret_is_hidden() -> None:
    edited = replace(RECIPE, labels=(("team", "voice"), ("api.token", "hunter2")))
    assert differences(edited, RECIPE) == (Difference("label api.token", "(hidden)", "(not set)", pair=False),)


def test_images_are_told_by_tag_and_short_id() -> None:
    (image,) = differences(replace(RECIPE, image="ninfer:v3", image_id=NEW_ID, image_content=OTHER), RECIPE)
    assert (image.declared, image.created) == ("ninfer:v3 (bbbbbbbbbbbb)", "ninfer:local (aaaaaaaaaaaa)")


def test_of_a_long_command_only_what_differs_is_shown_a_flag_with_its_value() -> None:
    words = list(RECIPE.command)
    words[4] = "131072"
    words[2:3] = ["/models/v3.ninfer"]
    found = differences(replace(RECIPE, command=tuple(words)), RECIPE)
    assert found == (
        Difference("command", "--model /models/v3.ninfer", "--model /models/v2.ninfer", pair=True),
        Difference("command", "--max-context 131072", "--max-context 260000", pair=True),
    )


def test_a_flag_that_was_added_stands_against_nothing() -> None:
    (flag,) = differences(replace(RECIPE, command=(*RECIPE.command, "--lm-head-draft")), RECIPE)
    assert (flag.declared, flag.created) == ("--lm-head-draft", "(not set)")


def test_variables_are_compared_one_by_one() -> None:
    found = differences(replace(RECIPE, env=(("CUDA_VISIBLE_DEVICES", "1"), ("NINFER_API_KEY", "hunter2"))), RECIPE)
    assert found == (Difference("environment CUDA_VISIBLE_DEVICES", "'1'", "'0'", pair=True),)


@pytest.mark.parametrize("value", ["hunter3", "", None])
def test_a_secret_is_seen_to_differ_and_never_shown(value: str | None) -> None:
    env = [("CUDA_VISIBLE_DEVICES", "0")] + ([] if value is None else [("NINFER_API_KEY", value)])
    (secret,) = differences(replace(RECIPE, env=tuple(env)), RECIPE)
    assert secret.declared != secret.created
    assert "hunter" not in f"{secret}"


@pytest.mark.parametrize("style", ["--api-key={}", "--api-key {}"])
def test_a_secret_on_the_command_line_is_hidden_too(style: str) -> None:
    ours, theirs = (("serve", *style.format(key).split(), "--x") for key in ("hunter2", "hunter3"))
    (secret,) = differences(replace(RECIPE, command=ours), replace(RECIPE, command=theirs))
    assert secret.declared != secret.created
    assert "--api-key" in secret.declared
    assert "hunter" not in f"{secret}"


def test_a_secret_that_looks_like_a_name_and_a_value_is_hidden_whole() -> None:
    one, other = (replace(RECIPE, command=("serve", "--api-key", f"aKEY{n}==")) for n in "12")
    assert "aKEY" not in f"{differences(one, other)}"


@pytest.mark.parametrize(
    ("name", "secret"),
    [("API_KEY", True), ("HF_TOKEN", True), ("db_password", True), ("--draft-tokens", False), ("MAX_TOKENS", False)],
)
def test_what_looks_secret(name: str, secret: bool) -> None:
    assert looks_secret(name) is secret


@pytest.mark.parametrize(
    "name", ["HF_AUTH", "DB_PASSWD", "MYPASS", "AWS_CREDENTIALS", "GITHUB_PAT", "PGPWD", "basicauth.users", "--bearer"]
)
def test_other_names_of_secrets(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize("name", ["PATH", "--passes", "--tokenizer", "--passthrough", "DISPATCH"])
def test_names_that_only_resemble_those_of_secrets(name: str) -> None:
    assert not looks_secret(name)


@pytest.mark.parametrize(
    "text",
    [
        "CMD curl -H Authorization: Bearer hunter2 http://localhost/",
        "CMD curl -H 'X-Api-Key: hunter2' http://localhost/",
        "postgres://user:hunter2@host/db",
        '{"api_key": "hunter2"}',
        "API_KEY=hunter2 exec ninfer-serve",
    ],
)
def test_secrets_within_a_text_are_hidden_wherever_it_is_shown(text: str) -> None:
    for changed in (
        replace(RECIPE, healthcheck=text),
        replace(RECIPE, env=(*RECIPE.env, ("URL", text))),
        replace(RECIPE, command=("sh", "-c", text)),
        replace(RECIPE, labels=(("check", text),)),
    ):
        found = differences(changed, RECIPE)
        assert found
        assert "hunter" not in f"{found}"
        told = [cell for one in aligned({"declared": changed}) for cell in shown([*one.cells.values()])]
        assert "hunter" not in f"{told}"


def test_a_text_whose_secret_alone_differs_is_seen_to_differ() -> None:
    one, other = (replace(RECIPE, healthcheck=f"CMD curl http://u:{word}@localhost/") for word in ("hunter2", "x"))
    (found,) = differences(one, other)
    assert (found.declared, found.created) == (
        "CMD curl http://(hidden)@localhost/",
        "CMD curl http://(hidden, another value)@localhost/",
    )


def test_a_command_line_is_shown_word_by_word_without_its_secrets() -> None:
    line = shown_line(["serve", "--api-key", "hunter2", "--hf-token=hunter3", "--draft-tokens", "3", "a b"])
    assert line == ["serve", "--api-key", "(hidden)", "--hf-token=(hidden)", "--draft-tokens", "3", "a b"]
