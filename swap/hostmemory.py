"""Host memory: some engines pin tens of gigabytes of it, and get them back late."""

from __future__ import annotations

from pathlib import Path

from swap.ports import Fault


def available(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Bytes that a new process could take without swapping (MemAvailable). Raises Fault when that can't be read."""
    try:
        for line in meminfo.read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) * 1024
    except (OSError, ValueError, IndexError) as error:
        raise Fault(f"{meminfo} can't be read: {error}", "look after /proc", passing=True) from error
    raise Fault(f"{meminfo} has no MemAvailable", "host memory can't be checked on this kernel")
