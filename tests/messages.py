"""Every message of an error that an operator can meet, read from our own source: what is filled in stands as `…`."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Who says something went wrong, and which argument is the message.
SPEAKERS = {
    **dict.fromkeys(("Fault", "Unreachable", "Foreign", "CannotStage", "CannotStart", "CardUnknown", "Unfinished"), 0),
    **dict.fromkeys(("DockerSaid", "Reset", "Hangs", "NoThread", "ArtifactError", "CannotRead"), 0),
    **dict.fromkeys(("Refusal", "CannotServe", "Trouble", "Lost", "wrong", "refuse"), 0),
    **dict.fromkeys(("ApiError", "Failed", "_failed", "Refused", "Expired"), 1),
}
# What these return is told as it is.
TOLD = {"lacking", "how_it_ended", "_refused", "_limit_passed", "wrong_reason"}


@dataclass(frozen=True, slots=True, order=True)
class Message:
    """`template` as it is said; `where`: module and line."""

    template: str
    where: str


@functools.cache
def messages() -> tuple[Message, ...]:
    """All that say something of their own; what only hands on another's words has none."""
    files = [path for part in ("engines", "swap", "slotproxy") for path in sorted((ROOT / part).rglob("*.py"))]
    found = {one for path in files if "simulator" not in path.parts for one in _of_file(path)}
    return tuple(sorted(one for one in found if re.search("[a-z]{2}", one.template)))


def _of_file(path: Path) -> Iterator[Message]:
    tree = ast.parse(path.read_text())
    for scope in ast.walk(tree):
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            known = _assigned(scope)
            for said, line in _said(scope, known, client=path.name == "forward.py"):
                yield Message(said, f"{path.relative_to(ROOT)}:{line}")


def _said(scope: ast.AST, known: dict[str, list[ast.expr]], *, client: bool) -> Iterator[tuple[str, int]]:
    told = getattr(scope, "name", "") in TOLD
    for node in _nodes(scope):
        if isinstance(node, ast.Call) and (said := _message(node, known, client=client)) is not None:
            yield said, node.lineno
        elif isinstance(node, ast.keyword) and node.arg == "dark":
            yield template(node.value, known), node.value.lineno
        elif told and isinstance(node, ast.Return) and node.value is not None:
            yield template(node.value, known), node.lineno


def _nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Those of this scope, not of the functions in it."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from _nodes(child)


def _assigned(scope: ast.AST) -> dict[str, list[ast.expr]]:
    """What each name of this scope is given."""
    known: dict[str, list[ast.expr]] = {}
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            _note(known, node.targets[0], node.value)
    return known


def _note(known: dict[str, list[ast.expr]], target: ast.expr, value: ast.expr) -> None:
    if isinstance(target, ast.Name):
        known.setdefault(target.id, []).append(value)
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for name, part in zip(target.elts, value.elts, strict=True):
            _note(known, name, part)


def _message(call: ast.Call, known: dict[str, list[ast.expr]], *, client: bool) -> str | None:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    at = SPEAKERS.get(name)
    if client and name in ("_failed", "_broken"):  # of a request: status and code come before what happened
        at = 2
    if at is None or len(call.args) <= at:
        return None
    return template(call.args[at], known)


def template(said: ast.expr, known: dict[str, list[ast.expr]]) -> str:
    """The text, with `…` for all that is filled in."""
    match said:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            whole = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)
            return re.sub("…+", "…", whole)
        case ast.Name(id=name) if name in known:
            return template(known[name][0], {})
        case ast.BinOp(left=left, right=right):
            return re.sub("…+", "…", template(left, known) + template(right, known))
        case _:
            return "…"
