"""The cells of the fault matrix on a real Docker: one swap, one fault in one step of it, and what is true afterwards.

The steps and how a swap is held in them: `tests.faults.scene`. While each cell runs four clients ask without a pause;
what they may lose is what a rule ends: the requests that the killed daemon had, the answer that a dying engine was
giving, and what a dying engine has taken and not begun to answer, since nothing is ever sent twice.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from swap.journal import FileJournal
from tests.faults.scene import BACK, STEPS, Held, Scene
from tests.faults.table import BROKEN, DARK, NEW, NOT_APPLICABLE, OLD, Cell
from tests.system.clients import TOKENS, Answer, Streamers
from tests.system.watch import Watch

DAEMON, OLD_DIES, NEW_DIES = "slotproxy gets SIGKILL", "`docker kill` of the old one", "`docker kill` of the new one"
RESTART, CRASH = "dockerd is restarted", "dockerd gets SIGKILL and is started"
FAULTS = (DAEMON, OLD_DIES, NEW_DIES, RESTART, CRASH)
VARIANT = "two engines"
DIRECTIONS = (("strata", "ninfer"), ("ninfer", "strata"))
CLIENTS = 4
LEFT = ("docker-proxy", "already allocated", "already exists")
BY_HAND = "; then Docker said that it can't start the other one, until its half-started container was removed by hand"
UNHEARD = "closed the connection without an answer"  # a dying engine may have seen it: it is never sent twice
LOST = 6  # slotctl's exit code where the daemon has ended before it could answer
UNTOUCHED = ("check", "stage", "drain")  # before these are over nothing of the old engine may change
OLD_IS_DOWN = ("free", "start", "warm", "serve", "back: free", "back: start")
NEW_IS_UP = ("warm", "serve")


@dataclass(frozen=True, slots=True)
class Place:
    """One cell's."""

    step: str
    fault: str
    old: str
    new: str

    @property
    def impossible(self) -> str:
        """Why this can't happen; empty: it can."""
        if self.fault == OLD_DIES and self.step in OLD_IS_DOWN:
            return "it is down already"
        if self.fault == NEW_DIES and self.step not in NEW_IS_UP:
            return "it is down already" if self.step in BACK else "it isn't up yet"
        return ""

    def cell(self, result: str, note: str = "") -> Cell:
        return Cell(self.step, self.fault, VARIANT, result, note)


def places() -> Iterator[Place]:
    """All of them, each in another direction than the one before."""
    direction = cycle(DIRECTIONS)
    for step in (*STEPS, *BACK):
        for fault in FAULTS:
            place = Place(step, fault, *DIRECTIONS[0])
            yield place if place.impossible else Place(step, fault, *next(direction))


def tried(scene: Scene, place: Place) -> Cell:
    """As `run`; a broken promise is the result."""
    try:
        return run(scene, place)
    except AssertionError as broken:
        scene.mend()
        return place.cell(BROKEN, " ".join(str(broken).replace("|", "/").split()) or "see the log")


def run(scene: Scene, place: Place) -> Cell:
    """The cell's result. AssertionError: what is promised isn't so."""
    if place.impossible:
        return place.cell(NOT_APPLICABLE, place.impossible)
    house = scene.house
    house.make_serve(place.old)
    with Watch(house) as watch, Streamers(house.url, CLIENTS) as clients:
        house.wait(lambda: clients.by(place.old) >= CLIENTS, "clients to be answered")
        before = house.run_of(place.old)
        with scene.held(place.step, place.old, place.new) as swap:
            began = time.monotonic()
            struck(scene, place, swap)
            code = swap.code()
        holder = settled(scene)
        over = time.monotonic()
        if holder:
            check(scene, place, code, holder, before)
            answered(scene, clients, holder)
        other = place.old if holder != place.old else place.new
        clean = swap_on(scene, other, holder)
        answered(scene, clients, other)
        assert house.running() == [other]
        over = over if clean else time.monotonic()
    watch.check()
    nobody_lost(place, clients.answers, began, over)
    answer = "no answer" if code == LOST else f"exit {code}"
    note = f"{answer}, {place.old} → {place.new}{'' if clean else BY_HAND}"
    return place.cell({"": DARK, place.old: OLD, place.new: NEW}[holder], note)


def struck(scene: Scene, place: Place, swap: Held) -> None:
    """The fault, and then the swap is let go; when it returns the daemon and Docker are there again."""
    house, private = scene.house, scene.private
    match place.fault:
        case _ if place.fault == DAEMON:
            house.kill()
            swap.let_go()
            house.serve()
        case _ if place.fault in (OLD_DIES, NEW_DIES):
            house.bed.client.kill(house.container(place.old if place.fault == OLD_DIES else place.new)["Id"])
            swap.let_go()
        case _:
            private.tell(signal.SIGKILL if place.fault == CRASH else signal.SIGTERM)
            swap.let_go()
            private.wait_ended()
            private.start()


def settled(scene: Scene) -> str:
    """Waits until the one that serves is the one that runs and has the card, and nothing is under way; that one.

    Nothing: dark, and the reason is that Docker can't start it any more.
    """
    scene.house.wait(lambda: _serving(scene) or _in_dockers_way(str(scene.house.status()["dark"])), "one to serve")
    return str(scene.house.gate()[1] or "")


def swap_on(scene: Scene, engine: str, holder: str) -> bool:
    """An ordinary swap works; False: what Docker had left was in its way, was said, and was cleared away by hand."""
    code, out, said = scene.house.slotctl("swap", f"to-{engine}")
    if code == 0:
        return True
    assert _in_dockers_way(said), f"swap to-{engine}: {code} {out} {said}"
    assert (code, scene.house.running()) == (4, [holder]) or not holder, said
    clear_away(scene, engine)
    settled(scene)
    scene.house.ok("swap", f"to-{engine}")
    return False


def _in_dockers_way(said: str) -> bool:
    """A dockerd that is killed as it starts a container leaves half of it: only a new container can be started then."""
    return any(sign in said for sign in LEFT)


def clear_away(scene: Scene, engine: str) -> None:
    """By hand: the half-started container, its docker-proxy, and a Docker that starts without them."""
    port = f"-host-port {scene.house.tenants[engine].port} "
    ours = Path("/proc/self/ns/net").readlink()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if "docker-proxy" in words and port in words and (process / "ns/net").readlink() == ours:
                os.kill(int(process.name), signal.SIGKILL)
    scene.house.bed.client.remove_container(scene.house.container(engine)["Id"], force=True)
    scene.private.restart()


def _serving(scene: Scene) -> bool:
    house = scene.house
    gate, engine = house.gate()
    if gate != "open" or engine is None or house.status()["swap"] is not None:
        return False
    return house.running() == [engine] and bool(scene.pids(engine))


def check(scene: Scene, place: Place, code: int, holder: str, before: tuple[str, str]) -> None:
    """Exactly one engine is up and has the card, the exit code said the truth, the journal knows who serves."""
    house = scene.house
    assert house.running() == [holder], house.running()
    assert scene.pids(holder), f"{holder} has no VRAM"
    assert not scene.pids(place.old if holder == place.new else place.new), "the other one has VRAM, too"
    true = {0: place.new, 3: place.old, 4: place.old, 5: holder, LOST: holder}
    assert true[code] == holder, f"exit code {code}, and {holder} serves"
    assert (code == LOST) == (place.fault == DAEMON and place.step != "serve"), f"exit code {code}"
    entry = FileJournal(house.folder / "state" / "journal.json").read()
    assert entry is not None
    assert str(entry.serving).partition(":")[0] == holder
    if place.fault == DAEMON and place.step in UNTOUCHED:
        assert house.run_of(place.old) == before
    assert house.status()["warnings"] == []


def answered(scene: Scene, clients: Streamers, engine: str) -> None:
    """Each of the clients by this engine, from now on."""
    count = clients.by(engine) + 2 * CLIENTS
    scene.house.wait(lambda: clients.by(engine) >= count, f"answers by {engine}")


def nobody_lost(place: Place, answers: list[Answer], began: float, over: float) -> None:
    """What wasn't answered whole was ended by a rule."""
    lost = [answer for answer in answers if answer.fault(TOKENS)]
    if place.fault == DAEMON:
        assert all(one.ended >= began and one.began <= over for one in lost), faults(lost)
        return
    assert all(one.ended >= began and one.began <= over for one in lost), faults(lost)
    assert sum(bool(one.engine) for one in lost) <= 1, faults(lost)  # it was being answered, by what died
    unheard = [one for one in lost if not one.engine and UNHEARD not in one.error]
    assert not unheard, faults(unheard)


def faults(answers: list[Answer]) -> list[str]:
    return [answer.fault(TOKENS) for answer in answers]
