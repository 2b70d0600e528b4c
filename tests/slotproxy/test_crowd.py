"""More clients than a process may have files open. A real daemon, with a small limit."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx

from slotproxy.files import RESERVE
from tests.slotproxy.programs import LIMIT, chat, ended_engines, env, free_port, quick_house, slotctl, status, until

CLIENTS = 60
LIMITED = f"""
import resource, sys
from slotproxy.__main__ import main

resource.setrlimit(resource.RLIMIT_NOFILE, (64, {RESERVE + CLIENTS}))
sys.exit(main(["serve", "--config", sys.argv[1]]))
"""


@contextlib.contextmanager
def limited(house: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("w") as err, subprocess.Popen([sys.executable, "-c", LIMITED, house], stderr=err, env=env()) as serve:
        try:
            yield serve
        finally:
            serve.kill()


def request(port: int) -> bytes:
    body = json.dumps(chat()).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-length: %d\r\n\r\n"
    return head % (port, len(body)) + body


def answer(client: socket.socket) -> bytes:
    """All that comes until the other side closes; nothing of it where it is closed without a word."""
    got = b""
    with contextlib.suppress(ConnectionError):
        while data := client.recv(65536):
            got += data
    return got


def test_a_crowd_of_clients_is_told_to_go_and_takes_nothing_from_the_others(tmp_path: Path) -> None:
    port, log, control = free_port(), tmp_path / "log", tmp_path / "control.sock"
    house = quick_house(tmp_path, listen=f"127.0.0.1:{port}")
    with ended_engines(tmp_path), limited(house, log) as serve, contextlib.ExitStack() as clients:
        until(lambda: "slotproxy is up" in log.read_text())
        assert slotctl(control, "swap", "to-strata", "--trial").returncode == 0
        assert slotctl(control, "hold").returncode == 0

        def come() -> socket.socket:
            client = clients.enter_context(socket.create_connection(("127.0.0.1", port), LIMIT))
            with contextlib.suppress(ConnectionError):
                client.sendall(request(port))
            return client

        waiting = [come() for _ in range(CLIENTS)]
        until(lambda: status(control)["gate"]["waiting"] == CLIENTS)
        for _ in range(10):
            told = answer(come())
            assert told.startswith(b"HTTP/1.1 503 ")
            assert b"\r\nretry-after: 5\r\n" in told
            assert b"\r\nconnection: close\r\n" in told
            assert json.loads(told.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_many_connections"
        answers = [answer(client) for client in [come() for _ in range(400)]]
        assert {said[:12] for said in answers} <= {b"HTTP/1.1 503", b""}
        assert slotctl(control, "status").returncode == 0
        assert status(control)["gate"]["waiting"] == CLIENTS

        for client in waiting[1:]:
            client.close()
        until(lambda: status(control)["gate"]["waiting"] == 1)
        assert slotctl(control, "release").returncode == 0
        assert waiting[0].recv(12) == b"HTTP/1.1 200"
        assert httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=chat(), timeout=LIMIT).is_success
        serve.send_signal(signal.SIGTERM)
        assert serve.wait(LIMIT) == 0
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert [line for line in lines if line["level"] == "error"] == []
