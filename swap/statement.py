"""One line of the ledger: what evidence looks like on disk, and the repair of a broken chain. Pure.

A line is an in-toto Statement v1, valid by itself. Its subjects are the image (by its content) and each file that the
engine really read; its predicate says what happened, and carries the hash of the line before. A repair's subject is the
ledger itself as it was: the hash of all bytes before the repair.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec

from swap.drift import looks_secret, without_secrets
from swap.ports import Evidence, Recipe, Subject

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:slotproxy:run:v1"
REPAIR = "urn:slotproxy:repair:v1"
GENESIS = "0" * 64  # what the first line carries in place of a hash

_MASKED = re.compile(r"sha256:[0-9a-f]{64}")


def mask_env(env: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The environment, sorted, with the values of secrets replaced by their sha256. Masking twice changes nothing.

    A secret is known by the variable's name, or by its own looks (`postgres://user:password@host`).
    """
    return tuple(sorted((name, _value(name, value)) for name, value in env))


def _value(name: str, value: str) -> str:
    return _masked(value) if looks_secret(name) or _tells(value) else value


def mask_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """The command line with the values of `--api-key X`, `--hf-token=X`, `API_KEY=X` replaced by their sha256."""
    return tuple(_masked_word(before, word) for before, word in zip(("", *argv), argv, strict=False))


def mask_recipe(recipe: Recipe) -> Recipe:
    """What may stand in a file of what was run."""
    both = mask_argv(recipe.argv)
    entry = len(recipe.entrypoint)
    masked = replace(recipe, entrypoint=both[:entry], command=both[entry:], env=mask_env(recipe.env))
    return replace(masked, labels=mask_env(recipe.labels), healthcheck=_mask_text(recipe.healthcheck))


def _masked_word(before: str, word: str) -> str:
    follows_secret = before.startswith("-") and "=" not in before and looks_secret(before)
    if follows_secret and not word.startswith("-"):
        return _masked(word)
    name, equals, value = word.partition("=")
    if equals and looks_secret(name):
        return f"{name}={_masked(value)}"
    return _masked(word) if _tells(word) else word


def _mask_text(text: str) -> str:
    """A longer text without its secrets, that still differs from one with others."""
    return f"{without_secrets(text)} ({_masked(text)[:19]})" if _tells(text) else text


def _tells(value: str) -> bool:
    return without_secrets(value) != value


def _masked(value: str) -> str:
    return value if is_masked(value) else "sha256:" + hashlib.sha256(_bytes(value)).hexdigest()


def is_masked(value: str) -> bool:
    return _MASKED.fullmatch(value) is not None


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def key(subject: Subject) -> str:
    """The pair's name in the ledger: sha256 over canonical JSON of all that decides what runs.

    The image counts by its content, the same in both of Docker's image stores; files by content and order, not by
    where they lie on the host; a mount by where the engine sees it.
    """
    what = {
        "engine": subject.engine,
        "image": subject.image_content or subject.image_id,
        "argv": mask_argv(subject.argv),
        "env": mask_env(subject.env),
        "files": [[file.sha256, file.size] for file in subject.files],
        "working_dir": subject.working_dir,
        "user": subject.user,
        "mounts": sorted([mount.target, mount.read_only] for mount in subject.mounts),
        "devices": list(subject.devices),
    }
    return hashlib.sha256(_canonical(what)).hexdigest()


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


# ------------------------------------------------------------------------------------------------- one line


def line_of(evidence: Evidence, previous: str) -> bytes:
    """The statement as one line without its newline; `previous` is the hash of the line before."""
    subject = evidence.subject
    image = {
        "name": evidence.image or subject.image_id,
        "digest": {"sha256": _hex(subject.image_content or subject.image_id)},
        "annotations": {"imageId": subject.image_id},
    }
    files = [
        {"name": file.path, "digest": {"sha256": file.sha256}, "annotations": {"size": file.size}}
        for file in subject.files
    ]
    predicate = {
        "previous": previous,
        "engine": subject.engine,
        "imageId": subject.image_id,
        "imageContent": subject.image_content,
        "argv": mask_argv(subject.argv),
        "env": mask_env(subject.env),
        "workingDir": subject.working_dir,
        "user": subject.user,
        "mounts": [asdict(mount) for mount in subject.mounts],
        "devices": subject.devices,
        "key": key(subject),
        "outcome": evidence.outcome.value,
        "pair": evidence.pair,
        "when": evidence.when,
        "how": evidence.how,
        "card": asdict(evidence.card),
        "image": evidence.image,
        "readyIn": evidence.ready_in,
        "tokens": evidence.tokens,
        "tokensPerSecond": evidence.tokens_per_second,
        "vramPeak": evidence.vram_peak,
        "reason": evidence.reason,
        "recipe": None if evidence.recipe is None else asdict(mask_recipe(evidence.recipe)),
        "extra": dict(evidence.extra),
    }
    return _statement(PREDICATE, [image, *files], predicate)


def evidence_of(statement: Mapping[str, Any]) -> Evidence:
    """The evidence that a statement holds. Raises one of UNREADABLE when it isn't one of ours."""
    it = _predicate_of(statement, PREDICATE)
    files = [
        {"path": one["name"], "size": one["annotations"]["size"], "sha256": one["digest"]["sha256"]}
        for one in statement["subject"][1:]
    ]
    subject = {
        "engine": it["engine"],
        "image_id": it["imageId"],
        "image_content": it["imageContent"],
        "argv": it["argv"],
        "env": it["env"],
        "files": files,
        "working_dir": it["workingDir"],
        "user": it["user"],
        "mounts": it["mounts"],
        "devices": it["devices"],
    }
    same = ("outcome", "pair", "when", "how", "card", "image", "tokens", "reason", "recipe", "extra")
    found = {
        **{name: it[name] for name in same},
        "subject": subject,
        "key": "",
        "ready_in": it["readyIn"],
        "tokens_per_second": it["tokensPerSecond"],
        "vram_peak": it["vramPeak"],
    }
    evidence = msgspec.convert(found, Evidence)
    # The key once, when it is read: whoever looks for a pair compares it with every line's.
    return replace(evidence, key=key(evidence.subject))


# ------------------------------------------------------------------------------------------------- a repair


@dataclass(frozen=True, slots=True)
class Repair:
    """The operator's word that a broken chain goes on: lines `first` to `last` are left out of account for good."""

    first: int
    last: int  # one less than `first` where no line that is there is left out
    reason: str
    when: str
    size: int  # of the file before the repair, bytes
    sha256: str  # of all these bytes
    previous: str = ""  # the hash of the last line that counts


def repair_line(repair: Repair, name: str) -> bytes:
    """The repair as one line without its newline; `name` is the ledger's file name."""
    ledger = {"name": name, "digest": {"sha256": repair.sha256}, "annotations": {"size": repair.size}}
    predicate = {
        "previous": repair.previous,
        "firstBroken": repair.first,
        "lastBroken": repair.last,
        "reason": repair.reason,
        "when": repair.when,
    }
    return _statement(REPAIR, [ledger], predicate)


def repair_of(statement: Mapping[str, Any]) -> Repair:
    """The repair that a statement holds. Raises one of UNREADABLE when it isn't one."""
    it = _predicate_of(statement, REPAIR)
    (ledger,) = statement["subject"]
    found = {
        "first": it["firstBroken"],
        "last": it["lastBroken"],
        "size": ledger["annotations"]["size"],
        "sha256": ledger["digest"]["sha256"],
        **{name: it[name] for name in ("reason", "when", "previous")},
    }
    return msgspec.convert(found, Repair)


def read_line(line: bytes) -> tuple[Evidence | Repair, str]:
    """What a line holds, and the hash that it carries. Raises one of UNREADABLE."""
    statement = json.loads(line)
    what = repair_of(statement) if statement["predicateType"] == REPAIR else evidence_of(statement)
    return what, statement["predicate"]["previous"]


# What reading a line raises that isn't one of ours, or is damaged in whatever way.
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError, msgspec.MsgspecError)


def _statement(kind: str, subject: list[dict[str, Any]], predicate: Mapping[str, Any]) -> bytes:
    return _canonical({"_type": STATEMENT, "subject": subject, "predicateType": kind, "predicate": predicate})


def _predicate_of(statement: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    if (statement["_type"], statement["predicateType"]) != (STATEMENT, kind):
        raise ValueError("not a statement of ours")
    predicate: Mapping[str, Any] = statement["predicate"]
    return predicate


def _hex(image_id: str) -> str:
    return image_id.removeprefix("sha256:")
