"""`slotctl slots` and `slots cancel` as the operator calls them, of a daemon in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.slotproxy.programs import LIMIT, Serve, chat, ended_engines, quick_house, until

CHAT = "/v1/chat/completions"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Serve]:
    with ended_engines(tmp_path), Serve(quick_house(tmp_path)) as daemon:
        daemon.event("slotproxy is up")
        assert daemon.slotctl("swap", "to-strata", "--trial").returncode == 0
        yield daemon


def test_the_operator_sees_who_waits_and_ends_one_of_them(daemon: Serve) -> None:
    with ThreadPoolExecutor() as clients, httpx.Client(base_url=daemon.url, timeout=LIMIT) as http:
        first = clients.submit(http.post, CHAT, json=chat(100_000), headers={"x-request-id": "first"})
        until(lambda: daemon.status()["gate"]["in_flight"] == 1)
        second = clients.submit(http.post, CHAT, json=chat(), headers={"x-request-id": "second"})
        until(lambda: daemon.status()["gate"]["waiting"] == 1)

        shown = daemon.slotctl("slots").stdout.splitlines()
        assert [line.split()[:2] for line in shown[4:]] == [["first", "anonymous"], ["second", "anonymous"]]
        assert "for its turn at" in shown[-1]
        said = json.loads(daemon.slotctl("slots", "--json").stdout)
        assert [(one["id"], one["doing"]) for one in said["requests"]] == [
            ("first", "answering"),
            ("second", "waiting"),
        ]

        unknown = daemon.slotctl("slots", "cancel", "third")
        assert (unknown.returncode, "no request third is open" in unknown.stderr) == (3, True)
        ended = daemon.slotctl("slots", "cancel", "first")
        assert (ended.returncode, ended.stdout) == (
            0,
            "cancelled request first of slot anonymous, which was answering\n",
        )
        assert first.result(LIMIT).status_code == 410
        assert second.result(LIMIT).status_code == 200
        assert "no request is open" in daemon.slotctl("slots").stdout
    lines = [(line["id"], line["outcome"]) for line in daemon.log if line["event"] == "request"]
    assert lines == [("first", "cut"), ("second", "served")]
