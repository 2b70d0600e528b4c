"""Recipes read from what Docker and compose say, so that a freshly created container equals its declaration. Pure.

`created_recipe`   a container as `GET /containers/X/json` shows it, with the image it was created from.
`running_recipe`   a container that runs, with what only its run can tell: which ports are really published.
`declared_recipe`  a service as `docker compose config --format json` shows it, merged with its image the way that
                   Docker merges at creation: image variables under the service's, an entry point of its own drops the
                   image's command, a healthcheck takes what it leaves out from the image's.

Both go through the same small renderers, field by field. What a recipe has no field for (ulimits, shared memory, …) is
covered by compose's own hash of the service.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from swap.ports import Mount, Recipe

Json = Mapping[str, Any]

LABEL = "com.docker.compose."
_TOOLS = (LABEL, "desktop.docker.io/")  # prefixes of labels that compose and Docker Desktop add by themselves
OTHERS_NETWORK = "another container's"  # network_mode service:x becomes container:ID: neither side can be compared
_ANONYMOUS = re.compile(r"[0-9a-f]{64}")
_DURATION = re.compile(r"([0-9.]+)(h|ms|m|s|us|µs|ns)")
_NANOSECONDS = {"h": 3600 * 10**9, "m": 60 * 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "µs": 10**3, "ns": 1}
_RESTART = {"": "no", "none": "no", "any": "always"}


def created_recipe(container: Json, image: Json) -> Recipe:
    """What a container was created with; `image` is the inspection of its image *id* (or {} when that is gone)."""
    config, host = container["Config"], container["HostConfig"]
    labels = config.get("Labels") or {}
    return Recipe(
        image=config["Image"],
        image_id=container["Image"],
        image_content=image_content(image),
        entrypoint=tuple(config.get("Entrypoint") or ()),
        command=tuple(config.get("Cmd") or ()),
        env=_pairs(_variables(config.get("Env"))),
        working_dir=config.get("WorkingDir") or "",
        user=config.get("User") or "",
        mounts=_sorted(_created_mounts(container)),
        ports=tuple(sorted(_created_ports(host.get("PortBindings") or {}))),
        devices=tuple(sorted(_created_devices(host))),
        networks=_created_networks(container),
        healthcheck=_healthcheck(config.get("Healthcheck") or {}),
        restart=_restart(host.get("RestartPolicy") or {}),
        stop_grace=_grace(config.get("StopTimeout")),
        init=bool(host.get("Init")),
        config_hash=labels.get(LABEL + "config-hash", ""),
        labels=_own_labels(labels, image),
        image_labels=_pairs(_image_labels(image)),
    )


def running_recipe(container: Json, image: Json) -> Recipe:
    """As it runs. Docker keeps the rest as it was created; what `docker update` changes it shows as created, too."""
    created = created_recipe(container, image)
    if created.networks in (("host",), (OTHERS_NETWORK,)):  # then nothing is published, whatever was asked for
        return created
    asked = container["HostConfig"].get("PortBindings") or {}
    return replace(created, ports=tuple(sorted(_running_ports(asked, container["NetworkSettings"].get("Ports") or {}))))


def declared_recipe(project: Json, service_name: str, image: Json, config_hash: str) -> Recipe:
    """What compose would create for a service; `image` is the inspection of the image that its name means now."""
    service, base = project["services"][service_name], image.get("Config") or {}
    entrypoint, command = _command_line(service, base)
    return Recipe(
        image=image_name(project, service_name),
        image_id=image["Id"],
        image_content=image_content(image),
        entrypoint=entrypoint,
        command=command,
        env=_pairs(_declared_variables(service, base)),
        working_dir=service.get("working_dir") or base.get("WorkingDir") or "",
        user=service.get("user") or base.get("User") or "",
        mounts=_sorted(_declared_mounts(project, service, base)),
        ports=tuple(sorted(_declared_ports(service))),
        devices=tuple(sorted(_declared_devices(service))),
        networks=_declared_networks(project, service),
        healthcheck=_healthcheck(_declared_healthcheck(service, base.get("Healthcheck") or {})),
        restart=_declared_restart(service),
        stop_grace=_grace(_whole_seconds(service.get("stop_grace_period"))),
        init=bool(service.get("init")),
        config_hash=config_hash,
        labels=_own_labels(service.get("labels") or {}, image),
        image_labels=_pairs(_image_labels(image)),
    )


def image_content(image: Json) -> str:
    """What an image is, whatever its id: layers, platform, and the settings that decide what runs in it.

    `image` is an inspection; {} (the image is gone) has no content. Labels, dates and history don't count, nor does
    the order of variables. What isn't set is null, empty or left out, by Docker's version and image store.
    """
    config, layers = image.get("Config") or {}, (image.get("RootFS") or {}).get("Layers")
    if not layers:
        return ""
    what = {
        "layers": layers,
        "platform": [image.get(name) or "" for name in ("Os", "Architecture", "Variant")],
        "Env": sorted(config.get("Env") or [], key=lambda line: line.partition("=")[0]),
        **{name: config.get(name) or [] for name in ("Entrypoint", "Cmd")},
        **{name: config.get(name) or "" for name in ("User", "WorkingDir")},
    }
    return "sha256:" + hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def image_name(project: Json, service_name: str) -> str:
    """The image that a service names; one that is only built has compose's own name for it."""
    return project["services"][service_name].get("image") or f"{project['name']}-{service_name}"


def _image_labels(image: Json) -> Mapping[str, str]:
    return (image.get("Config") or {}).get("Labels") or {}


def _own_labels(labels: Mapping[str, Any], image: Json) -> tuple[tuple[str, str], ...]:
    """What somebody chose for this container: neither written by tools for themselves, nor the image's own."""
    inherited = _image_labels(image)
    ours = {name: str(value or "") for name, value in labels.items() if not name.startswith(_TOOLS)}
    return _pairs({name: value for name, value in ours.items() if inherited.get(name) != value})


# ---------------------------------------------------------------------------------------- command line, environment


def _command_line(service: Json, base: Json) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Docker's rule: the image's command stays only without an entry point of the service's own.

    An empty entry point (`[]`) takes the image's away and keeps the image's command.
    """
    entrypoint, command = service.get("entrypoint"), service.get("command")
    if not entrypoint and not command:
        command = base.get("Cmd")
    if entrypoint is None:
        entrypoint = base.get("Entrypoint")
    return tuple(entrypoint or ()), tuple(command or ())


def _variables(env: Sequence[str] | None) -> dict[str, str]:
    """`NAME=value` lines; one without `=` takes the image's variable away."""
    return dict(line.split("=", 1) for line in env or () if "=" in line)


def _declared_variables(service: Json, base: Json) -> dict[str, str]:
    ours: Mapping[str, str | None] = service.get("environment") or {}
    merged = {**_variables(base.get("Env")), **ours}
    return {name: value for name, value in merged.items() if value is not None}


def _pairs(mapping: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(mapping.items()))


# --------------------------------------------------------------------------------------------------------- mounts


def _sorted(mounts: Iterator[Mount]) -> tuple[Mount, ...]:
    return tuple(sorted(mounts, key=lambda mount: mount.target))


def _mount(kind: str, source: str, target: str, *, read_only: bool) -> Mount:
    if kind == "volume" and _ANONYMOUS.fullmatch(source):
        source = ""
    if kind == "bind":
        source = posixpath.normpath(source)
    return Mount(source, posixpath.normpath(target), read_only, kind)


def _created_mounts(container: Json) -> Iterator[Mount]:
    for mount in container.get("Mounts") or ():
        source = mount.get("Name", "") if mount["Type"] == "volume" else mount.get("Source", "")
        yield _mount(mount["Type"], source, mount["Destination"], read_only=not mount["RW"])
    for target, options in (container["HostConfig"].get("Tmpfs") or {}).items():
        yield _mount("tmpfs", options, target, read_only=False)


def _declared_mounts(project: Json, service: Json, base: Json) -> Iterator[Mount]:
    taken = set()
    for mount in (*_volumes(project, service), *_tmpfs(service), *_shared_files(project, service)):
        taken.add(mount.target)
        yield mount
    for target in base.get("Volumes") or ():
        if posixpath.normpath(target) not in taken:
            yield _mount("volume", "", target, read_only=False)


def _volumes(project: Json, service: Json) -> Iterator[Mount]:
    named = project.get("volumes") or {}
    for volume in service.get("volumes") or ():
        source = volume.get("source", "")
        if volume["type"] == "volume" and source in named:
            source = named[source]["name"]
        yield _mount(volume["type"], source, volume["target"], read_only=bool(volume.get("read_only")))


def _tmpfs(service: Json) -> Iterator[Mount]:
    for entry in service.get("tmpfs") or ():
        target, _, options = entry.partition(":")
        yield _mount("tmpfs", options, target, read_only=False)


def _shared_files(project: Json, service: Json) -> Iterator[Mount]:
    """Secrets and configs that are files of the host: compose mounts them (others it copies in)."""
    for kind, folder in (("secrets", "/run/secrets/"), ("configs", "/")):
        for use in service.get(kind) or ():
            file = (project.get(kind) or {}).get(use["source"], {}).get("file")
            if file:
                target = posixpath.join(folder, use.get("target") or use["source"])
                yield _mount("bind", file, target, read_only=True)


# ------------------------------------------------------------------------------------- ports, devices, networks


def _port(ip: str, published: str, target: str) -> str:
    """`127.0.0.1:8095->8095/tcp`; `*` for every address, `any` for a port that Docker picks."""
    return f"{ip or '*'}:{published or 'any'}->{target}"


def _created_ports(bindings: Mapping[str, Sequence[Json] | None]) -> Iterator[str]:
    for target, places in bindings.items():
        for place in places or ():
            yield _port(place.get("HostIp", ""), place.get("HostPort", ""), target)


def _running_ports(
    asked: Mapping[str, Sequence[Json] | None], now: Mapping[str, Sequence[Json] | None]
) -> Iterator[str]:
    """Those that were asked for and are there, in the words of who asked; a network that was left takes them away."""
    for target, places in asked.items():
        there = {place.get("HostPort", "") for place in now.get(target) or ()}
        for place in places or ():
            port = place.get("HostPort", "")
            if port in there or (not port and there):
                yield _port(place.get("HostIp", ""), port, target)


def _declared_ports(service: Json) -> Iterator[str]:
    for port in service.get("ports") or ():
        target = f"{port['target']}/{port.get('protocol', 'tcp')}"
        yield _port(port.get("host_ip", ""), str(port.get("published") or ""), target)


def _request(driver: str, count: int, ids: Sequence[str], capabilities: Sequence[str], options: Json) -> str:
    """A device request: `nvidia gpu GPU-8f2c…`, `gpu all`."""
    which = ",".join(ids) or ("all" if count == -1 else str(count))
    words = [driver, "+".join(sorted(capabilities)), which, *(f"{k}={v}" for k, v in sorted(options.items()))]
    return " ".join(word for word in words if word)


def _device(source: str, target: str, permissions: str) -> str:
    return f"{source}:{target}:{permissions or 'rwm'}"


def _created_devices(host: Json) -> Iterator[str]:
    for request in host.get("DeviceRequests") or ():
        yield _request(
            request.get("Driver") or "",
            request.get("Count") or 0,
            request.get("DeviceIDs") or (),
            [name for group in request.get("Capabilities") or () for name in group],
            request.get("Options") or {},
        )
    for device in host.get("Devices") or ():
        yield _device(device["PathOnHost"], device["PathInContainer"], device.get("CgroupPermissions", ""))
    if host.get("Privileged"):
        yield "privileged"


def _declared_devices(service: Json) -> Iterator[str]:
    reservations = ((service.get("deploy") or {}).get("resources") or {}).get("reservations") or {}
    for request in reservations.get("devices") or ():
        yield _declared_request(request, ())
    for request in service.get("gpus") or ():
        yield _declared_request(request, ("gpu",))
    for device in service.get("devices") or ():
        source, target = device["source"], device["target"]
        if source == target and not source.startswith("/"):
            yield _request("cdi", 0, (source,), (), {})
        else:
            yield _device(source, target, device.get("permissions", ""))
    if service.get("privileged"):
        yield "privileged"


def _declared_request(request: Json, implied: Sequence[str]) -> str:
    return _request(
        request.get("driver") or "",
        int(request.get("count") or 0),
        request.get("device_ids") or (),
        sorted({*implied, *(request.get("capabilities") or ())}),
        request.get("options") or {},
    )


def _created_networks(container: Json) -> tuple[str, ...]:
    mode = container["HostConfig"].get("NetworkMode", "")
    if mode in ("host", "none"):
        return (mode,)
    if mode.startswith("container:"):
        return (OTHERS_NETWORK,)
    return tuple(sorted(container["NetworkSettings"].get("Networks") or ()))


def _declared_networks(project: Json, service: Json) -> tuple[str, ...]:
    mode = service.get("network_mode", "")
    if mode.startswith(("service:", "container:")):
        return (OTHERS_NETWORK,)
    if mode:
        return (mode,)
    named = project.get("networks") or {}
    return tuple(sorted(named[name]["name"] for name in service.get("networks") or ()))


# ------------------------------------------------------------------------------- healthcheck, restart, stopping


def _healthcheck(check: Json) -> str:
    """`CMD-SHELL curl … every 10s, time-out 5s, start period 600s, retries 3`; what isn't set isn't shown."""
    test = check.get("Test") or ()
    if not test:
        return ""
    if test[0] == "NONE":
        return "none"
    words = {
        "Interval": "every",
        "Timeout": "time-out",
        "StartPeriod": "start period",
        "StartInterval": "at first every",
    }
    times = [f"{word} {check[name] / 10**9:g}s" for name, word in words.items() if check.get(name)]
    retries = [f"retries {check['Retries']}"] if check.get("Retries") else []
    return ", ".join([" ".join(test), *times, *retries])


def _declared_healthcheck(service: Json, base: Json) -> Json:
    ours = service.get("healthcheck") or {}
    if ours.get("disable"):
        return {"Test": ["NONE"]}
    own = {
        "Test": ours.get("test"),
        "Interval": nanoseconds(ours.get("interval")),
        "Timeout": nanoseconds(ours.get("timeout")),
        "StartPeriod": nanoseconds(ours.get("start_period")),
        "StartInterval": nanoseconds(ours.get("start_interval")),
        "Retries": ours.get("retries"),
    }
    return {**base, **{name: value for name, value in own.items() if value}}


def _restart(policy: Json) -> str:
    name, times = str(policy.get("Name", "")), policy.get("MaximumRetryCount") or 0
    return f"{name}:{times}" if times else _RESTART.get(name, name)


def _declared_restart(service: Json) -> str:
    policy = (service.get("deploy") or {}).get("restart_policy")
    if policy and not service.get("restart"):
        name = policy.get("condition") or "any"
        return _restart({"Name": _RESTART.get(name, name), "MaximumRetryCount": policy.get("max_attempts")})
    return str(service.get("restart") or "no")


def _grace(seconds: int | None) -> float | None:
    return None if seconds is None else float(seconds)


def _whole_seconds(duration: str | None) -> int | None:
    """Docker's stop time-out is in whole seconds; compose cuts off the rest."""
    return None if duration is None else nanoseconds(duration) // 10**9


def nanoseconds(duration: str | None) -> int:
    """Go's way to write a duration: `1m30s`, `500ms`, `1.5h`. Nothing is 0."""
    return sum(round(float(number) * _NANOSECONDS[unit]) for number, unit in _DURATION.findall(duration or ""))
