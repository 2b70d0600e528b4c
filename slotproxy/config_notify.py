"""`notify:` of the configuration file: who hears of which events."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Final

import httpx

from slotproxy.config_file import existing, host_path
from slotproxy.config_keys import NotifyKeys
from slotproxy.config_yaml import Place
from slotproxy.units import show
from swap.decisions import Kind

TOLD: Final = frozenset({Kind.DARK, Kind.RECOVERED, Kind.RESTORED, Kind.FAILED, Kind.USELESS})


@dataclass(frozen=True, slots=True)
class NotifySettings:
    """`command`: the program and its arguments. Neither it nor `webhook`: nobody hears anything."""

    command: tuple[str, ...] = ()
    webhook: str = ""
    on: frozenset[Kind] = TOLD


def notify_of(keys: NotifyKeys | None, at: Place) -> NotifySettings:
    """Raises ConfigError."""
    if keys is None:
        return NotifySettings()
    if not keys.command and not keys.webhook:
        raise at.wrong("names nobody who hears of it; write command: [PATH, …] or webhook: URL")
    command = _command(keys.command, at / "command") if keys.command else ()
    webhook = _webhook(keys.webhook, at / "webhook") if keys.webhook else ""
    return NotifySettings(command, webhook, TOLD if keys.on is None else _kinds(keys.on, at / "on"))


def _command(words: list[str], at: Place) -> tuple[str, ...]:
    program = existing(host_path(words[0], at), at)
    if not program.stat().st_mode & 0o111:  # who checks the file needn't be who runs it
        raise at.wrong(f"{program} can't be run; `chmod +x` it, or put what runs it before it")
    return (str(program), *words[1:])


def _webhook(written: str, at: Place) -> str:
    """What is wrong with it is said without showing it: it may hold a secret."""
    try:
        url = httpx.URL(written)
    except httpx.InvalidURL:
        raise at.wrong("is no URL; write one such as https://ntfy.example/alerts") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise at.wrong("must begin with http:// or https:// and name a host, such as https://ntfy.example/alerts")
    return written


def _kinds(written: list[str], at: Place) -> frozenset[Kind]:
    known = [kind.value for kind in Kind if kind is not Kind.NOTICE]
    if not written:
        raise at.wrong(f"is empty; write which events it hears of, such as [{', '.join(sorted(TOLD))}]")
    for name in written:
        if name not in known:
            (nearest,) = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
            raise at.wrong(f"{show(name)} is no kind of event; the nearest known one is {nearest}")
    return frozenset(map(Kind, written))
