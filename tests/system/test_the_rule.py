"""The owner's rule: what never ran on the card is no fallback, however right its header looks. A trial makes evidence.

A trial that fails puts back what served, and who waited is answered by that.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from signal import SIGINT

import pytest

from tests.system.bed import DockerBed
from tests.system.house import LIMIT, House
from tests.system.tenants import LOAD, Tenant
from tests.system.traps import (
    REFUSED,
    RESTORED,
    asked,
    box,
    client,
    editor,
    ids,
    in_phase,
    move,
    pair,
    plan,
    reconfigure,
    said,
    served_by,
    strata_serves,
    swap,
)

pytestmark = [pytest.mark.docker, pytest.mark.slow]


@pytest.fixture(scope="module")
def ruled(docker_bed: DockerBed, shim: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with box(docker_bed, shim, tmp_path_factory.mktemp("rule"), with_a_broken_pair) as house:
        house.serve()
        move(house, "strata", trial=True)
        yield house


def with_a_broken_pair(_: Tenant, ninfer: Tenant) -> None:
    """A third pair: v3, and it aborts when it has loaded."""
    ninfer.service["environment"]["NINFER_SIM_EXIT_AFTER_LOAD"] = "${FAULT:-}"
    v3 = ninfer.keys["pairs"]["v3"]
    ninfer.keys["pairs"]["broken"] = {**v3, "env": {**v3["env"], "FAULT": "134"}}


@pytest.fixture
def house(ruled: House) -> Iterator[House]:
    """Strata serves, and is all that is verified unless a test before has run another."""
    with strata_serves(ruled) as house:
        yield house


def test_a_pair_that_never_ran_is_refused_until_a_trial_has_shown_that_it_runs(house: House) -> None:
    with editor(house) as service:
        service["environment"]["NEW"] = "1"  # it never ran so, whatever tests have run before
    house.ok("stage", "ninfer")
    before = ids(house)
    shown = plan(house, "ninfer")
    assert shown["artifact_version"] == 2  # its header is perfect, and nothing else is wrong with it
    assert [one["what"] for one in shown["refusals"]] == ["ninfer:v2 never ran on this card"]
    code, words = swap(house, "to-ninfer")
    assert code == REFUSED, words
    assert "slotctl swap to-ninfer:v2 --trial" in words
    assert ids(house) == before
    assert pair(house, "ninfer:v2")["state"] == "candidate"

    house.ok("swap", "to-ninfer", "--trial")
    known = pair(house, "ninfer:v2")
    assert (known["state"], known["how"]) == ("verified", "trial")
    assert known["tokens"] > 0
    assert known["ready_in"] >= LOAD
    assert plan(house, "ninfer")["allowed"]


def test_the_next_pair_of_the_engine_on_the_card_is_staged_only_when_that_has_stopped(house: House) -> None:
    move(house, "ninfer:v2", trial=True)
    before = house.container("ninfer")
    code, words = swap(house, "to-ninfer:v3")
    assert code == REFUSED, words
    assert house.run_of("ninfer") == (before["Id"], before["State"]["StartedAt"])

    words = failing_trial(house, "ninfer:broken", back="ninfer:v2")
    assert "ninfer:broken exited with code 134: error: CUDA error" in words
    assert words.index("stopping") < words.index("recreating the container")
    back = house.container("ninfer")
    assert back["Id"] != before["Id"]  # it had to be made again, and differs in nothing
    assert asked(back) == asked(before)

    words = house.ok("swap", "to-ninfer:v3", "--trial")
    assert words.index("stopping") < words.index("recreating the container")
    assert house.status()["pair"] == "ninfer:v3"
    move(house, "ninfer:v2")
    assert plan(house, "ninfer:v3")["allowed"]


def test_a_trial_can_hand_the_card_back_to_the_very_container_that_served(house: House) -> None:
    strata = house.container("strata")["Id"]
    with editor(house) as service:
        service["environment"]["THERE"] = "and back"  # it never ran so
    words = house.ok("swap", "to-ninfer", "--trial", "--and-back")
    assert "ninfer:v2 is verified; strata:current serves again" in words
    phases = ("warming", "the card goes back to strata:current", "back: draining", "back: warming")
    assert sorted(phases, key=words.index) == list(phases)
    assert (house.running(), house.container("strata")["Id"]) == (["strata"], strata)
    assert plan(house, "ninfer")["allowed"]


def test_ctrl_c_leaves_a_trial_on_its_way_there_and_back(house: House) -> None:
    with editor(house) as service:
        service["environment"]["NOBODY"] = "listens"
    with client(house) as send, house.order("swap", "to-ninfer", "--trial", "--and-back") as order:
        in_phase(house, "starting", "warming")
        waiting = send()
        order.send_signal(SIGINT)
        assert order.wait(LIMIT) == 7
        assert served_by(waiting.result()) in ("ninfer", "strata")
        house.wait(lambda: house.status()["swap"] is None, "the trial to be over")
        assert house.status()["pair"] == "strata:current"
        order.communicate()
    assert house.running() == ["strata"]
    assert plan(house, "ninfer")["allowed"]


def failing_trial(house: House, label: str, *, back: str) -> str:
    """Who asks while it goes on is answered by what was serving; all words of the swap."""
    with client(house) as send, house.order("swap", f"to-{label}", "--trial") as order:
        in_phase(house, "stopping", "freeing", "starting", "warming")
        waiting = [send() for _ in range(3)]
        out, err = order.communicate(timeout=LIMIT)
        assert order.returncode == RESTORED, out + err
        assert f"{back} serves again" in err
        assert [served_by(one.result()) for one in waiting] == [back.partition(":")[0]] * 3
    return out + err


def test_a_failed_trial_puts_the_old_engine_back_and_the_clients_who_waited_are_answered_by_it(house: House) -> None:
    """Case 45: the new engine exits."""
    fails(house, "EXIT_AFTER_LOAD", "3", "ninfer:v2 exited with code 3: error: CUDA error")
    fails(house, "VRAM", "40GiB", "ninfer:v2 exited with code 1: error: model weights require")


def test_an_engine_that_is_not_ready_by_its_deadline_is_stopped_and_the_old_one_put_back(house: House) -> None:
    keys = house.tenants["ninfer"].keys
    usual = keys["start_deadline"]
    served_with(house, "2s")
    fails(house, "NEVER_READY", "1", "not ready after 2 s")
    served_with(house, usual)


def served_with(house: House, start_deadline: str) -> None:
    """By another daemon, which adopts what runs."""
    run = house.run_of("strata")
    house.stop()
    house.tenants["ninfer"].keys["start_deadline"] = start_deadline
    reconfigure(house)
    house.serve()
    house.wait(lambda: house.status()["verified"], "it to be served, and known as verified")
    assert house.run_of("strata") == run


def fails(house: House, knob: str, value: str, why: str) -> None:
    """A trial of NInfer with this fault; then Strata's very container serves again, and NInfer's is down."""
    strata = house.container("strata")["Id"]
    with strata_serves(house):
        with editor(house) as service:
            service["environment"][f"NINFER_SIM_{knob}"] = value
        assert why in failing_trial(house, "ninfer:v2", back="strata:current")
        assert house.running() == ["strata"]
        assert house.container("strata")["Id"] == strata
        refusal = said(plan(house, "ninfer"))
        assert "ninfer:v2 never ran on this card as it is now (tried on 20" in refusal
        assert why in refusal
