"""What slotctl prints of a plan when not everything could be found out."""

from __future__ import annotations

from slotproxy import render_plan

NOTHING = {"label": "ninfer:v2", "allowed": False, "refusals": [], "drift": [], "stage": False}
RUN = {"image": "ninfer:local", "image_id": "sha256:1", "argv": ["ninfer-serve"]}


def test_a_plan_says_of_a_container_only_what_was_seen() -> None:
    assert "created   as the pair declares" in render_plan.plan(NOTHING | {"container": "exited", "would_run": RUN})
    assert "as the pair declares" not in "".join(render_plan.plan(NOTHING | {"container": None, "would_run": RUN}))
    assert "as the pair declares" not in "".join(render_plan.plan(NOTHING | {"container": "exited", "would_run": None}))


def test_a_plan_says_that_a_pair_never_ran_only_where_its_files_were_judged() -> None:
    assert render_plan.plan(NOTHING | {"judged": True})[0].endswith("ninfer:v2, not verified: it never ran here")
    assert render_plan.plan(NOTHING | {"judged": False})[0].endswith("ninfer:v2, evidence unknown")
