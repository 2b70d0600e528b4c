"""The log: one line of JSON an event, on stderr; journald adds what it wants.

Libraries that use the standard library's logging go the same way, from warnings on.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TextIO, cast

import structlog
from structlog.typing import EventDict, WrappedLogger

FIRST = ("timestamp", "level", "event")  # what people look for in a line


def log_to(stream: TextIO) -> None:
    """From now on everything that is logged goes to `stream`."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _ordered,
            structlog.processors.JSONRenderer(ensure_ascii=False),
        ],
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", _Outlet(stream))),
    )
    logging.basicConfig(handlers=[_Passed()], level=logging.WARNING, force=True)


class _Outlet:
    """Where the log goes: one that can't be written (its disk is full) breaks nothing, and says so once it can."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._behind = stream, 0

    def write(self, text: str) -> None:
        try:
            if self._behind:
                said = f"this log couldn't be written: {self._behind} lines are missing, or late"
                self._stream.write(json.dumps({"level": "error", "event": said}) + "\n")
                self._stream.flush()
                self._behind = 0
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._behind += 1

    def flush(self) -> None:
        """Each line is, as it is written."""


def _ordered(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    return {**{name: event[name] for name in FIRST if name in event}, **event}


class _Passed(logging.Handler):
    """Hands a library's record on to our own log."""

    def emit(self, record: logging.LogRecord) -> None:
        exception = record.exc_info[1] if record.exc_info else None
        if isinstance(exception, asyncio.CancelledError):
            return  # what ends with the daemon isn't broken
        log = structlog.get_logger("slotproxy")
        log.log(record.levelno, record.getMessage().strip(), source=record.name, exc_info=exception)
