"""A sample of the fault matrix on a real Docker; `python -m tests.faults.docker` runs all of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.docker import DOCUMENT
from tests.faults.docker_cells import CRASH, DAEMON, DIRECTIONS, NEW_DIES, OLD_DIES, RESTART, Place, places, run
from tests.faults.scene import Scene, scene
from tests.faults.table import BROKEN, DOCKER, read
from tests.system.conftest import find_compose
from tests.system.private import lacking

SAMPLE = (
    ("check", DAEMON, 0),
    ("stage", CRASH, 1),
    ("drain", OLD_DIES, 0),
    ("stop", RESTART, 1),
    ("free", DAEMON, 0),
    ("start", DAEMON, 1),
    ("start", RESTART, 0),
    ("warm", NEW_DIES, 1),
    ("warm", CRASH, 0),
    ("serve", RESTART, 1),
    ("back: start", DAEMON, 0),
    ("back: warm", OLD_DIES, 1),
)
"""Each step and each fault, in both directions; the third is the direction."""


@pytest.fixture(scope="module")
def box() -> Iterator[Scene]:
    """Inside its network as long as the module's tests run."""
    if why := lacking():
        pytest.skip(why)
    with scene(find_compose()) as box:
        yield box


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("step", "fault", "direction"), SAMPLE)
def test_case_45_after_each_fault_one_engine_serves_and_nobody_was_lost(
    box: Scene, step: str, fault: str, direction: int
) -> None:
    """Cases 40 and 45, on a Docker that may be restarted."""
    try:
        run(box, Place(step, fault, *DIRECTIONS[direction]))
    except AssertionError:
        box.mend()
        raise


def test_the_document_has_every_cell_and_none_is_broken() -> None:
    cells = read(DOCUMENT.read_text(), DOCKER)
    assert not [cell for cell in cells if cell.result == BROKEN]
    assert {(cell.step, cell.fault) for cell in cells} == {(place.step, place.fault) for place in places()}
