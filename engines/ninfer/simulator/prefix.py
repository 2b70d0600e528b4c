"""What the engine still has computed: the newest conversations, by exact prefix. A new process knows none."""

from __future__ import annotations

import threading
from collections import deque

TOKEN = 4  # characters


class Prefixes:
    """The newest `keeps` texts, prompts with what was said to them. Several jobs may ask at once."""

    def __init__(self, keeps: int) -> None:
        self._kept: deque[str] = deque(maxlen=keeps)
        self._lock = threading.Lock()

    def cached(self, prompt: str) -> int:
        """How many tokens of the prompt need not be computed again; the last one always is."""
        with self._lock:
            longest = max((_common(prompt, text) for text in self._kept), default=0)
        return min(longest // TOKEN, max(0, (len(prompt) - 1) // TOKEN))

    def keep(self, text: str, instead: str | None = None) -> None:
        """`instead`: what this one goes on from, and takes the place of."""
        with self._lock:
            if instead is not None and instead in self._kept:
                self._kept.remove(instead)
            self._kept.append(text)


def _common(one: str, other: str) -> int:
    """The length of their common beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
