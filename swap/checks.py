"""May this pair have the card? Everything that can be refused is refused here, before anything changes.

Decided from what the pair *declares* (what compose resolves, the image by its id, the files by their bytes) and from
the ledger, never from what a container happens to look like. All refusals are collected: they are mended in one go.

A trial lifts one refusal, the missing evidence. Nothing lifts the others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from engines.spec import Engine, GiB, Pair
from swap import policy, restart_policy
from swap.artifacts import files_of, source_of, used_files
from swap.contents import expect_contents
from swap.drift import Difference, differences, same_image
from swap.findings import Findings, Refusal, off_loop
from swap.hashing import Hasher
from swap.inspection import rewritten
from swap.ledger import mask_argv, mask_env
from swap.ports import (
    CannotStage,
    Card,
    CardIdentity,
    Evidence,
    Fault,
    Ledger,
    Recipe,
    Runtime,
    Sight,
    Status,
    Subject,
)
from swap.reading import Reading
from swap.room import beside
from swap.standing import PairState, Standing, standing, verified_as
from swap.statefolder import StateFolder


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a swap would run, and whether it may. `stage`: the container would be recreated first."""

    engine: str
    pair: str
    label: str
    refusals: tuple[Refusal, ...] = ()
    warnings: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    declared: Recipe | None = None
    sight: Sight | None = None
    subject: Subject | None = None  # of the declared recipe; None where its files are refused already
    standing: Standing | None = None  # what is recorded of the subject; None where there is none
    stage: bool = False
    artifact_version: int | None = None

    @property
    def state(self) -> PairState:
        return PairState.DECLARED if self.standing is None else self.standing.state

    @property
    def verified(self) -> Evidence | None:
        return self.standing.served if self.standing is not None else None

    @property
    def allowed(self) -> bool:
        return not self.refusals

    @property
    def passing(self) -> bool:
        """It is refused, and time alone may mend all of it."""
        return bool(self.refusals) and all(refusal.passing for refusal in self.refusals)

    @property
    def why(self) -> str:
        """All refusals in one line, each with its mend."""
        return "; ".join(f"{one.what} ({one.mend})" if one.mend else one.what for one in self.refusals)


class Checker:
    """Judges pairs. It asks and reads, and changes nothing. `headroom` and `baseline` are bytes of the card.

    `strict`: evidence of another GPU or driver doesn't count. `state`: the folder that a swap must be able to write.
    """

    def __init__(
        self,
        *,
        engines: Mapping[str, Engine],
        runtimes: Mapping[str, Runtime],
        card: Card,
        ledger: Ledger,
        hasher: Hasher,
        headroom: int,
        baseline: int,
        strict: bool = False,
        state: StateFolder | None = None,
    ) -> None:
        self._engines, self._runtimes, self.state = engines, runtimes, state
        self._card, self.ledger, self._hasher = card, ledger, hasher
        self.configure(headroom=headroom, baseline=baseline, strict=strict)

    def configure(self, *, headroom: int, baseline: int, strict: bool) -> None:
        """What is configured of the card now."""
        self._headroom, self._baseline, self._strict = headroom, baseline, strict

    async def judge(
        self, engine: str, pair: str | None, *, trial: bool, may_stage: bool = True, how: Reading | None = None
    ) -> Verdict:
        """The verdict on a swap to this pair (None: the deployed one). What an operator can mend is never raised.

        `how` its files are read; what that raises an alarm about is a warning here, too.
        """
        chosen = self._engines.get(engine)
        if chosen is None:
            return _unknown(engine, pair or "", f"there is no engine {engine!r}", self._engines)
        name = chosen.deployed if pair is None else pair
        if name not in chosen.pairs:
            return _unknown(engine, name, f"{engine} has no pair {name!r}", chosen.pairs)
        return await self._judge(chosen, chosen.pairs[name], how or Reading(), trial=trial, may_stage=may_stage)

    async def unwritable(self) -> Refusal | None:
        """What speaks against any swap: it couldn't be written down. What serves needs no such thing."""
        found = Findings()
        if self.state is not None:
            await found.ask(self.state.expect_writable())
        return next(iter(found.refusals), None)

    async def subject_of(
        self, engine: Engine, recipe: Recipe, pair: Pair | None, how: Reading | None = None
    ) -> Subject:
        """What evidence about this recipe is about: each artifact and configuration file is hashed if it changed.

        Raises Fault naming the path.
        """
        paths = await off_loop(lambda: files_of(engine, recipe, pair), pair.label if pair else engine.name)
        files = [await self._hasher.digest(path, how) for path in paths]
        return Subject(
            engine=engine.name,
            image_id=recipe.image_id,
            image_content=recipe.image_content,
            argv=mask_argv(recipe.argv),
            env=mask_env(recipe.env),
            files=tuple(files),
            working_dir=recipe.working_dir,
            user=recipe.user,
            mounts=recipe.mounts,
            devices=recipe.devices,
        )

    async def unchanged(self, subject: Subject) -> bool:
        """Whether its files are still in the very state that was hashed. Reads no content."""
        return not await self.changed(subject)

    async def changed(self, subject: Subject) -> list[str]:
        """The paths of its files that aren't in the state any more that was hashed. Reads no content."""
        return [file.path for file in subject.files if not await self._hasher.unchanged(file)]

    async def expect_unchanged(self, engine: Engine, recipe: Recipe, pair: Pair | None, subject: Subject) -> None:
        """What was hashed before it started is what it has read? Raises Fault naming files that changed or are new."""
        if changed := await self.changed(subject):
            raise rewritten(changed)
        known = {file.path for file in subject.files}
        paths = await off_loop(lambda: files_of(engine, recipe, pair), pair.label if pair else engine.name)
        if new := [str(path) for path in paths if str(path) not in known]:
            raise Fault(
                f"{engine.name} wrote {', '.join(new)} while it started",
                "swap away, and to it once more with --trial: then the evidence covers that file",
            )

    async def pair_of(self, engine: Engine, recipe: Recipe) -> str | None:
        """The engine's pair that a created container is; None: none of them. Raises Fault when it can't be told.

        Best the one that differs in nothing that makes a pair, else one with its image, command and artifacts.
        """
        close: str | None = None
        for name in sorted(engine.pairs, key=lambda name: name != engine.deployed):
            try:
                declared = await self._runtimes[engine.name].declared(engine.pairs[name])
            except CannotStage:  # its image is gone, or its file broken: then it isn't what runs here
                continue
            if not any(one.pair for one in differences(declared, recipe)):
                return name
            if close is None and _looks_like(engine, declared, recipe):
                close = name
        return close

    # ------------------------------------------------------------------------------------------ one verdict

    async def _judge(self, engine: Engine, pair: Pair, how: Reading, *, trial: bool, may_stage: bool) -> Verdict:
        found, runtime = Findings(), self._runtimes[engine.name]
        sight = await found.ask(runtime.look())
        # Docker that doesn't answer one question answers no other: each would wait for its whole bound.
        silent = sight is None and any(refusal.passing for refusal in found.refusals)
        declared = None if silent else await found.ask(runtime.declared(pair))
        differs = differences(declared, sight.recipe) if declared and sight and sight.recipe else ()
        stage = sight is not None and _staging(engine, pair, sight, differs, may_stage=may_stage, found=found)
        version, subject = await self._contents(engine, pair, declared, how, found)
        await self._room(engine, found)
        _address(engine, pair, declared, found)
        _restart(engine, declared, None if stage else sight, found)
        standing = await self._evidence(engine, pair, subject, trial=trial, found=found)
        return Verdict(
            engine=engine.name,
            pair=pair.name,
            label=pair.label,
            refusals=tuple(found.refusals),
            warnings=tuple(found.warnings),
            differences=differs,
            declared=declared,
            sight=sight,
            subject=subject,
            standing=standing,
            stage=stage,
            artifact_version=version,
        )

    async def _contents(
        self, engine: Engine, pair: Pair, declared: Recipe | None, how: Reading, found: Findings
    ) -> tuple[int | None, Subject | None]:
        """The artifact's version, and the subject; no subject where the image or files are refused already."""
        if declared is None:
            return None, None
        version, fits = await expect_contents(engine, pair, declared, self.ledger, found)
        subject = await found.ask(self.subject_of(engine, declared, pair, how)) if fits else None
        found.warnings += how.alarms
        if subject is not None and not subject.files:
            found.warnings.append(f"{pair.label} names no file: its evidence covers image and command line alone")
        return version, subject

    async def _room(self, engine: Engine, found: Findings) -> None:
        memory = await found.ask(self._card.memory())
        if memory is None:
            return
        need, room = engine.vram + self._headroom + self._baseline, memory.total - memory.reserved
        if need > room:
            found.refuse(
                f"{engine.name} can never fit: it needs {_gib(engine.vram)} with {_gib(self._headroom)} headroom and "
                f"{_gib(self._baseline)} baseline, the card has {_gib(room)} ({_gib(memory.total)} less "
                f"{_gib(memory.reserved)} reserved)",
                f"correct engines.{engine.name}.vram, or run it with less",
            )
        elif said := await beside(self._card, engine, memory, self._headroom, self._baseline):
            found.warnings.append(said)

    async def standing_of(self, subject: Subject, label: str) -> Standing:
        """What is recorded of it. A card that can't be asked is taken for a real one. Touches no file."""
        return standing(self.ledger.evidence(), subject, label, await self._this_card())

    async def verified_as(self, label: str) -> Evidence | None:
        """What this name was verified as, whatever can be told of it now."""
        return verified_as(self.ledger.evidence(), label, await self._this_card())

    async def _this_card(self) -> CardIdentity | None:
        with contextlib.suppress(Fault):
            return await self._card.identity()
        return None

    async def _evidence(
        self, engine: Engine, pair: Pair, subject: Subject | None, *, trial: bool, found: Findings
    ) -> Standing | None:
        card = await found.ask(self._card.identity())
        if subject is None:
            return None
        known = standing(self.ledger.evidence(), subject, pair.label, card)
        if card is None or trial:
            return known
        if (missing := policy.refusal(pair.label, known, engine.require, strict=self._strict)) is not None:
            found.refuse(missing.what, missing.mend)
        else:
            found.warnings += policy.warnings(pair.label, known, engine.require, strict=self._strict)
        return known

    def leave(self, verdict: Verdict) -> str:
        """What lets an allowed pair through in place of evidence; empty where it is evidence."""
        if verdict.standing is None:
            return ""
        require = self._engines[verdict.engine].require
        return policy.by_policy(verdict.label, verdict.standing, require, strict=self._strict)

    def engine(self, name: str) -> Engine:
        return self._engines[name]

    def accepts(self, engine: Engine, known: Standing) -> bool:
        """May such a pair have the card without a trial?"""
        return policy.accepts(known, engine.require, strict=self._strict)


def _unknown(engine: str, pair: str, what: str, known: Mapping[str, object]) -> Verdict:
    label = f"{engine}:{pair}" if pair else engine
    names = ", ".join(sorted(known)) or "none"
    return Verdict(engine, pair, label, (Refusal(what, f"the configuration has: {names}"),))


# ------------------------------------------------------------------------------------------------- the container


def _staging(
    engine: Engine, pair: Pair, sight: Sight, differs: Sequence[Difference], *, may_stage: bool, found: Findings
) -> bool:
    """Whether it would be recreated. Refused when it should be and can't be."""
    absent = sight.status is Status.ABSENT
    if not absent and not differs:
        return False
    if engine.container is None or (engine.compose is not None and may_stage):
        return True
    fields = ", ".join(one.field for one in differs)
    if engine.compose is None:
        mend = f"make it so by hand, or name its compose file under engines.{engine.name}.compose"
    else:
        mend = f"swap without --no-stage, or `slotctl stage {pair.label}` first"
    if absent:
        found.refuse(f"there is no container {engine.container}", mend)
    else:
        found.refuse(f"the container {engine.container} isn't what {pair.label} declares: {fields}", mend)
    return False


def _address(engine: Engine, pair: Pair, declared: Recipe | None, found: Findings) -> None:
    """What publishes ports, and not the one where it is asked, would never be found ready."""
    address = urlsplit(engine.url)
    if declared is None or not declared.ports or address.hostname not in ("127.0.0.1", "localhost", "::1"):
        return
    outside = [port.partition("->")[0].rpartition(":")[2] for port in declared.ports]
    if str(address.port or 80) not in outside and "any" not in outside:
        what = f"{pair.label} publishes {', '.join(declared.ports)}, but is asked at {engine.url}"
        found.refuse(what, f"correct engines.{engine.name}.url, or the ports in {source_of(engine)}")


def _restart(engine: Engine, declared: Recipe | None, kept: Sight | None, found: Findings) -> None:
    """A policy would bring the stopped engine back beside the other one. `kept`: the container that isn't recreated."""
    if declared is not None and declared.restart not in ("no", ""):
        where = f"service {engine.compose.service} of {engine.compose.file}" if engine.compose else engine.name
        what = restart_policy.come_back(f"{source_of(engine)} gives {engine.name}", declared.restart)
        found.refuse(what, f'set `restart: "no"` for {where}')
    elif kept is not None and (wrong := restart_policy.against_the_rules(engine, kept)):
        found.refuse(wrong, restart_policy.mend(engine))


def _looks_like(engine: Engine, declared: Recipe, created: Recipe) -> bool:
    def decisive(recipe: Recipe) -> tuple[object, ...]:
        return recipe.argv, used_files(engine, recipe)

    return same_image(declared, created) and decisive(declared) == decisive(created)


def _gib(size: int) -> str:
    return f"{size / GiB:.2f} GiB"
