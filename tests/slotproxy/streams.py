"""Streams of each protocol, and an engine that sends no piece before the client has the one before."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from engines.spec import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from tests.slotproxy.rig import DONE, WITHIN, Client, Conversation, Seen, chunk, delta

PLAIN_SSE = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"  # as Strata sends it: its end is the close
LAST = b"0\r\n\r\n"

ENDS: Mapping[str, tuple[bytes, bytes]] = {
    CHAT: (delta(), DONE),
    RESPONSES: (
        b'event: response.created\ndata: {"type":"response.created","sequence_number":0}\n\n',
        b'event: response.completed\ndata: {"type":"response.completed","sequence_number":1}\n\n',
    ),
    MESSAGES: (
        b'event: message_start\ndata: {"type":"message_start","message":{}}\n\n',
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    ),
}
"""A first event, and the one that says that the stream is whole."""


def event(path: str, text: str = "hi") -> bytes:
    """One event in the middle of a stream."""
    said = text.encode()
    match path:
        case "/v1/responses":
            return b'event: response.output_text.delta\ndata: {"delta":"%b"}\n\n' % said
        case "/v1/messages":
            return b'event: content_block_delta\ndata: {"delta":{"text":"%b"}}\n\n' % said
        case "/v1/completions":
            return b'data: {"choices":[{"index":0,"text":"%b"}]}\n\n' % said
        case _:
            return b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % said


def marker(path: str) -> bytes:
    return DONE if path == COMPLETIONS else ENDS[path][1]


class Lockstep:
    """An engine whose next piece waits until the client has taken this one: who holds a byte back stops it."""

    def __init__(self, head: bytes, pieces: Sequence[bytes]) -> None:
        self._head, self._pieces = head, pieces
        self._taken = asyncio.Semaphore(0)

    async def __call__(self, talk: Conversation, _: Seen) -> None:
        chunked = b"chunked" in self._head
        await talk.send(self._head)
        for piece in self._pieces:
            await self._taken.acquire()
            await talk.send(chunk(piece) if chunked else piece)
        if chunked:
            await talk.send(LAST)

    async def read_by(self, client: Client) -> bytes:
        """The whole answer as the client has it. Raises TimeoutError where a piece doesn't come by itself."""
        await client.until(b"\r\n\r\n")
        expected = 0
        for piece in self._pieces:
            self._taken.release()
            expected += len(piece)
            await _until(client, expected)
        return client.body


async def _until(client: Client, length: int) -> None:
    async with asyncio.timeout(WITHIN):
        while len(client.body) < length:
            data = await client.reader.read(65536)
            assert data, f"the connection ended after {client.got!r}"
            client.got += data
    assert len(client.body) == length, "more came than was sent"


def question(path: str, *, stream: bool = True, **more: Any) -> dict[str, Any]:
    """A request that a real engine takes on this path."""
    if path == RESPONSES:
        return {"model": "m", "input": "hi", "stream": stream, **more}
    more = {"max_tokens": 16, **more} if path == MESSAGES else more
    if path == COMPLETIONS:
        return {"model": "m", "prompt": "hi", "stream": stream, **more}
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream, **more}
