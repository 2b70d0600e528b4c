"""What do thousands of connections cost, and who notices? A real daemon, a crowd from another process, others beside.

    python -m tests.bench.connections [N]     N connections (10000) of each kind, one kind after the other, twice

Kinds: `idle` sends nothing, `half-sent` the beginning of a head, `waiting` a small request that waits for the card (the
limits on waiting are raised for it), `refused` the same with the usual limits. Prints, for each: how many stayed, were
told that there is no room or closed without a word; the daemon's memory for each of them, and what is left of it; how
long the others had to wait meanwhile (median and most): a client that keeps its connection, one that comes anew each
time, an operator. N is scaled to the limit of open files.
"""

from __future__ import annotations

import contextlib
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slotproxy.files import raise_limit
from tests.bench.crowd import Crowd, Others, Stay, stay
from tests.slotproxy.programs import chat, ended_engines, env, free_port, quick_house, slotctl, status, until

MANY = 10_000
OWN = 200  # files that this process needs for itself
KiB, MiB = 1024, 1024**2


@dataclass(frozen=True, slots=True)
class Running:
    """A daemon with an engine on its card; requests wait, as it is told to hold them."""

    pid: int
    port: int
    control: Path

    def waiting(self) -> int:
        found: int = status(self.control)["gate"]["waiting"]
        return found


def main(words: list[str]) -> int:
    count = int(words[0]) if words else MANY
    raise_limit()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - OWN
    if count > most:
        print(f"{count} are too many for the limit of open files here: {most}")
    print(
        f"{'kind':>10}  {'stayed':>6}  {'told':>5}  {'closed':>6}  {'seconds':>7}  {'KiB each':>8}  {'MiB left':>8}",
        end="",
    )
    print(*(f"{who + ' ms':>18}" for who in ("client", "newcomer", "operator")))
    for one in stays(min(count, most), rounds=2):
        print(shown(one), flush=True)
    return 0


def stays(count: int, rounds: int) -> Iterator[Stay]:
    """Each kind, so often. Raises AssertionError where one does harm."""
    with running(count) as daemon:
        for _ in range(rounds):
            yield from (come(kind, daemon, count) for kind in ("idle", "half-sent", "waiting"))
    with running(None) as daemon:
        yield come("refused", daemon, count)


def come(kind: str, daemon: Running, count: int) -> Stay:
    """One crowd of this kind."""
    request = _request(daemon.port)
    sent = {"idle": b"", "half-sent": request[:60]}.get(kind, request)
    others, waiting = Others(daemon.port, daemon.control), daemon.waiting if sent == request else None
    return stay(kind, daemon.pid, others, crowd=Crowd(daemon.port, sent), count=count, waiting=waiting)


@contextlib.contextmanager
def running(most_waiting: int | None) -> Iterator[Running]:
    """It may have so many requests waiting; None: as usual."""
    with tempfile.TemporaryDirectory(prefix="crowd-") as temporary:
        folder, port = Path(temporary), free_port()
        control, log = folder / "control.sock", folder / "log"
        most = {"max_waiting": most_waiting}
        limits = {"limits": most, "slots": {"anonymous": {**most, "max_hold": "1h"}}} if most_waiting else {}
        house = quick_house(folder, listen=f"127.0.0.1:{port}", **limits)
        command = [sys.executable, "-m", "slotproxy", "serve", "--config", str(house)]
        with ended_engines(folder), log.open("w") as err, subprocess.Popen(command, stderr=err, env=env()) as serve:
            try:
                until(lambda: "slotproxy is up" in log.read_text())
                for order in (("swap", "to-strata", "--trial"), ("hold",)):
                    done = slotctl(control, *order)
                    assert done.returncode == 0, done
                yield Running(serve.pid, port, control)
                assert serve.poll() is None, log.read_text()[-2000:]
                assert '"level": "error"' not in log.read_text()
            finally:
                serve.kill()


def _request(port: int) -> bytes:
    body = json.dumps(chat()).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-length: %d\r\n\r\n"
    return head % (port, len(body)) + body


def shown(one: Stay) -> str:
    left = (one.after.memory - one.before.memory) / MiB
    numbers = f"{one.seconds:>7.1f}  {one.each / KiB:>8.1f}  {left:>8.1f}"
    counts = f"{one.name:>10}  {one.stayed:>6}  {one.told:>5}  {one.closed:>6}"
    waits = (f"{1000 * statistics.median(each):>9.1f} {1000 * max(each):>8.1f}" for each in one.asked.values())
    return "  ".join((counts, numbers, *waits))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
