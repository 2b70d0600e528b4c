"""Two inspections of what should be the same container, field by field."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

# What names this one container, and what Docker writes into it. Everything else is what it was asked to be.
OWN = re.compile(
    r"Id|Created|(ResolvConf|Hostname|Hosts|Log)Path|GraphDriver\.Data\..*|NetworkSettings\.Sandbox(ID|Key)"
    # Where Docker has named a volume itself, the one that has its data must name it.
    r"|HostConfig\.Binds|Mounts\./anonymous\.Mode|HostConfig\.Mounts\./anonymous\.Source"
)
# What a container shows only once it has run.
HAS_RUN = re.compile(r"State\.|NetworkSettings\.Networks\.[^.]+\.NetworkID")


def fields(container: Mapping[str, Any]) -> dict[str, Any]:
    """An inspection, flat: `HostConfig.ShmSize`. Lists whose order says nothing are sorted."""
    networks = container["NetworkSettings"]["Networks"]
    for network in networks.values():
        network["Aliases"] = sorted(alias for alias in network["Aliases"] or () if alias != container["Id"][:12])
    mounts = {mount["Destination"]: mount for mount in container["Mounts"]}
    host = {**container["HostConfig"]}
    host["Mounts"] = {mount["Target"]: mount for mount in host.get("Mounts") or ()}
    flat = dict(_flat({**container, "Mounts": mounts, "HostConfig": host}))
    if flat["Config.Hostname"] == container["Id"][:12]:
        del flat["Config.Hostname"]
    return flat


def _flat(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _flat(inner, f"{where}.{name}" if where else name)
    else:
        yield where, value


def differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """By field, what isn't the same and isn't the container's own."""
    one, other = fields(before), fields(after)
    return {
        name: (one.get(name), other.get(name))
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name) and not OWN.fullmatch(name)
    }
