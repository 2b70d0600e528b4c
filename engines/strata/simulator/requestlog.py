"""A JSON line for each thing that happens to a request, so that a test can count what the engine has really seen."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from pathlib import Path
from typing import Any


class RequestLog:
    """Appends to `path`; with an empty one it only counts. Lines of several servers in one file don't mix."""

    def __init__(self, path: str) -> None:
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._file = os.open(Path(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666) if path else None

    def number(self) -> int:
        with self._lock:
            return next(self._numbers)

    def write(self, event: str, n: int, **words: Any) -> None:
        """`event` is received, started, finished, cancelled or failed; `n` the request's number at this server."""
        if self._file is not None:
            line = {"event": event, "n": n, "engine": "strata", "time": time.time(), **words}
            os.write(self._file, (json.dumps(line) + "\n").encode())
