"""What differs between two configurations, in words. Pure. Values of what may hold a secret are never in it."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from engines.spec import Engine, Pair
from slotproxy.config import Settings, SlotSettings
from slotproxy.config_tls import TlsSettings, day
from slotproxy.units import format_duration, format_size

FIXED = {"listen": ("host", "port"), "control": ("control",), "state": ("state",), "docker": ("docker",)}
"""The keys that can't change while slotproxy runs, and the settings that they make."""

FIXED_CARD = ("gpu", "simulated", "folder")

_SIZES = {"vram", "host_memory", "headroom", "baseline", "max_body", "max_waiting_bytes"}
_DURATIONS = {"drain", "freeing", "stop_limit", "max_hold", "first_ping", "ping_every", "warm_wait", "max_age"}
_DURATIONS |= {"stop_grace", "start_deadline", "health_every"}
_PLAIN = (int, float, str, bool, enum.Enum, type(None))
_NEVER_SHOWN = {"keys", "api_key", "webhook"}


def fixed(old: Settings, new: Settings) -> list[str]:
    """The keys that differ and need a restart."""
    differ = [key for key, names in FIXED.items() if any(getattr(old, n) != getattr(new, n) for n in names)]
    return differ + [f"card.{name}" for name in FIXED_CARD if getattr(old.card, name) != getattr(new.card, name)]


def changes(old: Settings, new: Settings) -> list[str]:
    """A line for each thing that differs, but what needs a restart."""
    return [
        *_of("", old, new, "drain", "freeing", "stop_limit", "on_stop", "default"),
        *_of("card.", old.card, new.card, "headroom", "baseline", "on_change"),
        *_of("limits.", old.limits, new.limits),
        *_of("notify.", old.notify, new.notify),
        *_of("cors.", old.cors, new.cors),
        *_tls(old.tls, new.tls),
        *_named("models.", old.models, new.models, lambda at, *_: iter([f"{at}: changed"])),
        *_named("slots.", old.slots, new.slots, _slot),
        *_named("engines.", old.engines, new.engines, _engine),
    ]


def _tls(old: TlsSettings | None, new: TlsSettings | None) -> Iterator[str]:
    """New connections have it; those that are open stay as they are."""
    if old == new:
        return
    if new is None:
        yield "tls: removed, new connections speak plain HTTP"
        return
    what = "added, new connections speak HTTPS" if old is None else "another certificate"
    yield f"tls: {what}, valid until {day(new.expires)}"
    if trouble := new.trouble():
        yield f"tls: {trouble}"


def _slot(at: str, old: SlotSettings, new: SlotSettings) -> Iterator[str]:
    yield from _of(f"{at}.", old, new)


def _engine(at: str, old: Engine, new: Engine) -> Iterator[str]:
    own = [field.name for field in fields(Engine) if field.name != "pairs"]
    yield from _of(f"{at}.", old, new, *own)
    yield from _named(f"{at}.pairs.", old.pairs, new.pairs, _pair)


def _pair(at: str, old: Pair, new: Pair) -> Iterator[str]:
    yield from _of(f"{at}.", old, new)


def _named(at: str, old: Mapping[str, Any], new: Mapping[str, Any], differ: Any) -> Iterator[str]:
    for name in dict.fromkeys([*old, *new]):
        if name not in new:
            yield f"{at}{name}: removed"
        elif name not in old:
            yield f"{at}{name}: added"
        elif old[name] != new[name]:
            yield from differ(f"{at}{name}", old[name], new[name])


def _of(at: str, old: Any, new: Any, *names: str) -> Iterator[str]:
    for name in names or tuple(field.name for field in fields(old)):
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            yield f"{at}{name}: {_from_to(name, before, after)}"


def _from_to(name: str, before: object, after: object) -> str:
    if name in _NEVER_SHOWN or not isinstance(before, _PLAIN) or not isinstance(after, _PLAIN):
        return "changed"
    return f"{_shown(name, before)} → {_shown(name, after)}"


def _shown(name: str, value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, int | float) and name in _SIZES:
        return format_size(value)
    if isinstance(value, int | float) and name in _DURATIONS:
        return format_duration(value)
    return str(value)
