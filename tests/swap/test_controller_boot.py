"""At start: what runs is adopted untouched; where nothing runs, what served last is started, if it is verified."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from swap.decisions import Kind
from swap.moves import Code
from swap.ports import CannotStage, CardUnknown, Fault, Foreign, JournalEntry, Sight, Unreachable
from swap.threads import Hangs
from tests.simulated_time import in_simulated_time
from tests.swap.world import FILES, GONE, VERIFIED, World, until

DAMAGED = Unreachable("current.json is damaged", "move it away")


def touched(world: World) -> list[str]:
    """What was asked of a container since the test began, beside looking."""
    calls = [f"{name} {call}" for name, runtime in world.runtimes.items() for call in runtime.calls]
    return [call for call in calls if call.split()[1] in ("stage", "put_back", "stop", "start")]


# ------------------------------------------------------------------------------------------------- nothing runs


@in_simulated_time
async def test_what_served_last_is_started(world: World) -> None:
    world.served("ninfer:v2")
    async with world.running():
        assert world.gate.state == "open ninfer"
    assert touched(world) == ["ninfer start"]


@in_simulated_time
async def test_a_daemon_that_is_killed_while_it_starts_what_served_last_has_not_forgotten_it(world: World) -> None:
    world.served("ninfer:v2")
    world.ninfer.hang("start")
    await world.verify(*VERIFIED)
    async with asyncio.TaskGroup() as tasks:
        loop = tasks.create_task(world.controller.run())
        await until(lambda: "ninfer start [start]" in world.story)
        loop.cancel()
    world.ninfer.let_go("start")
    world.rebuild()
    async with world.running(verified=()):
        assert world.gate.state == "open ninfer"


@in_simulated_time
async def test_where_nothing_has_served_yet_the_default_is_started(world: World) -> None:
    async with world.running():
        assert world.gate.state == "open strata"
    assert touched(world) == ["strata start"]


@in_simulated_time
async def test_why_this_one_is_started_is_in_the_event_log(world: World) -> None:
    world.served("ninfer:v2")
    async with world.running():
        said = [(one.kind.value, one.text, one.why) for one in world.hands.decisions.last()]
    assert said == [
        ("starting", "ninfer:v2 is started", "nothing ran, and it served last"),
        ("serving", "ninfer:v2 serves", "nothing ran, and it served last"),
    ]


@in_simulated_time
async def test_what_served_last_and_isnt_verified_any_more_gives_way_to_the_default(world: World) -> None:
    world.served("ninfer:v3")
    async with world.running():
        assert world.gate.state == "open strata"
    assert touched(world) == ["strata start"]


@in_simulated_time
async def test_what_is_configured_no_more_gives_way_to_the_default(world: World) -> None:
    world.served("vllm:v1")
    async with world.running():
        assert world.gate.state == "open strata"


@in_simulated_time
async def test_what_isnt_verified_is_never_started(world: World) -> None:
    world.served("ninfer:v2")
    async with world.running(verified=()):
        assert "refusing: nothing runs; ninfer:v2 can't be started: ninfer:v2 never ran" in world.gate.state
        assert "; strata:current can't be started: strata:current never ran" in world.gate.state
        await asyncio.sleep(1000)
    assert touched(world) == []


@in_simulated_time
async def test_without_a_default_it_says_how_to_start_something(world: World) -> None:
    world.default = None
    world.rebuild()
    async with world.running():
        assert "no `default:` says what to start; `slotctl swap to-ENGINE` does" in world.gate.state
        assert (await world.swap("ninfer")).code == Code.SERVES


@in_simulated_time
async def test_the_container_is_made_what_is_declared_before_it_is_started(world: World) -> None:
    world.served("ninfer:v2")
    world.ninfer.create(world.ninfer.recipes["v3"])
    async with world.running():
        assert world.ninfer.sight.recipe == world.ninfer.recipes["v2"]
    assert touched(world) == ["ninfer stage", "ninfer start"]


# ------------------------------------------------------------------------------------------------- something runs


@in_simulated_time
@pytest.mark.parametrize("verified", [VERIFIED, ()])
async def test_what_runs_is_adopted_untouched_verified_or_not(world: World, verified: tuple[str, ...]) -> None:
    world.served("strata:current")
    sight = world.ninfer.run(world.ninfer.recipes["v2"])
    async with world.running(verified=verified) as controller:
        assert world.gate.state == "open ninfer"
        serving = controller.state.serving
        assert serving is not None
        assert serving.label == "ninfer:v2"
        await asyncio.sleep(100)
        assert world.ninfer.sight == sight
    assert touched(world) == []


@in_simulated_time
@pytest.mark.parametrize("verified", [("ninfer:v2",), ()])
async def test_of_what_was_adopted_it_is_found_out_whether_it_is_verified(
    world: World, verified: tuple[str, ...]
) -> None:
    async with world.serving("ninfer:v2", verified=verified) as controller:
        (known,) = (known for unit, known in world.hands.known.items() if unit == controller.state.serving)
        await until(lambda: known.subject is not None)
        assert known.verified == bool(verified)
    assert touched(world) == []


@in_simulated_time
async def test_what_was_adopted_serves_also_where_nobody_can_tell_whether_it_is_verified(world: World) -> None:
    (world.folder / "models" / "qwen3_8_27b_nvfp4.ninfer").unlink()
    async with world.serving("ninfer:v2", verified=()):
        await asyncio.sleep(100)
        assert world.gate.state == "open ninfer"


@in_simulated_time
async def test_what_runs_and_is_none_of_the_pairs_is_adopted_too_and_is_what_a_failed_swap_brings_back(
    world: World,
) -> None:
    sight = world.ninfer.run(replace(world.ninfer.recipes["v2"], command=("--model", "/models/mine.ninfer")))
    async with world.running() as controller:
        assert world.gate.state == "open ninfer"
        serving = controller.state.serving
        assert serving is not None
        assert serving.label == "ninfer:?"
        assert touched(world) == []
        world.strata.exits_on_start = 1
        ended = await world.swap("strata")
        assert (ended.code, ended.serving) == (Code.RESTORED, "ninfer:?")
        assert world.ninfer.sight.id == sight.id


@in_simulated_time
async def test_what_was_adopted_can_be_swapped_away_from_and_back(world: World) -> None:
    async with world.serving("strata:current"):
        assert (await world.swap("ninfer")).code == Code.SERVES
        world.rebuild()
    async with world.running(verified=()):
        assert world.gate.state == "open ninfer"
        assert (await world.swap("strata")).code == Code.SERVES


@in_simulated_time
async def test_what_still_loads_is_waited_for(world: World) -> None:
    world.ninfer.run(world.ninfer.recipes["v2"])
    world.readiness.never.add("ninfer:local")
    asyncio.get_running_loop().call_later(60, world.readiness.never.clear)
    async with world.running():
        assert asyncio.get_running_loop().time() == pytest.approx(60, abs=2)
        assert world.gate.story == ["closed", "open ninfer"]
    assert touched(world) == []


@in_simulated_time
@pytest.mark.parametrize(("served", "kept"), [("strata:current", "strata"), ("ninfer:v2", "ninfer"), (None, "ninfer")])
async def test_of_two_that_run_one_is_kept_and_the_other_stopped(world: World, served: str | None, kept: str) -> None:
    if served:
        world.served(served)
    world.strata.vram = world.ninfer.vram = 10
    world.strata.run(world.strata.recipes["current"])
    world.ninfer.run(world.ninfer.recipes["v2"])
    stopped = "strata" if kept == "ninfer" else "ninfer"
    async with world.running():
        assert world.gate.state == f"open {kept}"
        assert world.up == {kept}
    assert touched(world) == [f"{stopped} stop"]


# ------------------------------------------------------------------------------------------------- what can't be asked


@in_simulated_time
async def test_docker_gone_at_start_is_asked_again_until_what_runs_can_be_adopted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.strata.run(world.strata.recipes["current"])
    loop, look = asyncio.get_running_loop(), world.strata.look

    async def gone_for_a_minute() -> Sight:
        if loop.time() < 60:
            raise GONE
        return await look()

    monkeypatch.setattr(world.strata, "look", gone_for_a_minute)
    async with world.running() as controller:
        assert world.gate.state == "closed"  # clients wait, and are told nothing bad
        assert "Docker doesn't answer; start it" in controller.state.dark
        await until(lambda: world.gate.state == "open strata")
        assert 60 <= loop.time() < 80  # 5, 15, 35, 75
    assert touched(world) == []


@in_simulated_time
async def test_an_order_while_docker_is_gone_is_told_so_and_nothing_is_touched(world: World) -> None:
    world.strata.fail("look", GONE, times=1000)
    async with world.running():
        ended = await world.swap("ninfer")
        assert ended.code == Code.DARK
        assert "Docker doesn't answer; start it" in ended.text
    assert touched(world) == []


@in_simulated_time
async def test_a_foreign_container_of_an_engines_name_is_left_alone_and_the_other_adopted(world: World) -> None:
    world.strata.run(world.strata.recipes["current"])
    world.ninfer.fail("look", Foreign("ninfer-1 was made by project other", "rename it"), times=1000)
    async with world.running():
        assert world.gate.state == "open strata"
        ended = await world.swap("ninfer")
        assert ended.code == Code.REFUSED
        assert "project other" in ended.text
    assert touched(world) == []


@in_simulated_time
async def test_an_engine_that_cant_be_looked_at_is_no_reason_to_leave_the_other_unserved(world: World) -> None:
    world.served("ninfer:v2")
    world.strata.run(world.strata.recipes["current"])
    world.ninfer.fail("look", DAMAGED, times=1000)
    async with world.running():
        assert world.gate.state == "open strata"
    assert touched(world) == []


@in_simulated_time
async def test_nothing_is_started_beside_an_engine_that_cant_be_looked_at(world: World) -> None:
    world.ninfer.fail("look", DAMAGED, times=3)
    async with world.running():
        assert not world.controller.state.person
        assert "current.json is damaged; move it away" in world.controller.state.dark
        assert world.up == set()
        await until(lambda: world.gate.state == "open strata")
    assert touched(world) == ["strata start"]


@in_simulated_time
@pytest.mark.parametrize("why", [Fault("its disk stalls"), CannotStage("compose can't use ninfer.yml")])
async def test_what_runs_is_adopted_also_where_nobody_can_tell_what_is_declared(world: World, why: Fault) -> None:
    world.ninfer.run(world.ninfer.recipes["v2"])
    world.ninfer.fail("declared", why, times=2)
    async with world.running():
        assert world.gate.state == "open ninfer"
        assert world.controller.state.serving is not None
        assert world.controller.state.serving.label == "ninfer:?"
    assert touched(world) == []


@in_simulated_time
async def test_which_pair_runs_is_asked_again_where_docker_is_gone_just_then(world: World) -> None:
    world.ninfer.run(world.ninfer.recipes["v2"])
    world.ninfer.fail("declared", GONE)
    async with world.running():
        await until(lambda: world.gate.state == "open ninfer")
        assert world.controller.state.serving is not None
        assert world.controller.state.serving.label == "ninfer:v2"


@in_simulated_time
async def test_what_runs_is_adopted_also_where_its_artifact_is_a_loop_of_symlinks(world: World) -> None:
    artifact = world.folder / "models" / FILES["v2"]
    world.ninfer.run(world.ninfer.recipes["v2"])
    artifact.unlink()
    artifact.symlink_to(artifact)
    async with world.running(verified=()):
        assert world.gate.state == "open ninfer"
    assert touched(world) == []


@in_simulated_time
async def test_a_damaged_journal_is_no_reason_to_leave_what_runs_unserved(world: World) -> None:
    world.served("strata:current")
    (world.folder / "state" / "journal.json").write_bytes(b"\0" * 40)
    world.strata.run(world.strata.recipes["current"])
    async with world.running():
        assert world.gate.state == "open strata"
    assert touched(world) == []


@in_simulated_time
async def test_with_a_damaged_journal_and_nothing_running_the_default_is_started(world: World) -> None:
    world.served("ninfer:v2")
    (world.folder / "state" / "journal.json").write_bytes(b"")
    async with world.running():
        assert world.gate.state == "open strata"
        (started,) = [one.why for one in world.hands.decisions.last() if one.kind is Kind.STARTING]
    assert "it is the default; what served last isn't known: the journal" in started


@in_simulated_time
async def test_a_journal_whose_disk_hangs_is_read_again_where_nothing_else_says_what_to_start(world: World) -> None:
    world.default = None
    world.rebuild()
    world.served("ninfer:v2")
    read, hangs = world.journal.read, [Hangs("the journal's disk hasn't answered", "look after it", passing=True)]

    def late() -> JournalEntry | None:
        if hangs:
            raise hangs.pop()
        return read()

    world.journal.read = late  # type: ignore[method-assign]
    async with world.running():
        await until(lambda: world.controller.state.serving)
        assert world.gate.state == "open ninfer"


@in_simulated_time
async def test_a_damaged_journal_is_said_where_nothing_can_be_started_without_it(world: World) -> None:
    world.default = None
    world.rebuild()
    (world.folder / "state" / "journal.json").write_bytes(b"")
    async with world.running():
        assert "no `default:` says what to start" in world.gate.state
        assert "what served last isn't known: the journal" in world.gate.state


@in_simulated_time
async def test_a_driver_that_loads_late_is_waited_for_and_no_person_is_asked_for(world: World) -> None:
    world.card.unknown = CardUnknown("the NVIDIA driver isn't loaded", "load it", passing=True)
    async with world.running():
        await until(lambda: world.controller.state.dark != "")
        assert not world.controller.state.person
        assert world.gate.state == "closed"
        world.card.unknown = None
        await until(lambda: world.gate.state == "open strata")
    assert touched(world) == ["strata start"]


@in_simulated_time
async def test_a_disk_that_is_mounted_late_is_waited_for_and_no_person_is_asked_for(world: World) -> None:
    artifact = world.folder / "models" / "strata.gguf"
    await world.verify("strata:current")
    artifact.rename(artifact.with_suffix(".away"))
    async with world.running(verified=()):
        assert f"{artifact} does not exist" in world.controller.state.dark
        assert not world.controller.state.person
        artifact.with_suffix(".away").rename(artifact)
        await until(lambda: world.gate.state == "open strata")
    assert touched(world) == ["strata start"]


@in_simulated_time
async def test_a_compose_that_answers_late_is_asked_again(world: World) -> None:
    world.strata.fail("declared", CannotStage("compose didn't end", "see what Docker is doing", passing=True), times=2)
    async with world.running():
        await until(lambda: world.gate.state == "open strata")
    assert touched(world) == ["strata start"]


@in_simulated_time
async def test_the_default_is_tried_before_what_served_last_is_waited_for(world: World) -> None:
    world.served("ninfer:v2")
    world.ninfer.fail("declared", CannotStage("compose didn't end", passing=True))
    async with world.running():
        assert world.gate.state == "open strata"
    assert touched(world) == ["strata start"]


@in_simulated_time
async def test_what_served_last_is_waited_for_where_the_default_is_refused_for_good(world: World) -> None:
    world.served("ninfer:v2")
    world.ninfer.fail("declared", CannotStage("compose didn't end", passing=True))
    async with world.running(verified=("ninfer:v2",)):
        await until(lambda: world.gate.state == "open ninfer")
    assert touched(world) == ["ninfer start"]


@in_simulated_time
async def test_a_card_that_can_never_be_asked_needs_a_person_who_is_told_what_to_do(world: World) -> None:
    world.card.unknown = CardUnknown("there is no card 7", "correct `card:`", passing=False)
    async with world.running():
        await until(lambda: world.controller.state.person)
        assert "(correct `card:`)" in world.gate.state


@in_simulated_time
async def test_of_two_that_run_the_one_that_served_is_kept_though_it_is_none_of_the_pairs(world: World) -> None:
    world.strata.vram = world.ninfer.vram = 10
    world.strata.run(replace(world.strata.recipes["current"], command=("--other",)))
    async with world.running() as controller:
        assert controller.state.serving is not None
        assert controller.state.serving.label == "strata:?"
    world.ninfer.run(world.ninfer.recipes["v2"])
    world.rebuild()
    async with world.running():
        assert world.gate.state == "open strata"
        assert world.up == {"strata"}


@in_simulated_time
async def test_what_served_last_and_is_none_of_the_pairs_gives_way_to_the_default(world: World) -> None:
    world.served("ninfer:?")
    async with world.running():
        assert world.gate.state == "open strata"
    assert touched(world) == ["strata start"]
