"""A Docker daemon of a test session's own, which tests may restart and kill: in namespaces of its own (root).

    with PrivateDocker(folder) as private, private.inside():
        bed = DockerBed(private.address)
        …
        private.restart()

Its network is no one else's: a second daemon in the host's would take `docker0` down. So whoever speaks to an engine,
and the proxy too, has to be *inside*: the thread that enters, and each thread and process that it starts there. Unix
sockets, Docker's own and slotproxy's control socket, lead in from everywhere.

`live-restore` is off, as it is by default: what runs ends with the daemon. A daemon that was killed leaves its
containers running; they end when it is started again. `hold_starts` makes each start of a container that asks for a GPU
wait in the daemon's hands, as a slow driver would.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.system.bed import ping

LIMIT = 60.0  # seconds for what takes one or two
PAUSE = 0.02
HOOK = """#!/bin/sh
# Stands for the NVIDIA Container Toolkit's hook, in dockerd's hands while it starts a container that asks for a GPU.
[ -e {hold} ] && touch {held}
while [ -e {hold} ]; do sleep 0.02; done
"""
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_SET_FLAGS, _UP = 0x8914, 0x1  # SIOCSIFFLAGS, IFF_UP


def lacking() -> str:
    """Why there can be none here; empty: there can."""
    missing = [name for name in ("dockerd", "nsenter", "unshare") if shutil.which(name) is None]
    if missing:
        return f"a private Docker daemon needs {', '.join(missing)}"
    return "" if os.geteuid() == 0 else "a private Docker daemon needs root"


class PrivateDocker:
    """`folder`: all that is the daemon's; it has to be short (a socket's path is), and is removed at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"unix://{folder}/docker.sock"
        self._hold, self.held = folder / "hold", folder / "held"  # `held`: a start waits
        self._closing = ExitStack()
        self._holder: subprocess.Popen[bytes] | None = None
        self._daemon: subprocess.Popen[bytes] | None = None

    # ------------------------------------------------------------------------------------------ the daemon

    def start(self) -> None:
        """Returns when it answers."""
        assert self._daemon is None
        assert self._holder is not None
        enter = ["nsenter", "--target", str(self._holder.pid), "--net", "--mount"]
        own = {"host": self.address, "pidfile": self.folder / "pid", "exec-root": self.folder / "exec"}
        own |= {"data-root": self.folder / "data", "config-file": self.folder / "daemon.json"}
        flags = [f"--{name}={value}" for name, value in own.items()]
        env = {**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        with (self.folder / "log").open("ab") as log:
            self._daemon = subprocess.Popen([*enter, "dockerd", *flags], env=env, stdout=log, stderr=log)
        self._wait(self._answers, "it to answer")

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """SIGTERM stops what runs first; after SIGKILL it runs on. Returns when the daemon has ended."""
        self.tell(number)
        self.wait_ended()

    def tell(self, number: signal.Signals) -> None:
        assert self._daemon is not None
        self._daemon.send_signal(number)

    def wait_ended(self) -> None:
        daemon, self._daemon = self._daemon, None
        assert daemon is not None
        if daemon.wait(LIMIT) == -signal.SIGKILL:
            self._forget_containerd()

    def _forget_containerd(self) -> None:
        """It dies with dockerd, which takes it for alive until it is reaped; in a container nobody may do that."""
        file = self.folder / "exec/containerd/containerd.pid"
        process = Path("/proc") / file.read_text() / "stat"
        self._wait(lambda: not process.exists() or ") Z " in process.read_text(), "containerd to end")
        file.unlink()

    def start_if_down(self) -> None:
        if self._daemon is not None and self._daemon.poll() is not None:
            self.wait_ended()
        if self._daemon is None:
            self.start()

    def restart(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.end(number)
        self.start()

    def hold_starts(self) -> None:
        """From now on, until `let_start`; `held` is there once one waits."""
        self.held.unlink(missing_ok=True)
        self._hold.touch()

    def let_start(self) -> None:
        self._hold.unlink(missing_ok=True)

    def _answers(self) -> bool:
        assert self._daemon is not None
        assert self._daemon.poll() is None, f"dockerd has ended:\n{self.tail()}"
        return ping(self.address)

    def _wait(self, true: Any, what: str) -> None:
        deadline = time.monotonic() + LIMIT
        while not true():
            assert time.monotonic() < deadline, f"waited {LIMIT:g} s for {what}\n{self.tail()}"
            time.sleep(PAUSE)

    def tail(self) -> str:
        """The last lines of its log, for messages."""
        return "\n".join((self.folder / "log").read_text(errors="replace").splitlines()[-12:])

    # ------------------------------------------------------------------------------------------ its network

    @contextmanager
    def inside(self) -> Iterator[None]:
        """This thread, and what it starts, in the daemon's network; the thread comes back after the block."""
        assert self._holder is not None
        with Path("/proc/thread-self/ns/net").open() as ours, Path(f"/proc/{self._holder.pid}/ns/net").open() as its:
            _enter(its.fileno())
            try:
                yield
            finally:
                _enter(ours.fileno())

    def _bring_up_loopback(self) -> None:
        with self.inside(), socket.socket() as any_socket:
            fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh22x", b"lo", _UP))

    # ------------------------------------------------------------------------------------------ its life

    def __enter__(self) -> Self:
        (self.folder / "bin").mkdir(parents=True)
        (self.folder / "daemon.json").write_text("{}")  # not the host's own configuration
        hook = self.folder / "bin" / "nvidia-container-runtime-hook"
        hook.write_text(HOOK.format(hold=self._hold, held=self.held))
        hook.chmod(0o755)
        hold = ["unshare", "--net", "--mount", "--propagation", "private", "sleep", "infinity"]
        self._holder = holder = subprocess.Popen(hold)
        ours = Path("/proc/self/ns/net").readlink()
        self._wait(lambda: Path(f"/proc/{holder.pid}/ns/net").readlink() != ours, "its namespaces")
        self._bring_up_loopback()
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """By pid. A daemon that was killed is started once more: it alone knows what it has left running."""
        self.let_start()
        try:
            self.start_if_down()
            self.end()
        finally:
            self._end_shims()
            self._end_holder()
            left = [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(self.folder) in line]
            assert not left, left
            shutil.rmtree(self.folder)

    def _end_shims(self) -> None:
        """What a daemon leaves that is killed while it starts a container; it names our folder."""
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if f"{self.folder}/exec/containerd/containerd.sock".encode() in (process / "cmdline").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)

    def _end_holder(self) -> None:
        with suppress(FileNotFoundError, ProcessLookupError, ValueError):  # it ends with dockerd, as a rule
            os.kill(int((self.folder / "exec/containerd/containerd.pid").read_text()), signal.SIGKILL)
        assert self._holder is not None
        self._holder.kill()
        self._holder.wait(LIMIT)


def _enter(descriptor: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _NEW_NETWORK) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
