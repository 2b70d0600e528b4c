"""What any `Card` must do that reads a simulated card's folder. Subclass `CardContract`, give it a `bed` fixture.

The memory is really taken: by a process of its own that holds an `engines.simvram.Allocation` until it is killed.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from engines.spec import GiB, MiB
from swap.ports import Card, CardUnknown

LIMIT = 60.0  # seconds that anything here may take on a busy machine
TOTAL = 32 * GiB

HOLDER = """
import sys, time
from pathlib import Path
from engines.simvram import Allocation
held = Allocation(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), linger=float(sys.argv[4]))
print("taken", flush=True)
time.sleep(600)
"""


@dataclass(frozen=True, slots=True)
class CardBed:
    """A card of 32 GiB, empty at first, and the folder that it is read from. `slow(bound)`: with another bound."""

    folder: Path
    card: Card
    slow: Callable[[float], Card]

    def write(self, name: str, text: object) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


@contextmanager
def taken(folder: Path, name: str, size: int, linger: float = 0.0) -> Iterator[int]:
    """The pid of a process that holds `size` bytes; it is killed at the end, if it still lives."""
    command = [sys.executable, "-c", HOLDER, str(folder), name, str(size), str(linger)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"taken\n"
            yield holder.pid
        finally:
            holder.kill()


@contextmanager
def sleeping() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        try:
            yield sleeper.pid
        finally:
            sleeper.kill()


class CardContract:
    """The tests. They use nothing but the bed and the port."""

    @pytest.fixture
    def bed(self) -> CardBed:
        raise AssertionError("a contract's subclass gives it a bed")

    async def test_an_empty_card_is_all_free(self, bed: CardBed) -> None:
        memory = await bed.card.memory()
        assert (memory.total, memory.free, memory.used, memory.reserved) == (TOTAL, TOTAL, 0, 0)
        assert await bed.card.processes() == ()

    async def test_what_the_driver_reserves_is_neither_free_nor_used(self, bed: CardBed) -> None:
        bed.write("reserved", 500 * MiB)
        bed.write("baseline", 1 * GiB)
        memory = await bed.card.memory()
        assert (memory.free, memory.used, memory.reserved) == (31 * GiB - 500 * MiB, 1 * GiB, 500 * MiB)

    async def test_memory_that_a_process_takes_is_not_free_and_names_it(self, bed: CardBed) -> None:
        with taken(bed.folder, "engine", 30 * GiB) as pid:
            assert (await bed.card.memory()).free == 2 * GiB
            (holder,) = await bed.card.processes()
            assert (holder.pid, holder.bytes) == (pid, 30 * GiB)
            assert holder.name

    async def test_a_killed_process_frees_its_memory(self, bed: CardBed) -> None:
        with taken(bed.folder, "engine", 30 * GiB):
            assert (await bed.card.memory()).free == 2 * GiB
        assert (await bed.card.memory()).free == TOTAL
        assert await bed.card.processes() == ()

    async def test_memory_released_late_is_used_and_held_by_nobody(self, bed: CardBed) -> None:
        with taken(bed.folder, "engine", 30 * GiB, linger=600.0):
            pass
        assert (await bed.card.memory()).free == 2 * GiB
        assert await bed.card.processes() == ()
        os.utime(bed.folder / "allocations/engine", (0, 0))  # 600 seconds later
        assert (await bed.card.memory()).free == TOTAL

    async def test_a_foreign_holder_is_named(self, bed: CardBed) -> None:
        with sleeping() as pid:
            bed.write("foreign/one", f"{31 * GiB} {pid} sleep 600")
            assert (await bed.card.memory()).free == 1 * GiB
            (holder,) = await bed.card.processes()
            assert (holder.pid, holder.bytes, holder.name) == (pid, 31 * GiB, "sleep 600")
            assert holder.container == ""

    async def test_a_driver_that_tells_no_processes_makes_only_messages_poorer(self, bed: CardBed) -> None:
        bed.write("foreign/one", f"{31 * GiB} 1 somebody")
        bed.write("errors/processes", 3)
        assert await bed.card.processes() == ()
        assert (await bed.card.memory()).free == 1 * GiB

    async def test_a_driver_that_tells_no_bytes_still_names_the_process(self, bed: CardBed) -> None:
        bed.write("foreign/one", f"{31 * GiB} 1 somebody")
        bed.write("errors/process_bytes", 3)
        (holder,) = await bed.card.processes()
        assert (holder.pid, holder.bytes) == (1, None)

    @pytest.mark.parametrize(
        ("call", "code", "what", "mend"),
        [
            ("memory", 3, "NOT_SUPPORTED", "memory of its own"),
            ("init", 9, "driver is not loaded", "modprobe"),
            ("init", 12, "libnvidia-ml.so.1 is missing", "install"),
            ("init", 18, "differ in version", "reboot, or reload"),
            ("init", 999, "unknown error", "dmesg"),
            ("handle", 15, "fallen off the bus", "reboot"),
            ("memory", 77, "code 77", "nvidia-smi"),
        ],
    )
    async def test_an_error_says_what_it_means_and_what_to_do(
        self, bed: CardBed, call: str, code: int, what: str, mend: str
    ) -> None:
        bed.write(f"errors/{call}", code)
        with pytest.raises(CardUnknown) as error:
            await bed.card.memory()
        assert what in error.value.what
        assert mend in error.value.mend
        assert await bed.card.processes() == () or call == "memory"

    async def test_a_card_without_memory_of_its_own_is_unknown(self, bed: CardBed) -> None:
        await bed.card.memory()
        bed.write("total", 0)
        with pytest.raises(CardUnknown, match="no memory of its own"):
            await bed.card.memory()

    async def test_it_is_asked_afresh_each_time(self, bed: CardBed) -> None:
        bed.write("errors/init", 18)
        with pytest.raises(CardUnknown):
            await bed.card.identity()
        (bed.folder / "errors/init").unlink()
        assert (await bed.card.identity()).uuid
        assert (await bed.card.memory()).free == TOTAL

    async def test_it_tells_what_it_is(self, bed: CardBed) -> None:
        bed.write("name", "Test 5090")
        bed.write("driver", "575.01")
        first, again = await bed.card.identity(), await bed.card.identity()
        assert (first.name, first.driver) == ("Test 5090", "575.01")
        assert first.uuid
        assert again == first

    async def test_a_hung_call_stops_nothing_else_and_no_second_thread_joins_it(self, bed: CardBed) -> None:
        card = bed.slow(0.5)
        await card.memory()
        bed.write("delays/memory", 3)
        ticks = 0
        async with asyncio.TaskGroup() as group:
            group.create_task(_refused(card))
            while not _hanging() or ticks < 10:  # the loop goes round while the call hangs
                await asyncio.sleep(0.01)
                ticks += 1
        for _ in range(5):
            await _refused(card)
        assert await card.processes() == ()
        assert len(_hanging()) == 1
        (bed.folder / "delays/memory").unlink()
        await _until_answered(card)

    async def test_whoever_asks_after_a_cancelled_question_gets_an_answer(self, bed: CardBed) -> None:
        card = bed.slow(LIMIT)
        bed.write("delays/memory", 0.5)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await card.memory()
        assert (await card.memory()).total == TOTAL

    async def test_where_no_thread_can_be_had_the_card_is_unknown_and_asked_again(
        self, bed: CardBed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        card = bed.slow(LIMIT)

        def none(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", none)
            with pytest.raises(CardUnknown, match="no more threads"):
                await card.memory()
            assert await card.processes() == ()
        assert (await card.memory()).total == TOTAL


def _hanging() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "card"]


async def _refused(card: Card) -> None:
    with pytest.raises(CardUnknown, match=r"hasn't answered in 0\.5 s"):
        await card.memory()


async def _until_answered(card: Card) -> None:
    async with asyncio.timeout(LIMIT):
        while True:
            try:
                await card.memory()
            except CardUnknown:
                await asyncio.sleep(0.1)
            else:
                return
