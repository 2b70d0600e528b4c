"""The settings that hold now. All parts have this one object, so a reload reaches them all in one step."""

from __future__ import annotations

from dataclasses import dataclass

from slotproxy.config import Settings


@dataclass
class InForce:
    settings: Settings
