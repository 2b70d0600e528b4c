"""How many files and connections this process may have open.

Without a free one nothing can be accepted any more, slotctl's calls included, and asyncio says so without end.
"""

from __future__ import annotations

import resource
import sys

RESERVE = 100
"""What clients' connections leave for all the rest: engines, Docker, slotctl, files, and telling clients to go away."""


def raise_limit() -> None:
    """As far as it may go without more rights: the usual soft limit (1024) is for programs that use select()."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def for_clients() -> int:
    """How many connections clients may have at once."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else max(1, soft - RESERVE)
