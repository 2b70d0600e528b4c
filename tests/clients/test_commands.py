"""curl, wget, httpx, aiohttp and Node's fetch get from slotproxy what they get from the engine, in all their ways."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.clients.answers import read, same
from tests.clients.commands import FROM_STDIN, Command, body_of, curl_command, every, fetch_command, needs, run
from tests.clients.house import MODEL, NAMES, House

ALSO_WHOLE = ("curl", "curl-http1.0", "curl-compressed", "wget", "httpx", "aiohttp")
CHUNKED = ("curl-upload", "curl-chunked")
TWICE = 3  # words of the answer to a client that asks again


@pytest.fixture(scope="module", params=NAMES)
def serving(request: pytest.FixtureRequest, house: House) -> House:
    house.serve(request.param)
    return house


@pytest.mark.parametrize("command", every())
def test_a_program_streams_the_same_from_slotproxy_as_from_the_engine(command: Command, serving: House) -> None:
    same_both_ways(command, serving, stream=True)


@pytest.mark.parametrize("command", every(ALSO_WHOLE))
def test_a_program_is_told_the_same_by_slotproxy_as_by_the_engine(command: Command, serving: House) -> None:
    same_both_ways(command, serving, stream=False)


def same_both_ways(command: Command, serving: House, *, stream: bool) -> None:
    if serving.holder == "llama":
        command.ask(serving.direct, stream=stream)
    through = read(command.ask(serving.through, stream=stream))
    assert (through[-1] == "[DONE]") == stream
    direct = serving.direct
    if command.name in CHUNKED and serving.holder == "strata":
        with pytest.raises(subprocess.CalledProcessError) as refused:  # it can't read such a body: slotproxy counts
            run([*curl_command(direct, "--fail", *FROM_STDIN), "-H", "Transfer-Encoding: chunked"], b"{}")
        assert b"400" in refused.value.stderr
        command = next(one.values[0] for one in every(["curl"]))
    assert same(through) == same(read(command.ask(direct, stream=stream)))


@needs("curl")
def test_a_large_body_is_sent_once_it_is_asked_for(house: House) -> None:
    body = json.dumps(body_of(house.through, user="x" * 2**21)).encode()
    command = curl_command(house.through, "-v", "-H", "Expect: 100-continue", "--expect100-timeout", "50", *FROM_STDIN)
    told = subprocess.run(command, input=body, capture_output=True, timeout=40, check=True).stderr
    assert b"< HTTP/1.1 100 " in told


@needs("curl")
def test_a_body_that_is_too_large_is_refused_before_it_is_sent(house: House, tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(99_999_999)
    expects = ("-H", "Expect: 100-continue", "--expect100-timeout", "50")
    command = curl_command(house.through, "-v", *expects, "-X", "POST", "-T", str(large), "-w", "\n%{size_upload}")
    done = subprocess.run(command, capture_output=True, timeout=40, check=False)
    answer, _, uploaded = done.stdout.decode().rpartition("\n")
    assert json.loads(answer)["error"]["code"] == "body_too_large"
    assert b"100 Continue" not in done.stderr
    assert uploaded == "0"


@needs("curl")
@pytest.mark.parametrize("version", ["--http1.0", "--http1.1"])
def test_head_of_the_models_is_their_length_and_no_body(version: str, house: House) -> None:
    command = curl_command(house.through, version, path="/v1/models")
    whole = run(command)
    assert [one["id"] for one in json.loads(whole)["data"]] == [MODEL]
    head, end, rest = run([*command, "-I"]).decode().partition("\r\n\r\n")
    assert (end, rest) == ("\r\n\r\n", "")
    assert " 200 " in head.splitlines()[0]
    assert f"content-length: {len(whole)}" in head.lower()


@needs("curl")
def test_a_connection_is_used_again(house: House) -> None:
    command = curl_command(house.through, "-v", path="/v1/models")
    told = subprocess.run([*command, command[-1]], capture_output=True, timeout=40, check=True).stderr
    assert b"Re-using existing connection" in told
    assert told.count(b"< HTTP/1.1 200") == 2


@needs("node")
def test_fetch_asks_again_on_the_connection_that_it_kept(house: House) -> None:
    body = body_of(house.through, max_tokens=TWICE, stream=True)
    said = run(fetch_command(house.through, body, twice=True)).decode()
    assert said.count("[DONE]") == 2
