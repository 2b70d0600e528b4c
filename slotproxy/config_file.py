"""From YAML to typed keys. Every error names the file and the key's path, on one line."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec.inspect as kinds

from slotproxy.config_keys import FileKeys, Keys, Paths, Seconds, Size
from slotproxy.config_yaml import Place, one_line, parse, text_of
from slotproxy.units import show

_K = TypeVar("_K", bound=Keys)
_T = TypeVar("_T")


def read(path: Path) -> FileKeys:
    """The keys of the file. Raises ConfigError."""
    at = Place(path)
    document = parse(path)
    try:
        return _group(FileKeys, document, at)
    except RecursionError:
        raise at.wrong("is nested too deeply, or within itself") from None


def secret(path: Path, at: Place) -> str:
    """A key from its own file: one line of printable ASCII. Raises ConfigError, which never shows the key."""
    key = text_of(path, at).strip()
    if not key:
        raise at.wrong(f"{path} is empty; write the key into it")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise at.wrong(f"{path} must hold one key of printable ASCII, without spaces or further lines")
    return key


def existing(path: Path, at: Place) -> Path:
    """The path, if a file is there. Raises ConfigError."""
    try:
        path.stat()
        if path.is_file():
            return path
    except OSError as error:
        raise at.wrong(f"{path}: {error.strerror}") from None
    raise at.wrong(f"{path} is not a file")


def host_path(written: object, at: Place) -> Path:
    """Absolute, or relative to the file; `~` is refused with the path that it would be. Raises ConfigError."""
    text = _string(written, at)
    if not text:
        raise at.wrong("is empty; write a path, absolute or relative to the file")
    if text.startswith("~"):
        raise at.wrong(f"{show(text)}: whose home? write the whole path{_expanded(text)}")
    return at.file.absolute().parent / text


def _expanded(text: str) -> str:
    try:
        return f": {Path(text).expanduser()}"
    except RuntimeError:
        return ""


# ------------------------------------------------------------------------------------------------- keys


@cache
def _fields(group: type[Keys]) -> Mapping[str, kinds.Field]:
    described = kinds.type_info(group)
    assert isinstance(described, kinds.StructType)
    return {field.name: field for field in described.fields}


def _group(group: type[_K], written: Any, at: Place) -> _K:
    fields = _fields(group)
    if not isinstance(written, dict):
        raise at.wrong(f"{show(written)} stands where keys are expected, such as {', '.join(list(fields)[:3])}")
    for key in written:
        if key not in fields:
            (nearest,) = difflib.get_close_matches(str(key), fields, n=1, cutoff=0.0)
            raise (at / key).wrong(f"unknown key; the nearest known one is {nearest}")
    for name, field in fields.items():
        if field.required and written.get(name) is None:
            raise (at / name).wrong(f"is missing: {_meaning(field.type)}")
    given = {name: value for name, value in written.items() if value is not None}
    return group(**{name: _value(fields[name].type, value, at / name) for name, value in given.items()})


def _value(kind: kinds.Type, written: Any, at: Place) -> Any:
    match kind:
        case kinds.Metadata():
            return _value(kind.type, written, at)
        case kinds.UnionType():
            return _value(_arm(kind.types, written), written, at)
        case kinds.StructType():
            assert issubclass(kind.cls, Keys)
            return _group(kind.cls, {} if written is None else written, at)
        case kinds.DictType():
            return _mapping(kind.value_type, written, at)
        case kinds.CustomType():
            return _custom(kind.cls, written, at)
        case kinds.StrType():
            return _string(written, at)
        case kinds.IntType():
            return _whole_number(written, kind.ge, at)
        case kinds.ListType():
            return [_value(kind.item_type, item, at) for item in _exactly(list, "a list, such as [a, b]", written, at)]
        case kinds.BoolType():
            return _exactly(bool, "true or false", written, at)
        case _:  # Any: a request's field
            return _json(written, at)


def _arm(choices: tuple[kinds.Type, ...], written: Any) -> kinds.Type:
    """The one of a union's types that was probably meant; the first (`None` always stands last) where nothing fits."""
    meant: dict[type, type[kinds.Type]] = {bool: kinds.BoolType, int: kinds.IntType}
    wanted = meant.get(type(written), kinds.Type)
    return next((kind for kind in choices if isinstance(kind, wanted)), choices[0])


def _mapping(kind: kinds.Type, written: Any, at: Place) -> dict[str, Any]:
    if not isinstance(written, dict):
        raise at.wrong(f"{show(written)} stands where names and their values are expected")
    for key in written:
        if not isinstance(key, str):
            raise (at / key).wrong("a name must be text; write it in quotes")
        _string(key, at)
    return {key: _value(kind, value, at / key) for key, value in written.items()}


def _custom(kind: type, written: Any, at: Place) -> Any:
    if kind is Path:
        return host_path(written, at)
    if kind is Paths:
        several = written if isinstance(written, list) else [written]
        return Paths(host_path(path, at) for path in several)
    assert issubclass(kind, Size | Seconds)
    try:
        return kind.read(written)
    except ValueError as refusal:
        raise at.wrong(str(refusal)) from None


def _string(written: Any, at: Place) -> str:
    if not isinstance(written, str):
        hint = "; write it in quotes" if isinstance(written, int | float) else ""
        raise at.wrong(f"{show(written)} is not text{hint}")
    if "\0" in written or any("\ud800" <= character <= "\udfff" for character in written):
        raise at.wrong(f"{show(written)} holds a character that no name, file or program can take")
    return written


def _exactly(kind: type[_T], words: str, written: Any, at: Place) -> _T:
    if type(written) is not kind:
        raise at.wrong(f"{show(written)} is not {words}")
    return written


def _whole_number(written: Any, least: int | None, at: Place) -> int:
    number = _exactly(int, "a whole number", written, at)
    if least is not None and number < least:
        raise at.wrong(f"{number} is too small; write at least {least}")
    return number


def _json(written: Any, at: Place) -> Any:
    """What goes into requests must be JSON: no dates, no NaN, no aliases in a circle."""
    try:
        return json.loads(json.dumps(written, allow_nan=False))
    except (TypeError, ValueError) as why:
        raise at.wrong(f"can't be sent as JSON: {one_line(why)}") from None


def _meaning(kind: kinds.Type) -> str:
    described = kind.extra_json_schema if isinstance(kind, kinds.Metadata) else None
    return str((described or {}).get("description", "it must be set"))
