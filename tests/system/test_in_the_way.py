"""What stands in the way of a swap and isn't ours is named, and left alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.bed import DockerBed
from tests.system.house import House
from tests.system.traps import (
    NEVER,
    REFUSED,
    RESTORED,
    SERVED,
    ask,
    box,
    editor,
    ids,
    move,
    plan,
    process,
    said,
    served_by,
    strata_serves,
    swap,
)

pytestmark = [pytest.mark.docker, pytest.mark.slow]

STALE = """
import http.server, sys
class Stale(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Stale)
print("ready", flush=True)
server.serve_forever()
"""


@pytest.fixture(scope="module")
def proven(docker_bed: DockerBed, shim: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with box(docker_bed, shim, tmp_path_factory.mktemp("way")) as house:
        house.serve()
        move(house, "strata", trial=True)
        yield house


@pytest.fixture
def house(proven: House) -> Iterator[House]:
    """Strata serves, and there is no container of NInfer's, also not afterwards."""
    with strata_serves(proven) as house:
        yield house
        house.make_serve("strata")
        house.bed.client.remove_container(house.container("ninfer")["Id"])


def test_a_foreign_container_with_our_name_is_refused_with_its_labels_and_never_removed(house: House) -> None:
    """Case 38: made by a plain `docker run`."""
    name, image = house.tenants["ninfer"].container, house.bed.images.python
    made = house.bed.client.create_container(image, ["python3"], name=name, labels={"team": "voice"})["Id"]
    before = ids(house)
    code, words = swap(house, "to-ninfer", "--trial")
    assert code == REFUSED, words
    for told in (words, said(plan(house, "ninfer", trial=True))):
        assert f"container {name} ({made[:12]}) wasn't made by compose" in told
        assert "team=voice" in told
    assert house.slotctl("stage", "ninfer")[0] == REFUSED
    assert house.status()["engines"]["ninfer"]["status"] == "foreign"
    assert ids(house) == before
    assert before["ninfer"] == (made, NEVER)
    assert served_by(ask(house)) == "strata"


def test_a_restart_policy_is_refused_because_it_would_bring_the_engine_back_beside_the_other(house: House) -> None:
    with strata_serves(house):
        with editor(house) as service:
            service["restart"] = "unless-stopped"
        code, words = swap(house, "to-ninfer", "--trial")
        assert code == REFUSED, words
        assert "the restart policy 'unless-stopped'" in words
        assert 'restart: "no"' in words
        assert house.slotctl("stage", "ninfer")[0] == REFUSED
        assert house.container("ninfer") == {}

    house.ok("stage", "ninfer")
    policy = {"Name": "always", "MaximumRetryCount": 0}
    house.bed.client.update_container(house.container("ninfer")["Id"], restart_policy=policy)
    code, words = swap(house, "to-ninfer", "--trial", "--no-stage")
    assert code == REFUSED, words
    assert "the restart policy 'always'" in words
    code, words = swap(house, "to-ninfer", "--trial")
    assert code == SERVED, words
    assert "recreating the container: restart policy" in words
    assert house.container("ninfer")["HostConfig"]["RestartPolicy"]["Name"] in ("no", "")


def test_case_22_a_stale_server_at_the_targets_address_is_named_and_never_taken_for_it(
    house: House, tmp_path: Path
) -> None:
    strata, port = house.container("strata")["Id"], house.tenants["ninfer"].port
    with process(tmp_path / "stale.py", STALE, str(port)) as stale:
        code, words = swap(house, "to-ninfer", "--trial")
        assert code == RESTORED, words
        assert f"pid {stale.pid} (" in words
        assert f"stale.py {port}) listens at http://127.0.0.1:{port} already" in words
        assert stale.poll() is None
    assert house.container("ninfer")["State"]["StartedAt"] == NEVER
    assert (house.running(), house.container("strata")["Id"]) == (["strata"], strata)
    assert served_by(ask(house)) == "strata"
