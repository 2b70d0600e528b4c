"""`python -m tests.soak`: see the package. Exits with 1, and tells the last of the story, when something was wrong."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.shim.build import build_shim
from tests.soak.ground import Ground, on_docker, on_processes
from tests.soak.soak import Plan, soak
from tests.system.bed import DockerBed

USUAL = "unix:///var/run/docker.sock"
ROUNDS, EVENTS = 5, 10  # in each life of the daemon
LONGER = 6  # times as long: every third life


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="The soak: swaps, faults and clients.")
    parser.add_argument("--minutes", type=float, default=30.0, help="no life of the daemon begins later (default: 30)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="what is drawn (default: any)")
    parser.add_argument("--docker", action="store_true", help="engines in containers ($SLOTPROXY_TEST_DOCKER)")
    args = parser.parse_args()
    plan = Plan(args.seed, lives=10**6, rounds=ROUNDS, events=EVENTS, seconds=args.minutes * 60, longer=LONGER)
    print(f"seed {plan.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder, _ground(Path(folder), docker=args.docker) as ground:
        return run(ground, plan)


def run(ground: Ground, plan: Plan) -> int:
    report = asyncio.run(soak(ground, plan))
    print(report)
    if report.wrong:
        print(f"\nthe last that happened (seed {plan.seed}):\n{report.story}\n\n{ground.tail()}")
    return 1 if report.wrong else 0


@contextmanager
def _ground(folder: Path, *, docker: bool) -> Iterator[Ground]:
    if not docker:
        with on_processes(folder / "house") as ground:
            yield ground
        return
    package = importlib.util.find_spec("compose")
    assert package is not None
    assert package.origin is not None
    os.environ["SLOTPROXY_COMPOSE"] = str(Path(package.origin).parent / "docker-compose")
    bed = DockerBed(os.environ.get("SLOTPROXY_TEST_DOCKER", USUAL))
    try:
        (folder / "house").mkdir()
        with on_docker(bed, build_shim(folder), folder / "house") as ground:
            yield ground
    finally:
        bed.remove_all()
        bed.client.close()


if __name__ == "__main__":
    sys.exit(main())
