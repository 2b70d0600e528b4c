"""The simulation's knobs: flags, variables, defaults. The table that explains them is the package's docstring."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

GiB = 1024**3
FAULTS = {"never-ready": 0, "fail-load": 0, "exit-after-load": 3, "crash": 3, "hang": 3}


@dataclass(frozen=True, slots=True)
class Knobs:
    """Times in seconds but `decode` (milliseconds a token); sizes in bytes; paths as text, empty for none."""

    load: float = 1.0
    prefill: float = 2000.0
    decode: float = 10.0
    tokens: int = 32
    thinking: int = 16
    card: str = ""
    vram: str = "free"
    reserve: int = GiB
    full: int = 24 * GiB
    linger: float = 0.0
    unpin: float = 0.9
    keep_alive: float = 5.0
    fault: str = ""
    fault_file: str = ""
    request_log: str = ""
    data: str = "/data"


def add_flags(parser: argparse.ArgumentParser, env: Mapping[str, str]) -> None:
    """A flag for every knob, whose default is the variable's value if it is set."""
    for field in fields(Knobs):
        kind = type(field.default)
        default = env.get(f"STRATA_SIM_{field.name.upper()}", str(field.default))
        parser.add_argument(
            f"--sim-{field.name.replace('_', '-')}", dest=f"sim_{field.name}", type=kind, default=default
        )


def from_namespace(parsed: argparse.Namespace) -> Knobs:
    return Knobs(**{field.name: getattr(parsed, f"sim_{field.name}") for field in fields(Knobs)})


def faults(knobs: Knobs) -> dict[str, int]:
    """The faults that hold now, with their numbers. Raises ValueError for a word that is none."""
    words = knobs.fault.split(",")
    if knobs.fault_file and Path(knobs.fault_file).is_file():
        words += Path(knobs.fault_file).read_text().split(",")
    return dict(_fault(word.strip()) for word in words if word.strip())


def _fault(word: str) -> tuple[str, int]:
    name, _, number = word.partition(":")
    if name not in FAULTS:
        raise ValueError(f"no fault {name!r}; there are {', '.join(FAULTS)}")
    return name, int(number) if number else FAULTS[name]
