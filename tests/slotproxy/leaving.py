"""Clients that leave, and how."""

from __future__ import annotations

import socket
import struct

from tests.slotproxy.rig import Client

WAYS = ("close", "half-close", "reset")


def leave(client: Client, way: str) -> None:
    """The way that it leaves: its socket closed, only its sending side, or a reset."""
    match way:
        case "half-close":
            client.writer.write_eof()
        case "reset":
            sock: socket.socket = client.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.writer.transport.abort()
        case _:
            client.writer.close()
