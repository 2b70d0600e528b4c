"""The log: one line of JSON an event, on stderr; journald adds what it wants.

Libraries that use the standard library's logging go the same way, from warnings on.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TextIO

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
        logger_factory=structlog.PrintLoggerFactory(stream),
    )
    logging.basicConfig(handlers=[_Passed()], level=logging.WARNING, force=True)


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
