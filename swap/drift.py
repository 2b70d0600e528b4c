"""Declared and created side by side: the differences, worst first. Pure.

A pair field decides what the engine computes with, so a change there makes another pair, which has to prove itself.
The rest (ports, networks, healthcheck, …) can be changed without a trial. An image is its content: the same one under
another id (Docker's other image store, a rebuild that changed a label only) makes no other pair. Values of variables
and flags whose names look secret are never shown, only that they differ.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from swap.ports import Mount, Recipe, Subject

ABSENT = "(not set)"
HIDDEN = "(hidden)"
HIDDEN_OTHER = "(hidden, another value)"
_SECRET = re.compile(
    r"KEY|TOKEN|SECRET|PASS(?!E|T)|PWD|CREDENTIAL|AUTH|BEARER|COOKIE|(?<![A-Z])PAT(?![A-Z])", re.IGNORECASE
)
_TOKEN_COUNT = re.compile(r"TOKENS\b|TOKENIZ", re.IGNORECASE)  # --draft-tokens 3, --tokenizer FILE: nobody's secret
_IN_ADDRESS = re.compile(r"(?<=://)[^/\s@]+(?=@)")
_IN_HEADER = re.compile(r"\b(bearer|basic)\s+[^\s'\"]+", re.IGNORECASE)
_NAMED = re.compile(r"([\w-]+)(['\"]?\s*[=:]\s*['\"]?)(?!//)([^\s'\"]+)")


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that differs, both sides readable. `pair`: it makes another pair."""

    field: str
    declared: str
    created: str
    pair: bool


def differences(declared: Recipe, created: Recipe) -> tuple[Difference, ...]:
    """Field by field, what makes another pair first; empty when the container is the one that is declared."""
    found = (*_pair_fields(declared, created), *_other_fields(declared, created))
    if not found and declared.config_hash != created.config_hash:
        hashes = declared.config_hash[:12], created.config_hash[:12]
        return (_differ("other settings (compose hash)", *hashes, pair=False),)
    return found


def same_image(one: Recipe | Subject, other: Recipe | Subject) -> bool:
    """By content. One that is gone has no content that could be read: it is told by its id alone."""
    return one.image_id == other.image_id or ("" != one.image_content == other.image_content)


def nearest(wanted: Recipe, offered: Sequence[Recipe | None]) -> int | None:
    """Which of these is the wanted one: the first without any difference, else the first that is the same pair."""
    differ = [(n, differences(wanted, recipe)) for n, recipe in enumerate(offered) if recipe is not None]
    same = [n for n, found in differ if not found] + [n for n, found in differ if not any(one.pair for one in found)]
    return same[0] if same else None


def otherwise(wanted: Recipe, created: Recipe | None) -> str:
    """How what is there isn't what is wanted, for a message."""
    if created is None:
        return "there is none"
    return "; ".join(f"{one.field} is {one.created}, not {one.declared}" for one in differences(wanted, created))


def looks_secret(name: str) -> bool:
    """True for the name of a variable or flag whose value nobody should see in a message or a file."""
    return _SECRET.search(_TOKEN_COUNT.sub("", name)) is not None


def without_secrets(text: str) -> str:
    """A longer text (a health check, an address, a script) as it may be shown, as far as its secrets look like some."""
    text = _IN_HEADER.sub(rf"\1 {HIDDEN}", _IN_ADDRESS.sub(HIDDEN, text))
    return _NAMED.sub(lambda found: f"{found[1]}{found[2]}{HIDDEN}" if looks_secret(found[1]) else found[0], text)


def _pair_fields(declared: Recipe, created: Recipe) -> Iterator[Difference]:
    if not same_image(declared, created):
        yield Difference("image", *_images(declared, created), pair=True)
    yield from _words("entry point", declared.entrypoint, created.entrypoint)
    yield from _words("command", declared.command, created.command)
    yield from _environment(dict(declared.env), dict(created.env))
    yield from _plain("working directory", declared.working_dir, created.working_dir, pair=True)
    yield from _plain("user", declared.user, created.user, pair=True)
    yield from _sets("mounts", _mounts(declared.mounts), _mounts(created.mounts), pair=True)
    yield from _sets("devices", declared.devices, created.devices, pair=True)


def _other_fields(declared: Recipe, created: Recipe) -> Iterator[Difference]:
    yield from _sets("ports", declared.ports, created.ports, pair=False)
    yield from _sets("networks", declared.networks, created.networks, pair=False)
    yield from _hiding("healthcheck", declared.healthcheck, created.healthcheck)
    yield from _plain("restart policy", declared.restart, created.restart, pair=False)
    yield from _plain("stop grace", _seconds(declared.stop_grace), _seconds(created.stop_grace), pair=False)
    yield from _plain("init", _yes(declared.init), _yes(created.init), pair=False)
    yield from _labels(dict(declared.labels), dict(created.labels))
    if declared.image_id != created.image_id and same_image(declared, created):
        yield Difference("image id (the same content)", *_images(declared, created), pair=False)


def _plain(field: str, declared: str, created: str, *, pair: bool) -> Iterator[Difference]:
    if declared != created:
        yield _differ(field, declared, created, pair=pair)


def _hiding(field: str, declared: str, created: str) -> Iterator[Difference]:
    if declared != created:
        yield _differ(field, *_apart(without_secrets(declared), without_secrets(created)), pair=False)


def _apart(ours: str, theirs: str) -> tuple[str, str]:
    """Two texts that differ; also where only what is hidden in them does."""
    return ours, theirs.replace(HIDDEN, HIDDEN_OTHER) if ours == theirs else theirs


def _differ(field: str, declared: str, created: str, *, pair: bool) -> Difference:
    return Difference(field, declared or ABSENT, created or ABSENT, pair)


def _sets(field: str, declared: Sequence[str], created: Sequence[str], *, pair: bool) -> Iterator[Difference]:
    """Only the members that one side has and the other hasn't."""
    ours = ", ".join(item for item in declared if item not in created)
    theirs = ", ".join(item for item in created if item not in declared)
    yield from _plain(field, ours, theirs, pair=pair)


def _environment(declared: dict[str, str], created: dict[str, str]) -> Iterator[Difference]:
    for name in sorted(declared.keys() | created.keys()):
        ours, theirs = declared.get(name), created.get(name)
        if ours != theirs:
            yield Difference(f"environment {name}", *_shown(name, ours, theirs), pair=True)


def _labels(declared: dict[str, str], created: dict[str, str]) -> Iterator[Difference]:
    for name in sorted(declared.keys() | created.keys()):
        ours, theirs = declared.get(name), created.get(name)
        if ours != theirs:
            yield Difference(f"label {name}", *_shown(name, ours, theirs), pair=False)


def _images(declared: Recipe, created: Recipe) -> tuple[str, str]:
    return image_text(declared.image, declared.image_id), image_text(created.image, created.image_id)


def _shown(name: str, ours: str | None, theirs: str | None) -> tuple[str, str]:
    if looks_secret(name):
        other = HIDDEN if ours is None else HIDDEN_OTHER
        return ABSENT if ours is None else HIDDEN, ABSENT if theirs is None else other
    return _apart(*(ABSENT if one is None else without_secrets(repr(one)) for one in (ours, theirs)))


def _words(field: str, declared: tuple[str, ...], created: tuple[str, ...]) -> Iterator[Difference]:
    """One difference for each run of words that differs, a flag shown with its value."""
    for tag, a, b, c, d in SequenceMatcher(None, declared, created, autojunk=False).get_opcodes():
        if tag != "equal":
            back = 1 if a and c and declared[a - 1].startswith("-") and "=" not in declared[a - 1] else 0
            ours, theirs = shown_words(declared, a - back, b), shown_words(created, c - back, d)
            yield _differ(field, *_apart(ours, theirs), pair=True)


def shown_words(words: Sequence[str], start: int, end: int) -> str:
    """A part of a command line as it may be shown: values of secret flags are hidden."""
    shown = [_word(words, position) for position in range(start, end)]
    return " ".join(word if word == HIDDEN or (word and " " not in word) else repr(word) for word in shown)


def shown_line(words: Sequence[str]) -> list[str]:
    """A command line as it may be shown, word by word."""
    return [_word(words, position) for position in range(len(words))]


def _word(words: Sequence[str], position: int) -> str:
    """A word of a command line as it may be shown: the value of a secret flag, given either way, is hidden."""
    word, before = words[position], words[position - 1] if position else ""
    if before.startswith("-") and "=" not in before and looks_secret(before) and not word.startswith("-"):
        return HIDDEN
    name, equals, _ = word.partition("=")
    if equals and looks_secret(name):
        return f"{name}={HIDDEN}"
    return without_secrets(word)


def image_text(name: str, id: str) -> str:
    """`ninfer:local (0123456789ab)`"""
    return f"{name} ({id.removeprefix('sha256:')[:12]})"


def _mounts(mounts: Sequence[Mount]) -> list[str]:
    return [mount_text(mount) for mount in mounts]


def mount_text(mount: Mount) -> str:
    """`/srv/models → /models (read-only)`; what isn't a bind mount says its kind."""
    source = mount.source if mount.kind == "bind" else f"{mount.kind} {mount.source}".strip()
    return f"{source} → {mount.target}{' (read-only)' if mount.read_only else ''}"


def _seconds(grace: float | None) -> str:
    return "" if grace is None else f"{grace:g} s"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
