"""Whose request is it: from a request's headers to the slot that it belongs to."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator, Mapping

from slotproxy.config_slots import ANONYMOUS, SlotSettings
from slotproxy.keys import digest


class Slots:
    """The configured slots, found by key.

    Keys are compared by digest, every one of them and each in constant time: how long a look-up takes tells nothing
    of how close a guess was, nor of how long the keys are.
    """

    def __init__(self, slots: Mapping[str, SlotSettings]) -> None:
        self._anonymous = slots.get(ANONYMOUS)
        self._by_digest = [(key, slot) for slot in slots.values() for key in slot.keys]

    def find(self, headers: Iterable[tuple[bytes, bytes]]) -> SlotSettings | None:
        """The slot of the first key that one has, from `Authorization: Bearer KEY` or `x-api-key: KEY`.

        No key, or none that a slot has: `anonymous` where there is such a slot, else None (to be answered 401).
        """
        for key in filter(None, _keys(headers)):
            if slot := self._by_key(key):
                return slot
        return self._anonymous

    def _by_key(self, key: bytes) -> SlotSettings | None:
        hashed = digest(key)
        matches = [slot for known, slot in self._by_digest if hmac.compare_digest(known, hashed)]
        return matches[0] if matches else None


def _keys(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """Every key that the headers carry, in their order."""
    for name, value in headers:
        match name.lower():
            case b"x-api-key":
                yield value.strip()
            case b"authorization":
                scheme, _, key = value.strip().partition(b" ")
                if scheme.lower() == b"bearer":
                    yield key.strip()
