"""The event log's way out of the daemon, from its first decision to its last: kept on disk, and told by `notify:`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Callable

from slotproxy import __version__
from slotproxy.config import Settings
from slotproxy.ending import LAST_WORDS, SHARES
from slotproxy.event_file import EventFile
from slotproxy.notify import Notifier
from swap.decisions import Kind
from swap.statefolder import StateFolder


@contextlib.asynccontextmanager
async def event_log(settings: Callable[[], Settings], state: StateFolder) -> AsyncIterator[None]:
    """A daemon's life: what it decides in here is kept, and told to whom it concerns. `settings`: those in force."""
    decisions, last_words = state.decisions, min(LAST_WORDS, settings().stop_limit / SHARES)
    file = EventFile(state.path / "events.jsonl", decisions, state.guard)
    notifier = Notifier(lambda: settings().notify, decisions)
    async with file.kept(last_words), notifier.telling(last_words):
        decisions.add(Kind.STARTED, f"slotproxy {__version__} is up", pid=os.getpid())
        try:
            yield
        finally:
            decisions.add(Kind.ENDED, "slotproxy ends")
