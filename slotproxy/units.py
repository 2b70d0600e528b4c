"""Sizes and durations as operators write and read them: `30.5GiB`, `250ms`. Inside, sizes are bytes and times seconds.

A number without a unit is refused: nobody knows whether 30 means bytes or GiB. Only 0 is the same in every unit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

NUMBER: Final = r"[0-9]{1,12}(\.[0-9]{1,9})?"


@dataclass(frozen=True, slots=True)
class Quantity:
    """What can be measured: its units (in terms of the one inside), and an example for who forgot the unit."""

    name: str
    units: Mapping[str, Decimal]
    example: str
    likely: Callable[[float], str]

    @property
    def pattern(self) -> str:
        """A regular expression (the same in Python and in JSON Schema) of what may be written."""
        return rf"^{NUMBER} ?({'|'.join(self.units)})$"

    def parse(self, written: object) -> Decimal:
        """In the unit inside. Raises ValueError with a line for the operator."""
        if type(written) is int and written == 0:
            return Decimal(0)
        match = re.fullmatch(rf"({NUMBER}) ?([A-Za-z]*)", str(written))
        if match is None or isinstance(written, bool):
            raise ValueError(f"{show(written)} is not a {self.name}; write {self._expected}, such as {self.example}")
        number, unit = Decimal(match[1]), match[3]
        if not unit:
            raise ValueError(f"{written} has no unit; write a {self.name} such as {self.likely(float(number))}")
        if unit not in self.units:
            raise ValueError(f"{written} has an unknown unit, {unit}; write {self._expected}")
        return number * self.units[unit]

    @property
    def _expected(self) -> str:
        *most, last = self.units
        return f"a number and one of {', '.join(most)} or {last}"


def parse_size(written: object) -> int:
    """Bytes. Raises ValueError with a line for the operator."""
    return int(SIZE.parse(written))


def parse_duration(written: object) -> float:
    """Seconds. Raises ValueError with a line for the operator."""
    return float(DURATION.parse(written))


def format_size(size: float) -> str:
    """`30.5GiB`: the largest unit that leaves a whole part, at most two places."""
    unit = next((name for name, scale in reversed([*SIZE.units.items()]) if size >= scale), "B")
    places = f"{size / float(SIZE.units[unit]):.2f}"
    return places.rstrip("0").rstrip(".") + unit


def format_duration(seconds: float) -> str:
    """`250 ms`, `1.2 s`, `2 min 5 s`, `3 h 20 min`: for people, rounded to what they care for."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def show(written: object) -> str:
    """A value from outside on one short line, whatever it holds."""
    text = repr(written)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _likely_size(number: float) -> str:
    if number < 256:
        return f"{number:g}GiB"
    return f"{number:g}MiB" if number < 1024**2 else format_size(number)


SIZE: Final = Quantity(
    "size",
    {unit: Decimal(1024**power) for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB"))},
    "30.5GiB",
    _likely_size,
)
DURATION: Final = Quantity(
    "duration",
    {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)},
    "120s",
    lambda number: f"{number:g}s",
)
