"""Looking at the card and at Docker from outside, while something goes on: nothing is asked of our own code."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import docker

from engines.simvram import DEFAULT_TOTAL, uses
from tests.system.house import FOREIGN, LIMIT, House

EVERY = 0.05  # seconds


@dataclass(frozen=True, slots=True)
class Sample:
    """`up`: the engines whose containers run. `holders`: who of them has VRAM. `bytes`: all that is taken."""

    up: frozenset[str]
    holders: tuple[str, ...]
    bytes: int


class Watch:
    """Takes a sample every 50 ms as long as the block runs."""

    def __init__(self, house: House) -> None:
        self.samples: list[Sample] = []
        self._house = house
        self._names = {f"/{tenant.container}": name for name, tenant in house.tenants.items()}
        self._client: Any = docker.APIClient(base_url=house.bed.address, version="auto", timeout=30)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch")

    def check(self) -> None:
        """Never two engines, never more VRAM than the card has; and enough was seen to say so."""
        two = [sample for sample in self.samples if len(sample.up) > 1 or len(sample.holders) > 1]
        assert not two, two[:5]
        assert max(sample.bytes for sample in self.samples) <= DEFAULT_TOTAL
        assert any(sample.holders for sample in self.samples)

    @property
    def seen_up(self) -> set[str]:
        return {name for sample in self.samples for name in sample.up}

    def _run(self) -> None:
        while not self._end.is_set():
            began = time.monotonic()
            self.samples.append(self._sample())
            self._end.wait(max(0.0, began + EVERY - time.monotonic()))

    def _sample(self) -> Sample:
        listed = self._client.containers(filters={"name": self._house.bed.prefix})  # the running ones
        held = uses(self._house.card)
        up = {self._names[name] for container in listed for name in container["Names"] if name in self._names}
        return Sample(
            frozenset(up), tuple(use.name for use in held if use.name != FOREIGN), sum(use.bytes for use in held)
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join(LIMIT)
        self._client.close()
