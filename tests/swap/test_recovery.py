"""What an interrupted staging left: which mend fits which scene, and that it is asked for before the first look."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from swap.creation import NEVER, Creation, CreationFile, UnderWay
from swap.dockerd import Docker, Inspection
from swap.moves import Code
from swap.ports import CannotStage, Sight, Status, Unfinished
from swap.recovery import Mend, Recovery, Scene, mend_of
from swap.remaking import Remaking
from tests.simulated_time import in_simulated_time
from tests.swap.world import GONE, World, until

SAID = "ninfer-1 was made again as it was before an interrupted staging"


def _container(id: str, name: str = "ninfer", *, greeting: str = "old", **state: Any) -> dict[str, Any]:
    labels = {"com.docker.compose.project": "p", "com.docker.compose.service": "ninfer"}
    return {
        "Id": id * 64,
        "Name": f"/{name}",
        "Image": "sha256:1",
        "State": {"Running": False, "Status": "created", "StartedAt": NEVER, **state},
        "Config": {"Image": "ninfer:local", "Env": [f"GREETING={greeting}"], "Labels": labels},
        "HostConfig": {"NetworkMode": "none"},
        "NetworkSettings": {"Networks": {}},
        "Mounts": [],
    }


OLD = Creation(_container("a"), {})
RAN: dict[str, Any] = {"StartedAt": "2026-11-30T12:00:00Z", "Status": "exited"}
RUNS: dict[str, Any] = {**RAN, "Running": True, "Status": "running"}
ASIDE = "a" * 12 + "_ninfer"


def mend(scene: Scene, *, instead_of: str = "", old: Creation | None = OLD) -> Mend:
    return mend_of(UnderWay(old, instead_of), scene, "ninfer")


def test_an_old_container_that_is_still_there_stays_and_what_compose_began_beside_it_is_removed() -> None:
    begun = _container("b", ASIDE, greeting="new")
    found = mend(Scene(OLD.container, begun, OLD.container))
    assert (found.remove, found.make, found.rename, found.replaced) == (("b" * 64,), None, "", False)


@pytest.mark.parametrize("old_state", [{}, RAN, RUNS])
def test_an_old_container_that_is_still_there_stays_whatever_it_does(old_state: dict[str, Any]) -> None:
    here = _container("a", **old_state)
    assert mend(Scene(here, None, here)) == Mend("an interrupted staging left ninfer as it was")


def test_beside_the_old_one_only_what_never_ran_of_the_same_service_is_removed() -> None:
    for begun in (_container("b", ASIDE, **RAN), _container("b", ASIDE, **RUNS)):
        assert mend(Scene(OLD.container, begun, OLD.container)).remove == ()
    foreign = _container("b", ASIDE)
    foreign["Config"]["Labels"] = {}
    assert mend(Scene(OLD.container, foreign, OLD.container)).remove == ()


@pytest.mark.parametrize("instead_of", ["", "b" * 64])
def test_where_it_is_gone_the_old_one_is_made_again(instead_of: str) -> None:
    found = mend(Scene(None), instead_of=instead_of)
    assert (found.make, found.instead_of, found.replaced) == (OLD, "", False)


def test_a_new_one_that_nobody_has_inspected_gives_way_to_the_old_one() -> None:
    found = mend(Scene(_container("b", greeting="new")))
    assert (found.make, found.instead_of) == (OLD, "b" * 64)
    begun = mend(Scene(None, _container("b", ASIDE, greeting="new")))  # compose hadn't given it its name yet
    assert (begun.make, begun.instead_of, begun.remove) == (OLD, "", ("b" * 64,))


def test_the_old_one_that_has_another_name_of_composes_gets_its_own_again() -> None:
    renamed = _container("a", ASIDE)
    found = mend(Scene(_container("b", greeting="new"), renamed, renamed))
    assert (found.remove, found.rename, found.make) == (("b" * 64,), "a" * 64, None)


@pytest.mark.parametrize("renamed", [_container("a", "mine"), _container("a", ASIDE, **RUNS)])
def test_an_old_one_that_somebody_renamed_or_runs_is_a_persons_to_look_at(renamed: dict[str, Any]) -> None:
    with pytest.raises(CannotStage, match=f"named {renamed['Name'][1:]} now.*`docker rename {renamed['Name'][1:]}"):
        mend(Scene(None, None, renamed))


@pytest.mark.parametrize("old", [OLD, None])
@pytest.mark.parametrize("state", [RUNS, RAN])
def test_a_new_one_that_runs_or_has_run_is_never_touched(old: Creation | None, state: dict[str, Any]) -> None:
    found = mend(Scene(_container("b", greeting="new", **state)), old=old)
    assert (found.remove, found.make, found.rename, found.replaced) == ((), None, "", True)
    assert "it stays" in found.said


def test_a_putting_back_is_finished_though_the_new_one_has_run_but_not_while_it_runs() -> None:
    found = mend(Scene(_container("b", greeting="new", **RAN)), instead_of="b" * 64)
    assert (found.make, found.instead_of) == (OLD, "b" * 64)
    assert mend(Scene(_container("b", greeting="new", **RUNS)), instead_of="b" * 64).make is None


def test_a_putting_back_takes_nothing_away_that_somebody_has_made_and_run_meanwhile() -> None:
    found = mend(Scene(_container("c", greeting="theirs", **RAN)), instead_of="b" * 64)
    assert (found.remove, found.make, found.replaced) == ((), None, True)


def test_what_was_made_again_already_isnt_made_a_third_time() -> None:
    assert mend(Scene(_container("b")), instead_of="b" * 64) == Mend("an interrupted staging left ninfer as it was")


def test_where_there_was_none_a_half_made_one_is_removed() -> None:
    assert mend(Scene(_container("b")), old=None).remove == ("b" * 64,)
    assert mend(Scene(None), old=None) == Mend("an interrupted staging had made no container ninfer yet")


# ------------------------------------------------------------------------------------------------- while Docker works


class BusyDocker(Docker):
    """What it shows under the name, or by the id, look by look; the last of them from then on."""

    def __init__(self, *shown: dict[str, Any] | None) -> None:
        super().__init__("unix:///nowhere")
        self.shown = list(shown)

    async def inspect(self, name_or_id: str) -> Inspection | None:
        now = self.shown[0]
        if name_or_id == OLD.id and len(self.shown) > 1:  # the last question of each look
            self.shown.pop(0)
        return None if now is None or name_or_id == ASIDE else Inspection(now, {}, "")


class Made(Remaking):
    """Only tells that it was asked."""

    async def make(self, creation: Creation, instead_of: str) -> Sight:
        return Sight(Status.CREATED, id=f"made in place of {instead_of or 'none'}")


async def _recovered(folder: Path, docker: Docker) -> str:
    async def look() -> Sight:
        return Sight(Status.ABSENT)

    async def ours(_: Any) -> bool:
        return True

    file = CreationFile(folder / "creation.json")
    await asyncio.to_thread(file.begin, OLD)
    return await Recovery(docker, file, Made("ninfer", docker, file, look), look, ours).recover()


@in_simulated_time
async def test_what_a_dead_compose_asked_for_is_waited_for(tmp_path: Path) -> None:
    leaving = _container("a", Status="removing")
    for shown in ([leaving] * 50, [OLD.container]):  # either it is being removed already, or it is in a moment
        assert "made again" in await _recovered(tmp_path, BusyDocker(*shown, None))


@in_simulated_time
async def test_a_removal_that_never_ends_is_told_and_tried_again_later(tmp_path: Path) -> None:
    with pytest.raises(CannotStage, match="still changing ninfer") as told:
        await _recovered(tmp_path, BusyDocker(_container("a", Status="removing")))
    assert told.value.passing


@in_simulated_time
async def test_a_mend_whose_end_cant_be_written_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unlink(path: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "unlink", unlink)
    with pytest.raises(CannotStage, match=r"written to .*creation\.json\.staging: Read-only file system; make its"):
        await _recovered(tmp_path, BusyDocker(_container("a")))


# ------------------------------------------------------------------------------------------------- at start


@in_simulated_time
async def test_what_staging_left_is_mended_before_anything_is_looked_at_and_said(world: World) -> None:
    world.ninfer.left_behind = SAID
    async with world.running():
        assert world.gate.state == "open strata"
    for runtime in world.runtimes.values():
        asked = runtime.calls.index("recover")
        assert set(runtime.calls[:asked]) <= {"look"}  # the watch's, which tells nothing before the start is over
        assert "look" in runtime.calls[asked:]
        assert runtime.calls.count("recover") == 1
    (said,) = [line for line in world.logs if "was mended" in line["event"]]
    assert (said["facts"]["engine"], said["why"]) == ("ninfer", SAID)


@in_simulated_time
async def test_what_cant_be_mended_is_said_and_keeps_nobody_from_what_runs(world: World) -> None:
    late = asyncio.get_running_loop().create_future()
    late.set_result(None)
    for fault in (CannotStage("the image is gone", "load it"), Unfinished("removing it didn't end", ended=late)):
        world.logs.clear()
        world.ninfer.fail("recover", fault)
        async with world.serving("strata:current"):
            assert (await world.swap("ninfer")).code == Code.SERVES  # staging tries again, or refuses
            assert (await world.swap("strata")).code == Code.SERVES
        (said,) = [line for line in world.logs if "isn't mended" in line["event"]]
        assert said["why"] == str(fault)
        world.strata.stop_by_hand()
        world.rebuild()


@in_simulated_time
async def test_a_recovery_that_hangs_holds_the_start_up_for_two_minutes_at_most(world: World) -> None:
    world.ninfer.hang("recover")
    async with world.running():
        assert world.gate.state == "open strata"
        assert 100 < asyncio.get_running_loop().time() < 200


@in_simulated_time
async def test_a_recovery_that_hangs_keeps_clients_of_what_runs_waiting_for_a_quarter_of_a_minute(world: World) -> None:
    async with world.serving("strata:current"):
        pass
    world.rebuild()
    world.ninfer.hang("recover")
    began = asyncio.get_running_loop().time()
    async with world.running():
        assert world.gate.state == "open strata"
        assert asyncio.get_running_loop().time() - began < 20


@in_simulated_time
async def test_while_docker_cant_be_asked_recovery_is_tried_with_each_look(world: World) -> None:
    world.ninfer.fail("recover", GONE, times=2)
    async with world.running():
        await until(lambda: world.gate.state == "open strata")
    assert world.ninfer.calls.count("recover") == 3
    assert not [line for line in world.logs if "isn't mended" in line["event"]]


@in_simulated_time
async def test_what_runs_is_adopted_also_while_docker_cant_mend_it(world: World) -> None:
    world.strata.fail("recover", GONE)
    async with world.serving("strata:current"):
        assert world.strata.calls.count("recover") == 1
