"""The one YAML file: typed settings, every default here and nowhere else.

Where a key isn't set: an engine's facts come from its profile; everything else from the types below, and
  listen     127.0.0.1:8080
  control    /run/slotproxy/control.sock
  state      /var/lib/slotproxy; the simulated card's folder is `card` in it
  default    the only engine, where there is one only
  slots      `anonymous`, where listen is loopback
  models     `"*"`: every name is accepted and passed on as it is. As a key, its value is `{}` or `true`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from engines.spec import Engine, MiB
from slotproxy.addresses import is_loopback
from slotproxy.config_cors import CorsSettings, cors_of
from slotproxy.config_engines import engines_of
from slotproxy.config_file import host_path, read
from slotproxy.config_keys import CardKeys, LimitsKeys, schema
from slotproxy.config_notify import NotifySettings, notify_of
from slotproxy.config_slots import SlotSettings, slots_of
from slotproxy.config_tls import TlsSettings, tls_of
from slotproxy.config_yaml import ConfigError, Place, parse
from slotproxy.units import format_size, show

__all__ = [
    "DEFAULT_CONTROL",
    "CardSettings",
    "ConfigError",
    "Limits",
    "Settings",
    "SlotSettings",
    "check_fits",
    "config_path",
    "control_of",
    "load",
    "schema",
]

DEFAULT_PATH: Final = Path("/etc/slotproxy/slotproxy.yml")
DEFAULT_LISTEN: Final = "127.0.0.1:8080"
DEFAULT_CONTROL: Final = Path("/run/slotproxy/control.sock")
DEFAULT_STATE: Final = Path("/var/lib/slotproxy")
EVERY_NAME: Final = "*"
LONGEST_SOCKET_PATH: Final = 107  # bytes; the kernel's sockaddr_un has no room for more


@dataclass(frozen=True, slots=True)
class CardSettings:
    """`gpu`: UUID or index; or `simulated`: bytes, with `folder` holding the simulated card's state."""

    gpu: str | None = None
    simulated: int | None = None
    folder: Path | None = None
    headroom: int = 256 * MiB
    baseline: int = 0
    on_change: str = "warn"  # or "refuse": what another GPU or driver than in the evidence means


@dataclass(frozen=True, slots=True)
class Limits:
    """Global limits of what is held. Sizes in bytes, times in seconds."""

    max_body: int = 32 * MiB
    max_waiting: int = 512
    max_waiting_bytes: int = 256 * MiB
    first_ping: float = 15.0
    ping_every: float = 15.0
    warm_turns: int = 3
    warm_wait: float = 0.25


@dataclass(frozen=True, slots=True)
class Settings:
    path: Path
    host: str
    port: int
    control: Path
    state: Path
    card: CardSettings
    engines: Mapping[str, Engine]
    default: str | None
    models: Mapping[str, Mapping[str, str]]  # what clients say -> engine -> what the engine is sent
    slots: Mapping[str, SlotSettings]
    limits: Limits = field(default_factory=Limits)
    drain: float = 60.0  # how long a swap waits for requests in flight before it is given up
    freeing: float = 60.0  # how long a swap waits for VRAM
    stop_limit: float = 30.0  # how long SIGTERM may take
    on_stop: str = "keep"  # or "stop": what becomes of the engine then
    notify: NotifySettings = field(default_factory=NotifySettings)
    tls: TlsSettings | None = None  # None: plain HTTP
    cors: CorsSettings = field(default_factory=CorsSettings)
    docker: str | None = None  # the Docker daemon's address; None: DOCKER_HOST, else the usual socket


def config_path(given: str | None) -> Path:
    """Which file: `--config`, else $SLOTPROXY_CONFIG, else /etc/slotproxy/slotproxy.yml."""
    return Path(given or os.environ.get("SLOTPROXY_CONFIG") or DEFAULT_PATH)


def load(path: Path) -> Settings:
    """Read and check the file. Raises ConfigError: the message names the key's path and what was expected."""
    at = Place(path)
    keys = read(path)
    host, port = _listen(keys.listen or DEFAULT_LISTEN, at / "listen")
    engines = engines_of(keys.engines, at / "engines")
    state = keys.state or DEFAULT_STATE
    settings = Settings(
        path=path,
        host=host,
        port=port,
        control=_socket(keys.control or DEFAULT_CONTROL, at / "control"),
        state=state,
        card=_card(keys.card, state, at / "card"),
        engines=engines,
        default=_default(keys.default, engines, at / "default"),
        models=_models(keys.models, engines, at / "models"),
        slots=slots_of(keys.slots, host, at / "slots"),
        limits=_limits(keys.limits or LimitsKeys(), at / "limits"),
        cors=cors_of(keys.cors, at / "cors"),
        tls=tls_of(keys.tls, at / "tls"),
        docker=_docker(keys.docker, at / "docker"),
        notify=notify_of(keys.notify, at / "notify"),
        **keys.written("drain", "freeing", "stop_limit", "on_stop"),
    )
    _check_addresses(settings, at)
    for problem in check_fits(settings, settings.card.simulated, 0) if settings.card.simulated else ():
        raise at.wrong(problem)
    return settings


def check_fits(settings: Settings, total: int, reserved: int) -> list[str]:
    """What can't fit a card of `total` bytes of which the driver keeps `reserved`: one line for each engine."""
    card = settings.card
    room = total - reserved - card.baseline - card.headroom
    return [
        f"engines.{engine.name}.vram: {format_size(engine.vram)} can't fit the card: of its {format_size(total)} it"
        f" leaves {format_size(max(0, room))}, less {format_size(reserved)} reserved, card.baseline"
        f" {format_size(card.baseline)} and card.headroom {format_size(card.headroom)}; lower what is too high"
        for engine in settings.engines.values()
        if engine.vram > room
    ]


def control_of(path: Path) -> Path:
    """The control socket that the file names, without reading the keys' files: those who only look may not read them.

    Raises ConfigError.
    """
    at = Place(path)
    document = parse(path)
    written = document.get("control") if isinstance(document, dict) else None
    return DEFAULT_CONTROL if written is None else _socket(host_path(written, at / "control"), at / "control")


def _listen(written: str, at: Place) -> tuple[str, int]:
    host, _, port = written.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if (
        not re.fullmatch(r"[A-Za-z0-9.:_-]+(%[A-Za-z0-9._-]+)?", host)
        or not re.fullmatch(r"[0-9]{1,5}", port)
        or int(port) > 65535
    ):
        raise at.wrong(f"{show(written)} is no address; write HOST:PORT, such as {DEFAULT_LISTEN}")
    return host, int(port)


def _socket(path: Path, at: Place) -> Path:
    length = len(os.fsencode(path))
    if length > LONGEST_SOCKET_PATH:
        raise at.wrong(
            f"{path} has {length} bytes; a socket's path may have {LONGEST_SOCKET_PATH}: write a shorter one"
        )
    return path


def _card(keys: CardKeys, state: Path, at: Place) -> CardSettings:
    if (keys.gpu is None) == (keys.simulated is None):
        raise at.wrong("needs exactly one of gpu (a UUID or an index) and simulated (a size)")
    if keys.folder and keys.simulated is None:
        raise (at / "folder").wrong("belongs to a simulated card; remove it, or write simulated in place of gpu")
    gpu = None if keys.gpu is None else str(keys.gpu)
    if gpu is not None and not re.fullmatch(r"[0-9]{1,3}|(GPU|MIG)-[0-9A-Za-z-]+", gpu):
        raise (at / "gpu").wrong(
            f"{show(keys.gpu)} is no GPU; write its index, or its UUID as `nvidia-smi -L` shows it"
        )
    folder = keys.folder or (state / "card" if keys.simulated is not None else None)
    return CardSettings(gpu=gpu, folder=folder, **keys.written("simulated", "headroom", "baseline", "on_change"))


def _default(written: str | None, engines: Mapping[str, Engine], at: Place) -> str | None:
    if written is None:
        return next(iter(engines)) if len(engines) == 1 else None
    _check_engine(written, engines, at)
    return written


def _check_engine(name: str, engines: Mapping[str, Engine], at: Place) -> None:
    if name not in engines:
        raise at.wrong(f"no engine is named {show(name)}; there are: {', '.join(engines)}")


def _models(
    written: Mapping[str, dict[str, str] | bool] | None, engines: Mapping[str, Engine], at: Place
) -> dict[str, dict[str, str]]:
    if not written:
        return {EVERY_NAME: {}}
    return {name: _model(name, sent, engines, at / name) for name, sent in written.items()}


def _model(name: str, sent: dict[str, str] | bool, engines: Mapping[str, Engine], at: Place) -> dict[str, str]:
    if name == EVERY_NAME:
        if sent is True or sent == {}:
            return {}
        raise at.wrong(f"{show(sent)}: every name is passed on as it is; write true or {{}}")
    if isinstance(sent, bool) or not sent:
        raise at.wrong("says for no engine what it is sent; write {ENGINE: NAME}")
    for engine in sent:
        _check_engine(engine, engines, at / engine)
    return sent


def _limits(keys: LimitsKeys, at: Place) -> Limits:
    limits = Limits(**keys.written())
    if limits.max_body > limits.max_waiting_bytes:
        raise (at / "max_waiting_bytes").wrong(
            f"{format_size(limits.max_waiting_bytes)} can't hold one body of max_body, {format_size(limits.max_body)};"
            " raise it or lower max_body"
        )
    return limits


def _docker(written: str | None, at: Place) -> str | None:
    if written is not None and not re.fullmatch(r"(unix|tcp|http|https|ssh)://[!-~]+", written):
        raise at.wrong(f"{show(written)} is no address; write one such as unix:///var/run/docker.sock")
    return written


def _check_addresses(settings: Settings, at: Place) -> None:
    for engine in settings.engines.values():
        host, _, port = engine.url.removeprefix("http://").rpartition(":")
        if int(port) == settings.port and (is_loopback(host.strip("[]")) or host == settings.host):
            raise (at / "engines" / engine.name / "url").wrong(
                f"{engine.url} is where the proxy itself listens; give one of them another port"
            )
