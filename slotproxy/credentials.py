"""Where a client's key may stand. An engine is sent its own key, so nothing that may hold the client's goes through.

A client that sends the key of another service, or of another proxy, sends it to us: engines, and what they log, aren't
meant. Cookies are dropped, too: a browser sends those of every program on the same host, whatever its port.
"""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

HEADERS = frozenset(
    (
        b"authorization",
        b"proxy-authorization",
        b"x-authorization",
        b"x-api-key",
        b"api-key",
        b"x-goog-api-key",
        b"ocp-apim-subscription-key",
        b"x-litellm-api-key",
        b"x-auth-token",
        b"x-access-token",
        b"cookie",
        b"cookie2",
    )
)
_PARAMETERS = frozenset((b"key", b"api_key", b"api-key", b"apikey", b"access_token"))


def without_keys(query: bytes) -> bytes:
    """The query without the parameters that hold keys; the others as they came."""
    if not query:
        return query
    return b"&".join(part for part in query.split(b"&") if _name(part) not in _PARAMETERS)


def _name(parameter: bytes) -> bytes:
    return unquote_to_bytes(parameter.partition(b"=")[0]).strip().lower()
