"""systemd: what it is told of the daemon's life (sd_notify), in datagrams to $NOTIFY_SOCKET; and a port from it.

READY=1 says that clients are let in, whatever Docker, the card and the engines do: those are the daemon's affair, and a
service manager that waits for them would end us for their faults. WATCHDOG=1 comes from the event loop, so a loop that
hangs is seen. A socket that fails is logged once and costs nothing else: who can't be told that we live ends us.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator, MutableMapping

import structlog

from slotproxy.claims import CannotServe
from slotproxy.desk import Desk
from swap.state import phase

FIRST = 3  # the descriptor of the first socket that systemd hands over
STATUS_EVERY = 1.0  # seconds between looks at what the status line should say
LONGEST_STATUS = 500  # characters of it; the whole reason is in the log and in `slotctl status`


class Systemd:
    """The service manager that started us, if one did. Every call returns at once and raises nothing."""

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        """Takes its variables out of `environ`: what we start in turn must not speak in our name."""
        self._address = _address(environ.pop("NOTIFY_SOCKET", ""))
        usec, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        meant = pid in ("", str(os.getpid()))
        self._patience = int(usec) / 1_000_000 if meant and usec.isdecimal() else 0.0  # seconds; 0: no watchdog
        self._status = ""
        self._unsent: list[str] = []
        self._failed = False

    def ready(self) -> None:
        """Clients are let in."""
        self._tell("READY=1")

    @contextlib.contextmanager
    def reloading(self) -> Iterator[None]:
        """Around a reload of the configuration, whether or not it is taken."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            yield
        finally:
            self._tell("READY=1")

    async def accompany(self, line: Callable[[], str], stop: asyncio.Event) -> None:
        """Tell that the event loop lives, and `line` each time that it has changed, until `stop` is set: that, too."""
        async with asyncio.TaskGroup() as tasks:
            telling = [
                tasks.create_task(self._keep_alive(), name="watchdog"),
                tasks.create_task(self._keep_status(line), name="status line"),
            ]
            await stop.wait()
            for task in telling:
                task.cancel()
        self._tell("STOPPING=1", _status("stopping"))

    async def _keep_alive(self) -> None:
        """Twice in the time that systemd waits for a sign of life."""
        while self._address and self._patience:
            self._tell("WATCHDOG=1")
            await asyncio.sleep(self._patience / 2)

    async def _keep_status(self, line: Callable[[], str]) -> None:
        while self._address:
            if (now := line()) != self._status:
                self._status = now
                self._tell(_status(now))
            self._send()
            await asyncio.sleep(STATUS_EVERY)

    def _tell(self, *lines: str) -> None:
        if self._address:
            word = lines[0].partition("=")[0]  # a newer one of its kind takes its place
            self._unsent = [one for one in self._unsent if one.partition("=")[0] != word] + ["\n".join(lines)]
            self._send()

    def _send(self) -> None:
        """All that is unsent. A manager that is busy for a moment hears it at the next look."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            try:
                while self._unsent:
                    sender.sendto(self._unsent[0].encode(), self._address)
                    del self._unsent[0]
            except BlockingIOError:
                return
            except OSError as error:
                self._unsent.clear()
                self._complain(error)

    def _complain(self, error: OSError) -> None:
        """Once: it would be the same each second."""
        if not self._failed:
            structlog.get_logger("slotproxy").warning(
                "systemd can't be told how slotproxy is; it may end it for that",
                socket=self._address.replace("\0", "@"),
                why=str(error),
            )
        self._failed = True


def handed_over(
    host: str, port: int, environ: MutableMapping[str, str] = os.environ, first: int = FIRST
) -> socket.socket | None:
    """The client port, where systemd listens there (`slotproxy.socket`): who connects while we are away waits for us.

    None: it doesn't. Raises CannotServe where it isn't the port of the configuration: clients would be elsewhere.
    """
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    environ.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or count in ("", "0"):
        return None
    given = socket.socket(fileno=first)
    given.set_inheritable(False)
    there = given.getsockname()
    if count == "1" and isinstance(there, tuple) and there[:2] == (host, port):
        return given
    given.close()
    where = f"{there[0]}:{there[1]}" if isinstance(there, tuple) else repr(there)
    what = f"systemd listens at {where}{'' if count == '1' else ' and elsewhere'}, `listen:` says {host}:{port}"
    raise CannotServe(f"{what}; make them one, `ListenStream=` of slotproxy.socket, or disable that")


def _address(named: str) -> str:
    """A path, or an abstract name, which is written with an @; empty: nobody is to be told."""
    return f"\0{named[1:]}" if named.startswith("@") else named


def _status(line: str) -> str:
    """One line, whatever is in it: each line of a datagram is an assignment of its own."""
    return f"STATUS={' '.join(line.split())[:LONGEST_STATUS]}"


def in_a_line(desk: Desk) -> str:
    """What people want to know first: who serves, or why nobody does."""
    state, order = desk.controller.state, desk.controller.under_way
    serves = f"{state.serving.label} serves" if state.serving is not None else ""
    if order is not None:
        failed = f"; it failed: {state.failure}" if state.failure else ""
        line = f"swap to {order.engine}:{order.pair}: {phase(state)}{failed}"
    elif serves:
        line = serves
    elif (dark := desk.dark()) is not None:
        line = f"nothing serves: {dark['reason']}{'; it is tried again' if dark['passing'] else ''}"
    else:
        line = f"nothing serves yet: {phase(state)}"
    return line if desk.gate.view().held_for is None else f"{line}; requests are held"
