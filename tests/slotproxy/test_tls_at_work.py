"""HTTPS of a real daemon, at a port that systemd opened: certificates change by a reload, and streams go on."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from signal import SIGTERM

import httpx

from tests.slotproxy.certificates import PEM, shown, trusting
from tests.slotproxy.programs import BIN, LIMIT, chat, ended_engines, env, quick_house, slotctl

TRUSTING = trusting()


def show(folder: Path, name: str) -> None:
    """What the configuration names is this certificate from now on."""
    for kind in ("pem", "key"):
        shutil.copyfile(PEM / f"{name}.{kind}", folder / f"current.{kind}")


@contextlib.contextmanager
def served(config: Path, port: socket.socket) -> Iterator[subprocess.Popen[bytes]]:
    """The daemon, given this port as systemd does."""
    command = [str(BIN / "slotproxy"), "serve", "--config", str(config)]
    become = f"import os; os.dup2({port.fileno()}, 3); os.environ['LISTEN_PID'] = str(os.getpid())"
    become += f"; os.execv({command[0]!r}, {command})"
    log = config.with_name("log")
    with log.open("wb") as err:
        words, given = [sys.executable, "-c", become], [port.fileno()]
        child = subprocess.Popen(words, stderr=err, env=env(LISTEN_FDS=1), pass_fds=given)
    try:
        yield child
    except BaseException:
        print(log.read_text())
        raise
    finally:
        child.kill()
        child.wait()


def connected(port: int) -> ssl.SSLSocket:
    return TRUSTING.wrap_socket(socket.create_connection(("127.0.0.1", port), LIMIT), server_hostname="localhost")


def test_a_renewed_certificate_is_shown_after_a_reload_and_a_stream_goes_on(tmp_path: Path) -> None:
    show(tmp_path, "server")
    control = tmp_path / "control.sock"
    with ended_engines(tmp_path), socket.create_server(("127.0.0.1", 0)) as port:
        listen = port.getsockname()[1]
        names = {"certificate": "current.pem", "key": "current.key"}
        house = quick_house(tmp_path, listen=f"127.0.0.1:{listen}", tls=names)
        with served(house, port) as daemon, connected(listen) as first:  # it waits until the daemon is there
            assert shown(first) == "server"
            swapped = slotctl(control, "swap", "to-strata", "--trial")
            assert swapped.returncode == 0, swapped.stderr
            with httpx.Client(verify=TRUSTING, base_url=f"https://localhost:{listen}", timeout=LIMIT) as client:
                asked = chat(60, stream=True)
                with client.stream("POST", "/v1/chat/completions", json=asked) as stream:
                    lines = stream.iter_lines()
                    assert next(lines).startswith("data: ")

                    show(tmp_path, "expired")
                    (tmp_path / "current.key").write_text("no key")
                    refused = slotctl(control, "reload")
                    assert refused.returncode == 2
                    assert "tls.key: " in refused.stderr
                    with connected(listen) as other:
                        assert shown(other) == "server"

                    show(tmp_path, "renewed")
                    taken = json.loads(slotctl(control, "reload", "--json").stdout)
                    assert taken["changes"] == ["tls: another certificate, valid until 2120-01-01 00:00Z"]
                    with connected(listen) as other:
                        assert shown(other) == "renewed"
                    assert [line for line in lines if line][-1] == "data: [DONE]"
            first.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            assert first.recv(12) == b"HTTP/1.1 200"
            daemon.send_signal(SIGTERM)
            assert daemon.wait(LIMIT) == 0
