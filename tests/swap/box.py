"""The first user's box in memory: NInfer with its two pairs, real artifacts' headers, and what an operator edits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engines.ninfer.profile import PROFILE as NINFER
from engines.ninfer.sample import write_artifact
from engines.spec import ComposeService, Engine, GiB, Pair
from swap.checks import Checker, Verdict
from swap.findings import Refusal
from swap.hashing import Hasher
from swap.ports import (
    Evidence,
    Outcome,
    Recipe,
)
from tests.swap.fakes import REAL, FakeCard, FakeLedger, FakeRuntime, recipe_for

FILES = {"v2": "qwen3_8_27b_nvfp4.ninfer", "v3": "qwen3_8_27b_nvfp4_v3.ninfer"}
IMAGES = {"v2": "ninfer:local", "v3": "ninfer:v3"}


@dataclass
class Box:
    """The first user's box: NInfer with its two pairs, v2 verified and in a stopped container."""

    folder: Path
    card: FakeCard = field(default_factory=FakeCard)

    def __post_init__(self) -> None:
        self.models = self.folder / "models"
        self.models.mkdir()
        for version, name in ((2, FILES["v2"]), (3, FILES["v3"])):
            write_artifact(self.models / name, version, objects=1190)
        self.engine = Engine(
            name="ninfer",
            profile=NINFER,
            url="http://127.0.0.1:8095",
            vram=30 * GiB,
            pairs={name: Pair("ninfer", name, IMAGES[name], (self.models / FILES[name],)) for name in FILES},
            deployed="v2",
            container="ninfer-eval",
            compose=ComposeService(self.folder / "docker-compose.yml", "ninfer-eval"),
        )
        recipes = {name: recipe_for(IMAGES[name], FILES[name], models=str(self.models)) for name in FILES}
        self.runtime = FakeRuntime("ninfer", self.card, recipes)
        self.runtime.create(recipes["v2"])
        self.ledger = FakeLedger()
        self.hasher = Hasher(self.folder / "hashes.json")
        self.headroom, self.baseline = GiB // 4, 0
        self.strict = False

    @property
    def checker(self) -> Checker:
        return Checker(
            engines={"ninfer": self.engine},
            runtimes={"ninfer": self.runtime},
            card=self.card,
            ledger=self.ledger,
            hasher=self.hasher,
            headroom=self.headroom,
            baseline=self.baseline,
            strict=self.strict,
        )

    async def judge(self, pair: str | None = None, *, trial: bool = False, may_stage: bool = True) -> Verdict:
        return await self.checker.judge("ninfer", pair, trial=trial, may_stage=may_stage)

    async def record(self, pair: str, outcome: Outcome = Outcome.SERVED, **more: Any) -> None:
        """It ran on this card as it is declared now."""
        subject = await self.checker.subject_of(self.engine, self.runtime.recipes[pair], self.engine.pairs[pair])
        when = "2026-01-02T03:04:05Z"
        line = Evidence(subject, "", outcome, f"ninfer:{pair}", when, "trial", REAL)
        self.ledger.record(replace(line, **more))

    def edit_pair(self, name: str, **changes: Any) -> None:
        pairs = {**self.engine.pairs, name: replace(self.engine.pairs[name], **changes)}
        self.engine = replace(self.engine, pairs=pairs)

    def edit_file(self, name: str, **changes: Any) -> Recipe:
        """Edit what the compose file declares for this pair."""
        self.runtime.recipes[name] = replace(self.runtime.recipes[name], **changes)
        return self.runtime.recipes[name]


def only(refusals: Sequence[Refusal]) -> str:
    """The one refusal's text; each must say what to do as well."""
    (refusal,) = refusals
    assert refusal.mend
    return f"{refusal.what}; {refusal.mend}"


def write(path: Path, text: str) -> None:
    path.write_text(text)


def spoil(path: Path, damage: str) -> None:
    content = path.read_bytes()
    path.unlink()
    if damage == "directory":
        path.mkdir()
    elif damage == "fifo":
        os.mkfifo(path)
    elif damage == "loop":
        path.symlink_to(path)
    elif damage != "missing":
        path.write_bytes(content[:-1] if damage == "truncated" else b"garbage " * 1000)
