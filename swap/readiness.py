"""Is the engine at this address ready? Its own sign, and a completion of a few tokens; never a user's request.

One connection for each question: some engines accept connections long before they answer, and idle ones kept alive
take the places of others.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

import httpx

from engines.spec import Engine

COMPLETION_LIMIT = 60.0  # seconds for one tiny completion; an engine that needs longer is asked again
MODELS_LIMIT = 5.0
MOST = 1024 * 1024  # bytes of an answer; who sends more is no engine, or not well


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Answered:
    """A completion came. `tokens`: as the engine counted them, or as many as were asked for."""

    tokens: int


class Readiness:
    """Asks engines over HTTP. Use as an async context manager; every question has a bound."""

    def __init__(self) -> None:
        self._client = httpx.AsyncClient(trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))

    async def close(self) -> None:
        await self._client.aclose()

    async def sign(self, engine: Engine) -> bool:
        """The engine's own sign of readiness; True where its profile knows none."""
        sign = engine.profile.sign
        if sign is None:
            return True
        answer = await self._ask("GET", engine, sign.path, sign.timeout)
        return answer is not None and sign.judge(answer.status, answer.body)

    async def completes(self, engine: Engine, tokens: int | None = None) -> Answered | None:
        """A real completion, as the profile's probe asks for it; None: none came."""
        model = engine.probe_model or await self._first_model(engine)
        wanted = tokens or engine.probe_tokens
        probe = engine.profile.probe(model, wanted)
        answer = await self._ask("POST", engine, probe.path, COMPLETION_LIMIT, probe.body)
        if answer is None or not probe.judge(answer.status, answer.body):
            return None
        return Answered(_tokens(answer.body) or wanted)

    async def _first_model(self, engine: Engine) -> str:
        answer = await self._ask("GET", engine, "/v1/models", MODELS_LIMIT)
        try:
            return str(json.loads(answer.body)["data"][0]["id"]) if answer is not None else engine.name
        except (ValueError, LookupError, TypeError):
            return engine.name

    async def _ask(
        self, method: str, engine: Engine, path: str, limit: float, body: bytes | None = None
    ) -> _Answer | None:
        """The answer; None where none came within `limit` seconds in all, which is an answer here: not ready."""
        headers = {"Connection": "close", "Accept-Encoding": "identity"}
        if engine.api_key:
            headers["Authorization"] = f"Bearer {engine.api_key}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        request = self._client.build_request(method, engine.url + path, content=body, headers=headers, timeout=limit)
        try:
            async with asyncio.timeout(limit):  # httpx's own is for each piece: a trickle would never end
                return await self._exchange(request)
        except (httpx.HTTPError, TimeoutError):
            return None

    async def _exchange(self, request: httpx.Request) -> _Answer | None:
        answer = await self._client.send(request, stream=True)
        try:
            body = bytearray()
            async for piece in answer.aiter_bytes():
                body += piece
                if len(body) > MOST:
                    return None
            return _Answer(answer.status_code, bytes(body))
        finally:
            await answer.aclose()


def _tokens(body: bytes) -> int | None:
    try:
        counted = json.loads(body)["usage"]["completion_tokens"]
        return counted if isinstance(counted, int) else None
    except (ValueError, LookupError, TypeError):
        return None
