"""Connections to engines that nobody forgets: each request has a pool of its own, which ends with its answer.

A shared pool keeps a connection for ever whose request is cancelled in the very moment in which it was made (a client
that leaves, a question that is given up): never used, never idle, so never closed.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator

import httpx


class OwnConnections(httpx.AsyncBaseTransport):
    """For an `httpx.AsyncClient` that keeps no connections."""

    def __init__(self, verify: ssl.SSLContext | None = None) -> None:
        """`verify`: the certificates that are trusted; None: those that the library comes with."""
        self._verify = verify or httpx.create_ssl_context(trust_env=False)
        self._limits = httpx.Limits(max_connections=1, max_keepalive_connections=0)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        own = httpx.AsyncHTTPTransport(verify=self._verify, trust_env=False, limits=self._limits)
        try:
            response = await own.handle_async_request(request)
        except BaseException:
            await own.aclose()
            raise
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Answer(response.stream, own)
        return response


class _Answer(httpx.AsyncByteStream):
    """The answer's body; closing it closes its connection, whatever state that is in."""

    def __init__(self, stream: httpx.AsyncByteStream, own: httpx.AsyncHTTPTransport) -> None:
        self._stream, self._own = stream, own

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            yield piece

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            await self._own.aclose()
