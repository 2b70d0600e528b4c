"""Images that evidence names are kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from swap.kept import PAUSES, image_gone, keep_proven, kept_name, proven, replaced_tag
from swap.ports import CannotStage, Evidence, Outcome, Subject, Unreachable
from tests.simulated_time import in_simulated_time
from tests.swap.fakes import REAL, SIMULATED, FakeCard, FakeLedger, FakeRuntime
from tests.swap.world import GONE, World, until

OLD, NEW = "sha256:" + "a1" * 32, "sha256:" + "b2" * 32


def line(image_id: str, outcome: Outcome = Outcome.SERVED, how: str = "trial", engine: str = "ninfer") -> Evidence:
    subject = Subject(engine, image_id, ("serve",), (), ())
    return Evidence(subject, "", outcome, f"{engine}:v2", "2026-01-02T03:04:05Z", how, REAL)


def book(*lines: Evidence) -> tuple[Evidence, ...]:
    return FakeLedger(*lines).evidence()


def test_a_kept_image_is_named_by_its_engine_and_its_id() -> None:
    assert kept_name("ninfer", OLD) == "slotproxy-kept:ninfer-a1a1a1a1a1a1"
    assert replaced_tag("ninfer") == "ninfer-replaced"
    assert kept_name("ni/ nfer:é", OLD) == "slotproxy-kept:ni__nfer__-a1a1a1a1a1a1"


def test_only_what_served_and_isnt_revoked_is_proven_the_newest_first() -> None:
    lines = book(line(OLD), line(NEW), line("sha256:c3", Outcome.FAILED), line("sha256:d4", Outcome.ATTESTED))
    assert [one.subject.image_id for one in proven(lines)] == [NEW, OLD]
    revoked = book(*lines, line(NEW, Outcome.REVOKED, "operator"))
    assert [one.subject.image_id for one in proven(revoked)] == [OLD]
    assert [one.subject.image_id for one in proven(book(*revoked, line(NEW)))] == [NEW, OLD]
    assert len(proven(book(replace(line(OLD), card=SIMULATED)))) == 1


def test_the_ledger_is_walked_once_however_many_subjects_it_has() -> None:
    class Walked(tuple[Evidence, ...]):
        times = 0

        def __iter__(self) -> Iterator[Evidence]:
            Walked.times += 1
            return super().__iter__()

    lines = Walked(book(*(line(f"sha256:{n}") for n in range(9))))
    assert len(proven(lines)) == 9
    assert Walked.times == 1


@pytest.fixture
def ninfer() -> FakeRuntime:
    return FakeRuntime("ninfer", FakeCard(), {})


@in_simulated_time
async def test_every_proven_image_of_a_configured_engine_is_kept_once(ninfer: FakeRuntime) -> None:
    lines = book(line(OLD), line(NEW), line(OLD), line("sha256:e5", engine="vllm"), line("sha256:f6", Outcome.FAILED))
    await keep_proven({"ninfer": ninfer}, lines)
    assert ninfer.kept == [OLD, NEW]


@in_simulated_time
async def test_an_image_that_cant_be_kept_is_tried_again_and_told_once(world: World) -> None:
    world.ninfer.fail("keep", Unreachable("Docker is gone", passing=True), times=3)
    await keep_proven({"ninfer": world.ninfer}, book(line(OLD), line(NEW)))
    assert sorted(world.ninfer.kept) == sorted([OLD, NEW])
    assert [entry["image"] for entry in world.logs if "couldn't be kept" in entry["event"]] == [NEW, OLD]


@in_simulated_time
async def test_an_image_that_can_never_be_kept_is_left_in_the_end(world: World) -> None:
    world.ninfer.fail("keep", CannotStage("the disk is full"), times=len(PAUSES) + 1)
    await keep_proven({"ninfer": world.ninfer}, book(line(OLD)))
    assert world.ninfer.kept == []
    (told,) = [entry for entry in world.logs if "couldn't be kept" in entry["event"]]
    assert told["why"] == "the disk is full"


@in_simulated_time
async def test_a_docker_that_hangs_over_one_image_holds_up_the_others_for_a_while_only(world: World) -> None:
    world.ninfer.hang("keep")
    await keep_proven({"ninfer": world.ninfer, "strata": world.strata}, book(line(OLD), line(NEW, engine="strata")))
    assert world.strata.kept == [NEW]


@in_simulated_time
async def test_the_image_of_what_has_just_proven_itself_is_kept(world: World) -> None:
    async with world.serving(verified=("strata:current",)):
        assert world.ninfer.kept == []
        world.ninfer.fail("keep", GONE)  # that changes nothing for the swap
        ended = await world.swap("ninfer:v2", trial=True)
        assert ended.code == 0
        await until(lambda: world.ninfer.kept == [world.ninfer.recipes["v2"].image_id])
        world.strata.kept.clear()
        world.strata.exits_on_start = 1
        assert (await world.swap("strata:current")).code == 4
        assert world.strata.kept == []  # a failure proves nothing


async def test_the_newest_proof_of_a_name_says_which_image_must_be_there(ninfer: FakeRuntime) -> None:
    lines = book(line(OLD), line(NEW))
    ninfer.gone.add(OLD)
    assert await image_gone(ninfer, lines, "ninfer:v2") is False
    ninfer.gone.add(NEW)
    assert await image_gone(ninfer, lines, "ninfer:v2") is True
    assert await image_gone(ninfer, lines, "ninfer:v3") is False
    ninfer.fail("has_image", GONE)
    assert await image_gone(ninfer, lines, "ninfer:v2") is None


async def test_a_bug_while_images_are_kept_ends_nobody_who_runs_beside_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def breaks(image_id: str) -> None:
        raise KeyError(image_id)

    monkeypatch.setattr(world.ninfer, "keep", breaks)
    await keep_proven({"ninfer": world.ninfer}, book(line(OLD)))
    assert [entry["event"] for entry in world.logs] == ["keeping images broke"]
