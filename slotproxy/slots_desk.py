"""Who waits, since when, and why: the open requests by slot, and the operator's word that ends one of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from slotproxy.config import SlotSettings
from slotproxy.desk import Desk
from slotproxy.outcomes import Doing, Record
from slotproxy.refusal import Refusal
from swap.state import phase

Json = dict[str, Any]

_LOOK = "slotctl slots shows those that are open"


@dataclass(frozen=True, slots=True)
class SlotsDesk:
    desk: Desk

    async def slots(self) -> Json:
        """Every slot with its limits, and every open request, the oldest first."""
        now, lines = time.monotonic(), self.desk.gate.lines()
        places = {(slot, name): place for slot, line in lines.items() for place, name in enumerate(line, start=1)}
        requests = [self._request(record, now, places.get((record.slot, record.id))) for record in self.desk.visits]
        return {
            "slots": [self._slot(slot, requests) for slot in self.desk.settings.slots.values()],
            "requests": requests,
        }

    async def cancel(self, id: str) -> Json:
        """End a request wherever it is. Raises Refusal."""
        records = self.desk.visits.called(id) if id else []
        if not records:
            raise Refusal(f"no request {id} is open", f"it may have ended; {_LOOK}", 3)
        ids = dict.fromkeys(record.id for record in records)
        if len(ids) > 1:
            raise Refusal(f"{id} may mean {len(ids)} requests: {', '.join(list(ids)[:5])}", "write more of its id", 2)
        done = [record for record in records if self.desk.visits.cancel(record)]
        if not done:
            raise Refusal(f"request {records[0].id} is at its end already", _LOOK, 3)
        return {"code": 0, "text": "; ".join(_cancelled(record) for record in done), "cancelled": list(ids)}

    def _slot(self, slot: SlotSettings, requests: list[Json]) -> Json:
        own = [request for request in requests if request["slot"] == slot.name]
        waits = [request["since"] for request in own if request["doing"] == Doing.WAITING.value]
        return {
            "name": slot.name,
            "priority": slot.priority,
            **{doing.value: sum(request["doing"] == doing.value for request in own) for doing in Doing},
            "longest_wait": max(waits, default=0.0),
            **{name: getattr(slot, name) for name in ("max_in_flight", "max_waiting", "max_hold")},
        }

    def _request(self, record: Record, now: float, position: int | None) -> Json:
        return {
            "id": record.id,
            **{name: getattr(record, name) for name in ("slot", "path", "model", "engine", "received", "sent")},
            "doing": record.doing.value,
            "since": now - record.changed,
            "age": now - record.started,
            "position": position,
            "why": ", ".join(self._why(record, position)),
        }

    def _why(self, record: Record, position: int | None) -> Iterator[str]:
        match record.doing:
            case Doing.SENDING:
                yield "its body is still coming"
            case Doing.WAITING:
                yield from self._waits(record, position)
            case Doing.ANSWERING:
                yield f"at {record.engine}" + ("" if record.sent else ", which has said nothing yet")
            case Doing.SETTLING:
                yield f"it has ended, {record.engine} isn't free yet"

    def _waits(self, record: Record, position: int | None) -> Iterator[str]:
        state, swap = self.desk.controller.state, self.desk.controller.under_way
        if record.retried and position is None:
            yield f"{record.engine} couldn't be reached, it is tried again"
            return
        slot = self.desk.settings.slots.get(record.slot)
        yield self.desk.gate.waiting_for(slot) if slot is not None else "its slot isn't configured any more"
        if swap is not None and state.serving is None:
            yield f"a swap to {swap.engine}:{swap.pair} is {phase(state)}"
        if position is not None and position > 1:
            yield f"{position - 1} of its slot before it"


def _cancelled(record: Record) -> str:
    return f"cancelled request {record.id} of slot {record.slot or 'unknown'}, which was {record.doing.value}"
