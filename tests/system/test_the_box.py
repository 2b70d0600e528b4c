"""The first user's box, walked through as the README's *A box with NInfer and Strata* does, with its own commands.

NInfer's v2 has run for months, v3 was built beside it and never started; Strata shares the card with them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from swap.adoption import MARGIN
from tests.system.bed import DockerBed
from tests.system.house import LIMIT, House, Json
from tests.system.tenants import Tenant
from tests.system.traps import (
    NEVER,
    REFUSED,
    RESTORED,
    ask,
    box,
    client,
    compose,
    ids,
    in_phase,
    pair,
    reconfigure,
    served_by,
    swap,
    used,
)

pytestmark = [pytest.mark.docker, pytest.mark.slow]

FAULT = "error: CUDA error"


@pytest.fixture
def house(docker_bed: DockerBed, shim: Path, tmp_path: Path) -> Iterator[House]:
    """As on the day before the proxy came: NInfer was given the card by a script, Strata's container is stopped."""
    with box(docker_bed, shim, tmp_path, with_faults) as house:
        time.sleep(MARGIN)  # the files were there long before
        compose(house, "strata", "create")
        compose(house, "ninfer", "up", "--detach")
        house.serve()
        house.wait_serving("ninfer")
        yield house


def with_faults(_: Tenant, ninfer: Tenant) -> None:
    """A pair's `env` can make it abort once it has loaded."""
    ninfer.service["environment"]["NINFER_SIM_EXIT_AFTER_LOAD"] = "${FAULT:-}"


def states(house: House) -> dict[str, str]:
    return {one["label"]: one["state"] for one in json.loads(house.ok("pairs", "--json"))["pairs"]}


def first_evidence(house: House) -> None:
    """v2 is adopted where it stands, and Strata has its trial."""
    v2 = house.run_of("ninfer")
    assert states(house) == {"strata:current": "candidate", "ninfer:v2": "candidate", "ninfer:v3": "candidate"}
    assert "ninfer:v2 is verified" in house.ok("pairs", "adopt", "ninfer")
    assert house.run_of("ninfer") == v2
    house.ok("swap", "to-strata", "--trial")
    assert states(house) == {"strata:current": "verified", "ninfer:v2": "verified", "ninfer:v3": "candidate"}


def test_v2_is_adopted_and_v3_is_staged_tried_verified_and_made_the_deployed_one(house: House) -> None:
    first_evidence(house)
    refused_before_it_is_tried(house)
    staged_at_no_cost(house)
    tried_and_handed_back(house)
    made_the_deployed_one(house)
    v2_is_still_there(house)


def refused_before_it_is_tried(house: House) -> None:
    before = ids(house)
    code, out, err = house.slotctl("plan", "to-ninfer:v3")
    assert code == REFUSED
    assert "ninfer:v3 never ran on this card" in out + err
    code, words = swap(house, "to-ninfer:v3")
    assert code == REFUSED
    assert "slotctl swap to-ninfer:v3 --trial" in words
    assert ids(house) == before


def staged_at_no_cost(house: House) -> None:
    strata, taken = house.run_of("strata"), used(house)
    assert "ninfer:v3 is staged" in house.ok("stage", "ninfer:v3")
    staged = house.container("ninfer")
    assert (staged["Config"]["Image"], staged["State"]["StartedAt"]) == (house.tenants["ninfer"].images[1], NEVER)
    assert (house.run_of("strata"), used(house)) == (strata, taken)
    assert served_by(ask(house)) == "strata"
    assert states(house)["ninfer:v3"] == "candidate"  # a container is no evidence


def tried_and_handed_back(house: House) -> None:
    words = house.ok("swap", "to-ninfer:v3", "--trial", "--and-back")
    assert "ninfer:v3 is verified" in words
    assert house.status()["pair"] == "strata:current"
    assert served_by(ask(house)) == "strata"
    known = pair(house, "ninfer:v3")
    assert (known["state"], known["how"]) == ("verified", "trial")
    assert known["ready_in"] > 0
    assert known["vram_peak"] > 0
    assert known["tokens_per_second"] > 0


def made_the_deployed_one(house: House) -> None:
    """An edit of one line, and a new daemon, which takes nothing away from who serves."""
    strata = house.run_of("strata")
    house.stop()
    house.tenants["ninfer"].keys["deployed"] = "v3"
    reconfigure(house)
    house.serve()
    house.wait_serving("strata")
    assert house.run_of("strata") == strata
    house.ok("swap", "to-ninfer")
    assert house.status()["pair"] == "ninfer:v3"
    assert served_by(ask(house)) == "ninfer"


def v2_is_still_there(house: House) -> None:
    """What was verified stays so: it is a fallback for as long as nothing of it changes."""
    house.ok("swap", "to-ninfer:v2")
    assert house.status()["pair"] == "ninfer:v2"
    assert states(house) == {"strata:current": "verified", "ninfer:v2": "verified", "ninfer:v3": "verified"}
    assert exported(house, "ninfer:v2")["predicate"]["pair"] == "ninfer:v2"


def exported(house: House, label: str) -> Json:
    """The statement that an operator keeps beside the artifact."""
    return dict(json.loads(house.ok("pairs", "export", label)))


def test_a_v3_that_fails_in_its_trial_is_no_fallback_and_costs_nobody_an_answer(house: House) -> None:
    first_evidence(house)
    house.stop()
    house.tenants["ninfer"].keys["pairs"]["v3"]["env"]["FAULT"] = "134"
    reconfigure(house)
    house.serve()
    house.wait_serving("strata")
    with client(house) as send, house.order("swap", "to-ninfer:v3", "--trial") as order:
        in_phase(house, "stopping", "freeing", "starting", "warming")
        waiting = [send() for _ in range(3)]
        out, err = order.communicate(timeout=LIMIT)
        assert order.returncode == RESTORED, out + err
        assert [served_by(one.result()) for one in waiting] == ["strata"] * 3
    assert "strata:current serves again" in err
    assert FAULT in err
    known = pair(house, "ninfer:v3")
    assert known["state"] == "failed"
    assert FAULT in known["last_failure"]["reason"]
    code, words = swap(house, "to-ninfer:v3")
    assert code == REFUSED
    assert FAULT in words  # why it failed is said to who tries again
    house.ok("swap", "to-ninfer")  # v2 is verified as before, and staged by the swap
    assert house.status()["pair"] == "ninfer:v2"
