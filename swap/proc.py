"""What /proc tells of processes, and signals that can't hit the wrong one.

A pid alone names nobody for long: the kernel uses it again. `Mark` (pid, start time, boot) names one process for ever.
A session keeps its number as long as it has a member, so the members of a marked leader's session are found by it,
also when the leader itself has died. All calls here are short and synchronous: call them off the event loop.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_CONTAINER = re.compile(r"\b([0-9a-f]{64})\b")


@dataclass(frozen=True, slots=True)
class Mark:
    """One process for ever. `start`: clock ticks from boot to its fork (field 22 of /proc/PID/stat)."""

    pid: int
    start: int
    boot: str


@dataclass(frozen=True, slots=True)
class Process:
    """One line of /proc/PID/stat. `dead`: only its exit status is left (a zombie with no thread still going)."""

    pid: int
    parent: int
    session: int
    start: int
    dead: bool


def boot_id() -> str:
    """Names this boot of the machine."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def process(pid: int) -> Process | None:
    """The process that has this pid now; None: nobody."""
    try:
        line = (PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = line[line.rindex(b")") + 2 :].split()  # the command's name before it may hold spaces and brackets
    dead = fields[0] in b"ZX" and int(fields[17]) <= 1
    return Process(pid, int(fields[1]), int(fields[3]), int(fields[19]), dead)


def mark(pid: int) -> Mark:
    """The mark of a process that can't go away now, such as a child of ours. Raises ProcessLookupError."""
    found = process(pid)
    if found is None:
        raise ProcessLookupError(f"no process {pid}")
    return Mark(pid, found.start, boot_id())


def lives(marked: Mark) -> bool:
    """Whether that very process lives."""
    found = process(marked.pid)
    return found is not None and not found.dead and found.start == marked.start and boot_id() == marked.boot


def command_line(marked: Mark) -> tuple[str, ...]:
    """The words of that very process as /proc shows them; empty when it has gone, or may not be looked at."""
    try:
        words = (PROC / str(marked.pid) / "cmdline").read_bytes()
    except OSError:
        return ()
    told = tuple(word.decode(errors="surrogateescape") for word in words.rstrip(b"\0").split(b"\0"))
    return told if words and lives(marked) else ()


def session(leader: Mark) -> list[Process]:
    """The members of the leader's session, dead ones too. None when the leader's pid has gone to somebody else."""
    now = process(leader.pid)
    if boot_id() != leader.boot or (now is not None and now.start != leader.start):
        return []
    return [found for found in _everyone() if found.session == leader.pid]


def living(leader: Mark) -> list[Process]:
    """The session's living members. Empty is looked at twice: a fork during the first look may have escaped it."""
    return _living(leader) or _living(leader)


def reap(leader: Mark) -> int | None:
    """Collect the session's dead that are our children. The leader's exit code (128 + signal), where it was one."""
    code = None
    for found in session(leader):
        if found.dead and found.parent == os.getpid():
            ended = _reaped(found.pid)
            code = ended if found.pid == leader.pid else code
    return code


def send(target: Process, number: signal.Signals) -> None:
    """Signal that very process or, when it has gone, nobody. Raises PermissionError."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(target.pid)
        try:  # the descriptor holds on to one process: compare after it is open, and no other can be hit
            now = process(target.pid)
            if now is not None and (now.start, now.session) == (target.start, target.session):
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def name(pid: int) -> str:
    """What a person would call it: the program, and the script or module where it is an interpreter; "" if unknown.

    No more of the command line than that: what follows may be a secret.
    """
    try:
        words = (PROC / str(pid) / "cmdline").read_text(errors="replace").split("\0")
        program = Path(words[0]).name or (PROC / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return ""
    script = words[2:3] if words[1:2] == ["-m"] else [Path(word).name for word in words[1:2] if word[:1] != "-"]
    return " ".join([program, *script]).strip()


def container(pid: int) -> str:
    """The id (12 digits) of the container that it runs in, as far as its control groups tell; else ""."""
    try:
        found = _CONTAINER.search((PROC / str(pid) / "cgroup").read_text())
    except OSError:
        return ""
    return found[1][:12] if found else ""


def _everyone() -> Iterator[Process]:
    for entry in os.listdir(PROC):  # noqa: PTH208 - names are all that is wanted, at a tenth of the cost
        if entry.isdecimal() and (found := process(int(entry))) is not None:
            yield found


def _living(leader: Mark) -> list[Process]:
    return [found for found in session(leader) if not found.dead]


def _reaped(pid: int) -> int | None:
    try:
        waited, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    code = os.waitstatus_to_exitcode(status) if waited else None
    return 128 - code if code is not None and code < 0 else code
