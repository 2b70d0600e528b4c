"""The outside worlds that a swap needs, each as small as it can be.

`Runtime`  one engine's container or process group: look, stage, start, stop.
`Card`     the GPU: absolute memory, who holds it, what it is.
`Ledger`   evidence of pairs.
`Journal`  what we were doing, on disk before we do it.
`Gate`     where requests wait (implemented by `slotproxy.gate`, used by the controller).

Every method that waits has a bound of its own and raises a `Fault` when it passes. The tree of faults:

    Fault                    says what happened, why, and what to do
    ├── Unreachable          Docker can't be asked (gone, too old, no permission); see `passing`
    ├── Foreign              a container of our name that isn't ours; never touched
    ├── CannotStage          the container can't be made what the pair declares; the old one is still there
    ├── CannotStart          the start was answered with an error; nothing runs
    ├── Unfinished           a call passed its bound and is still under way: the truth is unknown until it has ended
    └── CardUnknown          the card's memory can't be read
"""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator, Awaitable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from engines.spec import Pair


class Fault(Exception):
    """What happened and why (`what`), and what to do about it (`mend`); both are for the operator's eyes."""

    def __init__(self, what: str, mend: str = "", *, passing: bool = False) -> None:
        super().__init__(f"{what}; {mend}" if mend else what)
        self.what, self.mend, self.passing = what, mend, passing


class Unreachable(Fault):
    pass


class Foreign(Fault):
    pass


class CannotStage(Fault):
    pass


class CannotStart(Fault):
    pass


class CardUnknown(Fault):
    pass


class Unfinished(Fault):
    """`ended` completes (without a result) when the call that we stopped waiting for has really ended."""

    def __init__(self, what: str, mend: str = "", *, ended: Awaitable[None]) -> None:
        super().__init__(what, mend, passing=True)
        self.ended = ended


# ------------------------------------------------------------------------------------------------- what runs


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of the host (`source`; a named volume's name) at `target` in the container."""

    source: str
    target: str
    read_only: bool
    kind: str = "bind"


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that decides what an engine runs: as declared, or as a container was created. The two are compared.

    For a process: `image` is the executable, `image_id` its sha256, and only command and environment are set.
    Mappings are kept as sorted tuples so that recipes hash and compare.
    """

    image: str
    image_id: str  # sha256:…; the same content has another one in Docker's other image store
    image_content: str = ""  # sha256:… of all in the image that decides what runs; empty where the image is gone
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    working_dir: str = ""
    user: str = ""
    mounts: tuple[Mount, ...] = ()
    ports: tuple[str, ...] = ()  # 127.0.0.1:8095->8095/tcp
    devices: tuple[str, ...] = ()  # device requests and devices, rendered
    networks: tuple[str, ...] = ()
    healthcheck: str = ""
    restart: str = "no"
    stop_grace: float | None = None
    init: bool = False
    config_hash: str = ""  # compose's own hash of the service, where compose made it
    labels: tuple[tuple[str, str], ...] = ()  # of the container, without compose's own and the image's
    image_labels: tuple[tuple[str, str], ...] = ()
    contained: bool = True  # False: a process on the host, its paths are the host's

    @property
    def argv(self) -> tuple[str, ...]:
        """The whole command line: entry point and command."""
        return self.entrypoint + self.command


class Status(enum.Enum):
    ABSENT = "absent"
    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class Sight:
    """What a look at an engine's container (or process group) showed. `id` and `started_at` name that very one."""

    status: Status
    id: str = ""
    started_at: str = ""
    exit_code: int | None = None
    pid: int | None = None
    recipe: Recipe | None = None
    owner: str = ""  # compose project and service, or how it was made
    tag_id: str = ""  # the image id that the container's image *name* means now (it may have moved)
    finished_at: str = ""  # when its last run to end was seen dead, with all that it had started; as `time.time()`

    @property
    def running(self) -> bool:
        return self.status is Status.RUNNING


@dataclass(frozen=True, slots=True)
class Exit:
    """How a stop ended. `forced`: it had to be killed (137)."""

    code: int | None
    forced: bool


class Change(enum.Enum):
    STARTED = "started"
    DIED = "died"
    STOPPED = "stopped"  # somebody stopped it (Docker's `stop` event precedes its `die`)


@dataclass(frozen=True, slots=True)
class RuntimeEvent:
    """Something happened to the engine's container, ours or not."""

    change: Change
    id: str
    exit_code: int | None = None


class Runtime(Protocol):
    """One engine's container or process group. Nothing here decides; nothing here touches what is foreign."""

    async def look(self) -> Sight:
        """What is there now. Raises Unreachable, Foreign."""

    async def running(self) -> Recipe | None:
        """What really runs now, asked of the host and not of the creation; None: nothing does. For people's eyes."""

    async def has_image(self, image_id: str) -> bool:
        """False where that image isn't on this machine any more. Raises Unreachable."""

    async def declared(self, pair: Pair) -> Recipe:
        """What would run if it were created now. Raises Unreachable, CannotStage (file broken, image missing)."""

    async def stage(self, pair: Pair) -> Sight:
        """Make the *stopped* container the one that the pair declares, keeping the old creation body on disk first.

        Inspects what was made; wrong → the old one is made again and CannotStage raised. Refuses a running one.
        """

    async def put_back(self, recipe: Recipe) -> Sight:
        """Make the stopped container the one of this recipe again: same image id, same everything.

        One that is it already (staging failed) is left untouched, else what staging replaced last is made again if
        it is that. Otherwise, or while it runs, CannotStage, and nothing is touched.
        """

    async def recover(self) -> str:
        """Mend what an interrupted staging left behind, before anything is looked at; says what was done, or nothing.

        Raises CannotStage, Unreachable. A running container is never touched.
        """

    async def keep(self, image_id: str) -> None:
        """See to it that this image outlives a rebuild or a prune: evidence names it. Nothing where it is gone."""

    async def start(self, id: str) -> None:
        """Start that very container. Returns when it was started, not when it is ready.

        Raises CannotStart (with what the engine host said), Unfinished, Unreachable.
        """

    async def stop(self, id: str, grace: float) -> Exit:
        """SIGTERM, `grace` seconds, SIGKILL; returns when it is gone. Raises Unfinished, Unreachable."""

    async def ending(self, id: str, since: float) -> bool:
        """Was this running one told to stop since then (Unix time), and hasn't ended yet? Raises Unreachable."""

    async def correct_restart(self, id: str) -> None:
        """That container's restart policy is `no` from now on, whether or not it runs; nothing else of it changes."""

    async def log_tail(self, id: str) -> str:
        """The last lines of its output (64 KiB at most); empty where there is none."""

    def events(self) -> AsyncGenerator[RuntimeEvent, None]:
        """Changes from this call on. Ends, or raises Unreachable, when the source breaks: look, then ask again.

        Close it (`contextlib.aclosing`).
        """


# ------------------------------------------------------------------------------------------------- the card


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. Gate on `free` only: `used` differs between NVML's versions by what the driver reserves."""

    total: int
    free: int
    used: int
    reserved: int = 0


@dataclass(frozen=True, slots=True)
class CardProcess:
    """A process on the card. For messages only: drivers answer None, foreign pids, or nothing at all."""

    pid: int
    bytes: int | None = None
    name: str = ""
    container: str = ""


@dataclass(frozen=True, slots=True)
class CardIdentity:
    name: str
    uuid: str
    driver: str
    simulated: bool = False


class Card(Protocol):
    """One NVML device. Each call is bounded, runs off the event loop, and asks afresh."""

    async def memory(self) -> Memory:
        """Raises CardUnknown, with what to do."""

    async def processes(self) -> tuple[CardProcess, ...]:
        """Who holds memory, as far as the driver tells; empty when it doesn't. Never raises CardUnknown."""

    async def identity(self) -> CardIdentity:
        """Raises CardUnknown."""


# ------------------------------------------------------------------------------------------------- evidence


@dataclass(frozen=True, slots=True)
class FileDigest:
    """One file by its content. `path` is where it was read (host); identity is sha256 and size, not the path.

    `seen`: the very state in which it was hashed, for whoever asks later whether it is still in that one.
    """

    path: str
    size: int
    sha256: str
    seen: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Subject:
    """What evidence is about. Two subjects are the same pair when their `key()` is the same (`swap.ledger`)."""

    engine: str
    image_id: str  # recorded beside the content; the key leaves it out where the content is known
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]  # values of secrets hashed
    files: tuple[FileDigest, ...]
    image_content: str = ""
    working_dir: str = ""
    user: str = ""
    mounts: tuple[Mount, ...] = ()
    devices: tuple[str, ...] = ()


class Outcome(enum.Enum):
    SERVED = "served"
    FAILED = "failed"
    ATTESTED = "attested"  # the operator's word that it runs: no evidence, counts only where the configuration says so
    REVOKED = "revoked"  # the operator's word that it shall not: takes away all that came before


@dataclass(frozen=True, slots=True)
class Evidence:
    """One line of the ledger. `when` is UTC, ISO 8601; `ready_in` seconds from start to ready."""

    subject: Subject
    key: str
    outcome: Outcome
    pair: str  # the label that it had then
    when: str
    how: str  # "swap", "trial", "adopt", "operator"
    card: CardIdentity
    image: str = ""
    ready_in: float | None = None
    tokens: int | None = None
    tokens_per_second: float | None = None
    vram_peak: int | None = None  # bytes of the card in use at most while it started and answered
    reason: str = ""
    recipe: Recipe | None = None  # all of what ran, values of secrets hashed: what `drift` compares with
    extra: Mapping[str, Any] = field(default_factory=dict)


class Ledger(Protocol):
    """What was recorded. What it means for a pair is worked out in `swap.standing`."""

    def evidence(self) -> tuple[Evidence, ...]:
        """All of it, oldest first."""

    def record(self, evidence: Evidence) -> None:
        """Append, fsynced when it returns. Raises Fault (disk full, read-only): nothing that was there is lost."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """What we were about to do. `serving` is the label that last served, with its container's id.

    `unit`, `unit_id`: what `step` is about, with its container's id. `refused`: ids of what runs, and gets no request.
    """

    step: str
    serving: str | None = None
    serving_id: str | None = None
    goal: str | None = None
    order: str | None = None
    trial: bool = False
    when: str = ""  # UTC, ISO 8601
    unit: str | None = None
    unit_id: str | None = None
    refused: tuple[str, ...] = ()


class Journal(Protocol):
    def read(self) -> JournalEntry | None:
        """The last entry, or None (none written yet). A damaged file raises Fault naming it."""

    def write(self, entry: JournalEntry) -> None:
        """Durable and atomic when it returns (temporary file, fsync, rename, fsync of the folder)."""


# ------------------------------------------------------------------------------------------------- the gate


class Gate(Protocol):
    """The controller's side of the gate. Requests go through ⇔ it is open and no hold is set."""

    def open(self, engine: str, concurrency: int, run: str = "") -> None:
        """Release waiting requests to `engine`, never more than `concurrency` at once; `run` tells its runs apart."""

    def close(self) -> None:
        """Everyone waits. Requests in flight go on."""

    def refuse(self, reason: str) -> None:
        """Everyone, also who waits, is answered 503 with `reason`."""

    async def drained(self, timeout: float) -> bool:
        """True as soon as no client's request is in flight; False after `timeout` seconds."""

    def cut(self) -> int:
        """Ask every request in flight to end in-band now; returns how many were asked."""


def artifact_paths(recipe: Recipe, inside: tuple[str, ...]) -> dict[str, Path | None]:
    """Map paths as the engine sees them to host paths through the recipe's mounts; None: no bind mount holds it."""
    if not recipe.contained:
        return {path: Path(path) for path in inside}
    return {path: _through_mounts(recipe.mounts, path) for path in inside}


def _through_mounts(mounts: tuple[Mount, ...], path: str) -> Path | None:
    """By the innermost mount: what it covers of an outer one can't be seen in there."""
    for mount in sorted(mounts, key=lambda m: len(m.target), reverse=True):
        target = mount.target.rstrip("/") or "/"
        if path == target or path.startswith(target.rstrip("/") + "/"):
            return Path(mount.source) / path[len(target) :].lstrip("/") if mount.kind == "bind" else None
    return None
