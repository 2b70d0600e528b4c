"""What an answer says, whoever asked for it: without what differs from one to the next."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

Json = Any

_ITS_OWN = frozenset(("id", "created", "created_at", "completed_at", "item_id", "call_id", "response_id", "timings"))
_DONE = "[DONE]"


def same(value: Json) -> Json:
    """The same for two answers that say the same: no ids, no times."""
    if isinstance(value, dict):
        return {key: same(each) for key, each in value.items() if key not in _ITS_OWN}
    return [same(each) for each in value] if isinstance(value, list) else value


def read(body: bytes) -> list[Json]:
    """A body as it came: one JSON value, or the events of a stream with its end marker. Comments are nothing."""
    text = body.decode()
    if not text.startswith(("data:", "event:", ":")):
        return [json.loads(text)]
    datas = [line.removeprefix("data:").strip() for line in text.splitlines() if line.startswith("data:")]
    return [data if data == _DONE else json.loads(data) for data in datas if data != '{"type": "ping"}']


def model(answer: Iterable[Json]) -> str:
    """Whose answer it is: engines name themselves by what they call the model."""
    for one in answer:
        found = one.get("model") or (one.get("message") or {}).get("model") or (one.get("response") or {}).get("model")
        if found:
            return str(found)
    return ""
