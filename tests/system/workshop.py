"""One engine in a container made by compose, for tests of the Docker runtime: small, and quick to make."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines.profiles import PROFILES
from engines.spec import ComposeService, Engine, GiB, Pair
from swap.container import DockerContainer
from swap.dockerd import Docker
from tests.swap.runtime_contract import ENGINE
from tests.system.bed import DockerBed

SERVICE = """
services:
  engine:
    image: ${IMAGE}
    container_name: %(name)s
    command: [python3, /engine.py, polite]
    environment: {GREETING: "${GREETING:-hello}"}
    volumes: ["%(folder)s/engine.py:/engine.py:ro"]
    network_mode: none
"""


@dataclass
class Workshop:
    """`runtime` over the compose file `file` in `folder`; `edit` changes the file as an operator would."""

    bed: DockerBed
    folder: Path
    docker: Docker
    name: str
    image: str
    project: str
    text: str = SERVICE
    pairs: dict[str, Pair] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        return self.folder / "docker-compose.yml"

    def open(self) -> DockerContainer:
        """The runtime, as a daemon that has just started makes it."""
        compose, state = ComposeService(self.file, "engine"), self.folder / "state"
        state.mkdir(exist_ok=True)
        return DockerContainer(self.engine(compose), self.docker, state)

    def engine(self, compose: ComposeService | None) -> Engine:
        return Engine(
            name=self.name,
            profile=PROFILES["openai"],
            url="http://127.0.0.1:1",
            vram=GiB,
            pairs={"plain": self.pair()},
            deployed="plain",
            container=self.name,
            compose=compose,
        )

    def pair(self, env: Mapping[str, str] | None = None, image: str | None = None) -> Pair:
        image = image or self.image
        return Pair(engine=self.name, name="plain", image=image, artifacts=(), env={"IMAGE": image, **(env or {})})

    def write(self, text: str = SERVICE) -> None:
        (self.folder / "engine.py").write_text(ENGINE)
        (self.folder / "e.env").write_text("FROM_FILE=1\n")
        filled = text % {"name": self.name, "folder": self.folder}
        self.file.write_text(f"name: {self.project}\n{filled}")

    def edit(self, old: str, new: str) -> None:
        text = self.file.read_text()
        assert old in text
        self.file.write_text(text.replace(old, new))

    async def by_hand(self, *arguments: str) -> None:
        """The operator's own `docker compose`."""
        binary, env = os.environ["SLOTPROXY_COMPOSE"], {**os.environ, "DOCKER_HOST": self.bed.address}
        env["IMAGE"] = self.image
        command = [binary, "-f", str(self.file), *arguments]
        await asyncio.to_thread(subprocess.run, command, env=env, check=True, capture_output=True)

    async def client(self, call: str, *arguments: Any, **options: Any) -> Any:
        """A call of the SDK's, off the event loop."""
        return await asyncio.to_thread(getattr(self.bed.client, call), *arguments, **options)

    async def inspect(self, id: str) -> dict[str, Any]:
        return dict(await self.client("inspect_container", id))
