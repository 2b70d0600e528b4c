"""Clients without an SDK: curl, wget, httpx, aiohttp, Node's fetch. Each asks for a chat, and gives the body it got."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from tests.clients.house import Target
from tests.clients.sdks import USER, WAIT

CHAT = "/v1/chat/completions"
FETCH = Path(__file__).with_name("fetch.mjs")
LARGE = 2 * 1024 * 1024  # bytes: more than curl sends without being told to go on
_TRUST = ssl.create_default_context()


def body_of(target: Target, **more: Any) -> dict[str, Any]:
    return {"model": target.model, "messages": USER, "max_tokens": 9, "temperature": 0, **more}


def head(target: Target) -> dict[str, str]:
    return {"content-type": "application/json", "authorization": f"Bearer {target.key}", **target.headers}


def run(command: Sequence[str], stdin: bytes = b"") -> bytes:
    """Its output. Raises CalledProcessError, whose `stderr` says why."""
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=WAIT, check=True)
    return done.stdout


def curl_command(target: Target, *flags: str, path: str = CHAT) -> list[str]:
    headers = [word for name, value in head(target).items() for word in ("-H", f"{name}: {value}")]
    return ["curl", "-q", "-sS", "--noproxy", "*", *headers, *flags, target.url + path]


def curl(*flags: str) -> Callable[[Target, dict[str, Any]], bytes]:
    """The body comes from its standard input."""
    return lambda target, body: run(curl_command(target, *flags), json.dumps(body).encode())


def wget_command(target: Target, body: dict[str, Any]) -> list[str]:
    headers = [f"--header={name}: {value}" for name, value in head(target).items()]
    posted = f"--post-data={json.dumps(body)}"
    return ["wget", "-q", "-O", "-", "--no-config", "--no-proxy", "--tries=1", *headers, posted, target.url + CHAT]


def wget(target: Target, body: dict[str, Any]) -> bytes:
    return run(wget_command(target, body))


def fetch_command(target: Target, body: dict[str, Any], **more: Any) -> list[str]:
    spec = {"url": target.url + CHAT, "headers": head(target), "body": json.dumps(body), **more}
    return ["node", "--no-warnings", str(FETCH), json.dumps(spec)]  # of Node 18: fetch was new then


def fetch(target: Target, body: dict[str, Any]) -> bytes:
    return run(fetch_command(target, body))


def by_httpx(target: Target, body: dict[str, Any]) -> bytes:
    with (
        httpx.Client(timeout=WAIT, trust_env=False, verify=_TRUST) as client,
        client.stream("POST", target.url + CHAT, json=body, headers=head(target)) as answer,
    ):
        return b"".join(answer.iter_bytes())


def by_async_httpx(target: Target, body: dict[str, Any]) -> bytes:
    async def asked() -> bytes:
        async with (
            httpx.AsyncClient(timeout=WAIT, trust_env=False, verify=_TRUST) as client,
            client.stream("POST", target.url + CHAT, json=body, headers=head(target)) as answer,
        ):
            return b"".join([part async for part in answer.aiter_bytes()])

    return asyncio.run(asked())


def by_aiohttp(target: Target, body: dict[str, Any]) -> bytes:
    async def asked() -> bytes:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(WAIT)) as session,
            session.post(target.url + CHAT, json=body, headers=head(target)) as answer,
        ):
            return b"".join([part async for part in answer.content.iter_any()])

    return asyncio.run(asked())


@dataclass(frozen=True, slots=True)
class Command:
    """`asks` posts a body and returns what came; `needs` must be installed."""

    name: str
    asks: Callable[[Target, dict[str, Any]], bytes]
    needs: str = ""
    padding: int = 0

    def ask(self, target: Target, *, stream: bool, **more: Any) -> bytes:
        """Raises CalledProcessError, or the library's own."""
        padded = {"user": "x" * self.padding} if self.padding else {}
        return self.asks(target, body_of(target, stream=stream, **padded, **more))


FROM_STDIN = ("--data-binary", "@-")
EVERY = [
    Command("curl", curl("-N", *FROM_STDIN), "curl"),
    Command("curl-http1.0", curl("-N", "--http1.0", *FROM_STDIN), "curl"),
    Command("curl-upload", curl("-N", "-X", "POST", "-T", "-"), "curl"),
    Command("curl-chunked", curl("-N", "-H", "Transfer-Encoding: chunked", *FROM_STDIN), "curl"),
    Command("curl-continue", curl("-N", "-H", "Expect: 100-continue", *FROM_STDIN), "curl", LARGE),
    Command("curl-compressed", curl("-N", "--compressed", *FROM_STDIN), "curl"),
    Command("wget", wget, "wget"),
    Command("fetch", fetch, "node"),
    Command("httpx", by_httpx),
    Command("httpx-async", by_async_httpx),
    Command("aiohttp", by_aiohttp),
]
READERS = ("curl", "wget", "fetch", "httpx", "aiohttp")
"""One of each program."""
BY_NAME = {one.name: one for one in EVERY}


def needs(program: str) -> pytest.MarkDecorator:
    """Skip, and say so, where that program isn't installed."""
    missing = bool(program) and shutil.which(program) is None
    return pytest.mark.skipif(missing, reason=f"{program} isn't installed")


def every(names: Sequence[str] = ()) -> list[Any]:
    """All commands, or those, as a test's parameters."""
    chosen = [BY_NAME[name] for name in names] or EVERY
    return [pytest.param(one, id=one.name, marks=needs(one.needs)) for one in chosen]
