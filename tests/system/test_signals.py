"""SIGTERM in the middle of a swap, and reloads, with engines in real containers."""

from __future__ import annotations

import os
import signal

import pytest
import yaml

from engines.spec import MiB
from tests.system.clients import TOKENS, Background
from tests.system.house import LIMIT, House
from tests.system.watch import Watch

pytestmark = [pytest.mark.docker, pytest.mark.slow]

IN_THE_WAY = 1400 * MiB  # it fits beside an engine, but leaves less than a start asks for
ENDLESS = 50_000  # tokens: longer than any test
LONG = 600  # tokens: about a second


def test_sigterm_before_anything_was_stopped_undoes_the_swap_and_touches_no_container(house: House) -> None:
    """Case 43: an endless stream ends with an error in it, and a request that waits is told."""
    runs = house.run_of("ninfer"), house.run_of("llama")
    stream = Background(house.url, tokens=ENDLESS).wait_begun()
    with house.order("swap", "to-llama") as swap:
        house.wait(lambda: house.status()["state"] == "draining", "the swap to drain")
        waiting = Background(house.url)
        house.wait(lambda: house.status()["gate"]["waiting"] == 1, "the next to wait")
        assert house.stop() == 0
        _, said = swap.communicate(timeout=LIMIT)
        assert swap.returncode == 4
        assert said == "slotctl: ninfer:v2 serves again: given up by the operator; slotproxy is stopping\n"
    assert "the proxy stops" in stream.answer().error
    assert "slotproxy is stopping" in waiting.answer().error
    house.serve()
    house.wait_serving("ninfer")
    assert (house.run_of("ninfer"), house.run_of("llama")) == runs


def test_sigterm_after_the_engine_was_stopped_leaves_the_swap_to_the_next_daemon(house: House) -> None:
    """Case 45: with SIGTERM."""
    in_the_way = house.occupy(IN_THE_WAY)
    with Watch(house) as watch, house.order("swap", "to-llama") as swap:
        house.wait(lambda: house.status()["state"] == "freeing", "the swap to wait for memory")
        assert house.stop() == 0
        assert swap.wait(LIMIT) == 6
        assert house.running() == []
        in_the_way.unlink()
        house.serve()
        house.wait(lambda: house.gate()[0] == "open", "one of them to serve")
        assert house.running() == [house.status()["holder"]]
        assert Background(house.url).answer().fault(TOKENS) == ""
    watch.check()


def test_a_reload_touches_no_container_whatever_changed_in_the_entry_of_the_one_that_runs(house: House) -> None:
    """What it runs is declared anew: the next swap would make it so. Its file is put back in the end."""
    path = house.folder / "slotproxy.yml"
    good, runs = path.read_text(), (house.run_of("ninfer"), house.run_of("llama"))
    stream = Background(house.url, tokens=LONG).wait_begun()
    try:
        keys = yaml.safe_load(good)
        keys["engines"]["ninfer"] |= {"url": "http://127.0.0.1:9", "stop_grace": "11s"}
        path.write_text(yaml.safe_dump(keys))
        said = house.ok("reload").splitlines()
        assert said[-1].strip() == (
            "ninfer: entry changed; it is left as it is, the next swap to it runs what is declared now"
        )
        assert Background(house.url).answer().fault(TOKENS) == "", "it is reached where it listens"
        del keys["engines"]["ninfer"]
        path.write_text(yaml.safe_dump({**keys, "models": {}, "default": "llama"}))
        code, _, refused = house.slotctl("reload")
        assert code == 3
        assert "engines.ninfer can't be removed now" in refused
        path.write_text("listen: [")
        assert house.slotctl("reload")[0] == 2
    finally:
        path.write_text(good)
        assert house.pid is not None
        os.kill(house.pid, signal.SIGHUP)
        house.wait(lambda: "the configuration is taken over" in house.tail(), "the file that was put back")
    assert stream.answer().fault(LONG) == ""
    assert (house.run_of("ninfer"), house.run_of("llama")) == runs
    assert house.gate() == ("open", "ninfer")
