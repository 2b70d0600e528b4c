"""Is it still the pair that served? Whatever is edited, declared or on the disk, the verdict is the right one."""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.ninfer.sample import write_artifact
from swap.nvml import NvmlCard
from swap.ports import Mount, Outcome
from swap.recipes import image_content
from swap.standing import PairState
from tests.shim.build import LIBRARY, build_shim
from tests.swap.box import FILES, Box, only, write

SINCE = "ninfer:v2 never ran on this card as it is now: since 2026-01-02T03:04:05Z "
MEND = "; `slotctl swap to-ninfer:v2 --trial` runs it, and its success is the evidence"
IMAGE: dict[str, Any] = {
    "RootFS": {"Layers": ["sha256:base", "sha256:engine"]},
    "Os": "linux",
    "Architecture": "amd64",
    "Config": {"Env": ["PATH=/usr/bin"], "Entrypoint": ["ninfer-serve"]},
}

Edit = Callable[[Box], None]


def image(box: Box, id: str = "sha256:" + "1" * 64, **changes: Any) -> None:
    """What the pair's image's name means now; its settings are what compose resolves from it."""
    config = {**IMAGE["Config"], **{key: value for key, value in changes.items() if key in ("Env", "Entrypoint")}}
    inspected = IMAGE | changes | {"Config": config}
    env = tuple(sorted(tuple(one.split("=", 1)) for one in config["Env"]))
    entrypoint = tuple(config["Entrypoint"])
    box.edit_file("v2", image_id=id, image_content=image_content(inspected), env=env, entrypoint=entrypoint)


def artifact(box: Box) -> Path:
    return box.engine.pairs["v2"].artifacts[0]


@pytest.fixture
def bare(tmp_path: Path) -> Box:
    return Box(tmp_path)


@pytest.fixture
async def box(bare: Box) -> Box:
    image(bare)
    bare.runtime.create(bare.runtime.recipes["v2"])
    await bare.record("v2")
    return bare


# ------------------------------------------------------------------------------------------------- one edit each


def flip_a_bit(box: Box) -> None:
    """In the last byte, and nobody could tell by size or time."""
    path = artifact(box)
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def other_file(box: Box) -> None:
    """Another download under the same name."""
    other = box.folder / "download"
    other.write_bytes(artifact(box).read_bytes() + b"\0" * 4096)
    other.replace(artifact(box))


def move_on_the_host(box: Box) -> None:
    """The models' folder lies elsewhere now; the engine sees it where it was."""
    folder = box.folder / f"moved-{len(list(box.folder.iterdir()))}"
    shutil.copytree(artifact(box).parent, folder)
    box.edit_pair("v2", artifacts=(folder / artifact(box).name,))
    box.edit_file("v2", mounts=(Mount(str(folder), "/models", read_only=True),))


def other_name(box: Box) -> None:
    """The same bytes by another name, also for the engine."""
    other = artifact(box).with_name("other.ninfer")
    shutil.copy(artifact(box), other)
    box.edit_pair("v2", artifacts=(other,))
    box.edit_file("v2", command=("--model", "/models/other.ninfer"))


def new_argument(box: Box) -> None:
    box.edit_file("v2", command=(*box.runtime.recipes["v2"].command, "--max-context", "1000"))


REBUILT = "image 111111111111 is 222222222222 now"
TWO = "sha256:" + "2" * 64


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (flip_a_bit, "file {artifact} has other bytes"),
        (other_file, "file {artifact} has other bytes"),
        (other_name, "command line"),
        (lambda box: image(box, TWO, RootFS={"Layers": ["sha256:base", "sha256:rebuilt"]}), REBUILT),
        (lambda box: image(box, TWO, Env=["PATH=/opt/bin"]), f"{REBUILT}; environment PATH has another value"),
        (lambda box: image(box, TWO, Env=["PATH=/usr/bin", "A=1"]), f"{REBUILT}; environment A is new"),
        (lambda box: image(box, TWO, Entrypoint=["sh", "-c"]), f"{REBUILT}; command line"),
        (new_argument, "command line"),
        (lambda box: box.edit_file("v2", env=(("PATH", "/other"),)), "environment PATH has another value"),
        (lambda box: box.edit_file("v2", env=()), "environment PATH is gone"),
        (lambda box: box.edit_file("v2", user="1000"), "user (none) is 1000 now"),
        (lambda box: box.edit_file("v2", devices=("nvidia: all",)), "devices (none) are nvidia: all now"),
        (lambda box: box.edit_file("v2", working_dir="/srv"), "working directory (none) is /srv now"),
    ],
)
async def test_what_makes_another_pair_is_refused_and_named(box: Box, edit: Edit, words: str) -> None:
    edit(box)
    verdict = await box.judge()
    assert only(verdict.refusals) == SINCE + words.format(artifact=artifact(box)) + MEND
    assert verdict.state is PairState.CHANGED
    assert (await box.judge(trial=True)).allowed


@pytest.mark.parametrize(
    "edit",
    [
        move_on_the_host,
        lambda box: image(box, TWO),  # the same content in Docker's other image store
        lambda box: image(box, TWO, Created="2026-02-02", RepoTags=["other"]),
        lambda box: artifact(box).touch(),
        lambda box: shutil.copy2(artifact(box), box.folder / "copy") and (box.folder / "copy").replace(artifact(box)),
    ],
)
async def test_the_same_content_is_the_same_pair_wherever_it_lies_and_whatever_its_id(box: Box, edit: Edit) -> None:
    edit(box)
    verdict = await box.judge()
    assert (verdict.refusals, verdict.state) == ((), PairState.VERIFIED)


# ------------------------------------------------------------------------------------------------- another driver


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture
def driver(shim: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that holds the version that NVML tells."""
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(shim / LIBRARY)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setenv("SLOTPROXY_SHIM_CARD", str(tmp_path))
    (tmp_path / "driver").write_text("575.57\n")
    return tmp_path / "driver"


@pytest.mark.parametrize("strict", [False, True])
async def test_a_driver_that_was_replaced_is_a_warning_or_a_refusal_as_configured(
    box: Box, driver: Path, strict: bool
) -> None:
    card = NvmlCard("0")
    box.card, box.strict = card, strict  # type: ignore[assignment]  # a real one, but for its library
    await box.record("v2", card=await card.identity())
    assert (await box.judge()).warnings == ()
    write(driver, "580.1")
    verdict = await box.judge()
    doubt = "it was verified with driver 575.57, this is 580.1"
    assert (verdict.allowed, verdict.warnings) == (not strict, () if strict else (doubt,))
    if strict:
        assert only(verdict.refusals).startswith(f"ninfer:v2: {doubt}; `slotctl swap to-ninfer:v2 --trial` proves it")
    await box.record("v2", card=await card.identity())
    assert (await box.judge()).warnings == ()
    write(driver, "575.57")  # back again: that it served with this one is recorded, too
    assert ((await box.judge()).allowed, (await box.judge()).warnings) == (True, ())


# ------------------------------------------------------------------------------------------------- any edits


@dataclass
class Model:
    """What is true, kept beside the box: the pair as it is now, and each of those that served."""

    bit: bool = False
    rebuilt: bool = False
    variable: bool = False
    argument: bool = False
    user: bool = False
    store: bool = False  # by which id Docker knows the image: this alone makes no other pair
    served: set[tuple[bool, ...]] = field(default_factory=set)

    @property
    def now(self) -> tuple[bool, ...]:
        return self.bit, self.rebuilt, self.variable, self.argument, self.user

    def apply(self, box: Box) -> None:
        layers = {"Layers": ["sha256:base", "sha256:rebuilt" if self.rebuilt else "sha256:engine"]}
        image(box, TWO if self.store else "sha256:" + "1" * 64, RootFS=layers)
        command = ("--model", f"/models/{FILES['v2']}", *(["--kv"] if self.argument else []))
        env = (("A", "1"), ("PATH", "/usr/bin")) if self.variable else (("PATH", "/usr/bin"),)
        box.edit_file("v2", command=command, env=env, user="1000" if self.user else "")


toggles = ["bit", "rebuilt", "variable", "argument", "user", "store"]
others = ["serve", "serve", "fail", "move", "touch", "forget"]


@settings(max_examples=20)
@given(st.lists(st.sampled_from(toggles + others), min_size=1, max_size=12))
def test_after_any_edits_a_pair_is_verified_exactly_if_it_has_served_as_it_is_now(steps: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as loop:
        box, model = Box(Path(folder)), Model()
        write_artifact(artifact(box), 2)  # with a few tensors: quickly read
        model.apply(box)
        box.runtime.create(box.runtime.recipes["v2"])
        for step in steps:
            take(box, model, step, loop)
            verdict = loop.run(box.judge())
            assert verdict.allowed is (verdict.state is PairState.VERIFIED) is (model.now in model.served), steps


def take(box: Box, model: Model, step: str, loop: asyncio.Runner) -> None:
    """One step of anybody's: an edit, a run, or what changes nothing."""
    match step:
        case "serve":
            loop.run(box.record("v2"))
            model.served.add(model.now)
        case "fail":
            loop.run(box.record("v2", Outcome.FAILED, reason="exit 1"))
        case "move":
            move_on_the_host(box)
        case "touch":
            artifact(box).touch()
        case "forget":
            box.hasher = type(box.hasher)(box.folder / "hashes.json")  # what a new daemon remembers
        case _:
            if step == "bit":
                flip_a_bit(box)
            setattr(model, step, not getattr(model, step))
            model.apply(box)
