"""From an engine's keys to an `Engine`: profile's facts where nothing is set, and what must hold between the keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar
from urllib.parse import urlsplit

from engines.profiles import PROFILES
from engines.spec import ComposeService, Engine, Pair, Profile, Require, Source
from slotproxy.config_file import existing, host_path, secret
from slotproxy.config_keys import ComposeKeys, EngineKeys, PairKeys, SourceKeys
from slotproxy.config_yaml import Place
from slotproxy.units import show

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_HOST = re.compile(r"[A-Za-z0-9.:-]+")
_T = TypeVar("_T")


def engines_of(written: Mapping[str, EngineKeys], at: Place) -> dict[str, Engine]:
    """Every engine. Raises ConfigError, also when two of them are at the same address or in the same container."""
    if not written:
        raise at.wrong("names no engine; write at least one")
    engines = {name: _engine(name, keys, at / name) for name, keys in written.items()}
    _all_different({name: engine.url for name, engine in engines.items()}, "url", at)
    _all_different({name: e.container for name, e in engines.items() if e.container}, "container", at)
    return engines


def check_name(name: str, at: Place) -> None:
    """Names stand on command lines (`to-ENGINE:PAIR`) and in file names. Raises ConfigError."""
    if not _NAME.fullmatch(name):
        raise at.wrong("is no name; write letters, digits, '.', '_' and '-', at most 64")


def _engine(name: str, keys: EngineKeys, at: Place) -> Engine:
    check_name(name, at)
    if name.startswith("to-"):
        raise at.wrong(f"`slotctl swap {name}` would mean {name.removeprefix('to-')}; write a name without to-")
    profile = _profile(keys.profile, at / "profile")
    _check_container_or_command(keys, at)
    command = _command(keys.command or [], at / "command")
    pairs = {pair: _pair(name, pair, keys.pairs[pair], command, at / "pairs" / pair) for pair in keys.pairs}
    return Engine(
        name=name,
        profile=profile,
        url=_url(keys.url or f"http://127.0.0.1:{profile.default_port}", at / "url"),
        vram=keys.vram,
        pairs=pairs,
        deployed=_deployed(name, keys.deployed, pairs, at),
        container=keys.container,
        compose=_compose(keys.compose, at / "compose"),
        command=command,
        env=keys.env or {},
        host_memory=keys.host_memory,
        concurrency=_else(keys.concurrency, profile.concurrency),
        prefixes=_else(keys.prefixes, profile.prefixes),
        stop_grace=_else(keys.stop_grace, profile.stop_grace),
        start_deadline=_else(keys.start_deadline, profile.start_deadline),
        api_key=secret(keys.api_key_file, at / "api_key_file") if keys.api_key_file else None,
        passthrough=_paths_of_urls(keys.passthrough or [], at / "passthrough"),
        probe_model=keys.probe_model,
        **keys.written(
            "probe_tokens", "trial_tokens", "max_failures", "useless_after", "health_failures", "health_every"
        ),
        require=Require(keys.require or "verified"),
    )


def _else(written: _T | None, otherwise: _T) -> _T:
    return otherwise if written is None else written


def _profile(name: str, at: Place) -> Profile:
    if name not in PROFILES:
        raise at.wrong(f"no profile is named {show(name)}; there are: {', '.join(PROFILES)}")
    return PROFILES[name]


def _check_container_or_command(keys: EngineKeys, at: Place) -> None:
    if keys.container and keys.command:
        raise at.wrong("has container and command; an engine runs in a container or by a command, remove one")
    if not keys.container and not keys.command and not all(pair.command for pair in keys.pairs.values()):
        raise at.wrong("has neither container nor command; name its container, or write the command that runs it")
    if keys.command and keys.compose:
        raise (at / "compose").wrong("an engine by command isn't declared by compose; remove one of the two")
    if keys.container and keys.env:
        raise (at / "env").wrong("a container's environment is declared by its compose file; remove it here")
    for name, pair in keys.pairs.items():
        if keys.container and pair.command:
            raise (at / "pairs" / name / "command").wrong("a container's command is declared by its compose file")


def _pair(engine: str, name: str, keys: PairKeys, command: tuple[str, ...], at: Place) -> Pair:
    check_name(name, at)
    own = _command(keys.command or [], at / "command") or command
    image = keys.image
    if own:
        image = own[0] if image is None else _executable(image, at / "image")
    if not image:
        raise (at / "image").wrong("is missing: the image that runs, such as ninfer:local")
    return Pair(
        engine=engine,
        name=name,
        image=image,
        artifacts=keys.artifact,
        config_files=keys.config_files or (),
        env=keys.env or {},
        files=keys.files or (),
        command=own,
        reads=keys.reads,
        source=_source(keys.source, at / "source"),
    )


def _command(words: list[str], at: Place) -> tuple[str, ...]:
    return (_executable(words[0], at), *words[1:]) if words else ()


def _executable(written: str, at: Place) -> str:
    """Its content is part of the pair's identity, so it is a path: not whatever PATH finds that day."""
    if "/" not in written:
        raise at.wrong(f"{show(written)} is no path; write the executable's whole path, such as /usr/bin/{written}")
    return str(host_path(written, at))


def _deployed(engine: str, written: str | None, pairs: Mapping[str, Pair], at: Place) -> str:
    if not pairs:
        raise (at / "pairs").wrong("names no pair; write at least one: what image runs which artifact")
    if written is None:
        if len(pairs) > 1:
            raise (at / "deployed").wrong(f"is missing: which of {', '.join(pairs)} does `swap to-{engine}` mean?")
        return next(iter(pairs))
    if written not in pairs:
        raise (at / "deployed").wrong(f"{engine} has no pair {show(written)}; there are: {', '.join(pairs)}")
    return written


def _compose(keys: ComposeKeys | None, at: Place) -> ComposeService | None:
    return ComposeService(existing(keys.file, at / "file"), keys.service) if keys else None


def _source(keys: SourceKeys | None, at: Place) -> Source | None:
    if keys and not re.fullmatch(r"[0-9a-fA-F]{7,40}|[0-9a-fA-F]{64}", keys.commit):
        raise (at / "commit").wrong(
            f"{show(keys.commit)} is no commit; write its hash, 7 to 40 hexadecimal digits (or all 64 of a SHA-256):"
            " a branch or a tag can move, so it pins nothing"
        )
    return Source(keys.tree, keys.commit) if keys else None


def _url(written: str, at: Place) -> str:
    """`http://HOST:PORT`, without the slash at the end."""
    try:
        parts = urlsplit(written)
        plain = parts.scheme == "http" and parts.port and not parts.username and not parts.query and not parts.fragment
        host = parts.hostname or ""
    except ValueError:
        plain, host = None, ""
    if not plain or parts.path not in ("", "/") or not _HOST.fullmatch(host):
        raise at.wrong(f"{show(written)} is no engine's address; write one such as http://127.0.0.1:8090")
    return f"http://{f'[{host}]' if ':' in host else host}:{parts.port}"


def _paths_of_urls(written: list[str], at: Place) -> frozenset[str]:
    for path in written:
        if not re.fullmatch(r"/[!-~]*", path) or "?" in path:
            raise at.wrong(f"{show(path)} is no path of a URL; write one such as /v1/embeddings")
        if path.startswith("/slot/"):
            raise at.wrong(f"{show(path)}: what begins with /slot/ names a slot here, and can't be passed through")
    return frozenset(written)


def _all_different(values: Mapping[str, str], key: str, at: Place) -> None:
    first: dict[str, str] = {}
    for name, value in values.items():
        other = first.setdefault(value.replace("//localhost:", "//127.0.0.1:"), name)
        if other != name:
            raise (at / name / key).wrong(f"{value} is {other}'s, too; each engine needs its own")
