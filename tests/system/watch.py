"""Looking at the card and at Docker from outside, while something goes on: nothing is asked of our own code."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import docker
from docker.errors import APIError

from engines.simvram import DEFAULT_TOTAL, uses
from tests.system.bed import ping
from tests.system.house import LIMIT, House

EVERY = 0.05  # seconds


@dataclass(frozen=True, slots=True)
class Sample:
    """The engines whose containers run (`up`; none while Docker is away), those that have VRAM (`holding`, also after
    their end), and `bytes`, all that is taken.
    """

    up: frozenset[str]
    holding: frozenset[str]
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
        """Never two engines, one there before the other's memory is free included; never more than the card has."""
        two = [sample for sample in self.samples if len(sample.up | sample.holding) > 1]
        assert not two, two[:5]
        assert max(sample.bytes for sample in self.samples) <= DEFAULT_TOTAL
        assert any(sample.up and sample.holding for sample in self.samples)

    @property
    def seen_up(self) -> set[str]:
        return {name for sample in self.samples for name in sample.up}

    def _run(self) -> None:
        while not self._end.is_set():
            began = time.monotonic()
            self.samples.append(self._sample())
            self._end.wait(max(0.0, began + EVERY - time.monotonic()))

    def _sample(self) -> Sample:
        held = uses(self._house.card)
        listed = self._listed()
        up = {self._names[name] for container in listed for name in container["Names"] if name in self._names}
        holding = {engine for engine in self._names.values() for use in held if use.name.startswith(engine)}
        return Sample(frozenset(up), frozenset(holding), sum(use.bytes for use in held))

    def _listed(self) -> list[Any]:
        """The running ones. A Docker that is away shows nothing; what has VRAM is seen all the same."""
        if not ping(self._house.bed.address):
            return []
        try:
            return list(self._client.containers(filters={"name": self._house.bed.prefix}))
        except (APIError, OSError):  # what requests raises is an OSError
            return []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join(LIMIT)
        self._client.close()
