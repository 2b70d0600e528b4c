"""Does an error mean that the engine is broken, or only that it won't serve this request, or not now?

What is a client's own fault (4xx), what only says *busy*, and what an engine doesn't have says nothing of the engine.
All the rest may: nobody gives an engine up for it alone, it is asked for a completion of its own first.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

IN_BAND: Final = 200  # the status of an answer whose error came as an event of its stream
_LATER: Final = frozenset((501, 504, 529))  # not implemented, waited too long, overloaded: the engine is well
_BUSY: Final = frozenset(("overloaded_error", "rate_limit_error", "rate_limit_exceeded", "timeout_error"))
_SHOWN: Final = 200  # characters of an error, for people
_NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")  # what is an identifier, and no sentence


def broken(status: int, body: bytes, *, busy: frozenset[str] = frozenset()) -> bool:
    """Whether an error may mean that the whole engine fails. `busy`: further codes that don't.

    `body` is the answer's, or with IN_BAND the data of the event. One that can't be read counts by its status, but a
    bare 503 says no more than *later*.
    """
    if (status < 500 and status != IN_BAND) or status in _LATER:
        return False
    names = {str(name) for name in map(_error(body).get, ("code", "type")) if name}
    return not names & (_BUSY | busy) and (status != 503 or bool(names))


def is_error(body: bytes) -> bool:
    """Whether an answer of JSON is an error, whatever its status says."""
    if b'"error"' not in body:
        return False
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(said, dict) and bool(said.get("error"))


def named(status: int, body: bytes) -> str:
    """Which error it is, by status, code and type: what may be kept of an answer to a client.

    Its message may not: engines quote prompts, tools and templates in theirs.
    """
    error = _error(body)
    names = [name for name in map(str, map(error.get, ("code", "type"))) if _NAME.fullmatch(name)]
    which = " ".join(dict.fromkeys(name for name in names if name not in ("None", str(status))))
    return f"{'in-band' if status == IN_BAND else f'HTTP {status}'} {which}".strip()


def told(body: bytes) -> str:
    """What the error says, on one short line. For answers to questions of our own: to a client's it may quote him."""
    message = _error(body).get("message")
    text = message if isinstance(message, str) and message else body.decode(errors="replace")
    return " ".join(text.split())[:_SHOWN]


def _error(body: bytes) -> dict[str, Any]:
    """The error object in the envelope of any protocol; empty where there is none."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    if isinstance(said, dict) and isinstance(said.get("response"), dict):
        said = said["response"]  # `response.failed`
    error = said.get("error", said) if isinstance(said, dict) else None
    return error if isinstance(error, dict) else {"message": error}
