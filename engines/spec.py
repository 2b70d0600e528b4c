"""Engine, Pair and Profile: what the rest of the house may know of an inference server.

A profile holds the facts about one kind of engine. An `Engine` is one server of that kind as the operator has
configured it, a `Pair` one image-and-artifact combination that it can run. All three are plain values: nothing
here opens a file or a connection.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engines import failing

GiB = 1024**3
MiB = 1024**2


class Api(enum.Enum):
    """The wire protocol of a client path: decides error shapes, end markers and keep-alives."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    COUNT_TOKENS = "count_tokens"
    EMBEDDINGS = "embeddings"
    OTHER = "other"


CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
EMBEDDINGS = "/v1/embeddings"


@dataclass(frozen=True, slots=True)
class Sign:
    """An engine's own sign of readiness: one GET, judged by status and body.

    `timeout` is in seconds and short: some engines accept connections long before they answer.
    """

    path: str
    judge: Callable[[int, bytes], bool]
    timeout: float = 2.0


@dataclass(frozen=True, slots=True)
class Probe:
    """A request of a few tokens that only a working engine can answer; `judge` reads status and body."""

    path: str
    body: bytes
    judge: Callable[[int, bytes], bool]


class Settling(enum.Enum):
    """How one knows that an engine is free again after a client has left in the middle.

    AT_ONCE: closing the connection cancels the work, or the engine can queue the next one without harm.
    COMPLETION: the engine goes on (a prefill can't be cancelled); it is free when a tiny completion is answered.
    """

    AT_ONCE = "at once"
    COMPLETION = "completion"


class ArtifactError(Exception):
    """An artifact file that isn't what it should be: one line that says what was found."""


class CannotRead(ArtifactError):
    """It could not be read just now, which says nothing of the file: its disk hangs, no process could be started."""


@dataclass(frozen=True, slots=True)
class Part:
    """A further file of a split artifact, beside the first. `fault` says why it isn't whole; empty where it is."""

    name: str
    size: int
    expected_size: int
    fault: str = ""


@dataclass(frozen=True, slots=True)
class ArtifactHeader:
    """What an artifact says of itself. None of it is evidence that it runs."""

    format: str  # "ninfer" or "gguf"
    version: int
    model: str
    quantization: str
    objects: int  # GGUF: tensors
    expected_size: int  # bytes that the (first) file must have at least; smaller: truncated
    size: int
    architecture: str = ""  # GGUF only
    components: tuple[str, ...] = ()  # .ninfer version 3 only
    parts: tuple[Part, ...] = ()  # the files after the first

    @property
    def fault(self) -> str:
        """Why it isn't whole; empty where it is."""
        if self.size < self.expected_size:
            return f"it is truncated: {self.size} bytes, its header says at least {self.expected_size}"
        return next((f"its part {part.name} isn't whole: {part.fault}" for part in self.parts if part.fault), "")

    @property
    def whole(self) -> bool:
        return not self.fault


@dataclass(frozen=True, slots=True)
class BakedDifference:
    """A setting whose baked value isn't the one that is declared now. Both as they may be shown."""

    variable: str
    declared: str
    baked: str


@dataclass(frozen=True, slots=True)
class Baked:
    """Configuration that an image writes once, from its environment, and runs from then on whatever that says later."""

    pattern: str  # the files, as the engine sees them
    anew: str  # the variable that makes it write them anew at each start, where it is 1
    ours: Callable[[Mapping[str, str], Mapping[str, Any]], bool]  # (environment, a file) -> is it this model's?
    differences: Callable[[Mapping[str, str], Mapping[str, Any]], tuple[BakedDifference, ...]]
    unsaid: Callable[[Mapping[str, str], Mapping[str, Any]], tuple[str, ...]]  # variables that the file says nothing of


@dataclass(frozen=True, slots=True)
class Profile:
    """The facts about one kind of engine. Times in seconds."""

    name: str
    default_port: int
    sign: Sign | None  # None: a completion is the only sign
    probe: Callable[[str, int], Probe]  # (model, tokens) -> a tiny completion
    concurrency: int  # requests that may be sent to it at once
    settling: Settling
    settle_limit: float  # after so long a settling place is given up as free
    client_paths: Mapping[str, Api]  # POST paths that clients reach, and their protocol
    stop_grace: float
    start_deadline: float
    artifacts: Callable[[Sequence[str], Mapping[str, str]], tuple[str, ...]]
    """(command line, environment) -> the artifact paths in it, as the engine sees them (container paths)."""
    configuration: Callable[[Sequence[str], Mapping[str, str]], tuple[str, ...]] = lambda _argv, _env: ()
    """The same of the configuration files in it."""
    models_in: Callable[[Mapping[str, Any]], tuple[str, ...]] = lambda _said: ()  # what such a file, JSON, names
    read_artifact: Callable[[Path], ArtifactHeader] | None = None  # raises ArtifactError, OSError
    reads_label: str | None = (
        None  # the image label that states which one artifact version it reads; None: it reads all
    )
    baked: Baked | None = None
    kv_slot: Mapping[Api, str] = field(default_factory=dict)  # the request's field that says which KV slot answers it
    prefixes: int = 0  # conversations whose prefix stays in its cache, where that is known
    takes_what_is_free: bool = False  # its cache grows into all that is free: what it takes says nothing of its need
    stream_idle_limit: float = 600.0  # silence in a stream after which the request (never the engine) is ended
    broken: Callable[[int, bytes], bool] = failing.broken
    """(status, body) of an error -> may it mean that the whole engine fails? See `engines.failing`."""


@dataclass(frozen=True, slots=True)
class Source:
    """The source tree that an image is built from, and the commit that it must stay at."""

    tree: Path
    commit: str


@dataclass(frozen=True, slots=True)
class Pair:
    """What an engine runs: image + artifact, with its command line and environment.

    For an engine without a container `image` is the path of the executable and `command` the exact command line.
    `artifacts` and `config_files` are host paths. `env` and `files` go to the compose command.
    `reads` is the artifact version that the image reads, where the operator states it.
    """

    engine: str
    name: str
    image: str
    artifacts: tuple[Path, ...]
    config_files: tuple[Path, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    command: tuple[str, ...] = ()
    reads: int | None = None
    source: Source | None = None

    @property
    def label(self) -> str:
        """The name that operators use: `ninfer:v2`."""
        return f"{self.engine}:{self.name}"


class Require(enum.Enum):
    """What a pair must have before it gets the card without a trial. Each accepts what stands before it, too."""

    VERIFIED = "verified"  # it has served on this card
    ATTESTED = "attested"  # the operator says that it runs
    CANDIDATE = "candidate"  # its files are there and fit


@dataclass(frozen=True, slots=True)
class ComposeService:
    """Where a container is declared."""

    file: Path
    service: str


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine as configured. Sizes in bytes, times in seconds.

    Exactly one of `container` and `command` is set: an engine runs in a container or as a process group of its own.
    """

    name: str
    profile: Profile
    url: str  # http://127.0.0.1:8095, no trailing slash
    vram: int
    pairs: Mapping[str, Pair]
    deployed: str  # the pair that `swap to-ENGINE` means
    container: str | None = None
    compose: ComposeService | None = None
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)  # for `command` engines: its exact environment
    host_memory: int | None = None
    concurrency: int = 1
    prefixes: int = 0  # conversations whose prefix it keeps; 0: the order of requests is none of its concern
    stop_grace: float = 60.0
    start_deadline: float = 600.0
    api_key: str | None = field(default=None, repr=False)
    passthrough: frozenset[str] = frozenset()
    probe_model: str | None = None  # the model name a probe sends; None: the first that GET /v1/models names
    probe_tokens: int = 4
    trial_tokens: int = 64  # what a trial's completion asks for, so that its speed says something
    max_failures: int = 3  # in a row, before another verified engine gets the card
    require: Require = Require.VERIFIED
    useless_after: int = 3  # explicit errors in a row; 0: never for that reason
    health_failures: int = 3  # failures in a row of its own sign, asked every `health_every`; 0: never for that reason
    health_every: float = 10.0  # 0: its sign isn't asked while it serves

    @property
    def deployed_pair(self) -> Pair:
        return self.pairs[self.deployed]
