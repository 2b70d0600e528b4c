"""The tables of the four sides as people read them: worst first, no column that says nothing, 120 columns wide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slotproxy import render_drift

ROW: dict[str, Any] = {"declared": None, "created": None, "running": None, "verified": None, "trial": ""}


def row(field: str, severity: str = "unproven", mend: str = "take the edit back", **sides: str) -> dict[str, Any]:
    return ROW | {"field": field, "severity": severity, "mend": mend} | sides


def test_a_table_has_a_column_for_each_thing_that_is_said_and_what_mends_it_stands_below() -> None:
    trial = "slotctl swap to-ninfer:v2 --trial"
    command = row("command", declared="--ctx 1", created="--ctx 2", running="--ctx 2", verified="--ctx 2", trial=trial)
    user = row("user", declared="7", created="0", running="0", verified="0", trial=trial)
    assert render_drift.tables([command, user, row("init", "beside", "stage it", declared="yes", created="no")]) == [
        "NOT WHAT WAS VERIFIED: another pair, which has to prove itself",
        "           declared  created, running, verified",
        "  command  --ctx 1   --ctx 2",
        "  user     7         0",
        "  mend: take the edit back",
        "  or prove it: `slotctl swap to-ninfer:v2 --trial`",
        "not what is declared, in what needs no proof",
        "        declared  created",
        "  init  yes       no",
        "  mend: stage it",
    ]


def test_rows_that_are_mended_in_their_own_ways_are_named() -> None:
    lines = render_drift.tables([row("image", mend="tag it back", declared="a"), row("user", declared="7")])
    assert lines[-2:] == ["  mend image: tag it back", "  mend user: take the edit back"]


def test_a_side_that_has_nothing_to_say_of_a_row_leaves_its_place_empty() -> None:
    rows = [
        row("user", declared="7", created="0", verified="0"),
        row("file m", declared="sha256:1", verified="sha256:2"),
    ]
    assert [line.split() for line in render_drift.tables(rows)][2:4] == [
        ["user", "7", "0", "0"],
        ["file", "m", "sha256:1", "sha256:2"],
    ]


@pytest.mark.parametrize("sides", [2, 3, 4])
def test_a_table_of_long_values_fits_120_columns_and_nothing_is_cut_off(sides: int) -> None:
    names = ("declared", "created", "running", "verified")[:sides]
    values = {name: f"{name[0]}" + "/very/long/path" * 7 + f" → /{name}" for name in names}
    lines = render_drift.tables([row("mount /a/rather/long/place/in/it", mend="word " * 60, **values)])
    assert max(map(len, lines)) <= 120
    assert sum(line.count("/very") for line in lines) <= 7 * sides
    assert "".join("".join(lines).split()).count("word") == 60


def test_an_engine_whose_look_was_refused_says_why() -> None:
    foreign = {"what": "container x belongs to project other", "mend": "rename it"}
    one = {"label": "ninfer:v2", "status": None, "proof": "not verified", "differs": True, "refusals": [foreign]}
    assert render_drift.drift({"engines": [one]}) == [
        "ninfer    ninfer:v2: not verified",
        "created   it can't be told",
        "refused   container x belongs to project other",
        "          mend: rename it",
    ]


def test_the_sample_in_the_readme_is_what_is_printed() -> None:
    trial = "slotctl swap to-ninfer:v2 --trial"
    new, old = "ninfer:local (05c34dd90da1)", "ninfer:local (df76dddec53a)"
    moved = "the tag moved by a rebuild or a pull: `docker tag df76dddec53a ninfer:local` takes it back"
    then, now = "--max-context 260000", "--max-context 131072"
    one = {
        "label": "ninfer:v2",
        "deployed": True,
        "proof": "not verified",
        "before": {"when": "2026-01-02T03:04:05Z", "how": "trial"},
        "container": "ninfer-eval",
        "id": "2171b20828cf" + "0" * 52,
        "status": "exited",
        "created_as": "ninfer:v2 as it was verified",
        "differs": True,
        "drift": [
            row("image tag moved", mend=moved, trial=trial, declared=new, created=old, verified=old),
            row("command", trial=trial, declared=now, created=then, verified=then),
        ],
    }
    sample = "\n".join(render_drift.drift({"engines": [one]}))
    assert f"```\n{sample}\n```" in (Path(__file__).parents[2] / "README.md").read_text()


def test_what_an_answer_says_cannot_move_the_cursor() -> None:
    lines = render_drift.tables([row("user", declared="\x1b[2J", mend="\x1b[1A")])
    assert not any("\x1b" in line for line in lines)


@pytest.mark.parametrize(
    ("status", "mend"), [("exited", "slotctl swap to-ninfer:v2 --trial"), ("running", "slotctl pairs adopt ninfer")]
)
def test_what_lacks_evidence_alone_is_told_with_what_makes_some(status: str, mend: str) -> None:
    one = {"label": "ninfer:v2", "proof": "not verified", "status": status, "created_as": "ninfer:v2", "differs": True}
    assert f"`{mend}`" in render_drift.drift({"engines": [one]})[-1]
    told = one | {"refusals": [{"what": "no card", "mend": "reboot"}]}
    assert mend not in "".join(render_drift.drift({"engines": [told]}))
