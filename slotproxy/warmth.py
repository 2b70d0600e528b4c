"""Which conversations an engine still has in its prefix cache, and whether the next turn of one is worth a short wait.

An agent sends its next turn a moment after the last answer. If another conversation gets in between, both are read from
their beginning, again and again: half a minute each for 64,000 tokens. So the next turn of the conversation that was
just served goes first, and the place stays free a moment for a client that has come back within that moment before.
What that may cost the others is bounded by `slotproxy.turns` and by the wait. Pure: times are given, in seconds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from slotproxy.conversation import Conversation, Remembered

_KNOWN = 16  # conversations whose clients' habits are known


@dataclass(eq=False, slots=True)
class Talk:
    """A conversation at the engine. `ended`: when its last answer did; None meanwhile, or once it has gone on.

    `quick`: its client came back within the wait, the last time.
    """

    remembered: Remembered
    priority: int
    ended: float | None = None
    quick: bool = False


class Warmth:
    """`wait`: how long a place may stay free for the next turn."""

    def __init__(self, wait: float) -> None:
        self.wait = wait
        self._keeps = 0
        self._talks: deque[Talk] = deque(maxlen=_KNOWN)  # the one that was let in last stands last

    def opened(self, keeps: int) -> None:
        """An engine that keeps the prefixes of so many conversations, and has none yet."""
        self._keeps = keeps
        self._talks.clear()

    def keep(self, keeps: int) -> None:
        """The same engine is known to keep so many."""
        self._keeps = keeps

    def shares(self, conversation: Conversation | None) -> int:
        """How many bytes of it the engine needn't read again; 0 where that isn't most of what it has."""
        kept = list(self._talks)[-self._keeps :] if self._keeps else []
        return max((_shared(conversation, talk) for talk in kept), default=0) if conversation else 0

    def came(self, conversation: Conversation | None, now: float) -> None:
        """A request of it is there: that tells how long its client takes for a turn."""
        talk = self._talk(conversation)
        if talk is not None and talk.ended is not None:
            talk.quick = now - talk.ended <= self.wait
            talk.ended = None

    def begun(self, conversation: Conversation | None, priority: int) -> Talk | None:
        """It goes to the engine, whose newest conversation it is from now on."""
        if not conversation or not self._keeps:
            return None
        talk = self._talk(conversation)
        if talk is not None:
            self._talks.remove(talk)
        quick = talk is not None and talk.quick
        self._talks.append(new := Talk(conversation.remembered(), priority, quick=quick))
        return new

    def ended(self, talk: Talk | None, now: float) -> None:
        """Its answer has come to its end, and its client has it."""
        if talk is not None:
            talk.ended = now

    def awaited(self, priority: int, now: float) -> float | None:
        """Until when one of this priority should wait for the newest conversation's next turn; None: not at all."""
        talk = self._talks[-1] if self._talks else None
        if talk is None or talk.ended is None or not talk.quick or talk.priority < priority:
            return None
        until = talk.ended + self.wait
        if now >= until:
            talk.quick = False  # waited for in vain: not again before it has shown that it is quick
            return None
        return until

    def _talk(self, conversation: Conversation | None) -> Talk | None:
        """The one that it goes on, as far as can be told."""
        if conversation is None:
            return None
        found = max(self._talks, key=lambda talk: _shared(conversation, talk), default=None)
        return found if found is not None and _shared(conversation, found) else None


def _shared(conversation: Conversation | None, talk: Talk) -> int:
    """Bytes of its beginning; 0 where they are less than half of what was remembered."""
    shared = conversation.shares(talk.remembered) if conversation is not None else 0
    return shared if 2 * shared >= talk.remembered.length else 0
