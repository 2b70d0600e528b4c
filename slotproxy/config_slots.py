"""From a slot's keys to its settings: whose key, which limits, and what must hold between the slots."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from slotproxy.config_engines import check_name
from slotproxy.config_file import secret
from slotproxy.config_keys import SlotKeys
from slotproxy.config_yaml import Place

ANONYMOUS: Final = "anonymous"


@dataclass(frozen=True, slots=True)
class SlotSettings:
    """A client's place at the proxy. `key` is None for `anonymous`. Times in seconds."""

    name: str
    key: str | None = None
    priority: int = 0
    max_in_flight: int | None = None
    max_waiting: int = 256
    max_hold: float = 600.0
    defaults: Mapping[str, Any] = field(default_factory=dict)


def slots_of(written: Mapping[str, SlotKeys] | None, host: str, at: Place) -> dict[str, SlotSettings]:
    slots = {name: _slot(name, keys, at / name) for name, keys in (written or {ANONYMOUS: SlotKeys()}).items()}
    remote = written and ANONYMOUS in written and written[ANONYMOUS].allow_remote
    if ANONYMOUS in slots and not is_loopback(host) and not remote:
        raise (at / ANONYMOUS).wrong(
            f"listen is {host}, so everyone on the network could use the card without a key; give each client a slot"
            " with a key_file, or write anonymous: {allow_remote: true}"
        )
    owners: dict[str, str] = {}
    for slot in slots.values():
        if slot.key and owners.setdefault(slot.key, slot.name) != slot.name:
            raise (at / slot.name / "key_file").wrong(f"holds the same key as {owners[slot.key]}'s; make another")
    return slots


def _slot(name: str, keys: SlotKeys, at: Place) -> SlotSettings:
    check_name(name, at)
    if name == ANONYMOUS and keys.key_file:
        raise (at / "key_file").wrong("anonymous is the slot of those without a key; give the slot another name")
    if name != ANONYMOUS and keys.allow_remote is not None:
        raise (at / "allow_remote").wrong("belongs to anonymous; a slot with a key may be used from anywhere")
    if name != ANONYMOUS and not keys.key_file:
        raise (at / "key_file").wrong("is missing: the file that holds the client's key")
    key = secret(keys.key_file, at / "key_file") if keys.key_file else None
    return SlotSettings(name, key, **keys.written("priority", "max_in_flight", "max_waiting", "max_hold", "defaults"))


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
