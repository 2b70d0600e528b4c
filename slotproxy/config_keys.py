"""The keys of the configuration file, as types: what may stand where, and what each key means.

The loader (`slotproxy.config_file`) and the JSON Schema for editors both come from these types. A key that isn't
set is None here; its default stands in `slotproxy.config` or comes from the engine's profile.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from slotproxy.units import DURATION, SIZE, parse_duration, parse_size


class Size(int):
    """Bytes, written with a unit."""

    @classmethod
    def read(cls, written: object) -> Size:
        return cls(parse_size(written))


class Seconds(float):
    """Seconds, written with a unit."""

    @classmethod
    def read(cls, written: object) -> Seconds:
        return cls(parse_duration(written))


class Paths(tuple[Path, ...]):
    """One path or a list of them, absolute or relative to the file."""

    __slots__ = ()


Count = Annotated[int, Meta(ge=1)]
Limit = Annotated[int, Meta(ge=0)]


class Keys(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A group of keys."""

    def written(self, *names: str) -> dict[str, Any]:
        """Those of the keys (all, where none is named) that are set: the rest keeps the defaults of what they go to."""
        values = {name: getattr(self, name) for name in names or self.__struct_fields__}
        return {name: value for name, value in values.items() if value is not None}


class CardKeys(Keys):
    gpu: Annotated[str | int | None, Meta(description="UUID of the GPU (GPU-8f2c…), or its index")] = None
    simulated: Annotated[Size | None, Meta(description="in place of gpu: a simulated card of this size")] = None
    folder: Annotated[Path | None, Meta(description="the simulated card's state (default: card, under state)")] = None
    headroom: Annotated[Size | None, Meta(description="free memory on top of the engine's need before a start")] = None
    baseline: Annotated[Size | None, Meta(description="what is always in use, such as a desktop")] = None
    on_change: Annotated[
        Literal["warn", "refuse"] | None,
        Meta(description="what another GPU or driver than in a pair's evidence means (default: warn)"),
    ] = None


class ComposeKeys(Keys):
    file: Annotated[Path, Meta(description="the compose file that declares the container")]
    service: Annotated[str, Meta(description="the service in it")]


class SourceKeys(Keys):
    tree: Annotated[Path, Meta(description="the source tree that the image is built from")]
    commit: Annotated[str, Meta(description="the commit that the tree must stay at")]


class PairKeys(Keys):
    artifact: Annotated[Paths, Meta(description="the model file, or a list of files ([] if it has none)")]
    image: Annotated[str | None, Meta(description="the image; without a container: the executable")] = None
    config_files: Annotated[Paths | None, Meta(description="configuration files that the engine really reads")] = None
    env: Annotated[dict[str, str] | None, Meta(description="environment of the compose command")] = None
    files: Annotated[Paths | None, Meta(description="further compose files, merged over the first")] = None
    reads: Annotated[Count | None, Meta(description="the artifact version that the image reads")] = None
    source: Annotated[SourceKeys | None, Meta(description="what the image is built from")] = None
    command: Annotated[list[str] | None, Meta(description="without a container: the exact command line")] = None


class EngineKeys(Keys):
    profile: Annotated[str, Meta(description="the kind of engine: ninfer, strata, llamacpp or openai")]
    vram: Annotated[Size, Meta(description="the memory of the card that it needs")]
    pairs: Annotated[dict[str, PairKeys], Meta(description="what it can run: image and artifact, by name")]
    url: Annotated[str | None, Meta(description="where it listens (default: 127.0.0.1, the profile's port)")] = None
    container: Annotated[str | None, Meta(description="the name of its container")] = None
    compose: Annotated[ComposeKeys | None, Meta(description="where the container is declared")] = None
    command: Annotated[list[str] | None, Meta(description="in place of container: the exact command line")] = None
    env: Annotated[dict[str, str] | None, Meta(description="with command: its exact environment")] = None
    deployed: Annotated[str | None, Meta(description="the pair that a swap means (default: the only one)")] = None
    host_memory: Annotated[Size | None, Meta(description="host memory that must be available before a start")] = None
    concurrency: Annotated[Count | None, Meta(description="requests sent to it at once (profile)")] = None
    prefixes: Annotated[Limit | None, Meta(description="conversations whose prefix it keeps (profile)")] = None
    stop_grace: Annotated[Seconds | None, Meta(description="from SIGTERM to SIGKILL (profile)")] = None
    start_deadline: Annotated[Seconds | None, Meta(description="from start to ready (profile)")] = None
    probe_model: Annotated[str | None, Meta(description="the model of the completion that proves readiness")] = None
    probe_tokens: Annotated[Count | None, Meta(description="how many tokens that completion asks for")] = None
    max_failures: Annotated[
        Count | None, Meta(description="how often in a row it may fail before another verified engine gets the card")
    ] = None
    trial_tokens: Annotated[Count | None, Meta(description="how many tokens a trial's completion asks for")] = None
    require: Annotated[
        Literal["verified", "attested", "candidate"] | None,
        Meta(description="what a pair must have before it gets the card without a trial (default: verified)"),
    ] = None
    useless_after: Annotated[Limit | None, Meta(description="errors in a row; then it is restarted (0: never)")] = None
    health_failures: Annotated[Limit | None, Meta(description="the same of its own sign of health (0: never)")] = None
    health_every: Annotated[Seconds | None, Meta(description="between two looks at that sign (0: none)")] = None
    api_key_file: Annotated[Path | None, Meta(description="the file that holds the engine's API key")] = None
    passthrough: Annotated[list[str] | None, Meta(description="further paths of it that clients may reach")] = None


class SlotKeys(Keys):
    key_file: Annotated[
        Path | None, Meta(description="the file that holds the client's key, or several, or their hashes: one a line")
    ] = None
    key_env: Annotated[str | None, Meta(description="in place of key_file: the variable that holds the same")] = None
    priority: Annotated[int | None, Meta(description="higher goes first")] = None
    max_in_flight: Annotated[Count | None, Meta(description="requests at the engine at once")] = None
    max_waiting: Annotated[Count | None, Meta(description="requests that wait; more are answered 429")] = None
    max_hold: Annotated[Seconds | None, Meta(description="longest wait; then 503")] = None
    defaults: Annotated[dict[str, Any] | None, Meta(description="request fields set where the client sets none")] = None
    id_slot: Annotated[
        Limit | None, Meta(description="the KV slot, from 0, that answers it in an engine that has such (llama.cpp)")
    ] = None
    by_path: Annotated[
        bool | None, Meta(description="whether /slot/NAME in the path is enough to use it, without its key")
    ] = None
    allow_remote: Annotated[
        bool | None, Meta(description="anonymous and by_path only: also where listen isn't loopback")
    ] = None


class LimitsKeys(Keys):
    max_body: Annotated[Size | None, Meta(description="largest request body; larger are answered 413")] = None
    max_waiting: Annotated[Count | None, Meta(description="requests that wait, of all slots together")] = None
    max_waiting_bytes: Annotated[Size | None, Meta(description="their bodies together")] = None
    first_ping: Annotated[Seconds | None, Meta(description="until a waiting stream gets its first comment")] = None
    ping_every: Annotated[Seconds | None, Meta(description="between the comments that follow")] = None
    warm_turns: Annotated[Limit | None, Meta(description="turns in a row for a warm cache (0: none)")] = None
    warm_wait: Annotated[Seconds | None, Meta(description="how long a place stays free for the next turn")] = None


class NotifyKeys(Keys):
    command: Annotated[list[str] | None, Meta(description="a program and its arguments; the event is its stdin")] = None
    webhook: Annotated[str | None, Meta(description="a URL that the event is posted to as JSON")] = None
    on: Annotated[
        list[str] | None, Meta(description="kinds of events (default: dark, recovered, restored, failed, useless)")
    ] = None


class TlsKeys(Keys):
    certificate: Annotated[Path, Meta(description="PEM: the certificate, and after it those that lead to its root")]
    key: Annotated[Path | None, Meta(description="PEM: its private key (default: in the certificate's file)")] = None


class CorsKeys(Keys):
    origins: Annotated[list[str], Meta(description="web pages that may ask, such as https://chat.example")]
    allow_any: Annotated[bool | None, Meta(description="lets '*' and 'null' stand in origins")] = None
    max_age: Annotated[Seconds | None, Meta(description="how long browsers keep what they may ask (10m)")] = None


class FileKeys(Keys):
    card: Annotated[CardKeys, Meta(description="the one card: gpu or simulated")]
    engines: Annotated[dict[str, EngineKeys], Meta(description="the engines that share the card, by name")]
    listen: Annotated[str | None, Meta(description="HOST:PORT where clients connect (default 127.0.0.1:8080)")] = None
    tls: Annotated[TlsKeys | None, Meta(description="the client port speaks HTTPS with this certificate")] = None
    cors: Annotated[CorsKeys | None, Meta(description="which web pages may ask from a browser")] = None
    control: Annotated[Path | None, Meta(description="slotctl's socket")] = None
    state: Annotated[Path | None, Meta(description="the folder of journal and ledger")] = None
    default: Annotated[str | None, Meta(description="the engine to start with (default: the only one)")] = None
    models: Annotated[
        dict[str, dict[str, str] | bool] | None,
        Meta(description="what clients call a model -> what each engine calls it; '*': true accepts every name"),
    ] = None
    slots: Annotated[dict[str, SlotKeys] | None, Meta(description="clients' places, by name")] = None
    limits: Annotated[LimitsKeys | None, Meta(description="global limits of what waits")] = None
    drain: Annotated[Seconds | None, Meta(description="how long a swap waits for requests in flight")] = None
    freeing: Annotated[Seconds | None, Meta(description="how long a swap waits for the card's memory")] = None
    stop_limit: Annotated[Seconds | None, Meta(description="how long the proxy's own end may take")] = None
    on_stop: Annotated[
        Literal["keep", "stop"] | None,
        Meta(description="whether the engine runs on when the proxy is stopped (keep), or is stopped, too"),
    ] = None
    notify: Annotated[NotifyKeys | None, Meta(description="who hears of what went wrong")] = None
    docker: Annotated[str | None, Meta(description="the Docker daemon's address, such as unix:///run/docker.sock")] = (
        None
    )


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the configuration file, for editors."""
    made = msgspec.json.schema(FileKeys, schema_hook=_schema_of)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "slotproxy.yml", **made}


def _schema_of(kind: type) -> dict[str, Any]:
    if kind is Size:
        return {"type": ["string", "integer"], "pattern": SIZE.pattern, "minimum": 0, "maximum": 0}
    if kind is Seconds:
        return {"type": ["string", "integer"], "pattern": DURATION.pattern, "minimum": 0, "maximum": 0}
    path = {"type": "string", "pattern": "^[^~]"}
    if kind is Paths:
        return {"anyOf": [path, {"type": "array", "items": path}]}
    return path
