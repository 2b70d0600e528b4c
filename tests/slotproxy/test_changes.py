"""What a reload would change, in words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engines.ninfer.profile import PROFILE
from engines.spec import Engine, GiB, MiB, Pair, Require
from slotproxy.changes import changes, fixed
from slotproxy.config import CardSettings, Limits, Settings, SlotSettings
from slotproxy.config_notify import NotifySettings
from slotproxy.keys import digests
from swap.decisions import Kind

V2 = Pair("ninfer", "v2", "ninfer:local", (Path("/models/v2.ninfer"),), env={"TOKEN": "hunter2"})
NINFER = Engine(
    "ninfer", PROFILE, "http://127.0.0.1:8095", 30 * GiB, {"v2": V2}, "v2", "ninfer-eval", api_key="hunter2"
)
OTHER = digests("other")
VOICE = SlotSettings("voice", keys=digests("hunter2"), max_hold=5.0)
OLD = Settings(
    path=Path("/etc/slotproxy.yml"),
    host="127.0.0.1",
    port=8080,
    control=Path("/run/control.sock"),
    state=Path("/var/lib/slotproxy"),
    card=CardSettings(gpu="0"),
    engines={"ninfer": NINFER},
    default="ninfer",
    models={"m": {"ninfer": "n"}},
    slots={"voice": VOICE},
)


def engine(**more: object) -> Settings:
    return replace(OLD, engines={"ninfer": replace(NINFER, **more)})  # type: ignore[arg-type]


def pair(**more: object) -> Settings:
    return engine(pairs={"v2": replace(V2, **more)})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (OLD, []),
        (replace(OLD, drain=90.0, stop_limit=10.0), ["drain: 1 min 0 s → 1 min 30 s", "stop_limit: 30.0 s → 10.0 s"]),
        (replace(OLD, default=None), ["default: ninfer → none"]),
        (replace(OLD, limits=Limits(max_body=64 * MiB)), ["limits.max_body: 32MiB → 64MiB"]),
        (replace(OLD, card=CardSettings(gpu="0", baseline=GiB)), ["card.baseline: 0B → 1GiB"]),
        (
            replace(OLD, notify=NotifySettings(("/bin/tell",), "https://x/hunter2", frozenset({Kind.DARK}))),
            ["notify.command: changed", "notify.webhook: changed", "notify.on: changed"],
        ),
        (replace(OLD, models={"m": {"ninfer": "o"}, "n": {}}), ["models.m: changed", "models.n: added"]),
        (replace(OLD, slots={}), ["slots.voice: removed"]),
        (
            replace(
                OLD,
                slots={
                    "voice": replace(VOICE, keys=digests("other"), max_hold=9.0),
                    "new": SlotSettings("new"),
                },
            ),
            ["slots.voice.keys: changed", "slots.voice.max_hold: 5.0 s → 9.0 s", "slots.new: added"],
        ),
        (engine(vram=31 * GiB, api_key="x"), ["engines.ninfer.vram: 30GiB → 31GiB", "engines.ninfer.api_key: changed"]),
        (engine(require=Require.CANDIDATE), ["engines.ninfer.require: verified → candidate"]),
        (engine(pairs={"v2": V2, "v3": V2}), ["engines.ninfer.pairs.v3: added"]),
        (pair(env={"TOKEN": "swordfish"}), ["engines.ninfer.pairs.v2.env: changed"]),
        (pair(image="ninfer:new"), ["engines.ninfer.pairs.v2.image: ninfer:local → ninfer:new"]),
        (
            replace(OLD, engines={"other": replace(NINFER, name="other")}),
            ["engines.ninfer: removed", "engines.other: added"],
        ),
    ],
)
def test_each_difference_is_a_line_and_no_secret_is_in_it(new: Settings, said: list[str]) -> None:
    assert changes(OLD, new) == said
    assert fixed(OLD, new) == []
    assert "hunter2" not in str(said)


@pytest.mark.parametrize(
    ("new", "keys"),
    [
        (replace(OLD, port=8081), ["listen"]),
        (replace(OLD, control=Path("/x"), state=Path("/y"), docker="unix:///z"), ["control", "state", "docker"]),
        (replace(OLD, card=CardSettings(gpu="1")), ["card.gpu"]),
        (
            replace(OLD, card=CardSettings(simulated=GiB, folder=Path("/c"))),
            ["card.gpu", "card.simulated", "card.folder"],
        ),
    ],
)
def test_what_needs_a_restart_is_named_by_its_keys(new: Settings, keys: list[str]) -> None:
    assert fixed(OLD, new) == keys
    assert changes(OLD, new) == []
