"""slotproxy behind a real nginx, configured as the README says; without nginx (Debian's nginx-light) it is skipped."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engines.spec import CHAT
from slotproxy.config import Limits, SlotSettings
from slotproxy.keys import digests
from slotproxy.outcomes import Outcome
from tests.slotproxy.certificates import PEM, trusting
from tests.slotproxy.programs import ROOT, free_port
from tests.slotproxy.rig import (
    AT_ONCE,
    DONE,
    SSE,
    WITHIN,
    Client,
    Conversation,
    Proxy,
    Seen,
    Upstream,
    ask,
    chunk,
    delta,
    engine,
    eventually,
    proxied,
    saying,
    whole,
)

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
pytestmark = pytest.mark.skipif(NGINX is None, reason="needs nginx (Debian: nginx-light)")

TRUSTING = trusting()
KEYED = {"anonymous": SlotSettings("anonymous"), "voice": SlotSettings("voice", keys=digests("sesame"))}
KEY = b"authorization: Bearer sesame"
MAIN = """
daemon off;
pid nginx.pid;
error_log stderr;
worker_processes 1;
events {{}}
http {{
access_log off;
client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
{server}
}}
"""


def readmes_own(listen: int, port: int) -> str:
    """The README's server, with this machine's ports and certificate; and less patience, so that pings are needed."""
    (server,) = re.findall(r"```nginx\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    changes = {
        "listen 443 ssl": f"listen 127.0.0.1:{listen} ssl",
        "/etc/ssl/llm.example/fullchain.pem": str(PEM / "server.pem"),
        "/etc/ssl/llm.example/privkey.pem": str(PEM / "server.key"),
        "http://127.0.0.1:8080": f"http://127.0.0.1:{port}",
        "proxy_read_timeout 15m": "proxy_read_timeout 1s",
    }
    for written, here in changes.items():
        assert written in server
        server = server.replace(written, here)
    return MAIN.format(server=server)


@contextlib.asynccontextmanager
async def behind_nginx(folder: Path, proxy: Proxy) -> AsyncIterator[int]:
    """The port that nginx speaks HTTPS at."""
    listen = free_port()
    config = folder / "nginx.conf"
    config.write_text(readmes_own(listen, proxy.port))
    assert NGINX is not None
    nginx = await asyncio.create_subprocess_exec(NGINX, "-e", "stderr", "-p", str(folder), "-c", str(config))
    try:
        await eventually(lambda: accepts(listen) or nginx.returncode is not None)
        assert nginx.returncode is None
        yield listen
    finally:
        with contextlib.suppress(ProcessLookupError):
            nginx.terminate()
        await nginx.wait()


def accepts(port: int) -> bool:
    with socket.socket() as knock:
        knock.settimeout(WITHIN)
        return knock.connect_ex(("127.0.0.1", port)) == 0


def client_of(listen: int) -> contextlib.AbstractAsyncContextManager[Client]:
    return Client.at(listen, ssl=TRUSTING, server_hostname="localhost")


async def test_a_stream_comes_through_piece_by_piece_and_pings_outlast_the_time_outs(tmp_path: Path) -> None:
    """Cases 1 and 18: the real thing on the way, which holds back and cuts unless it is told not to."""
    go_on = asyncio.Event()

    async def slowly(talk: Conversation, _: Seen) -> None:
        await talk.send(SSE, chunk(delta("one")))
        await go_on.wait()
        await talk.send(chunk(delta("two")), chunk(DONE), b"0\r\n\r\n")

    limits = Limits(first_ping=0.3, ping_every=0.3)
    async with (
        Upstream(slowly) as up,
        proxied(engine(up.url), limits=limits, slots=KEYED, opened=False) as proxy,
        behind_nginx(tmp_path, proxy) as listen,
        client_of(listen) as client,
    ):
        await client.post(CHAT, ask(stream=True), KEY)
        await client.until(b": keep-alive\n\n")
        await asyncio.sleep(1.5)  # longer than nginx waits for a byte
        proxy.gate.open("strata", 1, "a run")
        await client.until(delta("one"))  # nothing more is sent until it has come
        go_on.set()
        await client.until(b"\r\n0\r\n\r\n")
        assert client.got.startswith(b"HTTP/1.1 200 OK\r\n")
        assert client.body.endswith(delta("one") + delta("two") + DONE)


async def test_a_broken_stream_is_broken_behind_it_too_and_a_client_that_leaves_is_gone(tmp_path: Path) -> None:
    left = asyncio.Event()

    async def prefill(talk: Conversation, seen: Seen) -> None:
        if b"cut" in seen.body:
            await talk.send(SSE, chunk(delta()))
            return
        await talk.left()
        left.set()

    async with (
        Upstream(prefill) as up,
        proxied(engine(up.url), slots=KEYED) as proxy,
        behind_nginx(tmp_path, proxy) as listen,
    ):
        async with client_of(listen) as client:
            await client.post(CHAT, ask(stream=True, user="cut"), KEY)
            await client.rest()
            assert b'"cut_short"' in client.body
            assert not client.ended_whole
        async with client_of(listen) as client:
            await client.post(CHAT, ask(stream=True), KEY)
            await eventually(lambda: len(up.seen) == 2)
            client.writer.close()
            async with asyncio.timeout(AT_ONCE):
                await left.wait()
        await proxy.idle()
        assert dict(proxy.outcomes.counts) == {Outcome.TRUNCATED: 1, Outcome.CANCELLED: 1}


async def test_what_comes_by_the_public_name_needs_a_key(tmp_path: Path) -> None:
    async with (
        Upstream(saying(whole(b'{"n":1}'))) as up,
        proxied(engine(up.url), slots=KEYED) as proxy,
        behind_nginx(tmp_path, proxy) as listen,
    ):
        for key, status in (((), b"403"), ((KEY,), b"200")):
            async with client_of(listen) as client:
                lines = (b"GET /v1/models HTTP/1.1", b"host: llm.example", b"connection: close", *key)
                client.writer.write(b"\r\n".join(lines) + b"\r\n\r\n")
                assert (await client.rest()).startswith(b"HTTP/1.1 " + status)
                assert client.got.lower().count(b"x-request-id") == 1
