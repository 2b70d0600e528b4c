"""No client reaches an engine's administration, Docker, files or the control API, however it writes the path."""

from __future__ import annotations

import itertools
from unittest.mock import MagicMock
from urllib.parse import quote

import pytest
from starlette.routing import Route

from engines.llamacpp.profile import PROFILE as LLAMACPP
from engines.ninfer.profile import PROFILE as NINFER
from engines.openai.profile import PROFILE as OPENAI
from engines.spec import CHAT, Profile
from engines.strata.profile import PROFILE as STRATA
from slotproxy.control import build_control
from tests.slotproxy.rig import Client, Upstream, engine, proxied, saying, whole

ADMINISTRATION = (
    *(
        "/unload",
        "/settings",
        "/load",
        "/restart",
        "/shutdown",
        "/metrics",
        "/props",
        "/slots",
        "/slots/0?action=erase",
    ),
    *(
        "/models",
        "/models/load",
        "/models/unload",
        "/lora-adapters",
        "/completion",
        "/infill",
        "/tokenize",
        "/apply-template",
    ),
    *(
        "/v1/unload",
        "/v1/settings",
        "/v1/load_lora_adapter",
        "/v1/models/load",
        "/reset_prefix_cache",
        "/sleep",
        "/wake_up",
    ),
    *(
        "/v1/files",
        "/v1/fine_tuning/jobs",
        "/api/tags",
        "/api/pull",
        "/admin",
        "/debug/pprof",
        "/docs",
        "/openapi.json",
        "/",
    ),
)
DOCKER = ("/containers/json", "/v1.41/containers/json", "/containers/strata/stop", "/images/create", "/_ping", "/info")
FILES = (
    "/etc/passwd",
    "/var/lib/slotproxy/journal.json",
    "/srv/models/model.gguf",
    "/proc/self/environ",
    "/static/../etc/passwd",
)


METHODS = ("POST", "GET", "DELETE", "PUT", "HEAD")


def control_paths() -> tuple[str, ...]:
    """What slotctl asks for at its socket."""
    return tuple(
        route.path for route in build_control(MagicMock(), MagicMock(), MagicMock()).routes if isinstance(route, Route)
    )


def variants(path: str) -> list[str]:
    """The same path as somebody writes it who wants it to pass for another."""
    coded = quote(path, safe="?=")
    letter = f"/%{ord(path[1]):02x}{path[2:]}" if len(path) > 1 else "/%2f"
    ways = (
        path,
        f"/{path}",
        f"/.{path}",
        f"/v1/..{path}",
        f"/v1/%2e%2e{path}",
        f"/v1%2F..{path}",
        letter,
        coded,
        f"/x{coded}",
    )
    more = (
        f"{CHAT}/../../..{path}",
        f"{CHAT}/%2e%2e/%2e%2e/%2e%2e{path}",
        f"{CHAT};{path}",
        f"{CHAT}%00{path}",
        f"/slot/anonymous{path}",
    )
    other = (
        f"http://127.0.0.1{path}",
        f"http://x@y{path}",
        path.upper(),
        f"{path}/",
        path.replace("/", "\\"),
        f"//x{path}",
    )
    return [*ways, *more, *other]


async def statuses(port: int, targets: list[tuple[str, str]]) -> list[int]:
    """What is answered to each method and target, all on one connection."""
    lines = [f"{method} {target} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{{}}" for method, target in targets]
    async with Client.at(port) as client:
        client.writer.write("".join(lines).encode() + b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        parts = (await client.rest()).split(b"HTTP/1.1 ")[1:]
    return [int(part[:3]) for part in parts[:-1]]


@pytest.mark.parametrize("profile", [NINFER, STRATA, LLAMACPP, OPENAI], ids=["ninfer", "strata", "llamacpp", "openai"])
async def test_no_client_request_reaches_what_is_not_for_clients(profile: Profile) -> None:
    ours = {*profile.client_paths, "/health", "/v1/models"}
    forbidden = [path for path in (*ADMINISTRATION, *DOCKER, *FILES, *control_paths()) if path not in ours]
    targets = list(zip(itertools.cycle(METHODS), (way for path in forbidden for way in variants(path)), strict=False))
    async with Upstream(saying(whole(b"{}"))) as up, proxied(engine(up.url, profile=profile)) as proxy:
        said = await statuses(proxy.port, targets)
        assert len(said) == len(targets)
        wrong = [(target, status) for target, status in zip(targets, said, strict=True) if status not in (404, 405)]
        assert not wrong
        assert not up.seen
        assert not proxy.gate.view().in_flight


async def test_what_passthrough_names_is_reached_by_that_name_alone() -> None:
    """And with any method but those that would turn the proxy, or the engine, into a mirror of its key."""
    async with Upstream(saying(whole(b"{}"))) as up, proxied(engine(up.url, passthrough=("/slots",))) as proxy:
        near = [way for way in variants("/slots/0?action=erase") if way != "/slots"]
        assert {*await statuses(proxy.port, [("POST", way) for way in near])} <= {404}
        async with Client.at(proxy.port) as client:
            client.writer.write(b"TRACE /slots HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await client.rest()).startswith(b"HTTP/1.1 405 ")
        assert not up.seen
        assert await statuses(proxy.port, [("GET", "/slots"), ("GET", "/%73lots")]) == [200, 200]
        assert [seen.line for seen in up.seen] == [b"GET /slots HTTP/1.1"] * 2


def test_the_list_of_control_paths_is_the_real_one() -> None:
    assert {"/status", "/swap", "/hold", "/release", "/abort", "/reload"} <= {*control_paths()}
