"""A request's JSON body, of which only the top level is ever decoded.

Nested values keep their bytes: engines cache by exact prefix, and parsing and writing 64 MiB of JSON would stall every
other client. What a request doesn't need changed goes out byte for byte as it came in, duplicate keys and odd spacing
included. Where something is changed the object is written anew from the values' own bytes; of a duplicate key the last
value stays, as in nearly every parser. How the top level is found, `slotproxy.scan` says; of the levels below only what
a default is an object for is ever looked into. A changed body is a list of pieces, most of them views of the one that
came in: nothing large is ever copied as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec

from slotproxy.protocols import ApiError
from slotproxy.scan import DEEPEST, MOST_FIELDS, Scan

Piece: TypeAlias = bytes | bytearray | msgspec.Raw

_ENCODE = msgspec.json.Encoder().encode
_LONGEST = 1024 * 1024  # bytes of a model's name, or of an object to add to: more would take others' time


@dataclass(frozen=True, slots=True)
class Payload:
    """`fields` is None where the body isn't a JSON object."""

    raw: Piece
    fields: Mapping[str, msgspec.Raw] | None

    @classmethod
    def parse(cls, raw: Piece) -> Payload:
        return cls(raw, Scan().fields(memoryview(raw)))

    @property
    def model(self) -> str | None:
        """The model that the client asks for; None: it names none. Raises ApiError (400): it isn't a name."""
        value = self._field("model")
        if value is None or value == b"null":
            return None
        try:
            return msgspec.json.decode(value, type=str)
        except msgspec.DecodeError:
            raise ApiError(400, "`model` must be a string: the name of a model", "invalid_model") from None

    @property
    def streams(self) -> bool:
        return self._field("stream") == b"true"

    def changed(
        self, model: str | None, defaults: Mapping[str, Any], pinned: Mapping[str, Any] = MappingProxyType({})
    ) -> list[Piece]:
        """The body with `model` in place of the client's, and every default that the client set nothing for.

        Defaults are added at every level of the objects that both have; what is `pinned` is set in any case.
        Raises ApiError (400) where something is to be changed and the body is no JSON object.
        """
        fields = self.fields or {}
        sets = _lacking(fields, defaults)
        sets |= {key: [_ENCODE(value)] for key, value in pinned.items() if not _is(fields.get(key), value)}
        if model is not None and model != self.model:
            sets["model"] = [_ENCODE(model)]
        if not sets:
            return [self.raw]
        if self.fields is None:
            raise not_json()
        return _object(fields, sets)

    def _field(self, name: str) -> bytes | None:
        value = (self.fields or {}).get(name)
        return None if value is None else bytes(memoryview(value)[: _LONGEST + 1])


def _name(key: str) -> bytes:
    """Also one that ends in the middle of a surrogate pair, which isn't text for most encoders."""
    return json.dumps(key, ensure_ascii=not key.isascii()).encode()


def _lacking(fields: Mapping[str, msgspec.Raw], defaults: Mapping[str, Any]) -> dict[str, list[Piece]]:
    """What the client's fields lack of the defaults, as what those fields become."""
    pairs = ((key, _completed(fields.get(key), value)) for key, value in defaults.items())
    return {key: pieces for key, pieces in pairs if pieces is not None}


def _completed(said: msgspec.Raw | None, default: Any) -> list[Piece] | None:
    """The client's value with what it lacks of the default; None: it stays. Only objects are ever looked into."""
    if said is None:
        return [_ENCODE(default)]
    if not isinstance(default, Mapping) or bytes(memoryview(said)[:1]) != b"{":
        return None
    if len(memoryview(said)) > _LONGEST:
        what = f"an object that defaults of the slot are added to may have {_LONGEST} bytes; this one has more"
        raise ApiError(400, what, "object_too_large")
    fields = Payload.parse(said).fields
    if fields is None:
        raise not_json()
    sets = _lacking(fields, default)
    return _object(fields, sets) if sets else None


def _is(said: msgspec.Raw | None, value: Any) -> bool:
    return said is not None and memoryview(said) == memoryview(_ENCODE(value))


def _object(fields: Mapping[str, msgspec.Raw], sets: Mapping[str, list[Piece]]) -> list[Piece]:
    """An object of the fields, with `sets` in their places or added."""
    pieces: list[Piece] = []
    for key in dict.fromkeys((*fields, *sets)):
        pieces += (b"," if pieces else b"{", _name(key), b":", *(sets.get(key) or (fields[key],)))
    return [*pieces, b"}"]


def not_json() -> ApiError:
    what = (
        f"the body must be a JSON object of at most {MOST_FIELDS} fields and {DEEPEST} levels; this one can't be read"
    )
    return ApiError(400, what, "invalid_json")
