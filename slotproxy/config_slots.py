"""From a slot's keys to its settings: whose key, which limits, and what must hold between the slots."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from slotproxy.addresses import is_loopback
from slotproxy.config_engines import check_name
from slotproxy.config_keys import SlotKeys
from slotproxy.config_yaml import Place, text_of
from slotproxy.keys import BadKey, digests

ANONYMOUS: Final = "anonymous"
_TAKEN = ("priority", "max_in_flight", "max_waiting", "max_hold", "defaults", "id_slot", "by_path", "allow_remote")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")


@dataclass(frozen=True, slots=True)
class SlotSettings:
    """A client's place at the proxy. `keys` are the digests of its keys. Times in seconds."""

    name: str
    keys: frozenset[bytes] = field(default=frozenset(), repr=False)
    priority: int = 0
    max_in_flight: int | None = None
    max_waiting: int = 256
    max_hold: float = 600.0
    defaults: Mapping[str, Any] = field(default_factory=dict)
    id_slot: int | None = None  # the KV slot, in an engine that has such
    by_path: bool = False  # who names it in the path needs no key
    allow_remote: bool = False  # without a key, but not only from this machine: the operator has said so


def slots_of(written: Mapping[str, SlotKeys] | None, host: str, at: Place) -> dict[str, SlotSettings]:
    slots = {name: _slot(name, keys, at / name) for name, keys in (written or {ANONYMOUS: SlotKeys()}).items()}
    anonymous = slots.get(ANONYMOUS)
    if anonymous is not None and not is_loopback(host) and not anonymous.allow_remote:
        raise (at / ANONYMOUS).wrong(
            f"listen is {host}, so everyone on the network could use the card without a key; give each client a slot"
            " with a key_file, or write anonymous: {allow_remote: true}"
        )
    for slot in slots.values():
        if slot.by_path and not is_loopback(host) and not slot.allow_remote:
            raise (at / slot.name / "by_path").wrong(
                f"listen is {host}, so everyone on the network could use this slot by its name; remove by_path, or"
                " write allow_remote: true beside it"
            )
    _check_all_different(slots, written or {}, at)
    return slots


def keyless(slots: Mapping[str, SlotSettings]) -> bool:
    """Whether whoever reaches the port may use it, and nobody has said that this is meant for others, too."""
    return any((slot.by_path or slot.name == ANONYMOUS) and not slot.allow_remote for slot in slots.values())


def _check_all_different(slots: Mapping[str, SlotSettings], written: Mapping[str, SlotKeys], at: Place) -> None:
    """A key that opens two slots opens either by chance, also where one has it as a hash."""
    owners: dict[bytes, str] = {}
    for slot in slots.values():
        for key in slot.keys:
            if (owner := owners.setdefault(key, slot.name)) != slot.name:
                place = at / slot.name / ("key_env" if written[slot.name].key_env else "key_file")
                raise place.wrong(f"holds the same key as {owner}'s, or its hash; make another")


def _slot(name: str, keys: SlotKeys, at: Place) -> SlotSettings:
    check_name(name, at)
    if name == ANONYMOUS and (keys.key_file or keys.key_env):
        place = at / ("key_env" if keys.key_env else "key_file")
        raise place.wrong("anonymous is the slot of those without a key; give the slot another name")
    if name == ANONYMOUS and keys.by_path is not None:
        raise (at / "by_path").wrong("anonymous needs no key by its name either; remove it")
    if name != ANONYMOUS and not keys.by_path and keys.allow_remote is not None:
        raise (at / "allow_remote").wrong("belongs to anonymous and by_path; a key may be used from anywhere")
    found = _keys(keys, at)
    if name != ANONYMOUS and not keys.by_path and not found:
        raise (at / "key_file").wrong("is missing: the file that holds the client's key (or key_env: the variable)")
    return SlotSettings(name, found, **keys.written(*_TAKEN))


def _keys(keys: SlotKeys, at: Place) -> frozenset[bytes]:
    """Of the file or the variable. Raises ConfigError, which never shows a key: not even one in a wrong place."""
    if keys.key_file and keys.key_env:
        raise (at / "key_env").wrong("a slot's keys are in key_file or in key_env; remove one of the two")
    if keys.key_file:
        place = at / "key_file"
        found = _digests(text_of(keys.key_file, place), str(keys.key_file), place)
        if not found:
            raise place.wrong(f"{keys.key_file} is empty; write the key into it")
        return found
    return _of_variable(keys.key_env, at / "key_env") if keys.key_env else frozenset()


def _of_variable(name: str, place: Place) -> frozenset[bytes]:
    """The name isn't shown: somebody may have written the key itself."""
    if not _VARIABLE.fullmatch(name):
        raise place.wrong("is no variable's name; write the name of the one that holds the key, such as VOICE_KEY")
    found = _digests(os.environ.get(name, ""), "the variable", place)
    if not found:
        raise place.wrong("this variable isn't set here, or is empty; set it for slotproxy, or write key_file")
    return found


def _digests(text: str, what: str, place: Place) -> frozenset[bytes]:
    try:
        return digests(*text.split("\n"))
    except BadKey as why:
        raise place.wrong(f"{what}: {why}") from None
