"""What a test session makes in Docker: names that are its own, and the removal of all of it, by id."""

from __future__ import annotations

import itertools
import socket
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError

from swap.kept import REPOSITORY
from tests.system.images import Images

PROJECT = "com.docker.compose.project"


def ping(address: str) -> bool:
    """Does the daemon at a unix socket answer? The SDK would leak a socket each time that it doesn't."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(10.0)
        try:
            asking.connect(address.removeprefix("unix://"))
            asking.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b" 200 OK" in asking.recv(4096)
        except OSError:
            return False


class DockerBed:
    """`address` and a `client` (`docker.APIClient`) of the daemon, its `images`, and unique names.

    Every container, compose project, network, volume and image tag whose name begins with `prefix` is removed when
    the session ends; so take names from `name()`.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.prefix = f"sp{uuid.uuid4().hex[:8]}"
        self.client: Any = docker.APIClient(base_url=address, version="auto", timeout=120)
        self.images = Images(self.client)
        self._serial = itertools.count(1)

    def name(self, what: str) -> str:
        """A name that nobody has: for a container, a compose project, an image."""
        return f"{self.prefix}-{next(self._serial)}-{what}"

    def compose(self, folder: Path, text: str, project: str | None = None) -> Path:
        """A compose file in `folder`, of a project of its own."""
        file = folder / "docker-compose.yml"
        file.write_text(f"name: {project or self.name('project')}\n{text}")
        return file

    def state(self, id: str) -> dict[str, Any]:
        return dict(self.client.inspect_container(id)["State"])

    def remove_all(self) -> None:
        """By id. Containers first, then what they used."""
        client, used = self.client, set()
        for container in client.containers(all=True):
            names = [*container["Names"], container["Labels"].get(PROJECT, "")]
            if self._ours(*names):
                used |= {mount["Name"] for mount in container["Mounts"] if mount["Type"] == "volume"}
                _quietly(client.remove_container, container["Id"], force=True, v=True)
        for network in client.networks():
            if self._ours(network["Name"]):
                _quietly(client.remove_network, network["Id"])
        for volume in client.volumes()["Volumes"] or ():
            if self._ours(volume["Name"]) or volume["Name"] in used:  # also those that Docker named
                _quietly(client.remove_volume, volume["Name"])
        self._remove_images()

    def _remove_images(self) -> None:
        """By our tags; an image that had no other is not kept for its evidence either."""
        for image in self.client.images():
            tags = image["RepoTags"] or ()
            ours = [tag for tag in tags if self._ours(tag, tag.partition(":")[2])]
            kept = [tag for tag in tags if tag.startswith(f"{REPOSITORY}:") and tag not in ours]
            for tag in [*ours, *kept] if ours and len(ours) + len(kept) == len(tags) else ours:
                _quietly(self.client.remove_image, tag, force=True)

    def _ours(self, *names: str) -> bool:
        return any(name.removeprefix("/").startswith(self.prefix) for name in names)


def free_port() -> int:
    """A port of the loopback address that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _quietly(remove: Callable[..., object], id: str, **options: bool) -> None:
    """What is gone already, or in use elsewhere, is no failure of the test before it."""
    try:
        remove(id, **options)
    except APIError as error:
        if error.status_code not in (404, 409):
            raise
