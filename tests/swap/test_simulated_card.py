"""The demo's card keeps the contract of every card."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.spec import GiB
from swap.ports import CardUnknown
from swap.simulated import SimulatedCard
from tests.swap.card_contract import TOTAL, CardBed, CardContract


class TestSimulatedCard(CardContract):
    @pytest.fixture
    def bed(self, tmp_path: Path) -> CardBed:
        folder = tmp_path / "card"
        return CardBed(
            folder, SimulatedCard(folder, TOTAL), slow=lambda bound: SimulatedCard(folder, TOTAL, bound=bound)
        )


async def test_the_engines_find_its_size_in_the_folder(tmp_path: Path) -> None:
    assert (await SimulatedCard(tmp_path, 24 * GiB).memory()).total == 24 * GiB
    assert (tmp_path / "total").read_text().strip() == str(24 * GiB)


async def test_each_folder_is_a_card_of_its_own_and_says_that_it_is_simulated(tmp_path: Path) -> None:
    one, same, other = [await SimulatedCard(tmp_path / name, TOTAL).identity() for name in ("a", "a", "b")]
    assert one == same
    assert one.uuid != other.uuid
    assert one.simulated


async def test_a_damaged_folder_is_named(tmp_path: Path) -> None:
    card = SimulatedCard(tmp_path, TOTAL)
    await card.memory()
    (tmp_path / "reserved").write_text("much")
    with pytest.raises(CardUnknown, match=str(tmp_path)):
        await card.memory()
