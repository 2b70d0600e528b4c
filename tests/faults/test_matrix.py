"""The matrix on the fakes: no cell breaks a promise, and each ends as `docs/faults.md` says.

`python -m tests.faults --only "stop / SIGKILL"` tells the story of those cells; `--write` writes the file anew
when another end is right.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.__main__ import DOCUMENT
from tests.faults.matrix import STEPS, Bench, bench, places
from tests.faults.mishaps import MISHAPS
from tests.faults.stories import VARIANTS
from tests.faults.table import BROKEN, FAKES, NOT_APPLICABLE, Cell, differences, read


@pytest.fixture(scope="module")
def stage() -> Iterator[Bench]:
    with bench() as stage:
        yield stage


@pytest.fixture(scope="module")
def written() -> list[Cell]:
    return read(DOCUMENT.read_text(), FAKES)


@pytest.mark.parametrize("step", STEPS)
def test_whatever_happens_in_this_step_one_engine_comes_back(stage: Bench, written: list[Cell], step: str) -> None:
    found = [stage.cell(*place)[0] for place in places((step,))]
    assert [f"{' / '.join(cell.place)}: {cell.note}" for cell in found if cell.result == BROKEN] == []
    assert differences([cell for cell in written if cell.step == step], found) == []


def test_the_table_has_every_step_with_everything_that_can_befall_it(written: list[Cell]) -> None:
    wanted = {(step, mishap.name, variant.name) for step, mishap, variant in places()}
    assert {cell.place for cell in written} == wanted
    assert len(wanted) == len(STEPS) * len(MISHAPS) * len(VARIANTS)


def test_what_cant_happen_says_why(written: list[Cell]) -> None:
    assert [cell for cell in written if cell.result == NOT_APPLICABLE and not cell.note] == []
