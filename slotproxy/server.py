"""uvicorn, set up so that a broken answer can be told from a whole one."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from slotproxy.reply import ABORT

_FLUSH = 1.0  # seconds that a client has to take what was sent before its connection is ended
_KEEP_ALIVE = 75  # seconds; clients drop idle connections after 5 to 60 s, and must be the first to do so


class Connection(H11Protocol):
    """An HTTP/1.1 connection that the application can end in the middle of an answer.

    ASGI has no word for that: an application that just returns is logged as a fault of ours, and the connection of a
    client that reads nothing stays open for ever.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, ABORT: self._abort}

    def _abort(self) -> None:
        self.transport.close()
        self.loop.call_later(_FLUSH, self.transport.abort)


def config(app: ASGIApp, **more: Any) -> uvicorn.Config:
    """How the client port is served. `more` goes to uvicorn (`host` and `port`, or `fd`).

    h11 because it keeps an answer's framing exactly, and none of uvicorn's own headers, which an engine may send too.
    """
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        server_header=False,
        date_header=False,
        access_log=False,
        log_config=None,
        log_level="error",  # what clients send wrong is told to them, not to the log
        timeout_keep_alive=_KEEP_ALIVE,
        **more,
    )
