"""An engine that ran before the daemon came is left as it is; `pairs adopt` makes evidence of it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from swap.adoption import MARGIN
from tests.system.bed import DockerBed
from tests.system.traps import REFUSED, SERVED, ask, box, compose, editor, move, pair, plan, said, served_by, swap

pytestmark = [pytest.mark.docker, pytest.mark.slow]


def test_what_runs_at_the_start_serves_untouched_and_is_verified_once_it_is_adopted(
    docker_bed: DockerBed, shim: Path, tmp_path: Path
) -> None:
    with box(docker_bed, shim, tmp_path) as house:
        time.sleep(MARGIN)
        compose(house, "ninfer", "up", "--detach")
        before = house.run_of("ninfer")
        house.serve()
        house.wait_serving("ninfer")
        assert served_by(ask(house)) == "ninfer"
        house.wait(lambda: house.status()["verified"] is not None, "its evidence to be looked for")
        assert house.status()["verified"] is False
        assert pair(house, "ninfer:v2")["state"] == "candidate"

        for code, words in (swap(house, "to-strata", "--trial"), (3, said(plan(house, "strata", trial=True)))):
            assert code == REFUSED, words
            assert "ninfer:v2 serves and isn't verified, so nothing verified could be restored" in words
            assert "`slotctl pairs adopt ninfer` first" in words
        assert house.run_of("ninfer") == before

        code, _, words = house.slotctl("pairs", "adopt", "strata")
        assert code == REFUSED
        assert "strata isn't serving: ninfer:v2 serves" in words
        assert "ninfer:v2 is verified" in house.ok("pairs", "adopt", "ninfer")
        assert house.run_of("ninfer") == before
        known = pair(house, "ninfer:v2")
        assert (known["state"], known["how"]) == ("verified", "adopt")
        assert known["tokens"] > 0
        assert house.status()["verified"]

        move(house, "strata", trial=True)
        code, words = swap(house, "to-ninfer")
        assert code == SERVED, words  # without a trial, in the very container that was adopted
        assert house.run_of("ninfer")[0] == before[0]


def test_what_runs_and_is_none_of_the_configured_pairs_serves_and_cannot_be_adopted(
    docker_bed: DockerBed, shim: Path, tmp_path: Path
) -> None:
    with box(docker_bed, shim, tmp_path) as house:
        compose(house, "ninfer", "up", "--detach")
        with editor(house) as service:
            service["command"] = f"{service['command']} --draft-tokens 3"
            service["image"] = house.tenants["ninfer"].images[1]
        before = house.run_of("ninfer")
        house.serve()
        house.wait_serving("ninfer")
        assert house.status()["pair"] == "ninfer:?"
        code, _, words = house.slotctl("pairs", "adopt", "ninfer")
        assert code == REFUSED
        assert "none of its configured pairs" in words
        assert served_by(ask(house)) == "ninfer"
        assert house.run_of("ninfer") == before
