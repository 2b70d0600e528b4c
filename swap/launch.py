"""Starts a process in such an order that no crash of ours can lose it: it is on record before it runs.

What is forked first is a launcher, this very file run as a script, in a session of its own. It waits for its orders on
stdin. Its pid and start time stay the engine's, so they can be written down now; then the orders are sent, and it
becomes the engine by exec. If we die before, the pipe ends without orders and it exits without having run anything.

The engine gets exactly its command and environment, `/` as its folder, /dev/null as stdin, the log as stdout and
stderr, default signals, no other descriptor. Only the standard library is imported: the launcher starts in 20 ms.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

VERDICT = 3  # the launcher's descriptor for what went wrong; closed by the exec: nothing did
LIMIT = 20.0  # seconds for all that the launcher does
_NO_ORDERS, _CANNOT_RUN = 125, 127  # exit codes


class Launch:
    """A launcher that waits: `go` makes it the engine, `abandon` ends it. One of the two must be called."""

    def __init__(self, log: Path) -> None:
        """Fork it. Its output is appended to `log`. Raises OSError."""
        orders, self._orders = os.pipe()
        self._verdict, verdict = os.pipe()
        actions = [
            (os.POSIX_SPAWN_DUP2, orders, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
            (os.POSIX_SPAWN_DUP2, verdict, VERDICT),
        ]
        command = [sys.executable, "-I", "-S", str(Path(__file__).resolve())]
        defaults = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
        try:
            self.pid = os.posix_spawn(
                command[0], command, {}, file_actions=actions, setsid=True, setsigmask=(), setsigdef=defaults
            )
        except OSError:
            self._close()
            raise
        finally:
            os.close(orders)
            os.close(verdict)

    def go(self, program: str, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Returns when it has become the program. Raises OSError with the reason; then `abandon` it."""
        orders = json.dumps({"program": program, "argv": list(argv), "env": dict(env)}).encode()
        with os.fdopen(self._orders, "wb") as pipe:
            self._orders = -1
            pipe.write(orders)
        verdict = self._read_verdict()
        if verdict:
            raise OSError(verdict)
        self._close()

    def abandon(self) -> None:
        """End it: nothing of it is left when this returns. Not reaped yet, it still has its pid."""
        self._close()
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def _read_verdict(self) -> str:
        deadline, said = time.monotonic() + LIMIT, b""
        while select.select([self._verdict], [], [], max(0.0, deadline - time.monotonic()))[0]:
            piece = os.read(self._verdict, 4096)
            if not piece:
                return said.decode(errors="replace")
            said += piece
        raise TimeoutError(f"its start took more than {LIMIT:g} s")

    def _close(self) -> None:
        for descriptor in (self._orders, self._verdict):
            if descriptor >= 0:
                os.close(descriptor)
        self._orders = self._verdict = -1


def main() -> None:
    """The launcher's side."""
    os.set_inheritable(VERDICT, False)
    os.closerange(VERDICT + 1, os.sysconf("SC_OPEN_MAX"))
    try:
        orders = json.loads(sys.stdin.buffer.read())
    except ValueError:  # none, or cut off: who should have sent them has died
        os._exit(_NO_ORDERS)
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir("/")
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, and an exec hands that on
            signal.signal(ignored, signal.SIG_DFL)
        os.execve(orders["program"], orders["argv"], orders["env"])
    except (OSError, ValueError) as error:
        os.write(VERDICT, str(error).encode(errors="replace"))
        os._exit(_CANNOT_RUN)


if __name__ == "__main__":
    main()
