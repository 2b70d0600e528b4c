"""Drift as the desk tells it: which pair of each engine, what its container is, and whether anything differs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from slotproxy.desk import Json
from slotproxy.refusal import Refusal
from swap.ports import Foreign, Unreachable
from tests.slotproxy.office import Office


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    with capture_logs():
        office = Office(tmp_path)
        yield office
    office.close()


async def one(office: Office, engine: str, pair: str | None = None) -> Json:
    """The drift of one engine; its answer must agree with what it says of the engine."""
    answer = await office.desk.drift.drift(engine, pair)
    (found,) = answer["engines"]
    assert answer["differs"] == found["differs"]
    return dict(found)


async def test_where_nothing_differs_every_engine_says_so(office: Office) -> None:
    async with office.serving():
        answer = await office.desk.drift.drift(None, None)
    assert [(found["label"], found["differs"]) for found in answer["engines"]] == [
        ("strata:current", False),
        ("ninfer:v2", False),
    ]
    assert answer["differs"] is False
    strata, ninfer = answer["engines"]
    assert (strata["status"], strata["created_as"], ninfer["status"]) == ("running", "strata:current", "created")
    assert strata["verified"]["how"] == "trial"


async def test_without_a_pair_it_is_the_one_on_the_card_else_the_deployed_one(office: Office) -> None:
    async with office.serving("ninfer:v3", verified=("ninfer:v3",)):
        assert (await one(office, "ninfer"))["label"] == "ninfer:v3"
        assert (await one(office, "ninfer", "v2"))["label"] == "ninfer:v2"
        assert (await one(office, "strata"))["label"] == "strata:current"


async def test_a_container_of_another_pair_is_named(office: Office) -> None:
    async with office.serving():
        office.ninfer.create(office.ninfer.recipes["v3"])
        found = await one(office, "ninfer")
    assert (found["label"], found["created_as"], found["differs"]) == ("ninfer:v2", "ninfer:v3", True)
    assert {row["severity"] for row in found["drift"]} == {"stale"}


async def test_an_edit_leaves_the_container_as_it_was_verified(office: Office) -> None:
    async with office.serving():
        office.ninfer.recipes["v2"] = replace(office.ninfer.recipes["v2"], user="7")
        found = await one(office, "ninfer")
    assert (found["created_as"], found["state"]) == ("ninfer:v2 as it was verified", "changed")
    (row,) = found["drift"]
    assert (row["field"], row["declared"], row["created"], row["verified"]) == ("user", "7", "(not set)", "(not set)")
    assert row["severity"] == "unproven"
    assert found["before"]["how"] == "trial"


async def test_what_was_never_verified_differs_though_no_field_does(office: Office) -> None:
    async with office.serving(verified=("strata:current",)):
        found = await one(office, "ninfer")
    assert (found["drift"], found["state"], found["differs"]) == ([], "candidate", True)


async def test_what_runs_otherwise_than_it_was_created_is_told(office: Office) -> None:
    async with office.serving():
        assert office.strata.sight.recipe is not None
        office.strata.live = replace(office.strata.sight.recipe, ports=("127.0.0.1:9->8095/tcp",))
        (row,) = (await one(office, "strata"))["drift"]
    assert (row["field"], row["running"]) == ("port 8095/tcp", "127.0.0.1:9")


async def test_a_verified_image_that_is_gone_is_told_so(office: Office) -> None:
    async with office.serving():
        recipe = office.ninfer.recipes["v2"]
        office.ninfer.gone.add(recipe.image_id)
        office.ninfer.recipes["v2"] = replace(recipe, image_id="sha256:" + "9" * 64)
        office.ninfer.create(office.ninfer.recipes["v2"])
        (row,) = (await one(office, "ninfer"))["drift"]
    assert row["verified"].endswith(", gone")
    assert "docker load" in row["mend"]


async def test_a_verified_image_that_is_there_under_another_id_is_told_by_that(office: Office) -> None:
    """It has served under two ids, and the one of the newer evidence was removed."""
    recipe = replace(office.ninfer.recipes["v2"], image_content="sha256:content")
    other = replace(recipe, image_id="sha256:" + "7" * 64)
    for one_of_them in (recipe, other):
        office.ninfer.recipes["v2"] = one_of_them
        await office.verify("ninfer:v2")
    office.ninfer.gone.add(other.image_id)
    rebuilt = replace(recipe, image_id="sha256:" + "9" * 64, image_content="sha256:rebuilt")
    office.ninfer.recipes["v2"] = rebuilt
    office.ninfer.create(rebuilt)
    async with office.serving(verified=("strata:current",)):
        (row,) = (await one(office, "ninfer"))["drift"]
    assert row["verified"] == f"ninfer:local ({recipe.image_id[7:19]})"
    assert f"`docker tag {recipe.image_id[7:19]} ninfer:local` takes it back" in row["mend"]


@pytest.mark.parametrize("gone", [False, True])
async def test_an_image_whose_name_is_gone_is_told_by_its_id_where_that_is_still_there(
    office: Office, gone: bool
) -> None:
    async with office.serving():
        recipe = office.ninfer.recipes.pop("v2")
        office.ninfer.gone |= {"ninfer:local", *([recipe.image_id] if gone else [])}
        found = await one(office, "ninfer", "v2")
        plan = await office.desk.plan("ninfer", "v2", trial=False)
    (row,) = found["drift"]
    assert plan["drift"] == [row]
    text = f"ninfer:local ({recipe.image_id[7:19]})"
    assert (row["field"], row["declared"], row["severity"]) == ("image", "ninfer:local (none)", "unproven")
    assert row["created"] == row["verified"] == f"{text}{', gone' * gone}"
    back = f"`docker tag {recipe.image_id[7:19]} ninfer:local` brings it back"
    assert row["mend"].startswith("it is gone: load it again" if gone else back)


async def test_the_image_of_another_pairs_container_is_never_offered_for_the_one_that_is_missing(
    office: Office,
) -> None:
    async with office.serving(verified=("strata:current",)):
        office.ninfer.create(office.ninfer.recipes["v3"])
        del office.ninfer.recipes["v2"]
        office.ninfer.gone.add("ninfer:local")
        (row,) = (await one(office, "ninfer", "v2"))["drift"]
    assert (row["created"], row["verified"]) == (None, None)
    assert "docker tag" not in row["mend"]


async def test_what_is_not_declared_for_another_reason_has_no_row(office: Office) -> None:
    async with office.serving():
        del office.ninfer.recipes["v2"]
        found = await one(office, "ninfer", "v2")
    assert (found["drift"], found["differs"]) == ([], True)
    assert "can't be resolved" in found["refusals"][0]["what"]


async def test_a_foreign_container_is_refused_and_named(office: Office) -> None:
    async with office.serving():
        office.ninfer.fail("look", Foreign("container ninfer-eval belongs to project other", "rename it"))
        found = await one(office, "ninfer")
    assert (found["status"], found["drift"], found["differs"]) == (None, [], True)
    assert found["refusals"][0]["what"] == "container ninfer-eval belongs to project other"


async def test_what_runs_that_cannot_be_told_now_spoils_nothing_else(office: Office) -> None:
    async with office.serving():
        office.strata.fail("running", Unreachable("Docker doesn't answer"))
        assert (await one(office, "strata"))["drift"] == []


async def test_where_docker_does_not_answer_it_is_not_asked_about_images_too(office: Office) -> None:
    async with office.serving():
        for call in ("look", "declared"):
            office.ninfer.fail(call, Unreachable("Docker doesn't answer (10 s)", passing=True))
        before = len(office.ninfer.calls)
        assert (await one(office, "ninfer"))["status"] is None
        assert "has_image" not in office.ninfer.calls[before:]


async def test_looking_changes_nothing(office: Office) -> None:
    async with office.serving():
        before = office.ninfer.sight, office.strata.sight, office.controller.state
        told = len(office.story)
        await office.desk.drift.drift(None, None)
        assert (office.ninfer.sight, office.strata.sight, office.controller.state) == before
        asked = {line.split()[1] for line in office.story[told:]}
    assert not asked & {"stage", "put_back", "recover", "start", "stop"}


async def test_an_unknown_engine_is_bad_usage(office: Office) -> None:
    async with office.serving():
        for engine, pair in (("gpt", None), ("ninfer", "v9")):
            with pytest.raises(Refusal) as refusal:
                await office.desk.drift.drift(engine, pair)
            assert refusal.value.code == 2
