"""Orders to a real house: who is refused, what is given up, and what is true when slotctl says how it ended."""

from __future__ import annotations

import subprocess
import time

import pytest

from engines.spec import MiB
from tests.system.clients import TOKENS, Background
from tests.system.house import LIMIT, House
from tests.system.relay import Relay
from tests.system.watch import Watch

pytestmark = [pytest.mark.docker, pytest.mark.slow]

IN_THE_WAY = 1400 * MiB  # it fits beside an engine, but leaves less than a start asks for
ENDLESS = 50_000  # tokens: longer than any test
LONG = 1500  # three seconds


def test_an_order_for_the_same_pair_joins_and_another_is_refused(house: House) -> None:
    stream = Background(house.url, tokens=LONG).wait_begun()
    with house.order("swap", "to-llama") as first, house.order("swap", "to-llama") as second:
        house.wait(lambda: house.status()["swap"], "the swap to be under way")
        code, _, said = house.slotctl("swap", "to-ninfer")
        assert code == 3
        assert "a swap to llama:tiny is under way" in said
        assert first.wait(LIMIT) == second.wait(LIMIT) == 0
    assert stream.answer().fault(LONG) == ""
    assert house.running() == ["llama"]


def test_a_drain_that_takes_too_long_is_given_up_and_the_engine_is_never_touched(house: House) -> None:
    run, other = house.run_of("ninfer"), house.run_of("llama")
    stream = Background(house.url, tokens=LONG * 2).wait_begun()
    code, _, said = house.slotctl("swap", "to-llama", "--drain", "300ms")
    assert code == 4
    assert "ninfer:v2 serves again: 1 request in flight after 0.3 s" in said
    assert not stream.over
    assert house.gate() == ("open", "ninfer")
    assert stream.answer().fault(LONG * 2) == ""
    assert (house.run_of("ninfer"), house.run_of("llama")) == (run, other)


def test_an_abort_leaves_a_stream_alone_and_cut_ends_it_with_an_error_in_it(house: House) -> None:
    run, other = house.run_of("ninfer"), house.run_of("llama")
    with Relay(house.port) as relay:
        stream = Background(relay.url, tokens=ENDLESS).wait_begun()
        with house.order("swap", "to-llama") as swap:
            house.wait(lambda: house.status()["state"] == "draining", "the swap to drain")
            house.ok("swap", "--abort")
            assert ended(swap) == (4, "slotctl: ninfer:v2 serves again: given up by the operator\n")
        assert not stream.over
        assert house.gate() == ("open", "ninfer")
        assert (house.run_of("ninfer"), house.run_of("llama")) == (run, other)

        waiting = Background(house.url)
        house.wait(lambda: house.status()["gate"]["waiting"] == 1, "the next to wait")
        house.ok("swap", "to-llama", "--drain", "100ms", "--cut")
        answer = stream.answer()
    assert "ended by the operator" in answer.error
    assert answer.engine == "ninfer"
    seen = relay.connections[0].received
    assert b"[DONE]" not in seen
    assert not seen.endswith(b"0\r\n\r\n")
    assert waiting.answer().fault(TOKENS) == ""
    assert waiting.answer().engine == "llama"


def test_an_abort_when_the_engine_is_down_brings_it_back(house: House) -> None:
    run, other = house.run_of("ninfer"), house.run_of("llama")
    in_the_way = house.occupy(IN_THE_WAY)
    with Watch(house) as watch, house.order("swap", "to-llama") as swap:
        house.wait(lambda: house.status()["state"] == "freeing", "the swap to wait for memory")
        assert house.running() == []
        waiting = Background(house.url)
        house.ok("swap", "--abort")
        in_the_way.unlink()
        assert ended(swap) == (4, "slotctl: ninfer:v2 serves again: given up by the operator\n")
    assert waiting.answer().fault(TOKENS) == ""
    assert waiting.answer().engine == "ninfer"
    assert house.run_of("ninfer")[0] == run[0]
    assert house.run_of("ninfer") != run
    assert house.run_of("llama") == other
    watch.check()


def test_abort_without_a_swap_is_refused(house: House) -> None:
    code, _, said = house.slotctl("swap", "--abort")
    assert (code, said) == (3, "slotctl: no swap is under way\n")


@pytest.mark.parametrize("phase", ["stopping", "freeing", "warming"])
def test_a_daemon_killed_in_a_swap_is_lost_and_the_next_one_has_one_engine_serve(house: House, phase: str) -> None:
    """Case 45: SIGKILL; each step of it is in the fault matrix."""
    if phase == "freeing":
        house.occupy(IN_THE_WAY)
    with Watch(house) as watch:
        with house.order("swap", "to-llama") as swap:
            assert swap.stdout is not None
            for line in swap.stdout:
                if phase in line.split():
                    break
            house.kill()
            killed = time.monotonic()
            assert swap.wait(LIMIT) == 6
            assert time.monotonic() - killed < 5 + 1
        left = house.run_of("llama") if phase == "warming" else None
        for file in (house.card / "foreign").glob("*"):
            file.unlink()
        house.serve()
        house.wait(lambda: house.gate()[0] == "open", "one of them to serve")
        serving = house.status()["holder"]
        assert house.running() == [serving]
        assert left in (None, house.run_of(serving))  # what ran was found, and never touched
        answer = Background(house.url).answer()
        assert (answer.engine, answer.fault(TOKENS)) == (serving, "")
    watch.check()


def ended(order: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code, and what it said on stderr."""
    _, said = order.communicate(timeout=LIMIT)
    return order.returncode, said
