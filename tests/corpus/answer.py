"""What an engine answers to one request, and how the request must be logged for it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from slotproxy.outcomes import Outcome

Header = tuple[bytes, bytes]
JSON = b"application/json"
EVENTS = b"text/event-stream"


class Ending(enum.Enum):
    """What the client is told besides the engine's bytes.

    AS_IT_IS: nothing. TOLD: an error event after them, and no end.
    """

    AS_IT_IS = "as it is"
    TOLD = "told"


@dataclass(frozen=True, slots=True)
class Answer:
    """`headers` are those of the engine's own choice; framing comes with the sending (`sending.py`)."""

    name: str
    path: str
    body: bytes
    media: bytes = JSON
    headers: tuple[Header, ...] = ()
    status: bytes = b"200 OK"
    outcome: Outcome = Outcome.SERVED
    ending: Ending = Ending.AS_IT_IS

    @property
    def code(self) -> int:
        return int(self.status.split()[0])

    @property
    def events(self) -> bool:
        """Whether it is a stream of events that a proxy can read."""
        codings = [value.lower() for name, value in self.headers if name.lower() == b"content-encoding"]
        packed = any(coding not in (b"identity", b"gzip", b"deflate") for coding in codings)
        return self.code == 200 and self.media.lower().startswith(EVENTS) and not packed

    @property
    def all_headers(self) -> list[Header]:
        return [(b"Content-Type", self.media), *self.headers] if self.media else [*self.headers]


def stream(name: str, path: str, *events: bytes, **more: object) -> Answer:
    return Answer(name, path, b"".join(events), EVENTS, **more)  # type: ignore[arg-type]
