"""What slotctl prints of plans and pairs when not everything could be found out, or is there."""

from __future__ import annotations

from slotproxy import render_pairs, render_plan

NOTHING = {"label": "ninfer:v2", "allowed": False, "refusals": [], "drift": [], "stage": False}
RUN = {"image": "ninfer:local", "image_id": "sha256:1", "argv": ["ninfer-serve"]}


def test_a_plan_says_of_a_container_only_what_was_seen() -> None:
    assert "created   as the pair declares" in render_plan.plan(NOTHING | {"container": "exited", "would_run": RUN})
    assert "as the pair declares" not in "".join(render_plan.plan(NOTHING | {"container": None, "would_run": RUN}))
    assert "as the pair declares" not in "".join(render_plan.plan(NOTHING | {"container": "exited", "would_run": None}))


def test_a_plan_says_that_a_pair_never_ran_only_where_its_files_were_judged() -> None:
    assert render_plan.plan(NOTHING | {"judged": True})[0].endswith("ninfer:v2, not verified: it never ran here")
    assert render_plan.plan(NOTHING | {"judged": False})[0].endswith("ninfer:v2, evidence unknown")


def test_pairs_says_which_images_that_served_are_gone() -> None:
    known = [{"label": "ninfer:v2", "image_gone": True}, {"label": "ninfer:v3", "image_gone": False}]
    gone = [line for line in render_pairs.pairs({"pairs": known}) if "isn't on this machine any more" in line]
    assert len(gone) == 1
    assert gone[0].startswith("ninfer:v2: the image that served")
    assert "`docker load`" in gone[0]
