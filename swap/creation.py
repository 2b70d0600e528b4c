"""A container's creation body: enough to make it again after another has taken its place. On disk before it is removed.

What is kept is what Docker shows of the container and its image, unread; what has to be sent to make it again is
worked out from that (`body_of`, `later_networks`), so that an old file still serves a newer version of this program.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swap.journal import replace_file, sync_folder
from swap.ports import CannotStage, Recipe
from swap.recipes import Json, created_recipe

_ENDPOINT = ("IPAMConfig", "Links", "Aliases", "DriverOpts")  # what was asked for; the rest of an endpoint is state


@dataclass(frozen=True, slots=True)
class Creation:
    """One container as Docker showed it, and the image that it was created from."""

    container: Json
    image: Json

    @property
    def id(self) -> str:
        return str(self.container["Id"])

    @property
    def recipe(self) -> Recipe:
        return created_recipe(self.container, self.image)


class CreationFile:
    """The creation that the last staging replaced, and while one is under way the one being replaced.

    A crash in the middle leaves the latter behind, and it counts: it is what the interrupted staging took away.
    Calls touch the disk: make them off the event loop.
    """

    def __init__(self, path: Path) -> None:
        self._replaced, self._replacing = path, path.with_name(path.name + ".staging")

    def begin(self, creation: Creation | None) -> None:
        """Keep what is about to be replaced (None: nothing is there). Durable when it returns."""
        kept = None if creation is None else {"container": creation.container, "image": creation.image}
        try:
            self._replaced.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._replacing, json.dumps(kept).encode())
        except OSError as error:
            raise CannotStage(
                f"the old container's creation can't be kept in {self._replaced.parent}: {error.strerror}",
                "make room or make the folder writable",
            ) from error

    def succeed(self) -> None:
        """The replacement is in place."""
        if self._replacing.exists():
            self._replacing.replace(self._replaced)
            sync_folder(self._replaced.parent)

    def give_up(self) -> None:
        """What was being replaced is there again."""
        self._replacing.unlink(missing_ok=True)

    def replacing(self) -> Creation | None:
        """What the staging under way replaces, or the one that was cut off. Raises CannotStage: it is damaged."""
        return _read(self._replacing)

    def kept(self) -> tuple[Creation, ...]:
        """All that can be made again, what was replaced last first. Raises CannotStage when a file is damaged."""
        both = self.replacing(), _read(self._replaced)
        return tuple(creation for creation in both if creation is not None)


def _read(path: Path) -> Creation | None:
    try:
        kept = json.loads(path.read_bytes())
        return None if kept is None else Creation(kept["container"], kept["image"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CannotStage(f"{path} can't be read: {error}", "recreate the container by hand") from error


def body_of(container: Json, image: str) -> dict[str, Any]:
    """The body of `POST /containers/create` that makes it again from `image` (a name or an id).

    Anonymous volumes are named, so that it finds its data again. Only the first network can be given at creation.
    """
    config, host = copy.deepcopy(dict(container["Config"])), copy.deepcopy(dict(container["HostConfig"]))
    if config.get("Hostname") == container["Id"][:12]:
        del config["Hostname"]  # Docker's default: the container's own id
    _name_volumes(host, container.get("Mounts") or ())
    networks = _endpoints(container)
    first = {name: networks[name] for name in [host.get("NetworkMode")] if name in networks}
    return {**config, "Image": image, "HostConfig": host, "NetworkingConfig": {"EndpointsConfig": first}}


def later_networks(container: Json) -> Mapping[str, dict[str, Any]]:
    """The networks that have to be joined after creation, with their endpoint settings."""
    first = container["HostConfig"].get("NetworkMode")
    joined = _endpoints(container)
    return {name: endpoint for name, endpoint in joined.items() if name != first} if first in joined else {}


def _endpoints(container: Json) -> dict[str, dict[str, Any]]:
    networks = container["NetworkSettings"].get("Networks") or {}
    return {name: _endpoint(network or {}, container["Id"]) for name, network in networks.items()}


def _endpoint(network: Json, id: str) -> dict[str, Any]:
    asked = {key: network[key] for key in _ENDPOINT if network.get(key)}
    if "Aliases" in asked:
        asked["Aliases"] = [alias for alias in asked["Aliases"] if alias != id[:12]]
    return asked


def _name_volumes(host: dict[str, Any], mounts: Any) -> None:
    """Give each volume that Docker named itself to the mount that it belongs to, or bind it."""
    asked = {mount["Target"]: mount for mount in host.get("Mounts") or ()}
    bound = {bind.split(":")[1] for bind in host.get("Binds") or () if ":" in bind}
    for mount in mounts:
        target = mount["Destination"]
        if mount["Type"] != "volume" or target in bound:
            continue
        if target in asked:
            asked[target]["Source"] = mount["Name"]
        else:
            host["Binds"] = [*(host.get("Binds") or ()), f"{mount['Name']}:{target}:{'rw' if mount['RW'] else 'ro'}"]
