"""Waiting until an engine is free again after a client has left in the middle."""

from __future__ import annotations

import asyncio
import contextlib

import httpx
import msgspec

from engines.spec import Engine, Probe

_BUSY = frozenset((408, 429, 503, 504, 529))  # what engines say that would have queued the probe
_PROBE_LIMIT = 60.0  # seconds; longer than engines queue, for one given up here may still take its turn
_ASK_LIMIT = 5.0  # seconds to name its models
_PAUSE = 0.5  # seconds between two probes


async def settle(client: httpx.AsyncClient, engine: Engine, model: str) -> None:
    """Returns when the engine has answered a completion of a few tokens, or isn't there any more.

    After the profile's `settle_limit` it is given up as free: a probe that is never answered must not keep the
    place for ever. `model`: what the engine was asked for by the client, if nothing better is known.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(engine.profile.settle_limit):
            name = engine.probe_model or await _first_model(client, engine) or model
            probe = engine.profile.probe(name, engine.probe_tokens)
            while True:
                if await _answered(client, engine, probe):
                    return
                await asyncio.sleep(_PAUSE)


async def _answered(client: httpx.AsyncClient, engine: Engine, probe: Probe) -> bool:
    try:
        async with asyncio.timeout(_PROBE_LIMIT):
            response = await client.send(_request(engine, "POST", probe.path, probe.body))
    except httpx.ConnectError:
        return True  # nothing listens, so nothing works there any more
    except (httpx.TransportError, TimeoutError):
        return False
    if response.status_code in _BUSY:
        return engine.profile.broken(response.status_code, response.content)  # who is broken isn't at work either
    return True


async def _first_model(client: httpx.AsyncClient, engine: Engine) -> str:
    """A name that the engine surely takes: what a client says may go on one path and be unknown on the probe's."""
    try:
        async with asyncio.timeout(_ASK_LIMIT):
            response = await client.send(_request(engine, "GET", "/v1/models"))
            return msgspec.json.decode(response.content, type=_Listing).data[0].id
    except (httpx.TransportError, TimeoutError, msgspec.DecodeError, IndexError):
        return ""


class _Model(msgspec.Struct):
    id: str


class _Listing(msgspec.Struct):
    data: list[_Model]


def _request(engine: Engine, method: str, path: str, body: bytes = b"") -> httpx.Request:
    headers = {"content-type": "application/json"} if body else {}
    if engine.api_key is not None:
        headers["authorization"] = f"Bearer {engine.api_key}"
    return httpx.Request(method, engine.url + path, headers=headers, content=body or None)
