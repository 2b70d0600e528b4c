"""What the ledger's lines mean for one pair: may it have the card, and what do people say of it? Pure.

Evidence is about a subject (image, files, command line, environment, mounts, devices), never about a name. A pair is
*verified* while a line says that its very subject has served, and no later one revokes it; a failure takes nothing
away. A revocation ends with the next success of a trial or adoption, or with the operator's next attestation.

Evidence of a simulated card never counts on a real one, nor the other way round; a revocation counts wherever it was
made. Evidence of another GPU or driver counts with a doubt; what a doubt means is the configuration's to say.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from engines.spec import Require
from swap.ports import CardIdentity, Evidence, FileDigest, Outcome, Subject
from swap.statement import key, mask_argv, mask_env

DELIBERATE = ("trial", "adopt")  # ways to serve that lift a revocation: somebody asked for it


class PairState(enum.Enum):
    DECLARED = "declared"  # nothing checked, or what was checked is refused
    CANDIDATE = "candidate"  # files there, headers read, versions fit, sizes right
    VERIFIED = "verified"
    FAILED = "failed"  # tried, never served
    REVOKED = "revoked"
    CHANGED = "changed"  # it was verified under this name, and a subject differs since


@dataclass(frozen=True, slots=True)
class Standing:
    """What is recorded of one subject, as it counts on one card."""

    served: Evidence | None = None  # what verifies it: of this card before another's, then the newest
    attested: Evidence | None = None
    revoked: Evidence | None = None
    failure: Evidence | None = None  # the last, whatever came after it
    lifted: Evidence | None = None  # a revocation that the operator's word took back, and no success yet
    before: Evidence | None = None  # where nothing verifies it: what its name was verified as
    changed: tuple[str, ...] = ()  # how it differs from that
    doubts: tuple[str, ...] = ()  # the GPU or driver isn't that of the evidence

    @property
    def state(self) -> PairState:
        """Of a pair whose files are all right; of another one nothing of this is known."""
        if self.revoked is not None:
            return PairState.REVOKED
        if self.served is not None:
            return PairState.VERIFIED
        if self.failure is not None:  # of this very subject: that it has changed, too, says less
            return PairState.FAILED
        return PairState.CHANGED if self.changed else PairState.CANDIDATE

    def meets(self, require: Require) -> bool:
        """Whether this is enough for the card. What is revoked never gets it without a trial."""
        if self.revoked is not None:
            return False
        enough = {
            Require.VERIFIED: self.served is not None,
            Require.ATTESTED: self.served is not None or self.attested is not None,
            Require.CANDIDATE: True,
        }
        return enough[require]


def standing(evidence: Iterable[Evidence], subject: Subject, label: str, card: CardIdentity | None) -> Standing:
    """`evidence` oldest first, `label` the pair's name now. Without a card any real card's evidence counts."""
    lines = [one for one in evidence if _same_kind(one.card, card) or one.outcome is Outcome.REVOKED]
    wanted = key(subject)
    served, known = _told(one for one in lines if one.key == wanted)
    best = max(reversed(served), key=lambda one: _nearness(one, card), default=None)
    if best is not None or known.revoked is not None:
        doubts = tuple(_doubts(best, card)) if best is not None and card is not None else ()
        return replace(known, served=best, doubts=doubts)
    before = _verified_as(label, lines)
    changed = tuple(subject_differences(before.subject, subject)) if before is not None else ()
    return replace(known, before=before, changed=changed)


def verified_as(evidence: Iterable[Evidence], label: str, card: CardIdentity | None) -> Evidence | None:
    """What this name was verified as, where nobody can tell its subject now: its image or a file isn't there."""
    return _verified_as(label, [one for one in evidence if _same_kind(one.card, card)])


def standing_revocations(evidence: Iterable[Evidence]) -> Iterator[Evidence]:
    """The revocations that nothing lifts, on whatever card they were made."""
    about: dict[tuple[str, bool], list[Evidence]] = {}
    for one in evidence:
        about.setdefault((one.key, one.card.simulated), []).append(one)
    for lines in about.values():
        revoked = _told(lines)[1].revoked
        if revoked is not None:
            yield revoked


def by_subject(evidence: Iterable[Evidence]) -> dict[str, list[Evidence]]:
    """The lines about each subject, in their order, by its key: a ledger has many lines, and few subjects."""
    about: dict[str, list[Evidence]] = {}
    for one in evidence:
        about.setdefault(one.key, []).append(one)
    return about


def subject_differences(was: Subject, now: Subject) -> Iterator[str]:
    """What of the subject isn't what it was, a few words each: exactly what makes the keys differ."""
    if was.engine != now.engine:
        yield f"engine {was.engine} is {now.engine} now"
    if (was.image_content or was.image_id) != (now.image_content or now.image_id):
        yield _image(was, now)
    if mask_argv(was.argv) != mask_argv(now.argv):
        yield "command line"
    yield from _environment(_by_name(was), _by_name(now))
    yield from _files(was.files, now.files)
    if was.working_dir != now.working_dir:
        yield f"working directory {was.working_dir or '(none)'} is {now.working_dir or '(none)'} now"
    if was.user != now.user:
        yield f"user {was.user or '(none)'} is {now.user or '(none)'} now"
    if _targets(was) != _targets(now):
        yield "mounts"
    if was.devices != now.devices:
        yield f"devices {', '.join(was.devices) or '(none)'} are {', '.join(now.devices) or '(none)'} now"


# ------------------------------------------------------------------------------------------------- the lines


def _told(about: Iterable[Evidence]) -> tuple[list[Evidence], Standing]:
    """What the lines about one subject come to, in their order: all that verify it, and the rest."""
    served: list[Evidence] = []
    attested: Evidence | None = None
    revoked: Evidence | None = None
    lifted: Evidence | None = None
    failure: Evidence | None = None
    for one in about:
        match one.outcome:
            case Outcome.SERVED if revoked is None or one.how in DELIBERATE:
                served.append(one)
                revoked = lifted = None
            case Outcome.SERVED:
                pass  # an order that was under way when it was revoked
            case Outcome.ATTESTED:
                attested, lifted, revoked = one, revoked or lifted, None
            case Outcome.REVOKED:
                served, attested, lifted, revoked = [], None, None, one
            case Outcome.FAILED:
                failure = one
    return served, Standing(attested=attested, revoked=revoked, failure=failure, lifted=lifted)


def _verified_as(label: str, lines: list[Evidence]) -> Evidence | None:
    """The newest line of this name that still verifies its subject, whatever that subject was called since."""
    verifying = {id(one) for about in by_subject(lines).values() for one in _told(about)[0]}
    return next((one for one in reversed(lines) if one.pair == label and id(one) in verifying), None)


def _same_kind(made_on: CardIdentity, card: CardIdentity | None) -> bool:
    return made_on.simulated == (card is not None and card.simulated)


def _nearness(one: Evidence, card: CardIdentity | None) -> tuple[bool, ...]:
    """The very card first, then its model, then its driver."""
    if card is None:
        return ()
    return one.card.uuid == card.uuid, one.card.name == card.name, one.card.driver == card.driver


def _doubts(one: Evidence, card: CardIdentity) -> Iterator[str]:
    made_on = one.card
    if made_on.name != card.name:
        yield f"it was verified on another GPU: {made_on.name}, this is {card.name}"
    elif made_on.uuid != card.uuid:
        yield f"it was verified on another card of this model: {made_on.uuid}, this is {card.uuid}"
    if made_on.driver != card.driver:
        yield f"it was verified with driver {made_on.driver}, this is {card.driver}"


# ------------------------------------------------------------------------------------------------- differences


def _image(was: Subject, now: Subject) -> str:
    if was.image_id == now.image_id:  # its content is known of one of them only
        return f"image {_short(now.image_id)}: nobody can tell whether it holds what it held"
    return f"image {_short(was.image_id)} is {_short(now.image_id)} now"


def _by_name(subject: Subject) -> dict[str, tuple[str, ...]]:
    """Docker lets a name stand twice."""
    env: dict[str, tuple[str, ...]] = {}
    for name, value in mask_env(subject.env):
        env[name] = (*env.get(name, ()), value)
    return env


def _environment(was: dict[str, tuple[str, ...]], now: dict[str, tuple[str, ...]]) -> Iterator[str]:
    for name in sorted(was.keys() | now.keys()):
        if was.get(name) != now.get(name):
            how = "is new" if name not in was else "is gone" if name not in now else "has another value"
            yield f"environment {name} {how}"


def _files(was: tuple[FileDigest, ...], now: tuple[FileDigest, ...]) -> Iterator[str]:
    """By content: the same bytes elsewhere are the same file."""
    before, after = [_content(one) for one in was], [_content(one) for one in now]
    if before == after:
        return
    old, new = {one.path: _content(one) for one in was}, {one.path: _content(one) for one in now}
    said = [f"file {path} has other bytes" for path in sorted(old.keys() & new.keys()) if old[path] != new[path]]
    said += [f"file {path} is new" for path in sorted(new.keys() - old.keys()) if new[path] not in before]
    said += [f"file {path} is gone" for path in sorted(old.keys() - new.keys()) if old[path] not in after]
    yield from said or ["order of files" if len(before) == len(after) else "number of files"]


def _content(file: FileDigest) -> tuple[str, int]:
    return file.sha256, file.size


def _targets(subject: Subject) -> list[tuple[str, bool]]:
    return sorted((mount.target, mount.read_only) for mount in subject.mounts)


def _short(image_id: str) -> str:
    return image_id.removeprefix("sha256:")[:12]
