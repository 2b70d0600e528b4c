"""A recipe as cells, field by field, so that the same field of several recipes stands side by side. Pure.

A command line is told flag by flag, what is a list by its members: one edit is one cell. Secrets are never shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from swap.drift import ABSENT, HIDDEN, HIDDEN_OTHER, looks_secret, mount_text, shown_words, without_secrets
from swap.ports import Recipe
from swap.statement import is_masked

COMPOSE_HASH = "other settings (compose hash)"
LABEL = "label "
ORDER = "order of the "
RESTART = "restart policy"


@dataclass(frozen=True, slots=True)
class Cell:
    """One side of one field. `value` is what is compared, `counted` what evidence is about."""

    value: object
    shown: str
    counted: object
    secret: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    """`pair`: it makes another pair. `cells` by side."""

    name: str
    pair: bool
    cells: dict[str, Cell] = field(default_factory=dict)


Told = tuple[str, str, bool, Cell]
"""The field's name, what tells it from others of that name, whether it makes a pair, and its cell."""


def aligned(sides: Mapping[str, Recipe | None]) -> Iterable[Field]:
    """Each field that any side has, with a cell for each side that there is."""
    found: dict[tuple[str, str], Field] = {}
    there = {side: recipe for side, recipe in sides.items() if recipe is not None}
    for side, recipe in there.items():
        for name, key, pair, cell in _cells(recipe):
            found.setdefault((name, key), Field(name, pair)).cells[side] = cell
    absent = Cell(None, ABSENT, None)
    for one in found.values():
        one.cells.update({side: absent for side in there if side not in one.cells})
    return found.values()


def shown(cells: Sequence[Cell | None]) -> list[str | None]:
    """Secrets are seen to differ and never shown: each other value than the first is told to be another."""
    values = [cell.value for cell in cells if cell is not None and cell.secret]
    return [None if cell is None else _hidden(cell, values[0]) if cell.secret else cell.shown for cell in cells]


def _hidden(cell: Cell, first: object) -> str:
    text = cell.shown if HIDDEN in cell.shown else HIDDEN
    return text if cell.value == first else text.replace(HIDDEN, HIDDEN_OTHER)


def _cells(recipe: Recipe) -> Iterator[Told]:
    yield from _words("entry point", recipe.entrypoint)
    yield from _words("command", recipe.command)
    for name, value in recipe.env:
        yield f"environment {name}", "", True, _valued(name, value)
    yield _plain("working directory", recipe.working_dir, pair=True)
    yield _plain("user", recipe.user, pair=True)
    for mount in recipe.mounts:
        cell = Cell(mount, mount_text(mount), mount.read_only)
        yield f"mount {mount.target}", "", True, cell
    yield _plain("devices", ", ".join(recipe.devices), pair=True)
    yield from _ports(recipe.ports)
    yield _plain("networks", ", ".join(recipe.networks), pair=False)
    check = without_secrets(recipe.healthcheck)
    yield "healthcheck", "", False, Cell(recipe.healthcheck, check or ABSENT, recipe.healthcheck, HIDDEN in check)
    yield _plain(RESTART, recipe.restart or "no", pair=False)
    yield _plain("stop grace", "" if recipe.stop_grace is None else f"{recipe.stop_grace:g} s", pair=False)
    yield _plain("init", "yes" if recipe.init else "no", pair=False)
    for name, value in recipe.labels:
        yield LABEL + name, "", False, _valued(name, value)
    yield COMPOSE_HASH, "", False, Cell(recipe.config_hash, recipe.config_hash[:12] or ABSENT, recipe.config_hash)


def _plain(name: str, value: str, *, pair: bool) -> Told:
    return name, "", pair, Cell(value, value or ABSENT, value)


def _valued(name: str, value: str) -> Cell:
    text = without_secrets(repr(value))
    return Cell(value, text, value, looks_secret(name) or HIDDEN in text or is_masked(value))


def _ports(ports: Sequence[str]) -> Iterator[Told]:
    """By the port in the container."""
    inside: dict[str, list[str]] = {}
    for port in ports:
        outside, _, target = port.partition("->")
        inside.setdefault(target, []).append(outside)
    for target, places in inside.items():
        yield _plain(f"port {target}", ", ".join(places), pair=False)


def _words(name: str, words: Sequence[str]) -> Iterator[Told]:
    """A cell for each flag with its values, one for each word before the first flag, and one for their order."""
    starts = [n for n, word in enumerate(words) if word.startswith("-") or not _flagged(words[:n])]
    seen: Counter[str] = Counter()
    keys: list[str] = []
    for start, end in zip(starts, [*starts, len(words)][1:], strict=True):
        flag = words[start].partition("=")[0] if words[start].startswith("-") else "word"
        seen[flag] += 1
        keys.append(f"{flag} {seen[flag]}")
        value = tuple(words[start:end])
        text = shown_words(words, start, end)
        yield name, keys[-1], True, Cell(value, text, value, HIDDEN in text)
    yield ORDER + name, "", True, Cell(tuple(keys), shown_words(words, 0, len(words)) or ABSENT, tuple(keys))


def _flagged(words: Sequence[str]) -> bool:
    return any(word.startswith("-") for word in words)
