"""Four sides of an engine: where they differ, in which words, how bad it is, and what would mend it."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from engines.profiles import PROFILES
from engines.spec import ComposeService, Engine, GiB, Pair
from swap.checks import Verdict
from swap.ledger import key
from swap.ports import Evidence, FileDigest, Mount, Outcome, Recipe, Sight, Status, Subject
from swap.sides import Facts, Row, Severity, rows
from swap.standing import Standing, subject_differences
from swap.statement import mask_argv, mask_env, mask_recipe
from tests.swap.fakes import REAL

OLD, NEW = "sha256:" + "a" * 64, "sha256:" + "b" * 64
CONTENT, OTHER = "sha256:" + "c" * 64, "sha256:" + "d" * 64
MODELS = Mount("/srv/models", "/models", read_only=True)
RECIPE = Recipe(
    image="ninfer:local",
    image_id=OLD,
    image_content=CONTENT,
    entrypoint=("/init",),
    command=("ninfer-serve", "--model", "/models/v2.ninfer", "--max-context", "260000", "--lm-head-draft"),
    env=(("CUDA_VISIBLE_DEVICES", "0"), ("NINFER_API_KEY", "hunter2")),
    working_dir="/work",
    user="1000",
    mounts=(MODELS,),
    ports=("127.0.0.1:8095->8095/tcp",),
    devices=("nvidia gpu GPU-8f2c",),
    networks=("ninfer_default",),
    healthcheck="CMD true, every 10s",
    stop_grace=60.0,
    init=True,
    config_hash="c0ffee",
    labels=(("team", "voice"),),
)
REBUILT: dict[str, Any] = {"image_id": NEW, "image_content": OTHER}
EDITS: dict[str, tuple[dict[str, Any], str, Severity]] = {
    "image_id": ({"image_id": NEW}, "image id (the same content)", Severity.COSMETIC),
    "image_content": (REBUILT, "image tag moved", Severity.STALE),
    "entrypoint": ({"entrypoint": ("/tini",)}, "entry point", Severity.STALE),
    "command": ({"command": RECIPE.command[:-1]}, "command", Severity.STALE),
    "env": ({"env": RECIPE.env[1:]}, "environment CUDA_VISIBLE_DEVICES", Severity.STALE),
    "working_dir": ({"working_dir": ""}, "working directory", Severity.STALE),
    "user": ({"user": "0"}, "user", Severity.STALE),
    "mounts": ({"mounts": (replace(MODELS, read_only=False),)}, "mount /models", Severity.STALE),
    "devices": ({"devices": ("nvidia gpu all",)}, "devices", Severity.STALE),
    "ports": ({"ports": ()}, "port 8095/tcp", Severity.BESIDE),
    "networks": ({"networks": ("host",)}, "networks", Severity.BESIDE),
    "healthcheck": ({"healthcheck": "none"}, "healthcheck", Severity.BESIDE),
    "restart": ({"restart": "always"}, "restart policy", Severity.BLOCKS),
    "stop_grace": ({"stop_grace": None}, "stop grace", Severity.BESIDE),
    "init": ({"init": False}, "init", Severity.BESIDE),
    "labels": ({"labels": ()}, "label team", Severity.COSMETIC),
    "config_hash": ({"config_hash": "decaf"}, "other settings (compose hash)", Severity.BESIDE),
}
UNCOMPARED = {"image", "image_labels", "contained"}  # the name alone, what the image implies, what it isn't about
V2 = FileDigest("/srv/models/v2.ninfer", 4096, "1" * 64)


def table(
    declared: Recipe = RECIPE,
    created: Recipe | None = RECIPE,
    verified: Recipe | None = None,
    *,
    running: Recipe | None = None,
    gone: tuple[str, ...] = (),
    files: tuple[FileDigest, ...] = (V2,),
    verified_files: tuple[FileDigest, ...] = (V2,),
    tag_id: str = "",
    by_compose: bool = True,
    recorded: bool = True,
) -> tuple[Row, ...]:
    """The rows for ninfer:v2. `verified`: what served under this name; None: nothing did."""
    status = Status.ABSENT if created is None else Status.EXITED if running is None else Status.RUNNING
    subject, known = subject_of(declared, files), None
    if verified is not None:
        known = standing(verified, verified_files, subject, recorded=recorded)
    verdict = Verdict(
        "ninfer",
        "v2",
        "ninfer:v2",
        declared=declared,
        sight=Sight(status, id="c0ffee", recipe=created, tag_id=tag_id),
        subject=subject,
        standing=known,
    )
    return rows(verdict, engine(by_compose=by_compose), Facts(running, frozenset(gone)))


def standing(verified: Recipe, files: tuple[FileDigest, ...], now: Subject, *, recorded: bool) -> Standing:
    """As the ledger would tell: its recipe has no secrets in it, or wasn't `recorded` at all."""
    was = subject_of(verified, files)
    recipe = mask_recipe(verified) if recorded else None
    line = Evidence(was, key(was), Outcome.SERVED, "ninfer:v2", "2026-01-02", "trial", REAL, recipe=recipe)
    if key(was) == key(now):
        return Standing(served=line)
    return Standing(before=line, changed=tuple(subject_differences(was, now)))


def subject_of(recipe: Recipe, files: tuple[FileDigest, ...]) -> Subject:
    return Subject(
        engine="ninfer",
        image_id=recipe.image_id,
        image_content=recipe.image_content,
        argv=mask_argv(recipe.argv),
        env=mask_env(recipe.env),
        files=files,
        working_dir=recipe.working_dir,
        user=recipe.user,
        mounts=recipe.mounts,
        devices=recipe.devices,
    )


def engine(*, by_compose: bool = True) -> Engine:
    return Engine(
        name="ninfer",
        profile=PROFILES["ninfer"],
        url="http://127.0.0.1:8095",
        vram=GiB,
        pairs={"v2": Pair("ninfer", "v2", "ninfer:local", ())},
        deployed="v2",
        container="ninfer-eval",
        compose=ComposeService(Path("/srv/docker-compose.yml"), "ninfer-eval") if by_compose else None,
    )


def only(found: tuple[Row, ...]) -> Row:
    (row,) = found
    return row


# ------------------------------------------------------------------------------------------------- every field


def test_what_is_the_same_on_all_sides_has_no_rows() -> None:
    assert table() == ()
    assert table(RECIPE, RECIPE, RECIPE, running=RECIPE) == ()


@pytest.mark.parametrize("name", EDITS)
def test_a_container_that_differs_in_any_field_is_one_row_of_its_kind(name: str) -> None:
    edit, field, severity = EDITS[name]
    row = only(table(created=replace(RECIPE, **edit)))
    assert (row.field, row.severity) == (field, severity)
    assert row.declared != row.created
    assert (row.running, row.verified) == (None, None)
    assert row.mend


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("name", EDITS)
def test_what_is_declared_otherwise_than_verified_counts_just_where_the_ledger_has_another_key(
    name: str, recorded: bool
) -> None:
    edited = replace(RECIPE, **EDITS[name][0])
    found = table(edited, edited, RECIPE, recorded=recorded)
    another = key(subject_of(edited, ())) != key(subject_of(RECIPE, ()))
    severities = {row.severity for row in found} - {Severity.BLOCKS, Severity.BESIDE}
    assert severities == ({Severity.UNPROVEN} if another else set())
    assert all(row.trial == "slotctl swap to-ninfer:v2 --trial" for row in found if row.severity is Severity.UNPROVEN)


def test_no_field_of_a_recipe_is_forgotten() -> None:
    assert {field.name for field in fields(Recipe)} == EDITS.keys() | UNCOMPARED


def test_the_worst_comes_first() -> None:
    every = {name: value for edit, _, _ in EDITS.values() for name, value in edit.items()}
    found = table(created=replace(RECIPE, **every), verified=replace(RECIPE, user="7"))
    order = [list(Severity).index(row.severity) for row in found]
    assert order == sorted(order)
    assert {row.severity for row in found} == set(Severity)
    assert "other settings (compose hash)" not in {row.field for row in found}  # the other rows explain it


def test_settings_that_no_field_shows_are_told_where_they_were_others_when_it_served() -> None:
    edited = replace(RECIPE, config_hash="decaf")
    (row,) = table(edited, edited, RECIPE)
    assert (row.field, row.severity) == ("other settings (compose hash)", Severity.BESIDE)
    assert (row.declared, row.created, row.verified) == ("decaf", "decaf", "c0ffee")
    assert "when it served" in row.mend


@pytest.mark.parametrize("verified", [{"healthcheck": "none"}, {"image": "ninfer:old"}, {"config_hash": ""}])
def test_a_hash_that_another_field_explains_or_that_wasnt_recorded_says_nothing(verified: dict[str, Any]) -> None:
    edited = replace(RECIPE, config_hash="decaf")
    assert table(edited, edited, replace(RECIPE, **verified)) == ()


# ------------------------------------------------------------------------------------------------- the words


def test_of_a_command_line_each_flag_that_differs_is_told_with_its_value_on_every_side() -> None:
    edited = replace(RECIPE, command=(*RECIPE.command[:4], "131072", "--new"))
    first, second, third = table(edited, RECIPE, RECIPE)
    assert (first.field, first.declared, first.created, first.verified) == (
        "command",
        "--max-context 131072",
        "--max-context 260000",
        "--max-context 260000",
    )
    assert {(row.declared, row.created) for row in (second, third)} == {
        ("--new", "(not set)"),
        ("(not set)", "--lm-head-draft"),
    }


def test_an_entry_point_that_there_is_not_stands_against_nothing() -> None:
    row = only(table(replace(RECIPE, entrypoint=())))
    assert (row.field, row.declared, row.created) == ("entry point", "(not set)", "/init")


def test_words_in_another_order_are_another_command_line() -> None:
    turned = replace(RECIPE, command=("ninfer-serve", "--lm-head-draft", *RECIPE.command[1:5]))
    row = only(table(turned))
    assert row.field == "order of the command"
    assert row.declared == "ninfer-serve --lm-head-draft --model /models/v2.ninfer --max-context 260000"


def test_a_word_that_is_given_twice_is_told_twice() -> None:
    twice = replace(RECIPE, command=("serve", "-o", "1", "-o", "2"))
    row = only(table(twice, replace(twice, command=("serve", "-o", "1", "-o", "3"))))
    assert (row.declared, row.created) == ("-o 2", "-o 3")


def test_a_secret_is_seen_to_differ_on_each_side_and_never_shown() -> None:
    ours = replace(RECIPE, env=(("NINFER_API_KEY", "hunter3"),), command=("serve", "--hf-token", "hunter4"))
    theirs = replace(RECIPE, env=(("NINFER_API_KEY", "hunter2"),), command=("serve", "--hf-token", "hunter5"))
    found = table(ours, theirs, theirs)
    told = {row.field: (row.declared, row.created, row.verified) for row in found}
    other = "(hidden, another value)"
    assert told == {
        "environment NINFER_API_KEY": ("(hidden)", other, other),
        "command": ("--hf-token (hidden)", f"--hf-token {other}", f"--hf-token {other}"),
    }
    assert "hunter" not in f"{found}"


def test_the_same_secret_in_the_ledger_is_no_difference() -> None:
    assert table(RECIPE, RECIPE, replace(RECIPE, user="7"))[0].field == "user"
    assert len(table(RECIPE, RECIPE, replace(RECIPE, user="7"))) == 1


def test_a_mount_is_told_by_its_place_in_the_container() -> None:
    moved = replace(RECIPE, mounts=(replace(MODELS, source="/mnt/models"), Mount("/srv/x", "/x", read_only=False)))
    found = {row.field: (row.declared, row.created) for row in table(moved)}
    assert found == {
        "mount /models": ("/mnt/models → /models (read-only)", "/srv/models → /models (read-only)"),
        "mount /x": ("/srv/x → /x", "(not set)"),
    }


def test_where_a_file_lies_on_the_host_is_nothing_that_evidence_is_about() -> None:
    elsewhere = replace(RECIPE, mounts=(replace(MODELS, source="/mnt/models"),))
    there = replace(V2, path="/mnt/models/v2.ninfer")
    assert table(elsewhere, elsewhere, RECIPE, files=(there,)) == ()
    edited = replace(elsewhere, user="7")
    assert only(table(edited, edited, RECIPE, files=(there,))).field == "user"
    row = only(table(elsewhere, RECIPE, RECIPE, files=(there,)))
    assert (row.field, row.severity) == ("mount /models", Severity.STALE)


# ------------------------------------------------------------------------------------------------- mends


def test_a_stopped_container_is_staged_now_or_by_the_next_swap_one_that_runs_by_the_swap_alone() -> None:
    edited = replace(RECIPE, healthcheck="none")
    assert "`slotctl stage ninfer:v2` now" in only(table(edited)).mend
    assert "slotctl stage" not in only(table(edited, running=RECIPE)).mend
    assert "by hand" in only(table(edited, by_compose=False)).mend


def test_a_restart_policy_says_how_to_take_it_away_where_it_is() -> None:
    kept = only(table(created=replace(RECIPE, restart="always")))
    assert (kept.declared, kept.created) == ("no", "always")
    assert "`docker update --restart=no ninfer-eval`" in kept.mend
    always = replace(RECIPE, restart="always")
    declared = only(table(always, always))
    assert 'set `restart: "no"` for service ninfer-eval of /srv/docker-compose.yml' in declared.mend


def test_no_container_is_a_row() -> None:
    row = only(table(created=None))
    assert (row.field, row.declared, row.created) == ("container", "ninfer-eval", "(none)")
    assert "slotctl stage ninfer:v2" in row.mend


# ------------------------------------------------------------------------------------------------- images


def test_a_moved_tag_is_told_with_both_ids_and_how_to_take_it_back() -> None:
    row = only(table(replace(RECIPE, **REBUILT), RECIPE, RECIPE))
    assert (row.field, row.severity) == ("image tag moved", Severity.UNPROVEN)
    assert (row.declared, row.created) == ("ninfer:local (bbbbbbbbbbbb)", "ninfer:local (aaaaaaaaaaaa)")
    assert row.verified == row.created
    assert "`docker tag aaaaaaaaaaaa ninfer:local` takes it back" in row.mend
    assert row.trial == "slotctl swap to-ninfer:v2 --trial"


def test_a_moved_tag_whose_new_image_is_verified_is_only_staged() -> None:
    rebuilt = replace(RECIPE, **REBUILT)
    row = only(table(rebuilt, RECIPE, rebuilt))
    assert (row.field, row.severity) == ("image tag moved", Severity.STALE)
    assert "docker tag" not in row.mend


def test_a_verified_image_that_is_gone_cannot_be_taken_back() -> None:
    rebuilt = replace(RECIPE, **REBUILT)
    row = only(table(rebuilt, rebuilt, RECIPE, gone=(OLD,)))
    assert row.verified == "ninfer:local (aaaaaaaaaaaa), gone"
    assert "the verified image is gone: load it again (`docker load`)" in row.mend


def test_another_image_by_another_name_is_no_moved_tag() -> None:
    row = only(table(replace(RECIPE, image="ninfer:v3", **REBUILT), RECIPE))
    assert (row.field, row.declared) == ("image", "ninfer:v3 (bbbbbbbbbbbb)")


def test_the_same_content_under_another_id_is_verified_and_cosmetic() -> None:
    row = only(table(replace(RECIPE, image_id=NEW), RECIPE, RECIPE))
    assert (row.field, row.severity) == ("image id (the same content)", Severity.COSMETIC)


def test_without_a_compose_file_the_tag_alone_tells_that_it_moved() -> None:
    assert table(tag_id=OLD, by_compose=False) == ()
    row = only(table(tag_id=NEW, by_compose=False))
    assert (row.field, row.declared, row.created) == (
        "image tag moved",
        "ninfer:local (bbbbbbbbbbbb)",
        "ninfer:local (aaaaaaaaaaaa)",
    )


# ------------------------------------------------------------------------------------------------- running


def test_what_was_changed_while_it_runs_is_a_row_that_a_restart_mends() -> None:
    row = only(table(running=replace(RECIPE, ports=())))
    assert (row.field, row.created, row.running) == ("port 8095/tcp", "127.0.0.1:8095", "(not set)")
    assert "swap to another engine, then to ninfer:v2" in row.mend


# ------------------------------------------------------------------------------------------------- files


def test_other_bytes_are_a_row_beside_the_verified_ones_which_would_mend_it() -> None:
    row = only(table(verified=RECIPE, files=(replace(V2, sha256="2" * 64),)))
    assert (row.field, row.severity) == ("file v2.ninfer", Severity.UNPROVEN)
    assert row.declared == "sha256:222222222222 4,096 bytes"
    assert row.verified == "sha256:111111111111 4,096 bytes"
    assert f"put the verified bytes back (sha256:{V2.sha256})" in row.mend


def test_other_bytes_at_another_place_are_told_with_both_places() -> None:
    row = only(table(verified=RECIPE, files=(replace(V2, path="/mnt/v9.ninfer", sha256="2" * 64),)))
    assert (row.field, row.declared) == ("file v9.ninfer", "sha256:222222222222 4,096 bytes /mnt/v9.ninfer")
    assert row.verified == "sha256:111111111111 4,096 bytes /srv/models/v2.ninfer"


def test_the_same_bytes_elsewhere_are_no_row() -> None:
    assert table(verified=RECIPE, files=(replace(V2, path="/mnt/other.ninfer"),)) == ()


def test_files_that_were_added_taken_away_or_turned_are_rows() -> None:
    second = FileDigest("/srv/models/draft.ninfer", 10, "3" * 64)
    more = only(table(verified=RECIPE, files=(V2, second)))
    assert (more.field, more.verified) == ("file draft.ninfer", "(none)")
    less = only(table(verified=RECIPE, files=(V2,), verified_files=(V2, second)))
    assert (less.field, less.declared) == ("file draft.ninfer", "(none)")
    turned = only(table(verified=RECIPE, files=(second, V2), verified_files=(V2, second)))
    assert turned.field == "order of the files, number 1"


def test_a_file_is_compared_with_its_successor_at_the_same_place() -> None:
    second, third = FileDigest("/srv/b", 10, "3" * 64), FileDigest("/srv/c", 10, "4" * 64)
    now = (replace(second, sha256="5" * 64), replace(third, sha256="6" * 64))
    found = table(verified=RECIPE, files=now[::-1], verified_files=(second, third))
    assert {(row.field, row.verified) for row in found} == {
        ("file b", "sha256:333333333333 10 bytes"),
        ("file c", "sha256:444444444444 10 bytes"),
    }
