"""An answer that may take long: a line each second that shows life, or what is under way, and last the answer itself.

What is answered or refused within a second is one line, or a plain error.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from slotproxy.ending import Stopping, stopped
from slotproxy.presence import Beat, ClientGone, gone, unless
from slotproxy.refusal import Refusal
from swap.ports import Fault
from swap.reading import Say

TICK = 1.0  # seconds between two lines

Json = dict[str, Any]


class Told(Response):
    """`work` is given what to tell people meanwhile, and returns the answer.

    It ends when nobody listens any more, unless it `goes_on` because it changes something.
    """

    def __init__(
        self, work: Callable[[Say], Coroutine[Any, Any, Json]], stop: asyncio.Event, *, goes_on: bool = False
    ) -> None:
        self.background = None
        self._work, self._stop, self._goes_on = work, stop, goes_on

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        lines = _Lines(send)
        work = self._work(lines.say)
        alarms = [stopped(self._stop), *([] if self._goes_on else [gone(receive)])]
        try:
            answer = await unless(work, *alarms, beat=Beat(TICK, TICK, lines.beat))
        except ClientGone:
            return
        except (Refusal, Fault, Stopping) as error:
            if not lines.begun:
                raise
            if isinstance(error, Stopping):  # a stream without its last line says so
                await lines.end()
                return
            code = error.code if isinstance(error, Refusal) else 3
            answer = {"code": code, "text": error.what, "mend": error.mend}
        await lines.tell({"done": True, **answer})
        await lines.end()


class _Lines:
    def __init__(self, send: Send) -> None:
        self._send = send
        self._since = time.monotonic()
        self._said = self._told = ""
        self.begun = False

    def say(self, text: str) -> None:
        self._said = text

    async def beat(self) -> None:
        """What was said last, if that is news; else a sign of life."""
        if self._said == self._told:
            await self.tell({"tick": True})
            return
        self._told = self._said
        elapsed = time.monotonic() - self._since
        await self.tell({"phase": "checking", "text": self._told, "elapsed": elapsed})

    async def tell(self, line: Json) -> None:
        if not self.begun:
            self.begun = True
            headers = [(b"content-type", b"application/x-ndjson")]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": json.dumps(line).encode() + b"\n", "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
