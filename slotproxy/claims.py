"""What only one daemon may have: its port, its state folder, its control socket. Each is had, or CannotServe is raised.

The kernel drops the claims on port and folder with the process, however it ends. A socket's file stays when its daemon
is killed: the next daemon sees that nobody listens there any more, and takes its place.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from slotproxy.addresses import is_loopback
from swap.address import listener
from swap.durable import expect_regular
from swap.ports import Fault

BACKLOG = 2048
KNOCK_LIMIT = 2.0  # seconds that a live daemon has to accept on its socket
TURN_LIMIT = 5.0  # seconds to wait for another daemon that looks at the same control socket just now
CONTROL_MODE_MASK = 0o117  # leaves rw-rw----: whoever may open the socket may do everything


class CannotServe(Exception):
    """The daemon can't start: one line that says why and what to do."""


# ------------------------------------------------------------------------------------------------- the port


async def claim_port(host: str, port: int, otherwise: str) -> socket.socket:
    """The port, bound and not listening yet: connections are refused. Raises CannotServe naming who has it.

    `otherwise`: what to do where the port can't be had, such as "give another `listen:`".
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    claimed = socket.socket(family, socket.SOCK_STREAM)
    claimed.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        claimed.bind((host, port))
    except OSError as error:
        claimed.close()
        raise await _no_port(host, port, error, otherwise) from error
    return claimed


async def listen_at(claimed: socket.socket, otherwise: str) -> None:
    """Let clients in. Raises CannotServe: somebody else has been faster at a port that was only bound."""
    try:
        claimed.listen(BACKLOG)
    except OSError as error:
        host, port = claimed.getsockname()[:2]
        raise await _no_port(host, port, error, otherwise) from error


def expect_private(claimed: socket.socket, host: str) -> None:
    """Raises CannotServe: the port is open to others, though `listen:` names this machine alone.

    A name can lead elsewhere than it says, and a socket that systemd opened is where systemd was told.
    """
    there = str(claimed.getsockname()[0])
    if not is_loopback(there):
        what = f"`listen:` says {host}, which is {there} here: everyone on the network could use the card without a key"
        raise CannotServe(f"{what}; give an address, or each client a slot with a key_file")


async def _no_port(host: str, port: int, error: OSError, otherwise: str) -> CannotServe:
    who = ""
    with contextlib.suppress(Fault):
        who = str(await listener(host, port) or "")
    mend = f"{who} has it; stop that, or {otherwise}" if who else otherwise
    return CannotServe(f"can't listen at {host}:{port}: {error.strerror}; {mend}")


# ------------------------------------------------------------------------------------------------- the state folder


@contextlib.contextmanager
def state_folder(state: Path) -> Iterator[None]:
    """Two daemons on one state folder would both move the card.

    One that can't be written is had all the same, as long as it can be locked: what runs is served. Where there is no
    lock file yet, and none can be made, the folder itself is locked. Whoever locks the file has the folder meanwhile.
    """
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _unusable(state, error) from error
    with contextlib.ExitStack() as end:
        end.callback(os.close, folder)
        try:
            _lock_in_turn(folder, state)
            lock = _lock_file(state)
            if lock is not None:
                end.callback(os.close, lock)
                _lock(lock, state)
                fcntl.flock(folder, fcntl.LOCK_UN)
                _sign(lock)
        except OSError as error:
            raise _unusable(state, error) from error
        yield


def _unusable(state: Path, error: OSError) -> CannotServe:
    what = f"state: {state} can't be used: {error.strerror or error}"
    return CannotServe(f"{what}; make it a folder that this user may write, or give another `state:`")


def _lock_in_turn(folder: int, state: Path) -> None:
    deadline = time.monotonic() + TURN_LIMIT
    while not _locked(folder):
        if time.monotonic() > deadline:
            raise _taken(state, "")
        time.sleep(0.02)


def _lock_file(state: Path) -> int | None:
    """None where there is none, and none can be made."""
    path, flags = state / "daemon.lock", os.O_NONBLOCK | os.O_CLOEXEC
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o644)
    except OSError:
        try:
            lock = os.open(path, os.O_RDONLY | flags)
        except FileNotFoundError:
            return None
    try:
        expect_regular(lock, path)
    except OSError:
        os.close(lock)
        raise CannotServe(f"state: {path} is no regular file; remove it, or give another `state:`") from None
    return lock


def _lock(lock: int, state: Path) -> None:
    if not _locked(lock):
        pid = os.pread(lock, 20, 0).strip()
        raise _taken(state, f" (pid {pid.decode()})" if pid.isdigit() else "")


def _taken(state: Path, who: str) -> CannotServe:
    what = f"{state}: another slotproxy{who} works in this state folder"
    return CannotServe(f"{what}; stop it, or give this one another `state:`")


def _sign(lock: int) -> None:
    """For people's eyes: a full disk takes no number, and the lock holds without."""
    with contextlib.suppress(OSError):
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)


# ------------------------------------------------------------------------------------------------- the control socket


@contextlib.contextmanager
def control_socket(path: Path) -> Iterator[socket.socket]:
    """Listen at `path`: refused while a live daemon does, taken over from a dead one; gone when this ends."""
    try:
        listening, ours = _open(path)
    except OSError as error:
        what = f"control: can't listen at {path}: {error.strerror or error}"
        raise CannotServe(f"{what}; give another `control:`") from error
    try:
        with listening:
            yield listening
    finally:
        _remove(path, ours)


def _open(path: Path) -> tuple[socket.socket, tuple[int, int]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with _turn(path.parent):
        _make_room(path)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(CONTROL_MODE_MASK)  # it is there with its final mode, never for a moment with a wider one
        try:
            listening.bind(str(path))
            listening.listen(BACKLOG)  # still in our turn: to others, one that doesn't listen is a dead one's
        except OSError:
            listening.close()
            raise
        finally:
            os.umask(before)
        return listening, _identity(path)


def _make_room(path: Path) -> None:
    if path.is_socket():
        if _alive(path):
            what = f"control: a slotproxy is running at {path} already"
            raise CannotServe(f"{what}; stop it, or give this one another `control:`")
        path.unlink()
    elif path.exists() or path.is_symlink():
        raise CannotServe(f"control: {path} is there and is no socket; remove it, or give another `control:`")


def _alive(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knock:
        knock.settimeout(KNOCK_LIMIT)
        try:
            knock.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # it doesn't answer, or we may not ask: somebody has it
        return True


@contextlib.contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """One at a time looks at the sockets in a folder and changes them. Raises TimeoutError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + TURN_LIMIT
        while not _locked(handle):
            if time.monotonic() > deadline:
                raise TimeoutError(f"somebody has kept {folder} locked for {TURN_LIMIT:g} s")
            time.sleep(0.02)
        yield
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _remove(path: Path, ours: tuple[int, int]) -> None:
    """Only our own: somebody may have removed it, and another daemon made one in its place (with its inode, even)."""
    with contextlib.suppress(OSError), _turn(path.parent):
        if _identity(path) == ours and not _alive(path):
            path.unlink()
