"""What `slotctl slots` shows: each slot, then each request that is open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slotproxy.render import table
from slotproxy.units import format_duration, format_size

Answer = Mapping[str, Any]

_HEAD = ("slot", "priority", "waiting", "at the engine", "longest wait", "limits")
_REQUESTS = ("id", "slot", "model", "body", "open for", "is", "for", "why")


def slots(answer: Answer) -> list[str]:
    rows: list[list[object]] = [list(_HEAD), *map(_slot, answer.get("slots") or ())]
    requests = [_request(request) for request in answer.get("requests") or ()]
    if not requests:
        return [*table(rows), "no request is open"]
    return [*table(rows), "", *table([list(_REQUESTS), *requests])]


def _slot(slot: Answer) -> list[object]:
    at = f"{slot.get('answering') or 0}" + (f", {slot['settling']} settling" if slot.get("settling") else "")
    waits = slot.get("waiting") or 0
    coming = f", {slot['sending']} sending" if slot.get("sending") else ""
    longest = format_duration(slot.get("longest_wait") or 0) if waits else ""
    return [slot.get("name"), slot.get("priority"), f"{waits}{coming}", at, longest, _limits(slot)]


def _limits(slot: Answer) -> str:
    most = slot.get("max_in_flight")
    said = [] if most is None else [f"{most} in flight"]
    return ", ".join(
        [*said, f"{slot.get('max_waiting')} waiting", f"{format_duration(slot.get('max_hold') or 0)} hold"]
    )


def _request(request: Answer) -> list[object]:
    size, age, since = request.get("received") or 0, request.get("age") or 0, request.get("since") or 0
    doing, why = request.get("doing"), request.get("why")
    about = request.get("model") or request.get("path")
    return [request.get("id"), request.get("slot"), about, format_size(size), _short(age), doing, _short(since), why]


def _short(seconds: float) -> str:
    return format_duration(round(seconds, 1) if seconds < 60 else round(seconds))
