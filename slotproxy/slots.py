"""Whose request is it: from a request's headers and path to the slot that it belongs to, and what that adds to it."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from starlette.types import Scope

from engines.spec import Api, Profile
from slotproxy.config_slots import ANONYMOUS, SlotSettings
from slotproxy.keys import digest
from slotproxy.protocols import ApiError
from slotproxy.slot_path import slot_named
from slotproxy.wire import PROTOCOLS


class Slots:
    """The configured slots, found by key, or by the name in the path.

    Keys are compared by digest, every one of them and each in constant time: how long a look-up takes tells nothing
    of how close a guess was, nor of how long the keys are.
    """

    def __init__(self, slots: Mapping[str, SlotSettings]) -> None:
        self._slots = slots
        self._anonymous = slots.get(ANONYMOUS)
        self._by_digest = [(key, slot) for slot in slots.values() for key in slot.keys]

    def of(self, scope: Scope) -> SlotSettings:
        """The client's slot. Raises ApiError: 401 there is none for it, 403 its key is another slot's than it names."""
        name = slot_named(scope)
        if name is not None:
            return self._named(name, scope["headers"])
        if slot := self.find(scope["headers"]):
            return slot
        message = "no slot has this key: send the key of one, as `Authorization: Bearer KEY` or `x-api-key: KEY`"
        raise ApiError(401, message, "invalid_api_key")

    def without_key(self, scope: Scope) -> SlotSettings | None:
        """The slot that the client gets though it has no slot's key; None: it has one, or gets none."""
        if any(self._by_keys(scope["headers"])):
            return None
        try:
            return self.of(scope)
        except ApiError:
            return None

    def find(self, headers: Iterable[tuple[bytes, bytes]]) -> SlotSettings | None:
        """The slot of the first key that one has, from `Authorization: Bearer KEY` or `x-api-key: KEY`.

        No key, or none that a slot has: `anonymous` where there is such a slot, else None (to be answered 401).
        """
        return next(self._by_keys(headers), self._anonymous)

    def is_key(self, text: str) -> bool:
        """Whether somebody has put a slot's key where something else belongs."""
        hashed = digest(text.encode())
        return any(hmac.compare_digest(known, hashed) for known, _ in self._by_digest)

    def _named(self, name: str, headers: Iterable[tuple[bytes, bytes]]) -> SlotSettings:
        """A slot that isn't there and one that needs its key are refused in the same words: names aren't told.

        Nor is the name repeated, as the words are logged: somebody may put a key in its place.
        """
        owned = list(self._by_keys(headers))
        slot = self._slots.get(name)
        if slot and (slot in owned or (not owned and (slot.by_path or slot is self._anonymous))):
            return slot
        if owned:
            message = "this key isn't that of the slot that the path names: send that one's, or leave out /slot/NAME"
            raise ApiError(403, message, "wrong_slot")
        message = (
            "the path names no slot that is here, or one that needs its key: send that, as `Authorization: Bearer KEY`"
            " or `x-api-key: KEY`"
        )
        raise ApiError(401, message, "invalid_api_key")

    def _by_keys(self, headers: Iterable[tuple[bytes, bytes]]) -> Iterator[SlotSettings]:
        """Those of the keys that the headers carry, in their order."""
        for key in filter(None, _keys(headers)):
            hashed = digest(key)
            yield from [slot for known, slot in self._by_digest if hmac.compare_digest(known, hashed)]


def fields_for(slot: SlotSettings, profile: Profile, api: Api) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Of a request's body: what is set where the client set nothing, and what is set whatever the client set."""
    if not PROTOCOLS[api].generates:
        return {}, {}
    field = profile.kv_slot.get(api)
    return slot.defaults, {} if field is None or slot.id_slot is None else {field: slot.id_slot}


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
