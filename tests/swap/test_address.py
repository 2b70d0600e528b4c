"""Who listens at an engine's address: told by pid and command, from the kernel's own tables."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest

from swap import address
from swap.address import Listener, listener, listening
from swap.ports import Fault

# Lines as the kernel prints them: listeners at 127.0.0.1:8095 (inode 41), 0.0.0.0:8096 (42), [::]:8097 (43),
# [::1]:8098 (44), ::ffff:127.0.0.1:8099 (45); a connection from 127.0.0.1:8095 (46) that doesn't listen.
TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F9F 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 41 1 0000 100 0 0 10 0
   1: 00000000:1FA0 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 42 1 0000 100 0 0 10 0
   2: 0100007F:1F9F 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 46 1 0000 20 4 30 10 -1
  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when
   0: 00000000000000000000000000000000:1FA1 00000000000000000000000000000000:0000 0A 0:0 00:0 0     0        0 43 1 00
   1: 00000000000000000000000001000000:1FA2 00000000000000000000000000000000:0000 0A 0:0 00:0 0     0        0 44 1 00
   2: 0000000000000000FFFF00000100007F:1FA3 00000000000000000000000000000000:0000 0A 0:0 00:0 0     0        0 45 1 00
"""


@pytest.mark.parametrize(
    ("host", "port", "inodes"),
    [
        ("127.0.0.1", 8095, {"41"}),
        ("127.0.0.2", 8095, set()),
        ("0.0.0.0", 8095, {"41"}),
        ("::", 8095, {"41"}),
        ("127.0.0.1", 8096, {"42"}),
        ("::1", 8096, set()),
        ("127.0.0.1", 8097, {"43"}),
        ("::1", 8097, {"43"}),
        ("127.0.0.1", 8098, set()),
        ("::1", 8098, {"44"}),
        ("127.0.0.1", 8099, {"45"}),
        ("127.0.0.1", 8100, set()),
    ],
)
def test_a_listener_is_found_where_a_connection_would_arrive(host: str, port: int, inodes: set[str]) -> None:
    assert listening(TABLE, [ip_address(host)], port) == inodes


@contextmanager
def server(host: str) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as opened:
        yield opened


@pytest.mark.parametrize("asked", ["127.0.0.1", "localhost", "0.0.0.0"])
async def test_a_real_listener_is_named_by_pid_and_command(asked: str) -> None:
    with server("127.0.0.1") as opened:
        found = await listener(asked, opened.getsockname()[1])
    assert found is not None
    assert found.pid == os.getpid()
    assert "py" in found.command
    assert f"pid {os.getpid()}" in str(found)


async def test_another_process_is_named() -> None:
    code = (
        "import socket, sys; s = socket.create_server(('0.0.0.0', 0)); print(s.getsockname()[1], flush=True); input()"
    )
    pipe = asyncio.subprocess.PIPE
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdin=pipe, stdout=pipe)
    assert other.stdout is not None
    found = await listener("127.0.0.1", int(await other.stdout.readline()))
    await other.communicate(b"\n")
    assert found is not None
    assert found.pid == other.pid
    assert "create_server" in found.command


async def test_a_free_port_has_nobody_even_while_connections_end_there() -> None:
    with server("127.0.0.1") as opened:
        port = opened.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = opened.accept()
    accepted.close()  # its port is in TIME_WAIT now
    client.close()
    assert await listener("127.0.0.1", port) is None


async def test_an_address_that_isnt_this_machines_has_no_listener_of_ours() -> None:
    with server("0.0.0.0") as opened:
        port = opened.getsockname()[1]
        assert await listener("192.0.2.1", port) is None
        assert await listener("127.0.0.1", port) is not None


def test_an_owner_that_cant_be_seen_is_still_a_listener(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text(TABLE)
    (tmp_path / "17").mkdir()
    assert address._find("127.0.0.1", 8095, tmp_path) == Listener(0, "")
    assert str(Listener(0, "")) == "a process that can't be seen from here"
    assert address._find("127.0.0.1", 8100, tmp_path) is None


@pytest.mark.parametrize("host", ["", "x" * 70])
async def test_a_host_that_cant_be_resolved_is_a_fault(host: str) -> None:
    with pytest.raises(Fault, match=r":8095 can't be told"):
        await listener(host, 8095)


async def test_tables_that_hang_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    released = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hangs(host: str, port: int, proc: Path) -> Listener | None:
        asyncio.run_coroutine_threadsafe(released.wait(), loop).result(30)
        return None

    monkeypatch.setattr(address, "_find", hangs)
    monkeypatch.setattr(address, "LIMIT", 0.2)
    with pytest.raises(Fault, match="hasn't answered in"):
        await listener("127.0.0.1", 8095)
    released.set()
