"""Four sides of an engine, field by field: what is declared, created, running, and what was verified. Pure.

`rows` tells where they differ, worst first, and what would mend each. A difference from what was verified counts only
in what evidence is about: it isn't about a port, or about where a file lies on the host.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from engines.spec import Engine
from swap.cells import COMPOSE_HASH, LABEL, ORDER, RESTART, Cell, Field, aligned, shown
from swap.checks import Verdict
from swap.drift import image_text, same_image
from swap.mends import Mends, short
from swap.ports import Evidence, FileDigest, Recipe, Status
from swap.sidefiles import file_rows
from swap.statement import mask_recipe

IMAGE, IMAGE_ID, TAG_MOVED = "image", "image id (the same content)", "image tag moved"
NONE: frozenset[str] = frozenset()
SIDES = ("declared", "created", "running", "verified")


class Severity(enum.Enum):
    """Worst first."""

    BLOCKS = "blocks"  # no swap is allowed while it stands
    UNPROVEN = "unproven"  # what is declared isn't what was verified
    STALE = "stale"  # the container isn't what is declared, in what makes a pair
    BESIDE = "beside"  # it isn't, in what makes no other pair
    COSMETIC = "cosmetic"


@dataclass(frozen=True, slots=True)
class Row:
    """One field that differs. A side that there isn't, or that has nothing to say of this field, is None.

    `mend` makes the sides agree again; `trial` is the command that proves what is declared instead, where it may.
    """

    field: str
    declared: str | None
    created: str | None
    running: str | None
    verified: str | None
    severity: Severity
    mend: str
    trial: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known beside the verdict: what really runs, asked of the host; ids of images that aren't there.

    `verified_id`: under which the verified image is there, where that isn't the id of its evidence. `untagged`: the
    image's name, where nothing is declared because nothing has that name; `proof`: what was verified then.
    """

    running: Recipe | None = None
    gone: frozenset[str] = NONE
    verified_id: str = ""
    untagged: str = ""
    proof: Evidence | None = None


def proof_of(verdict: Verdict) -> Evidence | None:
    """The evidence of what is declared; where there is none, of what its name was verified as."""
    standing = verdict.standing
    return None if standing is None else standing.served or standing.before


def rows(verdict: Verdict, engine: Engine, facts: Facts) -> tuple[Row, ...]:
    """Empty where all sides that there are agree."""
    if verdict.declared is None:
        return _untagged(verdict, engine, facts) if facts.untagged else ()
    table = _Table(verdict, verdict.declared, engine, facts)
    images = list(table.images())
    found = [*table.missing(), *images, *_told_once(list(table.fields()), images), *table.files()]
    return tuple(sorted(found, key=lambda row: list(Severity).index(row.severity)))


def _untagged(verdict: Verdict, engine: Engine, facts: Facts) -> tuple[Row, ...]:
    """Of what isn't declared there is one thing to say: where its image is."""
    recipe, proof = verdict.sight.recipe if verdict.sight is not None else None, facts.proof
    created = recipe.image_id if recipe is not None and recipe.image == facts.untagged else ""
    verified = facts.verified_id or (proof.subject.image_id if proof is not None else "")
    there = next((image for image in (verified, created) if image and image not in facts.gone), "")
    texts = [_image_of(facts.untagged, image, facts.gone) if image else None for image in (created, verified)]
    mend = Mends(engine, verdict.label, up=False).untagged(facts.untagged, there)
    return (Row(IMAGE, f"{facts.untagged} (none)", texts[0], None, texts[1], Severity.UNPROVEN, mend),)


def _image_of(name: str, image_id: str, gone: frozenset[str]) -> str:
    return f"{image_text(name, image_id)}{', gone' if image_id in gone else ''}"


def _told_once(found: list[Row], images: list[Row]) -> Iterator[Row]:
    """Without what only follows from another row: words that moved, and compose's hash of all of it."""
    names = {row.field for row in found}
    explained = any(row.created not in (None, row.declared) for row in (*images, *found) if row.field != COMPOSE_HASH)
    for row in found:
        moved = row.field.startswith(ORDER) and row.field.removeprefix(ORDER) in names
        if not moved and not (row.field == COMPOSE_HASH and explained):
            yield row


class _Table:
    def __init__(self, verdict: Verdict, declared: Recipe, engine: Engine, facts: Facts) -> None:
        self._sight, self._subject, self._container = verdict.sight, verdict.subject, engine.container
        self._gone, self._proof = facts.gone, proof_of(verdict)
        self._mends = Mends(engine, verdict.label, verdict.sight is not None and verdict.sight.running)
        self._declared = mask_recipe(declared)
        self._created = _masked(verdict.sight.recipe if verdict.sight is not None else None)
        self._running = _masked(facts.running)
        self._verified = _verified(self._proof, self._declared, facts) if self._proof is not None else None

    def missing(self) -> Iterator[Row]:
        if self._sight is not None and self._sight.status is Status.ABSENT and self._container is not None:
            yield Row("container", self._container, "(none)", None, None, Severity.STALE, self._mends.stage())

    # ------------------------------------------------------------------------------------------ images

    def images(self) -> Iterator[Row]:
        """By content: another id with the same content is no other image."""
        declared, created = self._declared, self._created
        sides = [self._image(side) for side in (declared, created, self._running, self._verified)]
        name = TAG_MOVED if self._moved() else IMAGE
        if self._verified is not None and not same_image(declared, self._verified):
            mend = self._mends.image(declared, self._verified, gone=self._is_gone(self._verified))
            yield self._unproven(name, sides, mend)
        elif created is not None and not same_image(declared, created):
            yield _row(name, sides, Severity.STALE, self._mends.stage())
        elif created is not None and created.image_id != declared.image_id:
            yield _row(IMAGE_ID, [*sides[:3], None], Severity.COSMETIC, self._mends.stage())
        elif created is not None and self._tag_now() not in ("", created.image_id):
            sides[0] = image_text(declared.image, self._tag_now())  # without a compose file nobody else declares it
            yield _row(TAG_MOVED, sides, Severity.BESIDE, self._mends.take_back(created))

    def _image(self, side: Recipe | None) -> str | None:
        return None if side is None else _image_of(side.image, side.image_id, self._gone if side.contained else NONE)

    def _is_gone(self, side: Recipe) -> bool:
        return side.contained and side.image_id in self._gone

    def _tag_now(self) -> str:
        return self._sight.tag_id if self._sight is not None else ""

    def _moved(self) -> bool:
        """The name means another image than when the container was created, or when it was verified."""
        others = [one for one in (self._created, self._verified) if one is not None and one.contained]
        return any(one.image == self._declared.image and not same_image(one, self._declared) for one in others)

    # ------------------------------------------------------------------------------------------ the other fields

    def fields(self) -> Iterator[Row]:
        sides = (self._declared, self._created, self._running, self._verified)
        every = list(aligned(dict(zip(SIDES, sides, strict=True))))
        told = self._declared.image != (self._verified or self._declared).image or any(map(_served_otherwise, every))
        for one in every:
            if (row := self._field(one, told=told)) is not None:
                yield row

    def _field(self, one: Field, *, told: bool) -> Row | None:
        """Its row, by the worst that is wrong with it. `told`: other fields say why the hash isn't the verified one."""
        declared, created, running, verified = (one.cells.get(side) for side in SIDES)
        assert declared is not None
        texts = shown([declared, created, running, verified if one.pair else None])
        if one.name == RESTART and declared.value != "no":
            return _row(one.name, texts, Severity.BLOCKS, self._mends.declared_policy())
        if one.name == RESTART and created is not None and created.value != "no":
            return _row(one.name, texts, Severity.BLOCKS, self._mends.created_policy())
        if one.pair and verified is not None and verified.counted != declared.counted:
            return self._unproven(one.name, texts, self._mends.edit())
        if created is not None and created.value != declared.value:
            return _row(one.name, texts, _weight(one), self._mends.stage())
        if created is not None and running is not None and running.value != created.value:
            return _row(one.name, texts, _weight(one), self._mends.restart())
        if one.name == COMPOSE_HASH and not told and verified is not None and _both_known(declared, verified):
            return _row(one.name, [*texts[:3], verified.shown], Severity.BESIDE, self._mends.others())
        return None

    # ------------------------------------------------------------------------------------------ files

    def files(self) -> Iterator[Row]:
        """The bytes that are there now, beside the verified ones."""
        if self._proof is None or self._subject is None:
            return
        for name, now, was in file_rows(self._subject.files, self._proof.subject.files):
            yield self._unproven(name, _files(now, was), self._mends.file(was))

    def _unproven(self, name: str, sides: Sequence[str | None], mend: str) -> Row:
        return replace(_row(name, sides, Severity.UNPROVEN, mend), trial=self._mends.trial())


def _row(name: str, sides: Sequence[str | None], severity: Severity, mend: str) -> Row:
    declared, created, running, verified = sides
    return Row(name, declared, created, running, verified, severity, mend)


def _served_otherwise(one: Field) -> bool:
    declared, verified = one.cells.get("declared"), one.cells.get("verified")
    return one.name != COMPOSE_HASH and verified is not None and verified != declared


def _both_known(one: Cell, other: Cell) -> bool:
    """Two hashes, and not the same one: what compose didn't make has none."""
    return "" not in (one.value, other.value) and one.value != other.value


def _weight(one: Field) -> Severity:
    if one.name.startswith(LABEL):
        return Severity.COSMETIC
    return Severity.STALE if one.pair else Severity.BESIDE


def _masked(recipe: Recipe | None) -> Recipe | None:
    """The ledger has no other values of secrets than hashed ones, so these are compared."""
    return None if recipe is None else mask_recipe(recipe)


def _verified(proof: Evidence, declared: Recipe, facts: Facts) -> Recipe:
    """What evidence is about, as far as a recipe tells it.

    The same command line, split otherwise into entry point and command, is the same.
    """
    ran = proof.recipe if proof.recipe is not None else _of_subject(proof, declared)
    ran = replace(ran, image_id=facts.verified_id or ran.image_id)
    return replace(ran, entrypoint=declared.entrypoint, command=declared.command) if ran.argv == declared.argv else ran


def _of_subject(proof: Evidence, declared: Recipe) -> Recipe:
    """Where the recipe wasn't recorded. Nobody knows then where its entry point ended: where the declared one does."""
    was, split = proof.subject, len(declared.entrypoint)
    split = split if was.argv[:split] == declared.entrypoint else 0
    return Recipe(
        image=proof.image or declared.image,
        image_id=was.image_id,
        image_content=was.image_content,
        entrypoint=was.argv[:split],
        command=was.argv[split:],
        env=was.env,
        working_dir=was.working_dir,
        user=was.user,
        mounts=was.mounts,
        devices=was.devices,
        contained=declared.contained,
    )


def _files(now: FileDigest | None, was: FileDigest | None) -> list[str | None]:
    """Of a file that is at another place now, where it is and was."""
    moved = now is not None and was is not None and now.path != was.path
    return [_file(now, place=moved), None, None, _file(was, place=moved)]


def _file(file: FileDigest | None, *, place: bool) -> str:
    if file is None:
        return "(none)"
    return f"sha256:{short(file.sha256)} {file.size:,} bytes{f' {file.path}' if place else ''}"
