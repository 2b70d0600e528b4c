"""What is said when Docker can't be used. The daemons here are sockets that answer as one would, or don't."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from requests.exceptions import ConnectionError as SdkConnectionError
from urllib3.exceptions import ProtocolError

from swap import dockerd
from swap.dockerd import Docker, Reset
from swap.ports import Fault, Unfinished, Unreachable
from swap.threads import NoThread


@asynccontextmanager
async def _daemon(path: Path, answer: Callable[[str], bytes | None]) -> AsyncIterator[Docker]:
    """A daemon at `path`: `answer` gives the body for a request line, or None to break the connection."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            body = answer(head.split(b"\r\n", 1)[0].decode())
            if body is not None:
                headers = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close"
                writer.write(f"HTTP/1.1 200 OK\r\n{headers}\r\n\r\n".encode() + body)
        except asyncio.IncompleteReadError:
            pass  # only a knock
        finally:
            writer.close()

    server = await asyncio.start_unix_server(connected, path)
    docker = Docker(f"unix://{path}")
    try:
        yield docker
    finally:
        await docker.close()
        server.close()
        await asyncio.sleep(0)


def _version(api: str) -> bytes:
    return json.dumps({"ApiVersion": api, "Version": "?"}).encode()


async def test_a_docker_too_old_says_what_to_upgrade(tmp_path: Path) -> None:
    """Case 40: the API is too old."""
    async with _daemon(tmp_path / "d.sock", lambda _: _version("1.40")) as docker:
        with pytest.raises(Unreachable, match=r"too old: it speaks API 1\.40; upgrade .* 20\.10") as told:
            await docker.image("x")
        assert not told.value.passing


async def test_the_api_version_is_negotiated_anew_after_docker_was_gone(tmp_path: Path) -> None:
    asked: list[str] = []
    answers = {"1.41": b'{"Id": "sha256:1"}', "1.51": b'{"Id": "sha256:2"}'}
    speaks = ["1.41"]

    def answer(line: str) -> bytes | None:
        asked.append(line)
        if "/images/" not in line:
            return _version(speaks[0])
        return next((body for version, body in answers.items() if f"/v{version}/" in line), None)

    async with _daemon(tmp_path / "d.sock", answer) as docker:
        assert await docker.image("x") == {"Id": "sha256:1"}
    speaks[0] = "1.51"
    with pytest.raises(Unreachable, match="nothing listens there"):
        await docker.image("x")
    (tmp_path / "d.sock").unlink()
    async with _daemon(tmp_path / "d.sock", answer):
        assert await docker.image("x") == {"Id": "sha256:2"}
        await docker.close()


async def test_what_breaks_each_time_is_told_after_one_more_try(tmp_path: Path) -> None:
    asked: list[str] = []

    def answer(line: str) -> bytes | None:
        asked.append(line)
        return _version("1.41") if "/version" in line else None

    async with _daemon(tmp_path / "d.sock", answer) as docker:
        with pytest.raises(Reset, match="broke the connection"):
            await docker.image("x")
    assert sum("/images/" in line for line in asked) == 2


async def test_a_docker_that_hangs_is_given_no_more_than_so_many_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dockerd, "MOST_CALLS", 3)
    go = asyncio.Event()

    async def silent(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await go.wait()
        writer.close()

    server = await asyncio.start_unix_server(silent, tmp_path / "d.sock")
    docker = Docker(f"unix://{tmp_path / 'd.sock'}", reading=0.2)
    for _ in range(3):
        with pytest.raises(Unreachable, match="doesn't answer"):
            await docker.image("x")
    with pytest.raises(Unreachable, match="hasn't answered 3 calls"):
        await docker.image("x")
    server.close()
    go.set()
    async with asyncio.timeout(30.0):
        while docker._calls:  # noqa: ASYNC110  # threads end; nothing tells it
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("cause", "line", "passing"),
    [
        (PermissionError(13, "Permission denied"), "no permission to use Docker at unix:///d.sock; run as root", False),
        (FileNotFoundError(2, "No such file"), "can't be reached: there is no such socket; start it", True),
        (ConnectionRefusedError(111, "Connection refused"), "can't be reached: nothing listens there; start it", True),
        (ConnectionResetError(104, "reset by peer"), "broke the connection", True),
        (OSError(5, "odd"), "can't be used: ", True),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "as the SDK wraps it"])
def test_each_way_of_not_reaching_docker_has_its_line(cause: OSError, line: str, passing: bool, wrapped: bool) -> None:
    error = SdkConnectionError(ProtocolError("Connection aborted.", cause)) if wrapped else cause
    fault: Fault = Docker("unix:///d.sock")._fault(error)
    assert line in str(fault)
    assert fault.passing is passing


def test_the_address_is_the_given_one_else_docker_host_else_the_usual_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///elsewhere.sock")
    assert Docker("unix:///given.sock").address == "unix:///given.sock"
    assert Docker().address.endswith("/elsewhere.sock")
    monkeypatch.delenv("DOCKER_HOST")
    assert Docker().address == "unix:///var/run/docker.sock"


async def test_where_no_thread_can_be_had_nothing_was_asked_of_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a start isn't taken for one that may still come."""
    docker = Docker("unix:///d.sock")

    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        with pytest.raises(NoThread, match="no more threads") as fault:
            await docker.start("a" * 64)
    assert not isinstance(fault.value, Unreachable | Unfinished)
    assert (docker._calls, docker.changing("a" * 64)) == (0, False)
