"""The benches run; what they measure is read by people, and no test depends on it."""

from __future__ import annotations

import shutil

import pytest

from tests.bench import hashing, large, waiting


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs sha256sum (coreutils)")
def test_the_hashing_bench_compares_the_two_and_they_agree(capsys: pytest.CaptureFixture[str]) -> None:
    assert hashing.main(["3MiB"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "3MiB, seconds"
    assert len(shown) == 3 + hashing.ROUNDS
    assert shown[-1].startswith("ratio of the best: ")


def test_the_bench_of_large_bodies_shows_gaps_and_memory_for_each_kind(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large, "ALONE", 0.2)
    monkeypatch.setattr(large, "KINDS", ("image", "numbers"))
    assert large.main(["1MiB"]) == 0
    rows = capsys.readouterr().out.splitlines()[-5:]
    assert [row[:24].strip() for row in rows] == [
        "alone, no proxy",
        "alone",
        "1MiB no proxy",
        "1MiB image",
        "1MiB numbers",
    ]
    assert len(rows[-1][24:].split()) == 9


def test_the_bench_of_waiting_clients_shows_what_each_costs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "WATCHED", 0.1)
    monkeypatch.setattr(waiting, "ROUNDS", 1)
    assert waiting.main(["5"]) == 0
    rows = capsys.readouterr().out.splitlines()[-2:]
    assert [row.split()[0] for row in rows] == ["plain", "streams"]
