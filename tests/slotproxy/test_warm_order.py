"""Two agents that take turns at NInfer's simulator, through the real proxy: what its prefix cache saves (`cache_n`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.warm import engine_at, interleaved, main
from tests.engines.ninfer_child import Child

TURNS = 8


@pytest.fixture
def ninfer(tmp_path: Path) -> Iterator[Child]:
    with engine_at(tmp_path) as running:
        yield running


async def test_the_next_turn_goes_first_and_most_of_each_prompt_need_not_be_read_again(ninfer: Child) -> None:
    """The wait is generous, for a busy machine: here it is about the order, not about its price."""
    cold = await interleaved(ninfer, TURNS, 0, 0.0)
    warm = await interleaved(ninfer, TURNS, 3, 2.0)
    assert len(cold.turns) == len(warm.turns) == 2 * TURNS
    assert cold.anew >= 2 * TURNS - 4, "without it they take turns, and each prompt is read from its beginning"
    assert warm.anew <= 2 * TURNS / 4 + 2
    assert warm.read < cold.read / 2


def test_the_bench_shows_each_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["2"]) == 0
    shown = [line.split("{")[0].strip() for line in capsys.readouterr().out.splitlines() if "most in a row" in line]
    assert shown == ["off", "no wait", "as configured"]
