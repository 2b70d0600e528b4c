"""What the tests of the traps share: a house of Strata and NInfer, the operator's own hands, and clients who wait."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import yaml

from engines.spec import GiB
from tests.system.bed import DockerBed
from tests.system.house import LIMIT, House, Json
from tests.system.tenants import MODEL, Tenant, ninfer, strata

SERVED, REFUSED, RESTORED, DARK = 0, 3, 4, 5  # slotctl's exit codes
NEVER = "0001-01-01T00:00:00Z"  # when Docker says that a container started which never did
ROOT = Path(__file__).parents[2]
HOLD = """
import pathlib, sys, time
sys.path.insert(0, sys.argv[1])
from engines.simvram import Allocation
held = Allocation(pathlib.Path(sys.argv[2]), "squatter", int(sys.argv[3]))
print("ready", flush=True)
time.sleep(600)
"""


def nothing(strata: Tenant, ninfer: Tenant) -> None:
    """No change to the two engines."""


@contextmanager
def box(
    bed: DockerBed, shim: Path, folder: Path, change: Callable[[Tenant, Tenant], None] = nothing, **config: object
) -> Iterator[House]:
    """A house of Strata (the default engine) and NInfer, written, its daemon not yet started.

    `change` may alter the two before that: (strata, ninfer). `config` goes to the top of slotproxy.yml.
    """
    with House(bed, shim, folder) as house:
        tenants = strata(bed, folder), ninfer(bed, folder)
        change(*tenants)
        house.take_in(*tenants)
        house.config |= config
        house.write()
        yield house


@contextmanager
def strata_serves(house: House) -> Iterator[House]:
    """However the test before left the house: Strata serves; after it the compose files are what they were."""
    house.make_serve("strata")
    texts = {compose_file(house, engine): compose_file(house, engine).read_text() for engine in house.tenants}
    yield house
    for file, text in texts.items():
        file.write_text(text)


def reconfigure(house: House) -> None:
    """Write slotproxy.yml anew, for the next daemon."""
    (house.folder / "slotproxy.yml").write_text(yaml.safe_dump(house.config, sort_keys=False))


# ------------------------------------------------------------------------------------------------- the operator


def compose_file(house: House, engine: str) -> Path:
    return Path(house.tenants[engine].keys["compose"]["file"])


def compose(house: House, engine: str, *arguments: str) -> None:
    """The operator's own `docker compose`, as in the days before the proxy."""
    command = [os.environ["SLOTPROXY_COMPOSE"], "-f", str(compose_file(house, engine)), *arguments]
    env = {**os.environ, "DOCKER_HOST": house.bed.address}
    subprocess.run(command, env=env, check=True, capture_output=True, timeout=LIMIT)


@contextmanager
def editor(house: House, engine: str = "ninfer") -> Iterator[Json]:
    """The engine's service in its compose file: what the block changes is written."""
    file = compose_file(house, engine)
    project = yaml.safe_load(file.read_text())
    yield project["services"][engine]
    file.write_text(yaml.safe_dump(project, sort_keys=False))


def swap(house: House, *arguments: str) -> tuple[int, str]:
    """Exit code and all words of `slotctl swap`."""
    code, out, err = house.slotctl("swap", *arguments)
    return code, out + err


def move(house: House, *labels: str, trial: bool = False) -> None:
    """To each of them in turn; this isn't what a test is about, so no process is started for it."""
    for label in labels:
        engine, _, pair = label.partition(":")
        order = {"engine": engine, "pair": pair or None, "trial": trial}
        with control(house) as desk:
            lines = desk.post("/swap", json=order).text.splitlines()
        assert json.loads(lines[-1])["code"] == SERVED, lines


def plan(house: House, target: str, *, trial: bool = False) -> Json:
    """What `slotctl plan to-TARGET --json` prints: it exits with 0 where this is `allowed`, else with 3."""
    engine, _, pair = target.partition(":")
    with control(house) as desk:
        order = {"engine": engine, "pair": pair or None, "trial": trial}
        lines = desk.post("/plan", json=order).raise_for_status().text.splitlines()
    return dict(json.loads(lines[-1]))


def fields(plan: Json) -> dict[str, tuple[str, str]]:
    """Where the container isn't what is declared, by field: (declared, created)."""
    rows = [one for one in plan["drift"] if one["created"] not in (None, one["declared"])]
    return {one["field"]: (one["declared"], one["created"]) for one in rows}


def said(plan: Json) -> str:
    """All refusals of a plan, with what to do."""
    return "\n".join(f"{one['what']}; {one['mend']}" for one in plan["refusals"])


def pair(house: House, label: str) -> Json:
    """One line of `slotctl pairs`."""
    with control(house) as desk:
        pairs: list[Json] = desk.get("/pairs").raise_for_status().json()["pairs"]
    return next(one for one in pairs if one["label"] == label)


def used(house: House) -> int:
    """Bytes of the card in use, as NVML tells `slotctl gpu`."""
    with control(house) as desk:
        return int(desk.get("/gpu").raise_for_status().json()["used"])


def control(house: House) -> httpx.Client:
    """The control socket itself: what is asked here would cost a process each time."""
    transport = httpx.HTTPTransport(uds=str(house.config["control"]))
    return httpx.Client(transport=transport, base_url="http://slotproxy", timeout=LIMIT, trust_env=False)


def ids(house: House) -> dict[str, tuple[str, str]]:
    """Each engine's container, and its run."""
    return {name: house.run_of(name) for name in house.tenants if house.container(name)}


def asked(container: Json) -> Json:
    """All that a container was asked to be: not its identity, its state, and the names that follow from its id."""
    config = {key: value for key, value in container["Config"].items() if key != "Hostname"}
    host = {**container["HostConfig"], "Binds": sorted(container["HostConfig"]["Binds"] or [])}
    return {"config": config, "host": host, "image": container["Image"], "name": container["Name"]}


def unix(docker_time: str) -> float:
    """Docker's time stamp as Unix time."""
    return datetime.fromisoformat(docker_time[:26].rstrip("Z")).replace(tzinfo=UTC).timestamp()


# ------------------------------------------------------------------------------------------------- clients


@contextmanager
def client(house: House) -> Iterator[Callable[[], Future[httpx.Response]]]:
    """`send()` sends a request from a thread of its own. All are answered before the block ends."""
    with ThreadPoolExecutor(4) as threads:
        yield lambda: threads.submit(ask, house)


def ask(house: House) -> httpx.Response:
    body: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
    return httpx.post(f"{house.url}/v1/chat/completions", json=body, timeout=LIMIT, trust_env=False)


def served_by(response: httpx.Response) -> str:
    """The engine that answered; the answer was whole."""
    assert response.status_code == 200, response.text
    assert response.json()["choices"][0]["finish_reason"] in ("stop", "length")
    return str(response.headers["X-Slotproxy-Engine"])


def in_phase(house: House, *phases: str) -> None:
    """Wait until the swap under way is in one of these phases."""
    house.wait(lambda: (house.status()["swap"] or {}).get("phase") in phases, f"the swap to be {phases}")


# ------------------------------------------------------------------------------------------------- the card


def share(tenant: Tenant, need: int, prefix: str) -> None:
    """Give an engine another need (GiB); it takes just that."""
    tenant.keys["vram"] = f"{need}GiB"
    tenant.service["environment"][f"{prefix}VRAM"] = str(need * GiB)


@contextmanager
def squatter(house: House, size: int) -> Iterator[subprocess.Popen[str]]:
    """A process of the host's, no engine, that holds so many GiB of the card: `python squatter.py`."""
    with process(house.folder / "squatter.py", HOLD, str(ROOT), str(house.card), str(size * GiB)) as running:
        yield running


@contextmanager
def process(file: Path, program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Python of its own runs the program, which says that it is `ready`; ended by its pid after the block."""
    file.write_text(program)
    command = [sys.executable, str(file), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "ready\n"
            yield running
        finally:
            running.kill()
