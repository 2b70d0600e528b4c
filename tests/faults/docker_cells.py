"""The cells of the fault matrix on a real Docker: one swap, one fault in one step of it, and what is true afterwards.

The steps and how a swap is held in them: `tests.faults.scene`. While each cell runs four clients ask without a pause;
what they may lose is what a rule ends: the requests that the killed daemon had, the answer that a dying engine was
giving.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

from swap.journal import FileJournal
from tests.faults.scene import STEPS, Held, Scene
from tests.faults.table import NEW, NOT_APPLICABLE, OLD, Cell
from tests.system.clients import TOKENS, Answer, Streamers
from tests.system.watch import Watch

DAEMON, OLD_DIES, NEW_DIES = "slotproxy gets SIGKILL", "`docker kill` of the old one", "`docker kill` of the new one"
RESTART, CRASH = "dockerd is restarted", "dockerd gets SIGKILL and is started"
FAULTS = (DAEMON, OLD_DIES, NEW_DIES, RESTART, CRASH)
DIRECTIONS = (("strata", "ninfer"), ("ninfer", "strata"))
CLIENTS = 4
UNTOUCHED = ("check", "stage", "drain")  # before these are over nothing of the old engine may change
OLD_IS_DOWN = ("free", "start", "warm", "serve")
NEW_IS_UP = ("warm", "serve")


@dataclass(frozen=True, slots=True)
class Place:
    """One cell's."""

    step: str
    fault: str
    old: str
    new: str

    @property
    def variant(self) -> str:
        return f"{self.old} → {self.new}"

    @property
    def impossible(self) -> str:
        """Why this can't happen; empty: it can."""
        if self.fault == OLD_DIES and self.step in OLD_IS_DOWN:
            return "it is down already"
        if self.fault == NEW_DIES and self.step not in NEW_IS_UP:
            return "it isn't up yet"
        return ""

    def cell(self, result: str, note: str = "") -> Cell:
        return Cell(self.step, self.fault, self.variant, result, note)


def places() -> Iterator[Place]:
    """All of them, those of one direction beside those of the other, so that few swaps are made between them."""
    for step in STEPS:
        for fault in FAULTS:
            yield from (Place(step, fault, *pair) for pair in DIRECTIONS)


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
        check(scene, place, code, holder, before)
        answered(scene, clients, holder)
        other = place.old if holder == place.new else place.new
        house.ok("swap", f"to-{other}")
        answered(scene, clients, other)
        assert house.running() == [other]
    watch.check()
    nobody_lost(place, clients.answers, began, over)
    return place.cell(NEW if holder == place.new else OLD, f"exit code {code}" if swap.order else "")


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
    """Waits until the one that serves is the one that runs and has the card, and nothing is under way; that one."""
    scene.house.wait(lambda: _serving(scene), "one of them to serve")
    return str(scene.house.gate()[1])


def _serving(scene: Scene) -> bool:
    house = scene.house
    gate, engine = house.gate()
    if gate != "open" or engine is None or house.status()["swap"] is not None:
        return False
    return house.running() == [engine] and bool(scene.pids(engine))


def check(scene: Scene, place: Place, code: int, holder: str, before: tuple[str, str]) -> None:
    """Exactly one engine is up and has the card, the exit code said the truth, the journal knows who serves."""
    house = scene.house
    assert house.running() == [holder]
    assert scene.pids(holder)
    assert not scene.pids(place.old if holder == place.new else place.new)
    true = {0: place.new, 3: place.old, 4: place.old, 5: holder, 6: holder}
    assert true[code] == holder, f"exit code {code}, and {holder} serves"
    assert (code == 6) == (place.fault == DAEMON and place.step != "serve")
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
    assert len(lost) <= 1, faults(lost)
    for one in lost:
        assert one.engine, one.error  # it had begun to be answered: by what died
        assert one.ended >= began, one.error
        assert one.began <= over, one.error


def faults(answers: list[Answer]) -> list[str]:
    return [answer.fault(TOKENS) for answer in answers]
