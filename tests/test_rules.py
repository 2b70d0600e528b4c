"""The rules of `tests/conftest.py`, each seen to catch what it is for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

SINNERS = """
import asyncio
from pathlib import Path
import pytest
from slotproxy.config import load

TASKS = set()

async def test_leaves_a_task_behind():
    TASKS.add(asyncio.get_running_loop().create_task(asyncio.sleep(100)))

async def test_blocks_the_loop():
    load(Path(__file__))

async def test_blocks_the_loop_and_swallows_the_error():
    try:
        load(Path(__file__))
    except Exception:
        pass

async def test_leaves_a_task_that_ends_by_itself():
    TASKS.add(asyncio.get_running_loop().create_task(asyncio.sleep(0.01)))

async def test_blocks_a_thread():
    with pytest.raises(Exception, match="test_sinners"):
        await asyncio.to_thread(load, Path(__file__))

def test_skips():
    pytest.skip("no such thing here")

@pytest.mark.docker
def test_needs_docker():
    pass

@pytest.mark.xfail
def test_expects_to_fail():
    assert False
"""


def sin(tmp_path: Path, **env: str) -> dict[str, str]:
    """What became of each of the sinners: its worst outcome."""
    file = tmp_path / "test_sinners.py"
    file.write_text(SINNERS)
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-c", "pyproject.toml", "--rootdir", str(tmp_path)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLOTPROXY_", "PYTEST_"))}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-n0", "-v", "--tb=no", "-r", "N", *options, str(file)],
        cwd=ROOT,
        env={**clean, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = [line.split() for line in run.stdout.splitlines() if "::test_" in line]
    assert lines, run.stdout + run.stderr
    return {words[0].split("::")[1]: words[1] for words in lines}


@pytest.mark.parametrize("strict", [False, True])
def test_sins_against_the_rules_are_caught_and_the_innocent_pass(tmp_path: Path, strict: bool) -> None:
    outcomes = sin(tmp_path, SLOTPROXY_TEST_STRICT="1" if strict else "")
    assert outcomes == {
        "test_leaves_a_task_behind": "ERROR",
        "test_blocks_the_loop": "ERROR",
        "test_blocks_the_loop_and_swallows_the_error": "ERROR",
        "test_leaves_a_task_that_ends_by_itself": "PASSED",
        "test_blocks_a_thread": "PASSED",
        "test_skips": "FAILED" if strict else "SKIPPED",
        "test_needs_docker": "ERROR" if strict else "SKIPPED",
        "test_expects_to_fail": "XFAIL",
    }


def test_docker_tests_run_where_a_daemon_is_named(tmp_path: Path) -> None:
    assert sin(tmp_path, SLOTPROXY_TEST_DOCKER="unix:///nowhere.sock")["test_needs_docker"] == "PASSED"
