"""Evidence is of the files that were there when the engine read them: the same before the start, after it, when hashed.

The artifact is reached through two symlinks, as in a folder of downloads.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from swap import adoption
from swap.hashing import links
from swap.moves import Code
from swap.ports import Outcome
from tests.simulated_time import in_simulated_time
from tests.swap.world import FILES, World, until


class Shelf:
    """`path` is what the pair names → `current` → `file`; `copy` has the same bytes and has been hashed, too."""

    def __init__(self, world: World) -> None:
        self.path = world.folder / "models" / FILES["v2"]
        shelf = world.folder / "models" / "shelf"
        shelf.mkdir()
        self.file, self.copy, self.current = shelf / "a.ninfer", shelf / "b.ninfer", shelf / "current"
        self.path.rename(self.file)
        shutil.copyfile(self.file, self.copy)
        self.current.symlink_to(self.file.name)
        self.path.symlink_to("shelf/current")

    def other_bytes(self) -> None:
        self.file.write_bytes(self.file.read_bytes() + b"more")

    def the_same_bytes_anew(self) -> None:
        anew = self.file.with_suffix(".new")
        shutil.copyfile(self.file, anew)
        anew.replace(self.file)

    def touched(self) -> None:
        os.utime(self.file, ns=(0, 1))

    def a_link_moved_to_the_same_bytes(self) -> None:
        self.current.unlink()
        self.current.symlink_to(self.copy.name)

    def a_link_moved_and_moved_back(self) -> None:
        self.a_link_moved_to_the_same_bytes()
        self.current.unlink()
        self.current.symlink_to(self.file.name)


REPLACED: list[Callable[[Shelf], None]] = [
    Shelf.other_bytes,
    Shelf.the_same_bytes_anew,
    Shelf.touched,
    Shelf.a_link_moved_to_the_same_bytes,
    Shelf.a_link_moved_and_moved_back,
]


@pytest.fixture
def shelf(world: World) -> Shelf:
    return Shelf(world)


@in_simulated_time
async def test_what_stays_as_it_is_gets_its_evidence(world: World, shelf: Shelf) -> None:
    async with world.serving(verified=("strata:current",)):
        assert (await world.swap("ninfer", trial=True)).code == Code.SERVES
    assert world.evidence_of("ninfer:v2") == [Outcome.SERVED]


@in_simulated_time
@pytest.mark.parametrize("replaced", REPLACED)
async def test_what_is_replaced_between_the_check_and_the_start_is_not_started(
    world: World, shelf: Shelf, replaced: Callable[[Shelf], None]
) -> None:
    async with world.serving(verified=("strata:current",)):
        await world.checker._hasher.digest(shelf.copy)
        world.when("strata stop [stop]", lambda: replaced(shelf))
        ended = await world.swap("ninfer", trial=True)
        assert (ended.code, ended.serving) == (Code.RESTORED, "strata:current")
        assert f"{shelf.path} changed since ninfer:v2 was checked; swap to it again when nobody writes" in ended.text
    assert world.evidence_of("ninfer:v2") == []
    assert "ninfer start [start]" not in world.happened


@in_simulated_time
@pytest.mark.parametrize("replaced", REPLACED)
@pytest.mark.parametrize("moment", ["as it starts", "while it loads", "while it generates"])
async def test_what_is_replaced_between_the_start_and_the_proof_serves_without_evidence(
    world: World, shelf: Shelf, moment: str, replaced: Callable[[Shelf], None]
) -> None:
    def once_it_generates(_: str) -> None:
        if world.readiness.generated or moment == "while it loads":
            world.readiness.asked = lambda _: None
            replaced(shelf)

    async with world.serving(verified=("strata:current",)):
        await world.checker._hasher.digest(shelf.copy)
        if moment == "as it starts":
            world.when("ninfer start [start]", lambda: replaced(shelf))
        else:
            world.when("ninfer start [start]", lambda: setattr(world.readiness, "asked", once_it_generates))
        ended = await world.swap("ninfer", trial=True)
        assert (ended.code, ended.serving) == (Code.SERVES, "ninfer:v2")
        assert f"no evidence was written: {shelf.path} changed since it was checked" in ended.text
        assert "swap to another engine, and with --trial to it again when nobody writes its files" in ended.text
    assert world.evidence_of("ninfer:v2") == []


@in_simulated_time
async def test_that_the_new_file_is_hashed_meanwhile_makes_it_no_file_that_was_read(world: World, shelf: Shelf) -> None:
    """By a plan, say, while the engine loads: the same bytes, and now they are known."""

    async def copied_and_known() -> None:
        shelf.the_same_bytes_anew()
        await world.checker._hasher.digest(shelf.path)

    generates = world.readiness.generates

    async def meanwhile(*what: object) -> object:
        await copied_and_known()
        return await generates(*what)  # type: ignore[arg-type]  # as it was called

    async with world.serving(verified=("strata:current",)):
        world.readiness.generates = meanwhile  # type: ignore[method-assign,assignment]
        ended = await world.swap("ninfer", trial=True)
        assert ended.code == Code.SERVES
        assert "no evidence was written" in ended.text
    assert world.evidence_of("ninfer:v2") == []


# ------------------------------------------------------------------------------------------------- the way to a file


def test_every_link_on_the_way_is_found_also_those_that_links_lead_to(tmp_path: Path) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "real" / "deep" / "file").write_bytes(b"x")
    (tmp_path / "folder").symlink_to("real")
    (tmp_path / "real" / "alias").symlink_to("../folder/deep/file")
    (tmp_path / "name").symlink_to(tmp_path / "folder" / "alias")
    assert links(tmp_path / "name") == (
        tmp_path / "name",
        tmp_path / "folder",
        tmp_path / "real" / "alias",
        tmp_path / "folder",
    )
    assert links(tmp_path / "real" / "deep" / "file") == ()


def test_links_that_lead_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert len(links(tmp_path / "a")) == 40


# ------------------------------------------------------------------------------------------------- started by others


@in_simulated_time
@pytest.mark.parametrize("changed", [False, True])
async def test_what_was_started_by_hand_is_proven_only_with_files_older_than_its_start(
    world: World, monkeypatch: pytest.MonkeyPatch, *, changed: bool
) -> None:
    """It is warmed, never started by us: nobody has looked at its files before it read them."""
    monkeypatch.setattr(adoption, "MARGIN", 0.0)
    world.default = None
    world.rebuild()
    shelf = Shelf(world)
    async with world.running(verified=()):
        if changed:
            world.when("ninfer look", shelf.other_bytes)  # it has read, and we are about to see that it is up
        world.ninfer.run(world.ninfer.recipes["v2"])
        await until(lambda: "ninfer:v2 was started by hand and isn't verified" in world.gate.state)
        ended = await world.swap("ninfer:v2", trial=True)
        assert ended.code == Code.SERVES
        assert ("no evidence was written" in ended.text) is changed
    assert "ninfer start [start]" not in world.happened
    proof = [] if changed else [(Outcome.SERVED, None)]
    assert [(one.outcome, one.ready_in) for one in world.ledger.evidence()] == proof
