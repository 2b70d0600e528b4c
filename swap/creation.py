"""A container's creation body: enough to make it again after another has taken its place. On disk before it is removed.

What is kept is what Docker shows of the container and its image, unread; what has to be sent to make it again is
worked out from that (`body_of`, `later_networks`), so that an old file still serves a newer version of this program.
"""

from __future__ import annotations

import copy
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar

from swap.durable import read_file, replace_file, sync_folder
from swap.ports import CannotStage, Recipe
from swap.recipes import LABEL, Json, created_recipe
from swap.threads import STATE

T = TypeVar("T")

DISK_LIMIT = 10.0  # seconds for one of its calls

NEVER = "0001-01-01T00:00:00Z"  # when what was never started was started
_ENDPOINT = ("IPAMConfig", "Links", "Aliases", "DriverOpts", "GwPriority")  # what was asked for; the rest is state
_ADDRESSES = ("MacAddress", "IPAddress", "IPv6Gateway")  # asked for, where there is no endpoint that has them


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


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A change that has begun: `creation` (None: no container) is what must be there if it doesn't end.

    `instead_of`: it is being put back in place of that one, by id, which goes though it has run.
    """

    creation: Creation | None
    instead_of: str = ""


class CreationFile:
    """The creation that the last staging replaced, and while a change is under way the one that it must end with.

    A crash in the middle leaves the latter behind (`under_way`), and it counts: it is what was taken away.
    Calls touch the disk: make them off the event loop, by `ask`.
    """

    @classmethod
    def of(cls, engine: str, state: Path) -> Self:
        """The engine's, in the state folder."""
        return cls(state / f"creation-{engine}.json")

    def __init__(self, path: Path) -> None:
        self._replaced, self.begun = path, path.with_name(path.name + ".staging")
        self._lock = path.with_name(path.name + ".lock")

    async def ask(self, call: Callable[[Self], T]) -> T:
        """One of its calls, off the event loop. Raises what it raises, and Fault where the disk hangs."""
        return await STATE.run(lambda: call(self), f"the disk of {self._replaced.parent}", DISK_LIMIT)

    def begin(self, creation: Creation | None, *, instead_of: str = "") -> None:
        """Keep what is about to be replaced (None: nothing is there), or put back. Durable when it returns."""
        kept: dict[str, Any] | None = None
        if creation is not None:
            kept = {"container": creation.container, "image": creation.image, "instead_of": instead_of}
        try:
            replace_file(self.begun, json.dumps(kept).encode())
        except OSError as error:
            raise CannotStage(
                f"the old container's creation can't be kept in {self._replaced.parent}: {error.strerror}",
                "make room or make the folder writable",
                passing=True,
            ) from error

    def begun_at(self) -> float | None:
        """When the change under way began, in Unix time. None: there is none, as far as can be told."""
        try:
            return self.begun.stat().st_mtime
        except OSError:
            return None

    def succeed(self) -> None:
        """The replacement is in place. Raises CannotStage."""
        self._end(lambda: self.begun.replace(self._replaced))

    def give_up(self) -> None:
        """What was being replaced is there again. Raises CannotStage."""
        self._end(self.begun.unlink)

    def _end(self, how: Callable[[], object]) -> None:
        try:
            if self.begun.exists():
                how()
                sync_folder(self._replaced.parent)
        except OSError as error:
            what = f"that a change of the container has ended can't be written to {self.begun}: {error.strerror}"
            raise CannotStage(what, "make its folder writable") from error

    def hold(self) -> BinaryIO:
        """Whose turn it is: a file to hand on to compose, held until that has ended and we have closed it.

        Raises CannotStage: it can't be had; a passing one while a compose that outlived its daemon has it.
        """
        try:
            # One that is there can be had also where nothing can be written.
            held = os.fdopen(os.open(self._lock, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "rb")
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                held.close()
                raise
        except BlockingIOError as error:
            what = "a docker compose that staging began before is still at work"
            raise CannotStage(what, f"wait for it, or end it: `fuser {self._lock}` names it", passing=True) from error
        except OSError as error:
            raise CannotStage(f"{self._lock} can't be had: {error.strerror}", "make its folder writable") from error
        return held

    def under_way(self) -> UnderWay | None:
        """The change under way, or the one that was cut off; None: there is none. Raises CannotStage: it is damaged."""
        return _read(self.begun)

    def kept(self) -> tuple[Creation, ...]:
        """All that can be made again, what was replaced last first. Raises CannotStage when a file is damaged."""
        both = _read(self.begun), _read(self._replaced)
        return tuple(one.creation for one in both if one is not None and one.creation is not None)


def _read(path: Path) -> UnderWay | None:
    """None where there is no file."""
    try:
        kept = json.loads(read_file(path))
        if kept is None:
            return UnderWay(None)
        return UnderWay(Creation(kept["container"], kept["image"]), str(kept.get("instead_of", "")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        mend = "see that the container is what it should be (`docker inspect`), then remove that file"
        raise CannotStage(f"{path} can't be read: {error}", mend) from error


def has_run(container: Json) -> bool:
    """It was started at least once."""
    return bool(container["State"]["StartedAt"] != NEVER)


def half_made(container: Json, old: Json) -> bool:
    """It was created for the same service of compose's, and never started."""
    return not container["State"]["Running"] and not has_run(container) and _service(container) == _service(old)


def _service(container: Json) -> tuple[object, object]:
    labels = container["Config"].get("Labels") or {}
    return labels.get(LABEL + "project"), labels.get(LABEL + "service")


def body_of(container: Json, image: str) -> dict[str, Any]:
    """The body of `POST /containers/create` that makes it again from `image` (a name or an id).

    Anonymous volumes are named, so that it finds its data again. Only the first network can be given at creation.
    """
    config, host = copy.deepcopy(dict(container["Config"])), copy.deepcopy(dict(container["HostConfig"]))
    mode = host.get("NetworkMode") or ""
    if config.get("Hostname") == container["Id"][:12] or host.get("UTSMode") == "host" or _shared(mode):
        config.pop("Hostname", None)  # Docker's default, or another's: it refuses to be told
    if _shared(mode):
        config.pop("ExposedPorts", None)  # the image's own
    _name_volumes(host, container.get("Mounts") or ())
    networks = _endpoints(container)
    first = {name: networks[name] for name in [mode] if name in networks}
    return {**config, "Image": image, "HostConfig": host, "NetworkingConfig": {"EndpointsConfig": first}}


def unlike(wanted: Json, made: Json) -> list[str]:
    """In which of all that a container is asked to be two inspections differ: `HostConfig.ShmSize`. Empty: in nothing.

    Docker's own names and times are no part of it, and a field that another version of Docker leaves out is no
    difference where it is empty.
    """
    return sorted(_differing(_asked(wanted), _asked(made), ""))


def _asked(container: Json) -> dict[str, Any]:
    body = body_of(container, container["Image"])
    host = body.pop("HostConfig")
    host["Binds"] = sorted(host.get("Binds") or ())
    networks = {
        name: {**one, "Aliases": sorted(one.get("Aliases") or ())} for name, one in _endpoints(container).items()
    }
    del body["NetworkingConfig"]
    return {"Config": body, "HostConfig": host, "Networks": networks}


def _differing(wanted: Any, made: Any, where: str) -> Iterator[str]:
    if isinstance(wanted, Mapping) and isinstance(made, Mapping):
        for name in wanted.keys() | made.keys():
            yield from _differing(wanted.get(name), made.get(name), f"{where}.{name}" if where else name)
    elif wanted != made and (wanted or made):
        yield where


def _shared(mode: str) -> bool:
    """The network is another container's."""
    return mode.startswith("container:")


def later_networks(container: Json) -> Mapping[str, dict[str, Any]]:
    """The networks that have to be joined after creation, with their endpoint settings."""
    first = container["HostConfig"].get("NetworkMode")
    joined = _endpoints(container)
    return {name: endpoint for name, endpoint in joined.items() if name != first} if first in joined else {}


def _endpoints(container: Json) -> dict[str, dict[str, Any]]:
    networks = container["NetworkSettings"].get("Networks") or {}
    return {name: _endpoint(network or {}, container["Id"]) for name, network in networks.items()}


def _endpoint(network: Json, id: str) -> dict[str, Any]:
    keys = _ENDPOINT if network.get("EndpointID") else (*_ENDPOINT, *_ADDRESSES)
    asked = {key: network[key] for key in keys if network.get(key) is not None}
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
