"""`slotctl correct` takes restart policies away, in place, and says what it did (case 34)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from slotproxy.refusal import Refusal
from swap import adoption, restart_policy
from swap.decisions import Decision, Kind
from swap.ports import Unreachable
from tests.slotproxy.office import Office
from tests.swap.fakes import FakeRuntime
from tests.swap.world import CHANGES


@pytest.fixture
def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    """Both containers have a policy; Strata's is the holder's."""
    monkeypatch.setattr(adoption, "MARGIN", 0.0)  # here files are made, and engines started, in one moment
    with capture_logs():
        office = Office(tmp_path)
        for pair, runtime in (("current", office.strata), ("v2", office.ninfer)):
            runtime.recipes[pair] = replace(runtime.recipes[pair], restart="unless-stopped")
        office.ninfer.create(office.ninfer.recipes["v2"])
        yield office
    office.close()


def policy(runtime: FakeRuntime) -> str:
    assert runtime.sight.recipe is not None
    return runtime.sight.recipe.restart


def events(office: Office, kind: Kind) -> list[Decision]:
    return [one for one in office.hands.decisions.last() if one.kind is kind]


async def test_both_are_corrected_the_holder_too_and_nothing_else_of_them_changes(office: Office) -> None:
    async with office.serving():
        assert len((await office.desk.status())["warnings"]) == 2
        before = [(one.sight.id, one.sight.started_at, one.sight.status) for one in (office.strata, office.ninfer)]
        office.story.clear()
        answer = await office.desk.correct(None)
        assert (policy(office.strata), policy(office.ninfer)) == ("no", "no")
        assert [(o.sight.id, o.sight.started_at, o.sight.status) for o in (office.strata, office.ninfer)] == before
        assert answer["code"] == 0
        assert answer["engines"]["strata"] == {"container": "strata-1", "was": "unless-stopped", "error": None}
        assert (await office.desk.status())["warnings"] == []
        told = events(office, Kind.CORRECTED)
        assert [one.facts["engine"] for one in told] == ["strata", "ninfer"]
        assert "it was 'unless-stopped'" in told[0].text
        changed = [line for line in office.story if line.split()[1] in (*CHANGES, "correct_restart")]
        assert changed == ["strata correct_restart", "ninfer correct_restart"]

        again = await office.desk.correct("ninfer")
        assert again["text"] == "ninfer: nothing to correct"
        assert len(events(office, Kind.CORRECTED)) == 2


async def test_one_that_cannot_be_looked_at_is_said_and_the_other_is_corrected(office: Office) -> None:
    async with office.serving():
        office.strata.fail("correct_restart", Unreachable("Docker doesn't answer", "start it"))
        answer = await office.desk.correct(None)
        assert answer["code"] == 3
        assert "strata: Docker doesn't answer (start it)" in answer["text"]
        assert answer["engines"]["strata"]["error"] == "Docker doesn't answer (start it)"
        assert (policy(office.strata), policy(office.ninfer)) == ("unless-stopped", "no")


async def test_a_correction_that_docker_did_not_make_is_not_told_as_done(office: Office) -> None:
    async def lost(id: str) -> None:
        """Answered, and not done."""

    async with office.serving():
        office.ninfer.correct_restart = lost  # type: ignore[method-assign]
        answer = await office.desk.correct("ninfer")
        assert answer["code"] == 3
        assert "still has the restart policy 'unless-stopped'" in answer["text"]
        assert events(office, Kind.CORRECTED) == []


async def test_an_unknown_engine_is_bad_usage(office: Office) -> None:
    with pytest.raises(Refusal) as caught:
        await office.desk.correct("gpt")
    assert caught.value.code == 2


async def test_at_the_start_each_policy_is_told_as_something_for_a_person(office: Office) -> None:
    async with office.serving():
        office.ninfer.fail("look", Unreachable("Docker doesn't answer", "start it"))
        await restart_policy.warn(office.engines, office.runtimes, office.hands.decisions)
        (told,) = events(office, Kind.PERSON)
        assert told.facts == {"engine": "strata"}
        assert "it would come back beside the other engine" in told.text
        assert "`slotctl correct strata`" in told.why
