"""One line of the ledger, and the chain that the lines make: what evidence looks like on disk. Pure.

A line is an in-toto Statement. Its subjects are the image and each file that the engine really read; its predicate says
what happened, and carries the hash of the line before.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec

from swap.drift import looks_secret
from swap.ports import CardIdentity, Evidence, FileDigest, Mount, Outcome, Recipe, Subject

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:slotproxy:run:v1"
GENESIS = "0" * 64  # what the first line carries in place of a hash

_MASKED = re.compile(r"sha256:[0-9a-f]{64}")


def mask_env(env: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The environment, sorted, with the values of secrets replaced by their sha256. Masking twice changes nothing."""
    return tuple(sorted((name, _masked(value) if looks_secret(name) else value) for name, value in env))


def mask_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """The command line with the values of `--api-key X`, `--hf-token=X` and their like replaced by their sha256."""
    return tuple(_masked_word(before, word) for before, word in zip(("", *argv), argv, strict=False))


def mask_recipe(recipe: Recipe) -> Recipe:
    """What may stand in a file of what was run."""
    both = mask_argv(recipe.argv)
    entry = len(recipe.entrypoint)
    masked = replace(recipe, entrypoint=both[:entry], command=both[entry:], env=mask_env(recipe.env))
    return replace(masked, labels=mask_env(recipe.labels))


def _masked_word(before: str, word: str) -> str:
    name, equals, value = word.partition("=")
    if equals and name.startswith("-") and looks_secret(name):
        return f"{name}={_masked(value)}"
    follows_secret = before.startswith("-") and "=" not in before and looks_secret(before)
    return _masked(word) if follows_secret and not word.startswith("-") else word


def _masked(value: str) -> str:
    return value if _MASKED.fullmatch(value) else "sha256:" + hashlib.sha256(_bytes(value)).hexdigest()


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
    statement = {
        "_type": STATEMENT,
        "subject": [image, *files],
        "predicateType": PREDICATE,
        "predicate": predicate,
    }
    return _canonical(statement)


def evidence_of(statement: Mapping[str, Any]) -> Evidence:
    """The evidence that a statement holds.

    Raises ValueError, KeyError, TypeError or MsgspecError when it isn't one of ours.
    """
    if (statement["_type"], statement["predicateType"]) != (STATEMENT, PREDICATE):
        raise ValueError("not a statement of ours")
    it = statement["predicate"]
    files = [
        FileDigest(one["name"], one["annotations"]["size"], one["digest"]["sha256"]) for one in statement["subject"][1:]
    ]
    subject = Subject(
        engine=it["engine"],
        image_id=it["imageId"],
        image_content=it["imageContent"],
        argv=tuple(it["argv"]),
        env=tuple((name, value) for name, value in it["env"]),
        files=tuple(files),
        working_dir=it["workingDir"],
        user=it["user"],
        mounts=msgspec.convert(it["mounts"], tuple[Mount, ...]),
        devices=tuple(it["devices"]),
    )
    return Evidence(
        subject=subject,
        key=key(subject),  # once, when it is read: whoever looks for a pair compares it with every line's
        outcome=Outcome(it["outcome"]),
        pair=it["pair"],
        when=it["when"],
        how=it["how"],
        card=msgspec.convert(it["card"], CardIdentity),
        image=it["image"],
        ready_in=it["readyIn"],
        tokens=it["tokens"],
        tokens_per_second=it["tokensPerSecond"],
        vram_peak=it["vramPeak"],
        reason=it["reason"],
        recipe=msgspec.convert(it["recipe"], Recipe | None),
        extra=it["extra"],
    )


def _hex(image_id: str) -> str:
    return image_id.removeprefix("sha256:")


# ------------------------------------------------------------------------------------------------- the chain


@dataclass(frozen=True, slots=True)
class Chain:
    """What a ledger file says. `last` is the hash that the next line must carry."""

    evidence: tuple[Evidence, ...] = ()
    last: str = GENESIS
    torn: bytes = b""  # after the last newline
    broken: str = ""  # why nothing more counts; empty: the chain is whole
    size: int = 0  # bytes of the file when it was read


def parse(data: bytes) -> Chain:
    """Read a ledger: as far as the chain holds."""
    *lines, torn = data.split(b"\n")
    found: list[Evidence] = []
    last = GENESIS
    for number, line in enumerate(lines, start=1):
        try:
            statement = json.loads(line)
            evidence = evidence_of(statement)
            previous = statement["predicate"]["previous"]
        except (ValueError, KeyError, TypeError, msgspec.MsgspecError) as error:
            return Chain(tuple(found), last, b"", _broken(number, len(lines), f"can't be read ({error})"), len(data))
        if previous != last:
            why = _broken(number, len(lines), f"doesn't follow from {'the one before' if found else 'nothing'}")
            return Chain(tuple(found), last, b"", why, len(data))
        found.append(evidence)
        last = hashlib.sha256(line).hexdigest()
    return Chain(tuple(found), last, torn, "", len(data))


def _broken(number: int, lines: int, why: str) -> str:
    return f"line {number} of {lines} {why}: it and what comes after it count for nothing"
