"""What the matrix is worth: each promise is broken once on purpose, and a cell of it shows that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from swap import rules
from swap.boot import Boot
from swap.controller import Controller
from swap.hands import Hands
from swap.moves import Awaited, Done, Failed, Free, Order, Overdue, Unit, Warm
from swap.state import Open, Refusing, State, gate
from tests.faults import town
from tests.faults.__main__ import DOCUMENT
from tests.faults.matrix import Bench, bench, places
from tests.faults.table import BROKEN, FAKES, Cell, read

Breaks = Callable[[pytest.MonkeyPatch], None]


def nothing_is_read_at_boot(patch: pytest.MonkeyPatch) -> None:
    async def entry(_: Boot) -> tuple[None, None]:
        return None, None

    patch.setattr(Boot, "_entry", entry)


def nothing_is_written_before_a_step(patch: pytest.MonkeyPatch) -> None:
    write = Controller._write_journal

    async def written(self: Controller, doing: str, unit: Unit | None = None) -> Any:
        return await write(self, doing, unit) if doing == "serving" else None

    patch.setattr(Controller, "_write_journal", written)


def overdue_is_taken_for_failed(patch: pytest.MonkeyPatch) -> None:
    _reported(patch, lambda report, _: Failed(report.n, "overdue") if isinstance(report, Overdue) else report)


def the_card_is_free_without_asking(patch: pytest.MonkeyPatch) -> None:
    _reported(patch, lambda report, effect: Done(effect.n) if isinstance(effect, Free) else report)


def one_sample_of_free_memory_is_enough(patch: pytest.MonkeyPatch) -> None:
    carry_out = Hands._free

    async def free(self: Hands, effect: Free) -> Any:
        memory = await self.card.memory()
        enough = memory.free >= self.known[effect.unit].engine.vram + self.headroom
        return Done(effect.n) if enough else await carry_out(self, effect)

    patch.setattr(Hands, "_free", free)


def _reported(patch: pytest.MonkeyPatch, instead: Callable[[Any, Awaited], Any]) -> None:
    carry_out = Hands.carry_out

    async def carried_out(self: Hands, effect: Awaited, order: Order | None) -> Any:
        return instead(await carry_out(self, effect, order), effect)

    patch.setattr(Hands, "carry_out", carried_out)


def the_gate_opens_before_the_engine_is_warm(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("swap.controller.gate", lambda state: _early(state) or gate(state))


def clients_are_refused_in_the_dark_that_passes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("swap.controller.gate", lambda state: Refusing(state.dark) if state.dark else gate(state))


def _early(state: State) -> Open | None:
    return Open(state.doing.unit) if isinstance(state.doing, Warm) else None


def what_failed_is_left_running(patch: pytest.MonkeyPatch) -> None:
    right = rules.in_the_way
    patch.setattr(rules, "in_the_way", lambda state, goal: frozenset() if state.failure else right(state, goal))


def the_engine_is_stopped_with_the_gate_open(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "must_drain", lambda state, victim: False)


def an_order_is_left_alone_at_the_end(patch: pytest.MonkeyPatch) -> None:
    async def leave(_: Controller) -> None:
        return None

    patch.setattr(town, "leave", leave)


SEEN: dict[Breaks, tuple[str, str]] = {
    nothing_is_read_at_boot: ("boot: look", "all clients leave"),
    nothing_is_written_before_a_step: ("stop", "SIGKILL in mid-call, a new daemon at once"),
    overdue_is_taken_for_failed: ("start", "it times out, and succeeds soon after"),
    the_card_is_free_without_asking: ("free", "the step fails"),
    one_sample_of_free_memory_is_enough: ("free", "it lies once: says that it is done, and isn't"),
    the_gate_opens_before_the_engine_is_warm: ("warm", "the step fails"),
    clients_are_refused_in_the_dark_that_passes: ("free", "NVML errs for long"),
    what_failed_is_left_running: ("warm", "the step fails"),
    the_engine_is_stopped_with_the_gate_open: ("stop", "the step fails"),
    an_order_is_left_alone_at_the_end: ("drain", "SIGTERM as it begins"),
}


@pytest.fixture(scope="module")
def stage() -> Iterator[Bench]:
    with bench() as stage:
        for place in places(("check", "back: free", "boot: look")):
            stage.case(place[0], place[2])  # rehearsed while nothing is broken
        yield stage


@pytest.fixture(scope="module")
def written() -> list[Cell]:
    return read(DOCUMENT.read_text(), FAKES)


@pytest.mark.parametrize("breaks", SEEN, ids=lambda breaks: breaks.__name__)
def test_a_cell_shows_that(stage: Bench, written: list[Cell], breaks: Breaks, monkeypatch: pytest.MonkeyPatch) -> None:
    step, fault = SEEN[breaks]
    breaks(monkeypatch)
    found = [stage.cell(*place)[0] for place in places((step,)) if place[1].name == fault]
    right = [cell for cell in written if (cell.step, cell.fault) == (step, fault)]
    assert len(found) == len(right) == 3
    wrong = [cell for cell in found if cell not in right]
    assert wrong, found
    assert BROKEN in {cell.result for cell in wrong} or wrong == found
