"""The table that people read is the one that the matrix is compared with."""

from __future__ import annotations

from tests.faults.table import (
    DARK,
    DOCKER,
    FAKES,
    NEW,
    NOT_APPLICABLE,
    OLD,
    Cell,
    differences,
    read,
    render,
    rewritten,
)

CELLS = [
    Cell("check", "the step fails", "two engines", OLD, "exit code 3: nothing was changed"),
    Cell("check", "the step fails", "a trial", OLD),
    Cell("check", "the new one dies", "two engines", NOT_APPLICABLE, "it isn't up yet"),
    Cell("stop", "the step hangs", "a trial", DARK, "the stop hangs"),
]


def test_what_is_written_is_read_back() -> None:
    assert read(rewritten("", FAKES, CELLS), FAKES) == CELLS


def test_writing_one_section_leaves_the_other_as_it_is() -> None:
    both = rewritten(rewritten("", DOCKER, CELLS[:1]), FAKES, CELLS[1:])
    assert (read(both, FAKES), read(both, DOCKER)) == (CELLS[1:], CELLS[:1])
    assert rewritten(both, FAKES, CELLS[1:]) == both


def test_each_step_is_a_table_with_a_row_for_each_fault() -> None:
    assert render(CELLS[2:3]) == (
        "### check\n\n| fault | two engines |\n| --- | --- |\n| the new one dies | n/a: it isn't up yet |\n"
    )


def test_what_differs_is_named_with_both_sides() -> None:
    other = Cell("stop", "the step hangs", "a trial", NEW)
    assert differences(CELLS, CELLS) == []
    assert differences(CELLS[3:], [other]) == [
        "stop / the step hangs / a trial: written 'dark' (the stop hangs), found 'the new one serves' ()"
    ]
    assert differences([], [other]) == [
        "stop / the step hangs / a trial: written nothing, found 'the new one serves' ()"
    ]
