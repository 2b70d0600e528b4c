"""The event log's way out of the daemon, from its first decision to its last: kept on disk, and told by `notify:`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator

from slotproxy import __version__
from slotproxy.config import Settings
from slotproxy.event_file import EventFile
from swap.decisions import Decisions, Kind


@contextlib.asynccontextmanager
async def event_log(settings: Settings, decisions: Decisions) -> AsyncIterator[None]:
    """A daemon's life: what it decides in here is kept, and told to whom it concerns."""
    async with EventFile(settings.state / "events.jsonl", decisions).kept():
        decisions.add(Kind.STARTED, f"slotproxy {__version__} is up", pid=os.getpid())
        try:
            yield
        finally:
            decisions.add(Kind.ENDED, "slotproxy ends")
