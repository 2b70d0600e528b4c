"""The soak in short, and what it would see: a lost request, two engines at once, a daemon that grows."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from tests.soak.clients import Seen, outcome
from tests.soak.eyes import EVERY, Eyes
from tests.soak.ground import Ground, on_docker, on_processes
from tests.soak.measure import MiB, Size, growth, measure
from tests.soak.soak import Plan, Report, soak
from tests.soak.story import Blow, Story
from tests.swap.card_contract import taken
from tests.system.bed import DockerBed

SEED = int(os.environ.get("SOAK_SEED", "7"))


def short(ground: Ground, events: int) -> Report:
    report = asyncio.run(soak(ground, Plan(SEED, lives=2, rounds=1, events=events, seconds=20)))
    assert not report.wrong, f"{report}\n{report.story}\n{ground.tail()}"
    return report


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_short_soak_loses_no_request_and_never_sees_two_engines(tmp_path: Path) -> None:
    with on_processes(tmp_path / "house") as ground:
        report = short(ground, events=5)
    assert report.outcomes["whole"] > 40
    assert report.looks > 100
    assert sum(report.done.values()) == 11  # the daemon's own end in between


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_short_soak_on_docker(docker_bed: DockerBed, shim: Path, tmp_path: Path) -> None:
    with on_docker(docker_bed, shim, tmp_path) as ground:
        report = short(ground, events=5)
    assert report.outcomes["whole"] > 40


# ------------------------------------------------------------------------------------------------- what it would see

WHOLE = {"status": 200, "whole": True}
IN_BAND = {"status": 200, "error": "strata ended its answer early", "broke": "RemoteProtocolError"}
REFUSED = {"status": 503, "error": "the proxy is stopping", "retry_after": True}


@pytest.mark.parametrize(
    ("seen", "blow", "word", "fair"),
    [
        (WHOLE, None, "whole", True),
        ({"left": True}, None, "left", True),
        (IN_BAND, Blow.KILLED, "told of an end", True),
        (IN_BAND, None, "told of an end", False),
        ({**WHOLE, "error": "it broke"}, None, "told of an end", False),
        ({"status": 200}, Blow.KILLED, "broken off", False),  # a clean end without its marker
        ({"status": 200, "broke": "reset"}, Blow.KILLED, "broken off", False),  # no word of why
        ({"broke": "refused"}, Blow.DOWN, "broken off", True),
        ({"broke": "refused"}, Blow.KILLED, "broken off", False),
        (REFUSED, Blow.STOPPED, "refused", True),
        (REFUSED, Blow.DARK, "refused", True),
        (REFUSED, Blow.KILLED, "refused", False),
        ({**REFUSED, "retry_after": False}, Blow.STOPPED, "refused", False),
        ({"status": 502, "error": "strata can't be reached"}, None, "told of an end", False),
        ({"status": 503, "error": "it is dead", "engine": "strata"}, Blow.USELESS, "the engine's own", True),
        ({"status": 503, "error": "it is dead", "engine": "strata"}, Blow.DARK, "the engine's own", False),
        ({"status": 500, "error": "slotproxy itself failed; see its log"}, Blow.KILLED, "our fault", False),
    ],
)
def test_how_a_request_ends_is_told_with_what_excuses_it(
    seen: dict[str, object], blow: Blow | None, word: str, fair: bool
) -> None:
    story, now = Story(), time.monotonic()
    if blow is not None:
        story.now(blow)
    told = Seen("stream", began=now - 1, ended=now + 1, **seen)  # type: ignore[arg-type]
    assert outcome(told, story) == (word, fair)


def test_what_was_over_before_a_request_began_excuses_nothing() -> None:
    story = Story()
    story.now(Blow.DOWN)
    later = time.monotonic() + 10
    assert outcome(Seen("plain", began=later, ended=later + 1, broke="refused"), story) == ("broken off", False)


class Fixed:
    """A ground of which only what is up counts."""

    def __init__(self, card: Path, *ups: dict[str, frozenset[str]]) -> None:
        self.card, self._ups = card, list(ups)

    def up(self) -> dict[str, frozenset[str]]:
        return self._ups.pop(0) if len(self._ups) > 1 else self._ups[0]


ONE, TWO = {"ninfer": frozenset(["pid 1"])}, {"strata": frozenset(["pid 2"])}


def doubles(card: Path, *ups: dict[str, frozenset[str]]) -> list[str]:
    ground: Ground = Fixed(card, *ups)  # type: ignore[assignment]
    with Eyes(ground, Story()) as eyes:
        time.sleep(6 * EVERY)
    assert not eyes.broken
    return eyes.double


def test_two_engines_are_seen_only_if_they_are_there_at_once(tmp_path: Path) -> None:
    assert doubles(tmp_path, ONE, TWO) == []
    assert doubles(tmp_path, ONE, ONE | TWO, TWO) == []  # one ended, and the other began, while we looked
    assert doubles(tmp_path, ONE, ONE | TWO, ONE | TWO, TWO) == ["ninfer: pid 1; strata: pid 2"]


def test_memory_that_isnt_free_yet_counts_as_its_engine(tmp_path: Path) -> None:
    with taken(tmp_path, "strata-1", 1):
        assert doubles(tmp_path, ONE)[0] == "ninfer: pid 1; strata: memory strata-1"


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (Size(1000, 60 * MiB, 12, 8), ""),
        (Size(1000, 60 * MiB, 40, 8), "file descriptors grew over 900 requests"),
        (Size(1000, 60 * MiB, 12, 40), "threads grew"),
        (Size(1000, 90 * MiB, 12, 8), "memory grew"),
    ],
)
def test_what_grows_is_named(last: Size, words: str) -> None:
    first = Size(100, 55 * MiB, 11, 6)
    assert growth([first, last]).startswith(words)
    assert bool(growth([first, last])) == bool(words)


def test_a_process_is_measured() -> None:
    size = measure(os.getpid(), 5)
    assert size.memory > MiB
    assert size.files > 3
    assert size.threads >= 1
