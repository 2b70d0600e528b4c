"""How long a client itself would wait, as its headers say.

`X-Slotproxy-Max-Hold` is ours: it shortens the slot's `max_hold` for one request, and never lengthens it.

The clients' own libraries announce after what silence they give up, in seconds. The Python ones of OpenAI and Anthropic
send `x-stainless-read-timeout`, which counts from the last byte that they sent; those for Node send only
`x-stainless-timeout`, which counts from the first. A client that can't be pinged is answered before that, so that it
reads why and when to come back; one that can be is pinged before that. What they announce is never an error of theirs.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from slotproxy.headers import Headers, value_of, values_of
from slotproxy.protocols import ApiError
from slotproxy.units import NUMBER, parse_duration

MAX_HOLD = b"x-slotproxy-max-hold"
_READ_TIMEOUT = b"x-stainless-read-timeout"
_TIMEOUT = b"x-stainless-timeout"
_SECONDS = re.compile(rb"[0-9]{1,9}(\.[0-9]{1,20})?")
_SHORTEST = 1.0  # seconds; who gives up sooner can't be answered in time
_MARGIN = 2.0  # seconds at most, and a fifth at most, that the answer has to arrive
_AT_ONCE = 0.5  # seconds; who should have been answered already


@dataclass(frozen=True, slots=True)
class Willing:
    """In seconds. `hold`: the longest wait that it asks for. `silence`: what it takes for the end, counted from its
    first byte where `from_first`, else from its last.
    """

    hold: float = math.inf
    silence: float = math.inf
    from_first: bool = False

    def in_time(self, sending: float) -> float:
        """How many seconds after its last byte it should have heard from us. `sending`: those that its bytes took."""
        left = self.silence - min(_MARGIN, self.silence / 5) - (sending if self.from_first else 0)
        return max(_AT_ONCE, left)


def willing(headers: Headers) -> Willing:
    """Raises ApiError (400) for an `X-Slotproxy-Max-Hold` that says nothing."""
    hold = min((_hold(value.decode("latin-1").strip()) for value in values_of(headers, MAX_HOLD)), default=math.inf)
    read = _silence(value_of(headers, _READ_TIMEOUT))
    if read < math.inf:
        return Willing(hold, read)
    return Willing(hold, _silence(value_of(headers, _TIMEOUT)), from_first=True)


def _hold(said: str) -> float:
    try:
        return parse_duration(f"{said}s" if re.fullmatch(NUMBER, said) else said)
    except ValueError:
        what = "X-Slotproxy-Max-Hold isn't a time to wait; write seconds, such as 5, or 250ms, 5s, 2m"
        raise ApiError(400, what, "invalid_max_hold") from None


def _silence(said: bytes) -> float:
    """Endless where it says nothing that can be kept (`None`, a part of a second)."""
    seconds = float(said) if _SECONDS.fullmatch(said.strip()) else math.inf
    return seconds if seconds >= _SHORTEST else math.inf
