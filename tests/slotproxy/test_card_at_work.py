"""A whole slotproxy whose card goes wrong: the real NVML code over the shim, engines without containers.

Whatever the driver does, clients are served and the operator is told; a swap is refused with what to do, and goes
through once the driver is well again, by the same daemon.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL

import httpx
import pytest

from tests.shim.build import build_shim
from tests.slotproxy.programs import LIMIT, Json, Serve, chat, ended_engines, engines, quick_house

HANGS = 30.0  # seconds that a call of the driver's takes
BOUND = 20.0  # seconds for what waits for the card 5 s at most, on a busy machine

FAULTS = {
    "not loaded": ("errors/init", 9, ("the NVIDIA driver is not loaded", "modprobe nvidia")),
    "library and driver differ": (
        "errors/init",
        18,
        ("differ in version", "reboot, or reload the nvidia kernel module"),
    ),
    "unknown": ("errors/init", 999, ("unknown error", "dmesg")),
    "no library": ("errors/init", 12, ("libnvidia-ml.so.1 is missing", "install the NVIDIA driver's libraries")),
    "memory not supported": ("errors/memory", 3, ("NOT_SUPPORTED", "memory of its own")),
    "no memory": ("total", 0, ("a total of 0 bytes", "memory of its own")),
    "hanging": ("delays/memory", HANGS, ("hasn't answered in 5 s", "dmesg")),
}


class Card:
    """The card's files, and a slotproxy on it where Strata serves and NInfer is verified, too."""

    def __init__(self, folder: Path, shim: Path) -> None:
        self.folder = folder / "card"
        self.folder.mkdir(parents=True)
        self._config = quick_house(folder, card={"gpu": 0, "headroom": "256MiB"})
        self._variables = {"LD_LIBRARY_PATH": shim, "SLOTPROXY_SHIM_CARD": self.folder}

    def serve(self, name: str) -> Serve:
        return Serve(self._config, name=name, **self._variables)

    @contextmanager
    def broken(self, kind: str) -> Iterator[tuple[str, ...]]:
        """The words that are to be said while the block runs."""
        name, value, words = FAULTS[kind]
        file = self.folder / name
        before = file.read_text() if file.exists() else None
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{value}\n")
        yield words
        if before is None:
            file.unlink()
        else:
            file.write_text(before)


@pytest.fixture
def card(tmp_path: Path) -> Iterator[Card]:
    with ended_engines(tmp_path / "house"):
        yield Card(tmp_path / "house", build_shim(tmp_path))


def swap(serve: Serve, engine: str, *, trial: bool = False) -> Json:
    """How it ended."""
    with httpx.Client(
        transport=httpx.HTTPTransport(uds=str(serve.control)), base_url="http://x", timeout=LIMIT
    ) as desk:
        lines = desk.post("/swap", json={"engine": engine, "pair": None, "trial": trial}).text.splitlines()
    ended: Json = json.loads(lines[-1])
    return ended


def served_by(serve: Serve) -> str:
    began = time.monotonic()
    answer = httpx.post(f"{serve.url}/v1/chat/completions", json=chat(), timeout=LIMIT)
    assert answer.status_code == 200, answer.text
    assert time.monotonic() - began < BOUND
    return answer.headers["x-slotproxy-engine"]


def refuses_and_serves_on(serve: Serve, words: tuple[str, ...]) -> None:
    began = time.monotonic()
    ended = swap(serve, "ninfer")
    assert ended["code"] == 3, ended
    assert all(word in ended["text"] for word in words), ended
    assert served_by(serve) == "strata"
    told = serve.status()["card"]
    assert all(word in told["error"] for word in words), told
    assert time.monotonic() - began < BOUND


@pytest.mark.slow
def test_cases_27_to_29_whatever_nvml_does_clients_are_served_and_a_swap_is_refused_saying_what_to_do(
    card: Card,
) -> None:
    """Cases 27, 28 and 29: not supported, not loaded, not the library's, hanging for 30 s."""
    with card.serve("first") as serve:
        assert serve.url  # it is up
        assert [swap(serve, engine, trial=True)["code"] for engine in ("ninfer", "strata")] == [0, 0]
        run = engines(card.folder.parent)
        for kind in FAULTS:
            with card.broken(kind) as words:
                refuses_and_serves_on(serve, words)
        assert serve.end(SIGKILL) == -SIGKILL

    with card.broken("library and driver differ") as words, card.serve("second") as serve:
        assert serve.event("an engine serves")["pair"] == "strata:current"  # adopted all the same
        refuses_and_serves_on(serve, words)
        assert engines(card.folder.parent) == run
        (card.folder / "errors/init").unlink()
        assert swap(serve, "ninfer")["code"] == 0  # asked afresh
        (card.folder / "errors/init").write_text("18")
