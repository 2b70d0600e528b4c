"""An engine that runs and serves nobody, through the whole stack: a real `slotproxy serve`, NInfer's simulator.

It is restarted, and clients wait meanwhile; one that is only silent is left alone.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest
import yaml

from tests.slotproxy.programs import LIMIT, Json, Serve, chat, ended_engines, engines, quick_house, until

PREFILL = 4000  # characters a second: a token has four
SILENT = 2.5  # seconds of the long prefill: as many looks at its sign as would be too many


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """NInfer serves. Its sign is asked twice a second, and lies, as older builds do."""
    folder = tmp_path_factory.mktemp("useless")
    path = quick_house(folder, default="ninfer")
    written = yaml.safe_load(path.read_text())
    ninfer = written["engines"]["ninfer"]
    ninfer |= {"health_every": "500ms", "health_failures": 2}
    ninfer["env"] |= {
        "NINFER_SIM_FAILURE_FILE": str(folder / "failure"),
        "NINFER_SIM_LYING_HEALTH": "1",
        "NINFER_SIM_PREFILL_TPS": str(PREFILL // 4),
        "NINFER_SIM_REQUEST_LOG": str(folder / "requests.jsonl"),
    }
    tell = f'echo "$SLOTPROXY_EVENT_KIND: $SLOTPROXY_EVENT_TEXT" >> {folder / "heard"}'
    written["notify"] = {"command": ["/bin/sh", "-c", tell]}
    path.write_text(yaml.safe_dump(written))
    with ended_engines(folder), Serve(path) as serve:
        serve.event("slotproxy is up")
        assert serve.slotctl("swap", "to-ninfer", "--trial").returncode == 0
        yield serve
        assert serve.end(signal.SIGTERM) == 0


def fails(house: Serve, how: str) -> int:
    """From its next request on. The pid of its process."""
    folder = house.control.parent
    (folder / "failing").write_text(how)
    (folder / "failing").rename(folder / "failure")
    (pid,) = engines(folder)
    return pid


def sent(house: Serve, **more: object) -> Future[httpx.Response]:
    return POOL.submit(lambda: httpx.post(f"{house.url}/v1/chat/completions", json=chat(**more), timeout=LIMIT))  # type: ignore[arg-type]


POOL = ThreadPoolExecutor(8)


def decisions(house: Serve, kind: str) -> list[Json]:
    told: list[Json] = json.loads(house.slotctl("events", "--json").stdout)["events"]
    return [one for one in told if one["kind"] == kind]


def requests(house: Serve) -> list[Json]:
    lines = (house.control.parent / "requests.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    ("failure", "status", "reason"),
    [("unavailable", 503, "the engine has failed"), ("lost", 500, "no CUDA-capable device")],
    ids=["case_24_unavailable_for_ever", "case_33_the_container_lost_the_card"],
)
def test_cases_24_and_33_it_is_restarted_and_all_clients_but_the_one_who_met_it_wait_and_are_answered(
    house: Serve, failure: str, status: int, reason: str
) -> None:
    """Cases 24 and 33: whatever its /health says, and however well the host is."""
    pid, before = fails(house, failure), len(decisions(house, "useless"))
    answers = [one.result() for one in [sent(house) for _ in range(6)]]
    assert sorted(answer.status_code for answer in answers) == [200] * 5 + [status]
    (met,) = [answer for answer in answers if answer.status_code == status]
    assert reason in met.text
    (after,) = engines(house.control.parent)
    assert after != pid
    told = decisions(house, "useless")[before:]
    assert len(told) == 1
    assert f"errors in a row: 3; the last: a completion of ours got HTTP {status}" in told[0]["why"]
    ids = [line["request_id"] for line in requests(house) if line["event"] == "received"]
    assert [ids.count(answer.headers["x-request-id"]) for answer in answers] == [1] * 6


def test_who_isnt_looking_hears_of_the_dark_of_a_useless_engine_and_of_each_return(house: Serve) -> None:
    """Nothing had been proven at first; the rest is what the tests before this one have done."""
    expected = ["dark: nothing serves, and a person is needed", "recovered: ninfer:v2 serves"]
    if decisions(house, "useless"):
        expected += ["useless: ninfer:v2 runs and serves nobody", "recovered: ninfer:v2 serves again"]
    heard = house.control.parent / "heard"
    until(lambda: len(heard.read_text().splitlines()) >= len(expected))
    assert heard.read_text().splitlines()[: len(expected)] == expected


def test_case_24_twin_one_that_is_silent_in_a_long_prefill_is_not_useless_nor_one_whose_client_left_in_it(
    house: Serve,
) -> None:
    """Case 24: stopped (SIGSTOP) it gives no sign, as behind eight busy streams, and the next request hears nothing."""
    (pid,), useless = engines(house.control.parent), len(decisions(house, "useless"))
    before = len(requests(house))
    prompt = [{"role": "user", "content": "x" * int(PREFILL * SILENT)}]
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{house.url}/v1/chat/completions", json=chat(messages=prompt), timeout=0.5)
    until(lambda: len(requests(house)) > before)
    os.kill(pid, signal.SIGSTOP)
    following = sent(house)
    time.sleep(SILENT)
    os.kill(pid, signal.SIGCONT)
    answer = following.result()
    assert answer.status_code == 200
    assert engines(house.control.parent) == [pid]
    assert len(decisions(house, "useless")) == useless
    received = [line for line in requests(house)[before:] if line["event"] == "received"]
    assert [line["request_id"] for line in received].count(answer.headers["x-request-id"]) == 1


def test_a_client_whose_requests_are_at_fault_does_not_make_it_useless(house: Serve) -> None:
    before = engines(house.control.parent)
    bad = [sent(house, messages="no messages").result().status_code for _ in range(10)]
    assert bad == [400] * 10
    assert sent(house).result().status_code == 200
    assert engines(house.control.parent) == before
