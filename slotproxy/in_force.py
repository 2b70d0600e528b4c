"""The settings that hold now. All parts have this one object, so a reload reaches them all in one step."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from slotproxy.config import Settings


@dataclass
class InForce:
    settings: Settings

    def certificate(self) -> ssl.SSLContext | None:
        """What new connections are shown; None: they speak plain HTTP."""
        return None if self.settings.tls is None else self.settings.tls.context
