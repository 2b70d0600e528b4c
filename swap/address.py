"""Who listens at an engine's address before we start it: a stale server there would answer in our engine's place.

Reads `/proc/net/tcp{,6}` and the descriptors of every process. `listening` is pure. A socket of another network
namespace isn't in these tables, and one of another user's process has no owner that we may see: then pid 0.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from swap.drift import shown_line
from swap.ports import Fault
from swap.threads import HOST

LIMIT = 5.0  # seconds; a process stuck in the kernel can make its /proc entries hang
COMMAND_LENGTH = 200
_LISTEN = "0A"

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Listener:
    """A process that listens. `pid` 0 and an empty command: somebody does, and we may not see who."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.command or 'unknown'})" if self.pid else "a process that can't be seen from here"


async def listener(host: str, port: int) -> Listener | None:
    """Who would answer a connection to host:port on this machine; None: nobody. Raises Fault when it can't be told."""
    try:
        return await HOST.run(partial(_find, host, port, Path("/proc")), f"/proc, who listens at {host}:{port},", LIMIT)
    except (OSError, UnicodeError) as error:
        raise Fault(f"who listens at {host}:{port} can't be told: {error}", "check the engine's url") from error


def _find(host: str, port: int, proc: Path) -> Listener | None:
    addresses = [address for address in _resolve(host) if _is_ours(address)]
    tables = "\n".join(_read(proc / "net" / name) for name in ("tcp", "tcp6"))
    inodes = listening(tables, addresses, port)
    return _owner(inodes, proc) if inodes else None


def _resolve(host: str) -> set[Address]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return {ip_address(str(info[4][0]).partition("%")[0]) for info in found}


def _is_ours(address: Address) -> bool:
    """Whether this machine has the address: only then do its own listeners answer there. A container's isn't ours."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((str(address), 0))
        return True
    return False


def listening(table: str, addresses: Iterable[Address], port: int) -> set[str]:
    """The inodes of sockets that listen where a connection to one of `addresses` at `port` would arrive."""
    wanted = set(addresses)
    return {
        inode
        for line in table.splitlines()
        for local, inode in _socket_of(line)
        if local[1] == port and any(_catches(local[0], address) for address in wanted)
    }


def _socket_of(line: str) -> Iterator[tuple[tuple[Address, int], str]]:
    """`sl local remote st … inode`: the address, port and inode of a listening socket; nothing for other lines."""
    words = line.split()
    if len(words) > 9 and words[3] == _LISTEN:
        host, _, port = words[1].rpartition(":")
        yield (_address(host), int(port, 16)), words[9]


def _address(text: str) -> Address:
    """The kernel prints 32-bit words in the host's byte order (little-endian on every machine with such a card)."""
    raw = bytes.fromhex(text)
    turned = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    if len(turned) == 4:
        return IPv4Address(turned)
    address = IPv6Address(turned)
    return address.ipv4_mapped or address


def _catches(local: Address, wanted: Address) -> bool:
    """`::` takes IPv4 as well, as far as can be seen here; who binds a wildcard collides with everyone."""
    if local.version == 4 and wanted.version == 6:
        return wanted.is_unspecified
    return local == wanted or local.is_unspecified or wanted.is_unspecified


def _owner(inodes: set[str], proc: Path) -> Listener:
    targets = {f"socket:[{inode}]" for inode in inodes}
    for folder in proc.iterdir():
        if folder.name.isdigit() and any(link in targets for link in _descriptors(folder)):
            return Listener(int(folder.name), _command(folder))
    return Listener(0, "")


def _descriptors(folder: Path) -> Iterator[str]:
    """What a process has open; nothing where we may not look, or it has just ended."""
    with contextlib.suppress(OSError):
        for descriptor in (folder / "fd").iterdir():
            with contextlib.suppress(OSError):
                yield str(descriptor.readlink())


def _command(folder: Path) -> str:
    words = " ".join(shown_line(_read(folder / "cmdline").split("\0"))).strip() or _read(folder / "comm").strip()
    return words[:COMMAND_LENGTH]


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace")
    return ""
