"""`cors:` of the configuration file: which web pages may ask, from a browser.

A page's origin is `scheme://host[:port]`, as its browser sends it: in lower case, without the scheme's own port.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from slotproxy.config_keys import CorsKeys
from slotproxy.config_yaml import Place
from slotproxy.units import show

ANY: Final = "*"
OPAQUE: Final = "null"  # what pages without an origin have: those from a file, and every page in a sandboxed frame
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])?(?::[0-9]{1,5})?")
_OWN_PORTS: Final = {"http": ":80", "https": ":443"}


@dataclass(frozen=True, slots=True)
class CorsSettings:
    """`origins` empty: no page of another origin is let in. `max_age` in seconds."""

    origins: frozenset[str] = frozenset()
    max_age: float = 600.0

    def allows(self, origin: str) -> bool:
        return ANY in self.origins or origin in self.origins

    def names_host(self, host: str) -> bool:
        """Whether one of the pages is at this host; without a port."""
        return any(urlsplit(origin).hostname == host for origin in self.origins)


def cors_of(keys: CorsKeys | None, at: Place) -> CorsSettings:
    """Raises ConfigError."""
    if keys is None:
        return CorsSettings()
    places = at / "origins"
    origins = frozenset(_origin(written, places) for written in keys.origins)
    for everybodys in (ANY, OPAQUE):
        if everybodys in origins and not keys.allow_any:
            raise places.wrong(
                f"'{everybodys}' lets every web page ask, whoever wrote it; name those that may, such as"
                " https://chat.example, or write allow_any: true beside it"
            )
    return CorsSettings(origins, **keys.written("max_age"))


def _origin(written: str, at: Place) -> str:
    if written in (ANY, OPAQUE):
        return written
    lower = written.lower()
    scheme, _, rest = lower.partition("://")
    if not _ORIGIN.fullmatch(lower) or (scheme in _OWN_PORTS and not rest.partition(":")[0]):
        raise at.wrong(
            f"{show(written)} is no origin; write scheme, host and port as the browser has them, without a path, such"
            " as https://chat.example or http://192.168.1.5:3000"
        )
    return lower.removesuffix(_OWN_PORTS.get(scheme, ":"))
