"""Is the engine at this address ready? Its own sign, and a completion of a few tokens; never a user's request.

One connection for each question: some engines accept connections long before they answer, and idle ones kept alive
take the places of others.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import httpx

from engines.spec import Engine

COMPLETION_LIMIT = 60.0  # seconds for one tiny completion; an engine that needs longer is asked again
MODELS_LIMIT = 5.0


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
        return answer is not None and sign.judge(answer.status_code, answer.content)

    async def completes(self, engine: Engine, tokens: int | None = None) -> Answered | None:
        """A real completion, as the profile's probe asks for it; None: none came."""
        model = engine.probe_model or await self._first_model(engine)
        wanted = tokens or engine.probe_tokens
        probe = engine.profile.probe(model, wanted)
        answer = await self._ask("POST", engine, probe.path, COMPLETION_LIMIT, probe.body)
        if answer is None or not probe.judge(answer.status_code, answer.content):
            return None
        return Answered(_tokens(answer.content) or wanted)

    async def _first_model(self, engine: Engine) -> str:
        answer = await self._ask("GET", engine, "/v1/models", MODELS_LIMIT)
        try:
            return str(json.loads(answer.content)["data"][0]["id"]) if answer is not None else engine.name
        except (ValueError, LookupError, TypeError):
            return engine.name

    async def _ask(
        self, method: str, engine: Engine, path: str, limit: float, body: bytes | None = None
    ) -> httpx.Response | None:
        headers = {"Connection": "close", "Accept-Encoding": "identity"}
        if engine.api_key:
            headers["Authorization"] = f"Bearer {engine.api_key}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            return await self._client.request(
                method, engine.url + path, content=body, headers=headers, timeout=httpx.Timeout(limit)
            )
        except httpx.HTTPError:
            return None  # no answer is an answer here: not ready


def _tokens(body: bytes) -> int | None:
    try:
        counted = json.loads(body)["usage"]["completion_tokens"]
        return counted if isinstance(counted, int) else None
    except (ValueError, LookupError, TypeError):
        return None
