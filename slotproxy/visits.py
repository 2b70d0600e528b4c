"""The requests that are open now: what people may look at, and end one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from slotproxy.outcomes import Record

Cancel = Callable[[], bool]


class Visits:
    """Every open request with what ends it, in the order in which they came."""

    def __init__(self) -> None:
        self._open: dict[Record, Cancel] = {}

    def __iter__(self) -> Iterator[Record]:
        yield from self._open

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, record: Record, cancel: Cancel) -> None:
        self._open[record] = cancel

    def over(self, record: Record) -> None:
        del self._open[record]

    def called(self, id: str) -> list[Record]:
        """Those with this id, which clients may choose, so there may be several; else those whose id begins so."""
        exact = [record for record in self._open if record.id == id]
        return exact or [record for record in self._open if record.id.startswith(id)]

    def cancel(self, record: Record) -> bool:
        """End it. False: it is at its end already."""
        return self._open[record]()
