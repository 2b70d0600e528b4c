"""The service manager's side of sd_notify: a datagram socket that keeps what it is told."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


class Manager:
    """`name`: what NOTIFY_SOCKET says of it."""

    def __init__(self, heard: socket.socket, name: str) -> None:
        self._heard, self.name = heard, name
        self._every: list[str] = []

    def told(self) -> list[str]:
        """What has come since the last call; each datagram's lines, joined by `|`."""
        came = []
        with contextlib.suppress(BlockingIOError):
            while True:
                came.append(self._heard.recv(65536).decode().replace("\n", "|"))
        self._every += came
        return came

    def every(self) -> list[str]:
        """What has come since the beginning."""
        self.told()
        return self._every


@contextlib.contextmanager
def listening(address: str) -> Iterator[Manager]:
    """At a path, or at an abstract name, which begins with a zero byte."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(address)
        heard.settimeout(0)
        yield Manager(heard, address.replace("\0", "@"))
