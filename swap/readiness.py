"""Is the engine at this address ready? Its own sign, and a completion of a few tokens; never a user's request.

One connection for each question: some engines accept connections long before they answer, and idle ones kept alive
take the places of others.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from engines.spec import Engine
from swap.connections import OwnConnections
from swap.ports import Fault

COMPLETION_LIMIT = 60.0  # seconds for one tiny completion; an engine that needs longer is asked again
SLOWEST = 1.0  # seconds that each token may take on top, where many are asked for
MODELS_LIMIT = 5.0
MOST = 1024 * 1024  # bytes of an answer; who sends more is no engine, or not well
SHOWN = 200  # characters of an answer that is none, for people


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of a question. Without an answer `status` is 0 and `fault` says why.

    `gone`: that was explicit, the connection was refused or closed; else nothing came in time.
    """

    status: int = 0
    body: bytes = b""
    fault: str = ""
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Answered:
    """A completion came. `tokens`: as the engine counted them, or as many as were asked for.

    `seconds`: from the request sent to the answer's end. `measured`: tokens per second, where the engine tells them.
    """

    tokens: int
    seconds: float = field(default=0.0, compare=False)
    measured: float | None = field(default=None, compare=False)

    @property
    def tokens_per_second(self) -> float | None:
        """The engine's own figure leaves the prompt out; ours has it in. None: nobody has measured."""
        if self.measured is not None:
            return self.measured
        return self.tokens / self.seconds if self.seconds > 0 else None


class Readiness:
    """Asks engines over HTTP. Use as an async context manager; every question has a bound."""

    def __init__(self) -> None:
        self._client = httpx.AsyncClient(trust_env=False, transport=OwnConnections())

    async def close(self) -> None:
        await self._client.aclose()

    async def sign(self, engine: Engine) -> bool:
        """The engine's own sign of readiness; True where its profile knows none."""
        sign = engine.profile.sign
        if sign is None:
            return True
        answer = await self.ask("GET", engine, sign.path, sign.timeout)
        return answer.status > 0 and sign.judge(answer.status, answer.body)

    async def completes(self, engine: Engine) -> Answered | None:
        """A real completion of a few tokens; None: none came, which is an answer here: not ready."""
        try:
            return await self._complete(engine, engine.probe_tokens, COMPLETION_LIMIT)
        except Fault:
            return None

    async def generates(self, engine: Engine, tokens: int) -> Answered:
        """A real completion of many tokens; it may end sooner. Raises Fault saying what came instead of one."""
        return await self._complete(engine, tokens, COMPLETION_LIMIT + SLOWEST * tokens)

    async def _complete(self, engine: Engine, tokens: int, limit: float) -> Answered:
        """As the profile's probe asks for it, within `limit` seconds. Raises Fault."""
        probe = engine.profile.probe(await self.model(engine), tokens)
        began = time.monotonic()
        answer = await self.ask("POST", engine, probe.path, limit, probe.body)
        seconds = time.monotonic() - began
        if not answer.status:
            raise Fault(f"no whole answer in {seconds:.1f} s", "look at its log")
        if not probe.judge(answer.status, answer.body):
            shown = answer.body[:SHOWN].decode(errors="replace")
            raise Fault(f"the answer is no completion (HTTP {answer.status}: {shown})", "look at its log")
        told = _json(answer.body)
        return Answered(_tokens(told) or tokens, seconds, _measured(told))

    async def model(self, engine: Engine) -> str:
        """The name that a completion of ours sends."""
        if engine.probe_model:
            return engine.probe_model
        answer = await self.ask("GET", engine, "/v1/models", MODELS_LIMIT)
        try:
            return str(json.loads(answer.body)["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            return engine.name

    async def ask(self, method: str, engine: Engine, path: str, limit: float, body: bytes | None = None) -> Asked:
        """The answer, or why none came within `limit` seconds in all."""
        headers = {"Connection": "close", "Accept-Encoding": "identity"}
        if engine.api_key:
            headers["Authorization"] = f"Bearer {engine.api_key}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        request = self._client.build_request(method, engine.url + path, content=body, headers=headers, timeout=limit)
        try:
            async with asyncio.timeout(limit):  # httpx's own is for each piece: a trickle would never end
                return await self._exchange(request)
        except (TimeoutError, httpx.TimeoutException):
            return Asked(fault=f"no whole answer in {limit:g} s")
        except httpx.HTTPError as error:
            return Asked(fault=str(error) or type(error).__name__, gone=isinstance(error, httpx.TransportError))

    async def _exchange(self, request: httpx.Request) -> Asked:
        answer = await self._client.send(request, stream=True)
        try:
            body = bytearray()
            async for piece in answer.aiter_bytes():
                body += piece
                if len(body) > MOST:
                    return Asked(fault=f"more than {MOST} bytes")
            return Asked(answer.status_code, bytes(body))
        finally:
            await answer.aclose()


def _tokens(answer: Any) -> int | None:
    """As the engine counted them."""
    return counted if isinstance(counted := _at(answer, "usage", "completion_tokens"), int) else None


def _measured(answer: Any) -> float | None:
    """Tokens per second as the engine itself tells them, in llama.cpp's words."""
    told = _at(answer, "timings", "predicted_per_second")
    return float(told) if isinstance(told, int | float) and 0 < told < math.inf else None


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def _at(answer: Any, outer: str, inner: str) -> Any:
    try:
        return answer[outer][inner]
    except (LookupError, TypeError):
        return None
