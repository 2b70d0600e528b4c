"""The benches run; what they measure is read by people, and no test depends on it."""

from __future__ import annotations

import shutil

import pytest

from tests.bench import hashing


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs sha256sum (coreutils)")
def test_the_hashing_bench_compares_the_two_and_they_agree(capsys: pytest.CaptureFixture[str]) -> None:
    assert hashing.main(["3MiB"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "3MiB, seconds"
    assert len(shown) == 3 + hashing.ROUNDS
    assert shown[-1].startswith("ratio of the best: ")
