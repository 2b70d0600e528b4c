"""`slotctl events`: the event log as plain data, from memory alone, so that no disk can keep it from anybody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any

from swap.decisions import KEPT, Decision, Decisions, Kind

TICK = 1.0  # seconds between signs of life
BEHIND = 1000  # decisions that somebody who follows may be behind; then the oldest of them are left out

Json = dict[str, Any]


def plain(decision: Decision) -> Json:
    """A decision as the control API, the file and `notify:` say it."""
    when = decision.when.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    facts = dict(decision.facts)
    return {"when": when, "kind": decision.kind.value, "text": decision.text, "why": decision.why, "facts": facts}


def read(said: Json) -> Decision:
    """The decision that `plain` made this of. Raises ValueError, KeyError, TypeError: it is none."""
    when = datetime.fromisoformat(said["when"])
    return Decision(when, Kind(said["kind"]), str(said["text"]), str(said["why"]), dict(said["facts"]))


async def events(decisions: Decisions, *, last: int | None, follow: bool) -> AsyncGenerator[Json, None]:
    """The newest (None: all that are kept), oldest first; with `follow` what comes then, until nobody listens."""
    news: asyncio.Queue[Decision] = asyncio.Queue()
    leave = decisions.hear(lambda decision: _put(news, decision))
    try:
        for decision in decisions.last(KEPT if last is None else last):
            yield {"event": plain(decision)}
        while follow:
            try:
                async with asyncio.timeout(TICK):
                    decision = await news.get()
            except TimeoutError:
                yield {"tick": True}
            else:
                yield {"event": plain(decision)}
        yield {"done": True, "code": 0}
    finally:
        leave()


def _put(news: asyncio.Queue[Decision], decision: Decision) -> None:
    if news.qsize() >= BEHIND:
        news.get_nowait()
    news.put_nowait(decision)
