"""Every message of an error that an operator can meet, read from our own source: what is filled in stands as `…`."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Who says something went wrong, and which argument is the message. With a module before it: there alone.
SPEAKERS = {
    **dict.fromkeys(("Fault", "Unreachable", "Foreign", "CannotStage", "CannotStart", "CardUnknown", "Unfinished"), 0),
    **dict.fromkeys(("BadKey", "DockerSaid", "Reset", "Hangs", "NoThread", "ArtifactError", "CannotRead"), 0),
    **dict.fromkeys(("Refusal", "CannotServe", "Trouble", "Lost", "wrong", "refuse", "NotTold", "units.ValueError"), 0),
    **dict.fromkeys(("ApiError", "Failed", "_failed", "Refused", "Expired", "Died", "control._error"), 1),
    # of a request: status and code come before what happened
    **dict.fromkeys(("forward._failed", "forward._broken"), 2),
    "control_client.Refused": 0,
}
# What these return is told as it is; of a tuple the last.
TOLD = {"lacking", "how_it_ended", "_refused", "_limit_passed", "wrong_reason", "policy._unproven", "boot._to_start"}
TOLD |= {"restart_policy.come_back", "refit.busy", "config_tls.trouble"}


Known = dict[str, list[ast.expr]]
"""What each name of a scope is given."""


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
    constants = _assigned(tree.body)
    for scope in ast.walk(tree):
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            known = constants | _assigned(ast.walk(scope)) if scope is not tree else constants
            for said in _said(scope, path.stem):
                yield from (Message(one, f"{path.relative_to(ROOT)}:{said.lineno}") for one in templates(said, known))


def _said(scope: ast.AST, module: str) -> Iterator[ast.expr]:
    name = getattr(scope, "name", "")
    told = not TOLD.isdisjoint((name, f"{module}.{name}"))
    for node in _nodes(scope):
        if isinstance(node, ast.Call) and (said := _message(node, module)) is not None:
            yield said
        elif told and isinstance(node, ast.Return) and node.value is not None:
            yield node.value
        if isinstance(node, ast.keyword) and node.arg == "dark":
            yield node.value


def _nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Those of this scope, not of the functions in it."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from _nodes(child)


def _assigned(nodes: Iterable[ast.AST]) -> Known:
    """What each name is given in them."""
    known: Known = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            _note(known, node.targets[0], node.value)
    return known


def _note(known: Known, target: ast.expr, value: ast.expr) -> None:
    if isinstance(target, ast.Name):
        known.setdefault(target.id, []).append(value)
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for name, part in zip(target.elts, value.elts, strict=True):
            _note(known, name, part)


def _message(call: ast.Call, module: str) -> ast.expr | None:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    at = SPEAKERS.get(f"{module}.{name}", SPEAKERS.get(name))
    return None if at is None or len(call.args) <= at else call.args[at]


def templates(said: ast.expr, known: Known) -> Iterator[str]:
    """The text, with `…` for all that is filled in; each that it may be."""
    match said:
        case ast.IfExp(body=body, orelse=orelse):
            yield from (*templates(body, known), *templates(orelse, known))
        case ast.Call(func=ast.Attribute(value=ast.JoinedStr() as text)):  # such as its end cut off
            yield from templates(text, known)
        case ast.Tuple(elts=[*_, last]):
            yield from templates(last, known)
        case ast.Name(id=name) if name in known:
            for value in known[name]:
                yield from templates(value, {})
        case ast.BinOp(left=left, right=right):
            yield from (re.sub("…+", "…", a + b) for a in templates(left, known) for b in templates(right, known))
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            whole = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts)
            yield re.sub("…+", "…", whole)
        case _:
            yield "…"
