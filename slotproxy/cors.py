"""Web pages at the client port: what their browsers are told, and which of them aren't let in.

A browser hands a page of another origin an answer only where the answer says that it may (CORS), and asks before it
sends what a form couldn't (a preflight). Neither keeps a page from *sending*: the browser of whoever is shown it posts
what the page likes to 127.0.0.1, and by a name that is made to mean 127.0.0.1 (DNS rebinding) the page reads the
answer, too. So who has no key of its own isn't let in from a page, nor by such a name.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from starlette.types import Message, Send

from slotproxy.addresses import is_address, is_loopback
from slotproxy.config_cors import OPAQUE, CorsSettings
from slotproxy.headers import Headers, value_of
from slotproxy.protocols import ApiError

_EXPOSED = b"*, retry-after, x-request-id, x-slotproxy-engine, x-slotproxy-held-ms"
_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~ ,-]{1,4000}")  # of headers, in a list
_PRIVATE_NAMES = (".localhost", ".local", ".internal")  # no public name server answers for these
_SHOWN = 100  # characters of what a client sent that are told back


class Cors:
    """What browsers are told. Headers that an engine sends for that never get this far."""

    def __init__(self, settings: CorsSettings) -> None:
        self._settings = settings

    def told(self, headers: Headers, send: Send) -> Send:
        """`send`, with what the page that asks needs to read the answer, whatever the answer is."""
        if not self._settings.origins:
            return send
        added = self.allowed(value_of(headers, b"origin"))

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        return told

    def preflight(self, headers: Headers, methods: str) -> Headers:
        """What it is told in addition. Raises ApiError (403): the page may not ask."""
        origin = value_of(headers, b"origin")
        if not self._settings.allows(_text(origin)):
            raise _foreign(_text(origin))
        asked = value_of(headers, b"access-control-request-headers")
        answer = [
            (b"access-control-allow-methods", methods.encode()),
            (b"access-control-max-age", b"%d" % self._settings.max_age),
            (b"vary", b"Access-Control-Request-Headers"),
        ]
        if _NAMES.fullmatch(asked):
            answer.append((b"access-control-allow-headers", asked))  # what is in them is no secret of ours
        if value_of(headers, b"access-control-request-private-network") == b"true":
            answer.append((b"access-control-allow-private-network", b"true"))
        return answer

    def allowed(self, origin: bytes) -> Headers:
        """Whether a page of this origin may read the answer, where there is a page at all that may."""
        if not self._settings.origins:
            return []
        varies = (b"vary", b"Origin")
        if not origin or not self._settings.allows(_text(origin)):
            return [varies]
        return [varies, (b"access-control-allow-origin", origin), (b"access-control-expose-headers", _EXPOSED)]


def is_preflight(headers: Headers) -> bool:
    """Of an OPTIONS: whether a browser asks if a page may send something."""
    return bool(value_of(headers, b"origin") and value_of(headers, b"access-control-request-method"))


def from_a_page(headers: Headers, cors: CorsSettings) -> ApiError | None:
    """Why (403) a request without a key isn't let in: a web page that nobody named has sent it. None: it is."""
    origins = [_text(value).lower() for name, value in headers if name == b"origin"]
    if not origins and value_of(headers, b"sec-fetch-site") == b"cross-site":
        return _foreign("of another site")  # a picture, or a link: browsers name no origin with these
    host = _text(value_of(headers, b"host")).lower() if origins else ""
    foreign = (origin for origin in origins if not cors.allows(origin) and _is_foreign(origin, host))
    return next(map(_foreign, foreign), None)


def by_a_foreign_name(headers: Headers, cors: CorsSettings) -> ApiError | None:
    """Why (403) a request without a key isn't let in: by a name that somebody else may have made mean this machine."""
    host = _host(_text(value_of(headers, b"host")).lower()).rstrip(".")
    if _is_ours(host) or cors.names_host(host):
        return None
    return ApiError(
        403,
        f"without a key this port is asked by its address or as localhost, not as {host[:_SHOWN]}: a web page could"
        " make that name mean this machine; use the address, a slot's key, or allow_remote: true of the slot",
        "foreign_host",
    )


def _foreign(origin: str) -> ApiError:
    return ApiError(
        403,
        f"the web page {origin[:_SHOWN]} may not ask here without being named: add it to cors.origins of the"
        " configuration, and reload",
        "foreign_origin",
    )


def _is_foreign(origin: str, host: str) -> bool:
    """Whether a page that anybody may have written has this origin; `host`: the one that it asks, with its port.

    Schemes of their own (app://, tauri://, file://) are those of programs that somebody has installed here. An address
    can't be made to mean another machine, so a page that was loaded from the very address that it asks is ours.
    """
    scheme, _, _ = origin.partition("://")
    if scheme.endswith("-extension"):
        return True
    if scheme not in ("http", "https"):
        return origin == OPAQUE or "://" not in origin
    try:
        parts = urlsplit(origin)
    except ValueError:
        return True
    name = parts.hostname or ""
    return not (is_loopback(name) or name.endswith(".localhost") or (is_address(name) and parts.netloc == host))


def _is_ours(host: str) -> bool:
    """A name that no name server of somebody else's answers for: none at all, an address, a name without a dot."""
    return "." not in host or is_address(host) or host.endswith(_PRIVATE_NAMES)


def _host(header: str) -> str:
    """Without the port."""
    return header.rpartition("]")[0].removeprefix("[") if header.startswith("[") else header.partition(":")[0]


def _text(value: bytes) -> str:
    return value.decode("latin-1").strip()
