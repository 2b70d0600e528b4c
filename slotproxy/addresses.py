"""Which addresses and names mean this very machine, whoever asks."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Of an address in any of its forms, or `localhost`. A name that leads to one isn't: it may lead elsewhere."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
