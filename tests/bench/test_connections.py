"""A crowd that is small enough for every run; thousands come by `python -m tests.bench.connections`."""

from __future__ import annotations

import resource

from slotproxy.files import raise_limit
from tests.bench import connections
from tests.bench.connections import KiB, MiB
from tests.slotproxy.programs import LIMIT

COUNT = 1000
WAIT = 256  # as many as the usual slot lets wait


def test_a_crowd_is_let_in_or_told_and_costs_little_and_nobody_else_is_kept_waiting() -> None:
    raise_limit()
    count = min(COUNT, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - connections.OWN)
    with connections.running(None) as daemon:
        for kind in ("idle", "half-sent", "refused"):
            one = connections.come(kind, daemon, count)
            print(connections.shown(one))
            assert one.closed == 0
            assert one.stayed == (min(count, WAIT) if kind == "refused" else count)
            assert one.during.memory - one.before.memory < count * 64 * KiB + 8 * MiB
            assert all(max(waits) < LIMIT / 4 for waits in one.asked.values())
