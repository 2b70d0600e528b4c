"""What slotctl prints of plans and pairs when not everything could be found out, or is there."""

from __future__ import annotations

import pytest

from slotproxy import render_pairs, render_plan
from slotproxy.render import status, table

NOTHING = {"label": "ninfer:v2", "allowed": False, "refusals": [], "drift": [], "stage": False}
RUN = {"image": "ninfer:local", "image_id": "sha256:1", "argv": ["ninfer-serve"]}


def test_why_nothing_serves_is_said_once() -> None:
    gate, dark = {"state": "refusing", "reason": "nothing runs"}, {"reason": "nothing runs", "passing": False}
    assert status({"gate": gate, "dark": dark})[1:3] == [
        "gate      refusing: 0 in flight, 0 waiting",
        "dark      nothing runs; it needs a person",
    ]
    assert status({"gate": gate})[1] == "gate      refusing (nothing runs): 0 in flight, 0 waiting"


def test_a_plan_says_of_a_container_only_what_was_seen() -> None:
    assert "created   as the pair declares" in render_plan.plan(NOTHING | {"container": "exited", "would_run": RUN})
    assert "as the pair declares" not in "".join(render_plan.plan(NOTHING | {"container": None, "would_run": RUN}))
    assert "as the pair declares" not in "".join(render_plan.plan(NOTHING | {"container": "exited", "would_run": None}))


def test_a_plan_says_that_a_pair_never_ran_only_where_its_files_were_judged() -> None:
    assert render_plan.plan(NOTHING | {"judged": True})[0].endswith("ninfer:v2, not verified: it never ran here")
    assert render_plan.plan(NOTHING | {"judged": False})[0].endswith("ninfer:v2, evidence unknown")
    for proof in ("revoked 2026-01-02: garbles tools", "attested only, not verified"):
        assert render_plan.plan(NOTHING | {"judged": True, "proof": proof})[0].endswith(f"ninfer:v2, {proof}")


def test_pairs_says_which_images_that_served_are_gone() -> None:
    known = [{"label": "ninfer:v2", "image_gone": True}, {"label": "ninfer:v3", "image_gone": False}]
    gone = [" ".join(render_pairs.pairs({"pairs": known})[3:])]
    assert gone[0].startswith("ninfer:v2  the image that served")
    assert "`docker load`" in gone[0]


WHEN = "2026-01-02T03:04:05+00:00"
PAIR = {
    "label": "ninfer:v2",
    "deployed": True,
    "state": "verified",
    "when": WHEN,
    "how": "trial",
    "require": "verified",
}
MEASURED = {
    "ready_in": 9.5,
    "vram_peak": 32_749_125_632,
    "tokens_per_second": 160.25,
    "image": "registry:5000/ninfer:1",
}


def said_of(**more: object) -> str:
    """All below the table, in one line."""
    lines = render_pairs.pairs({"pairs": [PAIR | more]})
    assert max(map(len, lines)) <= 120
    return " ".join(" ".join(lines[2:]).split())


def test_a_table_of_pairs_is_read_at_a_glance() -> None:
    head, row = render_pairs.pairs({"pairs": [PAIR | MEASURED]})
    assert head.split("  ")[0] == "pair"
    assert row.split()[3:] == ["2026-01-02", "03:04:05Z", "trial", "9.5", "s", "30.5GiB", "160.2", MEASURED["image"]]
    assert len(row) <= 120


def test_a_long_image_goes_on_below_within_120_columns() -> None:
    image = "registry.example:5000/team/inference/ninfer-serve:2026-11-30-cuda13"
    lines = render_pairs.pairs({"pairs": [PAIR | MEASURED | {"image": image}]})
    assert max(map(len, lines)) <= 120
    column = lines[0].index("image")
    assert "".join(line[column:] for line in lines[1:]) == image


def test_below_the_table_stands_what_takes_more_words() -> None:
    word = {"when": WHEN, "reason": "garbles tools"}
    assert said_of() == ""
    assert said_of(revoked=word) == "ninfer:v2 revoked 2026-01-02 03:04:05Z: garbles tools"
    assert said_of(last_failure=word) == "ninfer:v2 failed 2026-01-02 03:04:05Z: garbles tools"
    changed = {"since": WHEN, "what": ["command line", "file /srv/a has other bytes"]}
    assert said_of(changed=changed) == (
        "ninfer:v2 changed since it was verified 2026-01-02 03:04:05Z: command line; file /srv/a has other bytes"
    )
    assert "by the operator (counts for nothing, require: verified)" in said_of(attested=word | {"counts": False})
    assert "by the operator (counts, require: attested)" in said_of(
        attested=word | {"counts": True}, require="attested"
    )
    assert said_of(doubts=["driver 1 was"]) == "ninfer:v2 doubt: driver 1 was"


def test_what_refuses_a_pair_is_said_where_it_is_no_more_than_declared() -> None:
    refusals = [{"what": "/srv/a is gone", "mend": "bring it back"}]
    assert said_of(refusals=refusals) == ""
    assert said_of(refusals=refusals, state="declared") == "ninfer:v2 refused: /srv/a is gone - bring it back"
    before = {"when": "2026-01-02T03:04:05Z", "how": "trial"}
    assert said_of(refusals=refusals, state="declared", before=before).startswith(
        "ninfer:v2 was verified 2026-01-02 03:04:05Z by trial; what refuses it now: "
    )


def test_long_words_go_on_below_their_own_beginning() -> None:
    lines = render_pairs.pairs({"pairs": [PAIR | {"last_failure": {"when": WHEN, "reason": "no " * 90}}]})
    assert len(lines) > 3
    assert all(line.startswith(" " * 11) for line in lines[3:])


def test_problems_of_the_ledger_are_shown_with_the_pairs_and_the_log() -> None:
    for shown in (render_pairs.pairs, render_pairs.log):
        assert shown({"problems": ["line 3 was\x1b changed"]})[-1] == "problem   line 3 was  changed"


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ("two words that fit", ["two words that fit"]),
        ("more words than one line holds", ["more words than one", "line holds"]),
        ("/a/long/path/of/a/mount → /models", ["/a/long/path/of/a/", "mount → /models"]),
        ("x" * 45, ["x" * 20, "x" * 20, "x" * 5]),
        ("", [""]),
    ],
)
def test_a_long_cell_goes_on_below_broken_where_people_would(words: str, lines: list[str]) -> None:
    assert table([[words, "|"]], widest=20)[0].endswith("  |")
    assert [line.split("  ")[0] for line in table([[words, "|"]], widest=20)] == lines


def test_status_says_how_requests_ended_and_of_which_kind_what_failed_was() -> None:
    requests = {
        "served": {"count": 12, "how": {"unread": 1}},
        "failed": {"count": 3, "how": {"status": 2, "in-band": 1}},
        "truncated": {"count": 0, "how": {}},
        "cut": {"count": 1, "how": {"cancelled": 1}},
    }
    assert "requests  12 served, 3 failed (1 in-band, 2 status), 1 cut (1 cancelled)" in status({"requests": requests})
    assert not [line for line in status({"requests": {}}) if line.startswith("requests")]
