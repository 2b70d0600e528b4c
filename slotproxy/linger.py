"""A client that is answered before it has sent its whole request: what still comes is read before the answer ends.

To close a connection with unread bytes in it resets it, and takes the answer from a client that writes first and reads
then. So the end of the answer, after which the connection may be closed, waits for the end of the request. The answer
itself doesn't wait: with its length announced, the client has all of it at once.
"""

from __future__ import annotations

import asyncio
import contextlib

from starlette.types import Message, Receive, Send

from engines.spec import MiB

_PATIENCE = 5.0  # seconds that what nobody wants is read
_MOST = 256 * MiB  # bytes of it


class Linger:
    """One request's `receive` and `send`."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self.started = False  # something of the answer has been sent
        self._whole = False  # the request has come whole, or its client has left

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._whole = True
        return message

    async def send(self, message: Message) -> None:
        self.started = True
        last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if not last or self._whole:
            await self._send(message)
            return
        await self._send({**message, "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await self._read_on()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _read_on(self) -> None:
        left = _MOST
        while left > 0 and not self._whole:
            message = await self.receive()
            left -= len(message.get("body", b""))
