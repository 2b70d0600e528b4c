"""Makes each engine's runtime: a container of the one Docker daemon, or a child process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from engines.spec import Engine
from swap.durable import Guard
from swap.ports import Runtime
from swap.process import ChildProcess

if TYPE_CHECKING:
    from swap.dockerd import Docker


class Maker(Protocol):
    """What a reload needs of it."""

    @property
    def docker(self) -> Docker | None:
        """Where any engine runs in a container."""

    def make(self, engine: Engine) -> Runtime:
        """The first container takes as long as the Docker SDK takes to load: call it off the event loop."""

    def configured(self, runtime: Runtime, engine: Engine) -> None:
        """Its engine's entry has changed, and it is the same container, or process, as before."""


class Runtimes:
    """`state` is the daemon's folder, with its `guard`, `address` the Docker daemon's (None: the usual one)."""

    def __init__(self, state: Path, address: str | None, guard: Guard) -> None:
        self._state, self._address, self._guard = state, address, guard
        self.docker: Docker | None = None

    def make(self, engine: Engine) -> Runtime:
        if engine.container is None:
            return ChildProcess(engine, self._state, self._guard)
        from swap.container import DockerContainer  # noqa: PLC0415 - loading the SDK takes as long as all the rest
        from swap.dockerd import Docker  # noqa: PLC0415

        self.docker = self.docker or Docker(self._address)
        return DockerContainer(engine, self.docker, self._state)

    def configured(self, runtime: Runtime, engine: Engine) -> None:
        runtime.engine = engine  # type: ignore[attr-defined]  # both kinds have it
