"""The log: one line of JSON an event, on stderr; journald adds what it wants.

Libraries that use the standard library's logging go the same way, from warnings on. What they say of an exception is
where it was raised and of which type, never its text: parsers quote what they were given, and that may be a prompt.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import traceback
from pathlib import Path
from types import FrameType
from typing import TextIO, cast

import structlog
from structlog.typing import EventDict, WrappedLogger

_FRAMES = 20  # of an exception, that are told
_CAUSES = 5
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
        said, log = record.getMessage().strip(), structlog.get_logger("slotproxy")
        if exception is None:
            log.log(record.levelno, said, source=record.name)
            return
        cut = re.split(r"[\n(]", said)[0]  # asyncio goes on with what it was at, values included
        log.log(record.levelno, cut, source=record.name, **frames(exception))


def frames(error: BaseException) -> dict[str, object]:
    """An exception without its text: the types of it and of its causes, and where it was raised, innermost last."""
    causes = [error]
    while len(causes) < _CAUSES and (cause := _cause(causes[-1])) is not None:
        causes.append(cause)
    at = [_place(frame, line) for one in reversed(causes) for frame, line in traceback.walk_tb(one.__traceback__)]
    return {"error": " from ".join(type(one).__name__ for one in causes), "at": at[-_FRAMES:]}


def _cause(error: BaseException) -> BaseException | None:
    if isinstance(error, BaseExceptionGroup):
        return error.exceptions[0]
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _place(frame: FrameType, line: int) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{line} {frame.f_code.co_name}"
